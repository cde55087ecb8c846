r"""Find how a block is wired from one pass: which norm stands where, what scales its branches and its skips.

Names differ from model to model, sums do not. A branch f is found in $y = \alpha x + \gamma \circ f(\ldots)$ by
comparing tokens: x is what the block was given, y what the next norm was given (pre-norm: $f(LN(x))$, post-norm:
$LN(y)$).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wellcond.attention.replay import output_of_layer
from wellcond.attention.storage import HALF_DTYPES, fetch, full, split_path
from wellcond.attention.view import AttentionLayer, ResidualBlock
from wellcond.diagnosis.measure.probe import Seen
from wellcond.errors import WellcondError
from wellcond.placement.watched_pass import Sample, Trace, Watched, sample_tokens


class NotPlaced(WellcondError):
    """A layer that the theory has no place for, with the reason."""


@dataclass(frozen=True)
class Branch:
    """One half of a block: what it reads, and how it joins the stream."""

    norm: nn.Module | None  # whose output the branch reads; None if it reads the stream as it is and no norm made that
    scale: Tensor | None  # LayerScale γ, `(D,)`; None if there is none
    skip: float  # α, what multiplies the stream beside it


@dataclass(frozen=True)
class Wiring:
    """The wiring of a block."""

    norm: str  # where its norms stand: `"pre"`, `"post"` or `"none"`
    attention: Branch
    mlp: Branch
    last: nn.Module | None = None  # the norm behind the block, of a post-norm one


def find_wiring(seen: Seen, watched: Watched) -> Wiring:
    """Return the wiring of a layer's block, or raise `NotPlaced` with the reason.

    >>> import wellcond as wc
    >>> from wellcond.placement.watched_pass import watch
    >>> block = nn.TransformerEncoderLayer(8, 2, batch_first=True, norm_first=True)
    >>> watched = watch(wc.attention_layers(block), torch.randn(1, 5, 8))
    >>> found = find_wiring(watched.seen[0], watched)
    >>> found.norm, found.attention.norm is block.norm1, found.mlp.skip
    ('pre', True, 1.0)
    """
    layer, block = seen.layer, seen.layer.block
    assert block is not None
    assert seen.call is not None
    x, y = _samples(watched, block.name)
    read, _ = _samples(watched, layer.name)
    added = sample_tokens(output_of_layer(seen.call))
    hidden, _ = _samples(watched, split_path(block.mlp_in[0].weight.path)[0])
    _, written = _samples(watched, split_path(block.mlp_out[0].weight.path)[0])
    if {s.count for s in (read, added, hidden, written, y)} != {x.count} or read.rows.shape != x.rows.shape:
        raise NotPlaced("attention or MLP works on other tokens than the block is given: windows, grids or pooling")
    if not x.rows.isfinite().all() or not y.rows.isfinite().all():
        raise NotPlaced("its tokens are not finite on this batch")
    scales = _scales(layer, block)
    loose = 2e-2 if any(p.parameter().dtype in HALF_DTYPES for _, p in layer.projections()) else 1e-4
    second = _norm_giving(hidden, watched, block.name)
    middle = hidden if second is None else _given(second)
    if middle.same(x) and added.rows.any():
        raise NotPlaced("attention and MLP run side by side, on the same tokens")
    plain = read.same(x)  # post-norm, or none
    first = _norm_giving(x, watched) if plain else _norm_giving(read, watched, given=x)
    if not plain and first is None:
        raise NotPlaced("attention reads neither the stream nor a norm of it: windows, a shift, or other tokens")
    if not plain and second is None:
        raise NotPlaced("it normalises before the attention, not before the MLP")
    attention = _branch(middle, x, added, scales, loose, first, "attention")
    rest = [s for s in scales if s is not attention.scale]
    last = _norm_giving(y, watched) if plain and second is not None else None
    if last is not None:
        mlp = _branch(_given(last), hidden, written, rest, loose, second, "the MLP")
        return Wiring("post", attention, mlp, last.module)
    if first is None and second is not None:
        raise NotPlaced("it normalises before the MLP, not before the attention")
    # ModernBERT's first block is given the output of a norm, which is as good as a norm before the attention.
    mlp = _branch(y, middle, written, rest, loose, second, "the MLP")
    return Wiring("none" if second is None else "pre", attention, mlp)


def _branch(
    total: Sample,
    skip: Sample,
    added: Sample,
    scales: Sequence[Tensor],
    loose: float,
    norm: Trace | None,
    what: str,
) -> Branch:
    """The α and γ for which total = α skip + γ ∘ added; where several γ do, the first."""
    best: tuple[float, Tensor | None, float] | None = None
    if total.rows.shape == skip.rows.shape == added.rows.shape:
        for scale in (*scales, None):
            part = added.rows if scale is None else added.rows * scale
            rest = total.rows - part
            alpha = float((rest * skip.rows).sum() / skip.rows.square().sum().clamp_min(1e-300))
            error = float((rest - alpha * skip.rows).abs().max() / total.rows.abs().max().clamp_min(1e-300))
            if best is None or error < 0.5 * best[0]:
                best = error, scale, alpha
    if best is None or not best[0] < loose:
        raise NotPlaced(f"what {what} gives is not simply added to the stream: a norm or a gate lies between")
    _, found, alpha = best
    return Branch(norm.module if norm else None, found, 1.0 if abs(alpha - 1) < 10 * loose else alpha)


def _norm_giving(output: Sample, watched: Watched, block: str = "", given: Sample | None = None) -> Trace | None:
    """The norm whose output this is, if it works token by token; where several gave the same, the block's last."""
    own = [path for path in watched.norms if path.startswith(block + "." if block else "")]
    for path in (*own[::-1], *watched.norms):
        trace = watched.traces.get(path)
        if trace is None or trace.gave is None or trace.given is None or not trace.gave.same(output):
            continue
        if (given is None or trace.given.same(given)) and _per_token(trace):
            return trace
    return None


@torch.no_grad()
def _per_token(trace: Trace) -> bool:
    """Whether a norm of the sampled tokens alone, at twice their size, is what it was among the others."""
    assert trace.given is not None
    assert trace.gave is not None
    like = next(iter(trace.module.parameters()), torch.empty(0))
    rows = 2 * trace.given.rows.to(device=like.device, dtype=like.dtype)
    try:
        again = trace.module(rows).cpu().double()
    except Exception:  # of a class of its own, which takes no tokens alone
        return False
    scale = trace.gave.rows.abs().max().clamp_min(1e-300)
    return again.shape == trace.gave.rows.shape and float((again - trace.gave.rows).abs().max() / scale) < 0.02


def _samples(watched: Watched, path: str) -> tuple[Sample, Sample]:
    trace = watched.traces.get(path)
    if trace is None:
        raise NotPlaced(f"'{path}' was not called as a module on this batch")
    if trace.given is None or trace.gave is None:
        raise NotPlaced(f"'{path}' does not take and give tokens")
    return trace.given, trace.gave


def _given(trace: Trace) -> Sample:
    assert trace.given is not None
    return trace.given


def _scales(layer: AttentionLayer, block: ResidualBlock) -> list[Tensor]:
    assert layer.root is not None
    found = [full(fetch(layer.root, path)).detach().cpu().double() for path in block.layer_scale]
    return [scale for scale in found if scale.numel() == layer.width]
