"""`wc.balance_`: better conditioned factors of the same function, by new coordinates of each head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond._core.linalg import wide
from wellcond.attention.apart import shared_weights, stored_weight
from wellcond.attention.find import chosen_layers, from_structure, require_layers
from wellcond.attention.layers import AttentionLayers, LayerFilter
from wellcond.attention.layouts import AnyLayout
from wellcond.attention.observe import observe
from wellcond.attention.paths import unwrap
from wellcond.attention.projection import Projection, fits
from wellcond.attention.replay import Call
from wellcond.attention.storage import reshard
from wellcond.attention.verify import TOLERANCE
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.errors import ArgumentError, WeightError, WellcondError
from wellcond.scale.allowed_maps import Maps, allowed_maps
from wellcond.scale.balance_result import Balance, BalanceRecord
from wellcond.scale.coordinates import BalanceTarget, Coordinates, MapGroup, full_maps, scalar_maps
from wellcond.scale.optimizer_moments import check_optimizer, rescale_moments_
from wellcond.scale.outputs import largest_change, model_outputs
from wellcond.scale.products import PAIRS

BalancePart = Literal["qk", "vo", "both"]


@dataclass(frozen=True)
class _Change:
    """New coordinates of one pair of factors of one layer."""

    layer: AttentionLayer
    part: str
    kind: str
    maps: Coordinates

    def projections(self) -> Iterator[tuple[Projection, Tensor]]:
        """Both factors, each with the map of every one of its heads, `(heads, d, d)`."""
        for role, maps in zip(PAIRS[self.part], (self.maps.first, self.maps.second), strict=True):
            projection = getattr(self.layer, role)
            yield projection, maps.repeat_interleave(projection.heads // len(maps), 0)


@checked
@torch.no_grad()
def balance_(
    model: nn.Module,
    batch: Any = None,
    *,
    part: BalancePart = "both",
    group: MapGroup = "full",
    to: BalanceTarget = "balanced",
    layers: LayerFilter = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Balance:
    """Change the coordinates of every head so that its factors are well conditioned and the function stays the same.

    W_Q → W_Q G, W_K → W_K G^{-T} leave W_Q W_Kᵀ as it is, and W_V → W_V R, W_O → R⁻¹ W_O leave W_V W_O; biases go
    along, heads that share a key or value share a map. Balanced factors have κ = √κ(product) and the least ‖W_Q‖² +
    ‖W_K‖².

    With a batch each layer is tried: what rotary positions, norms, gates or learned keys do not allow is left out, or
    done by the smaller group that they do allow (numbers, or one for each pair of rotated columns), and the model's
    outputs before and after are compared. Without one only layers of known classes are changed. All or nothing.

    Args:
        model: any model, wrapped or sharded, trained or not.
        batch: a tensor, a tuple of positional or a dict of keyword arguments.
        part: the query–key product, the value–output product, or both.
        group: `"full"`: any G that is allowed; `"scalar"`: numbers only, which optimizers can follow.
        to: `"balanced"`, or `"orthogonal query"`: W_Q (and W_V) orthonormal, the spectrum in the other factor.
        layers: a name, a pattern or several; all if None.
        optimizer: Adam, AdamW or SGD whose moments are to go along; with `group="scalar"` alone once it has started.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.TransformerEncoderLayer(12, 3, batch_first=True).double()
    >>> with torch.no_grad():
    ...     _ = model.self_attn.in_proj_weight[:12].mul_(100)                      # queries 100 times as large as keys
    >>> x = torch.randn(2, 5, 12, dtype=torch.float64)
    >>> b = wc.balance_(model, x)
    >>> b.change < 1e-12, b.skipped
    (True, [])
    >>> b.undo_()
    """
    if to == "orthogonal query" and group == "scalar":
        raise ArgumentError("numbers do not make W_Q orthonormal: group='full' does")
    root = unwrap(model)
    found, calls = _seen(model, batch, layers)
    skipped: list[tuple[str, str, str]] = []
    changes: list[_Change] = []
    tied, known = shared_weights(found), dict[object, Maps]()
    for layer, call in zip(found, calls, strict=True):
        for each in PAIRS if part == "both" else (part,):
            change = _change(layer, call, each, group, to, tied, known)
            if isinstance(change, str):
                skipped.append((layer.name, each, change))
            else:
                changes.append(change)
    reshard(root)  # whose parameters an optimizer knows
    if optimizer is not None:
        check_optimizer(optimizer, (p for change in changes for p, _ in change.projections()), group)
    before = None if batch is None else model_outputs(root, batch)
    with ParameterWrites(root) as writes:
        for change in changes:
            for projection, maps in change.projections():
                apply_maps_(projection, maps, writes)
        moved = None if before is None else _checked_change(root, batch, before, changes)
        if optimizer is not None:
            writes.also_undo(rescale_moments_(optimizer, [pair for c in changes for pair in c.projections()]))
    return Balance(skipped, moved, writes, partial(_records, changes))


def _seen(model: nn.Module, batch: Any, layers: LayerFilter) -> tuple[AttentionLayers, Sequence[Call | None]]:
    """The layers to balance, each with what a batch gave it, None without one."""
    root = unwrap(model)
    if batch is None:
        chosen = chosen_layers(model, layers)
        return chosen, [None] * len(chosen)
    observed = observe(root, from_structure(model), batch)
    chosen = require_layers(root, observed.layers).select(layers)
    by_name = dict(zip((layer.name for layer in observed.layers), observed.calls, strict=True))
    return chosen, [by_name[layer.name] for layer in chosen]


def _change(
    layer: AttentionLayer,
    call: Call | None,
    part: str,
    group: str,
    to: BalanceTarget,
    tied: set[tuple[int, AnyLayout]],
    known: dict[object, Maps],
) -> _Change | str:
    """New coordinates of one product of a layer, or why it keeps its own."""
    roles = PAIRS[part]
    pair = [getattr(layer, role) for role in roles]
    if layer.standing == "refused":
        return f"refused: {layer.reason}"
    if any(p is None for p in pair):
        return (
            f"{layer.kind} attention without {' and '.join(r for r, p in zip(roles, pair, strict=True) if p is None)}"
        )
    if pair[0].width != pair[1].width:
        return f"its factors have heads of width {pair[0].width} and {pair[1].width}: they are no product"
    for p in pair:
        reason: str | None = p.refusal()
        if reason is not None:
            return reason
        if stored_weight(p) in tied:
            return f"'{p.weight.path}' is tied: another role or layer reads the same weights"
    kinds = allowed_maps(layer, call, part, known)
    if isinstance(kinds, str):
        return kinds
    kind = "scalar" if group == "scalar" else kinds[0]
    if kind not in kinds:
        return "its factors cannot even be scaled against each other"
    if kind != "full" and to == "orthogonal query":
        return "its coordinates are bound, by rotary positions or a gate: W_Q cannot be made orthonormal"
    groups = min(p.heads for p in pair)
    first, second = (wide(p.read()).reshape(groups, -1, p.width) for p in pair)
    if not bool(torch.isfinite(first.sum() + second.sum())):
        return "its weights are not finite"
    rounding = max(torch.finfo(p.parameter().dtype).eps for p in pair)
    maps = full_maps(first, second, to, rounding) if kind == "full" else scalar_maps(first, second, kind)
    return maps if isinstance(maps, str) else _Change(layer, part, kind, maps)


def apply_maps_(projection: Projection, maps: Tensor, writes: ParameterWrites) -> None:
    """Write a projection in new coordinates, its bias too where heads have one; maps are `(heads, d, d)`."""
    weight = wide(projection.read()) @ maps
    if not fits(weight, projection.parameter().dtype):
        raise WeightError(f"'{projection.weight.path}' in new coordinates leaves the range of its dtype")
    writes.open(projection.weight.path)
    projection.store_(weight)
    bias = projection.read_bias()
    if bias is not None and projection.bias_layout is not None:
        assert projection.bias is not None
        writes.open(projection.bias)
        projection.store_bias_((wide(bias)[:, None] @ maps)[:, 0])


def _checked_change(root: nn.Module, batch: Any, before: list[Tensor], changes: list[_Change]) -> float:
    """The largest change of the model's outputs; more than rounding is an error."""
    moved = largest_change(before, model_outputs(root, batch))
    dtypes = {p.parameter().dtype for change in changes for p, _ in change.projections()}
    allowed = max((TOLERANCE[dtype] for dtype in dtypes), default=0.0)
    if moved > allowed:
        raise WellcondError(
            f"the model's outputs changed by {moved:.1e} of the largest, more than rounding, so everything was put "
            "back. Leave layers out with layers=…, or report the model"
        )
    return moved


def _records(changes: list[_Change]) -> Iterator[BalanceRecord]:
    """Measure κ of the factors and products."""
    for change in changes:
        found = zip(change.maps.product(), change.maps.before(), change.maps.after(), strict=True)
        for index, (product, before, after) in enumerate(found):
            yield BalanceRecord(change.layer.name, change.part, index, change.kind, product, before, after)
