"""A model as it is: sizes of its weights, sharpness and gains on a batch, its embedding, and what is out of line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wellcond._core.safe_text import briefly
from wellcond.advice.large_stream import LARGE_STREAM, embedding_factors, embedding_words, large_inputs, numbers_of
from wellcond.advice.stream_entry import StreamEntry, measure_entry, scaled
from wellcond.advice.weight_sizes import LARGER, larger_in_some, times_others
from wellcond.attention.layers import AttentionLayers
from wellcond.errors import WellcondError
from wellcond.scale.calibration_result import LayerScale
from wellcond.scale.measure_scales import measure_scales

# Fresh models of timm, transformers and torch have none of these: see docs/recommend.md.
SHARP = 0.8  # β above which a head attends to few tokens


@dataclass(frozen=True)
class OutOfLine:
    """Something in a model that no fresh model has.

    Args:
        what: it in a word or two.
        text: it in words, with its numbers.
        roles: whose weights are to be set anew.
        factor: that brings these to the size of those that do the same work; None where that is not what is wrong.
    """

    what: str
    text: str
    roles: tuple[str, ...] = ()
    factor: float | None = None


@dataclass(frozen=True, eq=False)
class ModelState:
    """What was measured of a model on a batch.

    Args:
        scales: sharpness of heads and gain of the branch, by layer.
        entry: of the stream; None where it was not seen.
        findings: what is out of line.
        embedding: factors that bring the embedding into line, by parameter; empty if it is.
        unknown: why sharpness and gains are not known, if they are not.
    """

    scales: Mapping[str, LayerScale]
    entry: StreamEntry | None
    findings: tuple[OutOfLine, ...]
    embedding: Mapping[str, float] = field(default_factory=dict)
    unknown: str = ""

    @property
    def sizes(self) -> dict[str, float]:
        """Factors that bring weights into line, by role; empty where they would not mend all that is out of it."""
        of_roles = [finding for finding in self.findings if finding.roles]
        if any(finding.factor is None for finding in of_roles):
            return {}
        return {role: finding.factor for finding in of_roles for role in finding.roles if finding.factor is not None}

    @property
    def smaller(self) -> float:
        """Size of the entering stream with the embedding in line ÷ its size now."""
        if self.entry is None or not self.embedding or not self.entry.size or not self.entry.parts:
            return 1.0
        parts = self.entry.parts.items()
        return math.sqrt(sum((self.embedding.get(path, 1.0) * part) ** 2 for path, part in parts)) / self.entry.size

    @property
    def broken(self) -> bool:
        """Whether weights are out of line, which candidates set anew; the inputs they do not."""
        return bool(self.embedding) or any(finding.roles for finding in self.findings)

    def ranges(self) -> dict[str, tuple[float, float] | None]:
        """The least and the largest sharpness and gain over layers, None where they are not known."""
        betas = [beta for beta in map(mean_beta, self.scales.values()) if beta is not None]
        gains = [scale.branch for scale in self.scales.values() if scale.branch is not None]
        return {
            "beta": (min(betas), max(betas)) if betas else None,
            "branch": (min(gains), max(gains)) if gains else None,
        }


def measure_state(trial: nn.Module, inputs: Any, layers: AttentionLayers) -> ModelState:
    """Measure a copy of a model on a batch.

    Args:
        trial: the copy.
        inputs: what it is called with.
        layers: its attention.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> model = nn.TransformerEncoderLayer(16, 2, batch_first=True, norm_first=True)
    >>> _ = model.self_attn.in_proj_weight.data[:32].mul_(8)
    >>> print(measure_state(model, torch.randn(4, 9, 16), wc.attention_layers(model)).findings[0].text)
    W_Q and W_K are 9.1 × the size of W_V and the MLP's, so heads attend sharply: β is 16 (0.8 is much)
    """
    scales, unknown = dict[str, LayerScale](), ""
    try:
        scales = measure_scales(trial, inputs)
    except WellcondError as error:
        unknown = briefly(error, 300)
    entry = measure_entry(trial, inputs, layers)
    state = ModelState(scales, entry, (), {}, unknown)
    by_stream = _sharp_by_stream(trial, inputs, state, layers)
    limit = 1.0 if by_stream else LARGE_STREAM
    factors, large = embedding_factors(trial, inputs, entry, layers, limit), large_inputs(trial, inputs, entry, limit)
    follows = f", so {_sharply(state)}" if by_stream else ""
    findings = [*_weights(layers, state, by_stream)]
    if entry is not None and factors:
        findings.append(OutOfLine("the embedding", embedding_words(trial, inputs, entry, factors, layers, follows)))
    if entry is not None and large:
        size = f"their root mean square is {large:.2g}, and the stream enters the first block with {entry.size:.2g}"
        findings.append(
            OutOfLine("the inputs", f"the inputs are large, no weight: {size}{follows}; scale them to about 1")
        )
    return ModelState(scales, entry, tuple(findings), factors, unknown)


def mean_beta(scale: LayerScale) -> float | None:
    """The mean sharpness of a layer's heads, None where one is not known."""
    known = [beta for beta in scale.beta if beta is not None]
    return fmean(known) if known and len(known) == len(scale.beta) else None


