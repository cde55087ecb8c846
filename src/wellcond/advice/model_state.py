"""A model as it is: sizes of its weights, sharpness and gains on a batch, its embedding, and what is out of line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves, tree_map

from wellcond._core.safe_text import briefly
from wellcond.advice.stream_entry import StreamEntry, measure_entry, rms, scaled
from wellcond.attention.capture import evaluating, run_model
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.projection import Projection
from wellcond.attention.undisturbed import undisturbed
from wellcond.attention.view import AttentionLayer
from wellcond.errors import WellcondError
from wellcond.placement.watched_pass import first_tensor
from wellcond.scale.calibration_result import LayerScale
from wellcond.scale.measure_scales import measure_scales

# Fresh models of timm, transformers and torch have none of these: see docs/recommend.md.
LARGER = 4.0  # times the weights that do the same work, from which on weights are out of line
TABLE = 10.0  # the same for tables of embeddings, which differ more from library to library
SHARP = 0.8  # β above which a head attends to few tokens
LARGE_STREAM = 4.0  # root mean square of the stream's entries; 0.02 to 1 are usual
LARGE_MAP = 2.0  # what a map multiplies unit inputs by; 0.58 is torch's law, 1 Lecun's, √2 Kaiming's
LARGE_INPUTS = 2.0  # root mean square of a batch of numbers; normalised images have 1
LARGE_LOGITS = 4.0  # deviation of the output's logits where its matrix is the embedding


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
    factors, large = _embedding_factors(trial, inputs, entry, layers, limit), _large_inputs(trial, inputs, entry, limit)
    follows = f", so {_sharply(state)}" if by_stream else ""
    findings = [
        *_weights(layers, state, by_stream),
        *_embedding(trial, inputs, entry, factors, layers, follows),
        *_large_data(large, entry, follows),
    ]
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
    factors = _embedding_factors(trial, inputs, state.entry, layers, 1.0)
    large, given = _large_inputs(trial, inputs, state.entry, 1.0), _numbers(inputs)
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
    return _times(layers, *compared), _in_some(layers, *compared)


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
    values = _times(layers, ("value",), ("mlp_in", "query", "key"))
    some = _in_some(layers, ("value",), ("mlp_in", "query", "key"))
    if values >= LARGER or some:
        text = f"W_V {some or f'is {values:.2g} × the size of W_Q, W_K and what the MLP reads with'}; {told}"
        yield OutOfLine("values", text, ("value",), None if some else 1 / values)
    against_readers = _times(layers, ("output",), ("value", "mlp_in"))
    writing = _times(layers, ("output",), ("mlp_out",)) or against_readers
    some = _in_some(layers, ("output",), ("mlp_out",)) or _in_some(layers, ("output",), ("value", "mlp_in"))
    if (writing >= LARGER and against_readers >= 1) or some:
        text = f"W_O {some or f'is {writing:.2g} × the size of what the MLP writes with'}: {told}"
        entries = _times(layers, ("output",), ("mlp_out",), by_inputs=False)  # most libraries draw these alike
        factor = None if some else 1 / max(writing, against_readers, entries)
        yield OutOfLine("output projections", text, ("output",), factor)


def _range(ends: tuple[float, float]) -> str:
    low, high = (f"{end:.2g}" for end in ends)
    return low if low == high else f"{low} to {high}"


def _times(
    layers: Sequence[AttentionLayer], roles: Sequence[str], others: Sequence[str], *, by_inputs: bool = True
) -> float:
    """The median over layers of the size of some roles' weights ÷ that of others'; 0 where one of them is not there."""
    found = _compared(layers, roles, others, by_inputs)
    return median(times for _, times in found.values()) if found else 0.0


def _in_some(layers: Sequence[AttentionLayer], roles: Sequence[str], others: Sequence[str]) -> str:
    """In which layers the weights of some roles are out of line with those of the other layers; empty if in none.

    They are if both their size ÷ that of what does the same work in the layer is `LARGER` times that of the others,
    and they themselves are larger: stages differ in width, and a layer may be scaled by its depth.
    """
    found, apart = _compared(layers, roles, others, by_inputs=True), dict[str, float]()
    for name, (size, times) in found.items():
        rest = [found[other] for other in found if other != name]
        sizes, usual = (median(each) for each in zip(*rest, strict=True)) if rest else (0.0, 0.0)
        if usual and times >= LARGER * usual and size >= LARGER / 2 * sizes:
            apart[name] = times / usual
    if not apart:
        return ""
    names, more = [f"'{name}'" for name in apart], f" and {len(apart) - 3} more" * (len(apart) > 3)
    return f"in {', '.join(names[:3])}{more}: {max(apart.values()):.2g} × the size of those in other layers"


def _compared(
    layers: Sequence[AttentionLayer], roles: Sequence[str], others: Sequence[str], by_inputs: bool
) -> dict[str, tuple[float, float]]:
    """By layer, the size of some roles' weights, and the same ÷ that of others', where both are there."""
    found = {}
    for layer in layers:
        own, rest = ([size for role in some for size in _sizes(layer, role, by_inputs)] for some in (roles, others))
        if own and rest and median(rest) > 0:
            found[layer.name] = min(own), min(own) / median(rest)
    return found


def _sizes(layer: AttentionLayer, role: str, by_inputs: bool) -> list[float]:
    """What each matrix of a role multiplies independent unit inputs by, as it is stored, or the RMS of its entries."""
    if role in ("mlp_in", "mlp_out"):
        parts = getattr(layer.block, role) if layer.block is not None else ()
    else:
        parts = tuple(p for _, p in layer.projections(role))
    writes = role in ("output", "mlp_out")
    return [rms(p.read()) * (math.sqrt(_inputs(p, writes)) if by_inputs else 1) for p in parts if not p.refusal()]


def _inputs(projection: Projection, writes: bool) -> int:
    """The number of inputs, which of what writes to the stream are the columns."""
    heads, width, d = projection.shape
    return heads * d if writes else width


def _embedding_factors(
    trial: nn.Module, inputs: Any, entry: StreamEntry | None, layers: AttentionLayers, limit: float
) -> dict[str, float]:
    """Factors that bring what makes a stream above a limit into line; empty where nothing is out of it."""
    if entry is None or all(trial.get_parameter(path).ndim < 2 for path in entry.makers):  # of norms alone, or none
        return {}
    usual = _median_size(layers, by_inputs=False)
    found = dict[str, float]()
    for path, table in _tables(trial).items():
        size = rms(table.weight)
        if path not in entry.makers or not usual or size < TABLE * usual:
            continue
        as_drawn = abs(size - 1) < 5 / math.sqrt(2 * table.weight.numel())  # by nn.Embedding, to five standard errors
        if not as_drawn or _logits(trial, inputs, table) > LARGE_LOGITS:
            found[path] = usual / size
    if not entry.parts:
        return found | _maps(trial, entry, 0.0)
    by_data = _usual_maps(trial, entry) if _large_inputs(trial, inputs, entry, limit) else {}
    left = {path: part for path, part in entry.parts.items() if path not in found and path not in by_data}
    rest = math.hypot(*left.values())
    if rest > limit:
        return found | {path: 1 / rest for path, part in left.items() if part > 1}
    return found | _maps(trial, entry, _median_size(layers, by_inputs=True))


def _maps(trial: nn.Module, entry: StreamEntry, usual: float) -> dict[str, float]:
    """Factors of the matrix or the convolution that makes the stream, where it multiplies unit inputs by too much.

    Before a norm (`usual` is 0 then) that is what would be too large a stream, though the norm hides it from all but
    the optimizer; else what is beyond every usual law, and `TABLE` times what the blocks' weights multiply theirs by.
    """
    gains = _gains(trial, entry)
    if len(gains) != 1:  # a stem of several, whose sizes do not say that of the stream
        return {}
    ((name, gain),) = gains.items()
    if gain <= (max(LARGE_MAP, TABLE * usual) if usual else LARGE_STREAM):
        return {}
    return {f"{name}.{part}": 1 / gain for part in ("weight", "bias") if f"{name}.{part}" in entry.makers}


def _gains(trial: nn.Module, entry: StreamEntry) -> dict[str, float]:
    """What each matrix or convolution that makes the stream multiplies independent unit inputs by, by module."""
    return {
        name: rms(module.weight) * math.sqrt(module.weight[0].numel())
        for name, module in trial.named_modules()
        if isinstance(module, (nn.Linear, _ConvNd)) and f"{name}.weight" in entry.makers
    }


def _usual_maps(trial: nn.Module, entry: StreamEntry) -> dict[str, float]:
    """Parts of the stream by parameters of maps of a usual size: a large one is by the data."""
    usual = {name for name, gain in _gains(trial, entry).items() if gain <= LARGE_MAP}
    return {path: part for path, part in entry.parts.items() if path.rpartition(".")[0] in usual}


def _large_inputs(trial: nn.Module, inputs: Any, entry: StreamEntry | None, limit: float) -> float:
    """Root mean square of a batch of large numbers, where these and no weight make a stream above a limit; else 0."""
    given = _numbers(inputs)
    if entry is None or given is None or rms(given) <= LARGE_INPUTS:
        return 0.0
    return rms(given) * (math.hypot(entry.batch, *_usual_maps(trial, entry).values()) > limit)


def _numbers(inputs: Any) -> Tensor | None:
    return first_tensor(tree_leaves(dict(inputs) if isinstance(inputs, Mapping) else inputs))


def _large_data(large: float, entry: StreamEntry | None, follows: str) -> Iterator[OutOfLine]:
    """The data, where they are what makes the stream large."""
    if large and entry is not None:
        size = f"their root mean square is {large:.2g}, and the stream enters the first block with {entry.size:.2g}"
        yield OutOfLine("the inputs", f"the inputs are large, no weight: {size}{follows}; scale them to about 1")


def _embedding(
    trial: nn.Module,
    inputs: Any,
    entry: StreamEntry | None,
    factors: Mapping[str, float],
    layers: AttentionLayers,
    follows: str,
) -> Iterator[OutOfLine]:
    """The embedding, where it is too large."""
    if entry is None or not factors:
        return
    tables, usual = _tables(trial), _median_size(layers, by_inputs=False)
    names = " and ".join(f"'{path}'" for path in factors)
    hidden = ", though a norm hides it" if not entry.parts else ""
    size = f"the stream enters the first block with a size of {entry.size:.2g}{follows}"
    said = [f"the embedding is large ({names}){hidden}: {size}"]
    times = [rms(tables[path].weight) / usual for path in factors if path in tables and usual]
    if times:
        said.append(f"its entries are {max(times):.2g} × those of the blocks' weights")
    for path in factors:
        logits = _logits(trial, inputs, tables[path]) if path in tables else 0.0
        if logits > LARGE_LOGITS:
            said.append(f"and it is the output's matrix, too, whose logits begin with a deviation of {logits:.2g}")
    yield OutOfLine("the embedding", "; ".join(said))


def _median_size(layers: AttentionLayers, *, by_inputs: bool) -> float:
    """The median size of what reads the stream: root mean square of its entries, or of what it makes of unit inputs."""
    sizes = [size for layer in layers for role in ("value", "mlp_in") for size in _sizes(layer, role, by_inputs)]
    return median(sizes) if sizes else 0.0


def _tables(trial: nn.Module) -> dict[str, nn.Embedding]:
    """Tables of embeddings by the path of their weight."""
    return {
        f"{name}.weight" if name else "weight": module
        for name, module in trial.named_modules()
        if isinstance(module, nn.Embedding)
    }


def _logits(trial: nn.Module, inputs: Any, table: nn.Embedding) -> float:
    """Deviation of what a module other than a table makes with a table's weight; 0 where none has it, or runs."""
    found = list[float]()
    others = [module for module in trial.modules() if not isinstance(module, nn.Embedding)]
    readers = [m for m in others if any(p is table.weight for p in m._parameters.values())]
    with ExitStack() as stack:
        for context in (undisturbed(trial), evaluating(trial), torch.no_grad()):
            stack.enter_context(context)
        for module in readers:
            hook = module.register_forward_hook(lambda _, args, logits: found.append(float(logits.double().std())))
            stack.callback(hook.remove)
        if readers:
            run_model(trial, inputs)
    return max(found, default=0.0)