def _sharp(state: ModelState) -> bool:
    beta = state.ranges()["beta"]
    return beta is not None and beta[1] > SHARP


def _sharply(state: ModelState) -> str:
    beta = state.ranges()["beta"]
    told = "" if beta is None else f"β is {_range(beta)} ({SHARP:g} is much)"
    return f"heads attend sharply: {told}" if _sharp(state) else told


def _sharp_by_stream(trial: nn.Module, inputs: Any, state: ModelState, layers: AttentionLayers) -> bool:
    """Whether heads attend sharply for the stream's size: W_Q and W_K have usual ones, and at 1 none of them does."""
    asking, some = _asking(layers)
    if not _sharp(state) or asking >= LARGER or some:
        return False
    factors = embedding_factors(trial, inputs, state.entry, layers, 1.0)
    large, given = large_inputs(trial, inputs, state.entry, 1.0), numbers_of(inputs)
    named = dict(inputs) if isinstance(inputs, Mapping) else inputs
    inputs = tree_map(lambda x: x / large if large and isinstance(x, Tensor) and x is given else x, named)
    try:
        with scaled(trial, factors):
            return not _sharp(replace(state, scales=measure_scales(trial, inputs)))
    except WellcondError:
        return False


def _asking(layers: AttentionLayers) -> tuple[float, str]:
    """By how much W_Q and W_K are larger than what does the same work, and in which layers alone."""
    compared = ("query", "key"), ("value", "mlp_in")
    return times_others(layers, *compared), larger_in_some(layers, *compared)


def _weights(layers: AttentionLayers, state: ModelState, by_stream: bool) -> Iterator[OutOfLine]:
    """Roles whose weights are much larger than those that do the same work, and what follows from it."""
    gain = state.ranges()["branch"]
    keyed = [layer for layer in layers if not layer.qk_norm]
    hidden = "" if keyed else ", though a norm behind them hides it"
    follows = _sharply(state) if keyed or _sharp(state) else ""
    asking, some = _asking(layers)
    if asking >= LARGER or some or (_sharp(state) and keyed and not by_stream):
        size = f"are {asking:.2g} × the size of W_V and the MLP's" if asking >= LARGER else ""
        size = f"W_Q and W_K {some or size}{hidden}" if some or size else ""
        text = ", so ".join(filter(None, (size, follows)))
        yield OutOfLine("queries and keys", text, ("query", "key"), 1 / asking if size and not some else None)
    told = "" if gain is None else f"it adds {_range(gain)} × the stream"
    values = times_others(layers, ("value",), ("mlp_in", "query", "key"))
    some = larger_in_some(layers, ("value",), ("mlp_in", "query", "key"))
    if values >= LARGER or some:
        text = f"W_V {some or f'is {values:.2g} × the size of W_Q, W_K and what the MLP reads with'}; {told}"
        yield OutOfLine("values", text, ("value",), None if some else 1 / values)
    against_readers = times_others(layers, ("output",), ("value", "mlp_in"))
    writing = times_others(layers, ("output",), ("mlp_out",)) or against_readers
    some = larger_in_some(layers, ("output",), ("mlp_out",)) or larger_in_some(layers, ("output",), ("value", "mlp_in"))
    if (writing >= LARGER and against_readers >= 1) or some:
        text = f"W_O {some or f'is {writing:.2g} × the size of what the MLP writes with'}: {told}"
        entries = times_others(layers, ("output",), ("mlp_out",), by_inputs=False)  # most libraries draw these alike
        factor = None if some else 1 / max(writing, against_readers, entries)
        yield OutOfLine("output projections", text, ("output",), factor)


def _range(ends: tuple[float, float]) -> str:
    low, high = (f"{end:.2g}" for end in ends)
    return low if low == high else f"{low} to {high}"
