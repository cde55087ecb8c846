"""`wc.condition_`: from a model and a method to a handle."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond.attention.find import attention_layers
from wellcond.attention.storage import HALF
from wellcond.attention.view import AttentionLayer
from wellcond.checked import checked
from wellcond.draw import neutral
from wellcond.errors import SchemeError
from wellcond.initialise import LayerFilter
from wellcond.spectral.conditioned_tokens import TokenConditioning
from wellcond.spectral.corrections import WeightConditioning
from wellcond.spectral.guarantee import COSINE, ONE_HOT, TOKENS, SelfBias, self_biases
from wellcond.spectral.handle import Conditioning
from wellcond.spectral.polar import PolarConditioning
from wellcond.spectral.qk_norm import QkNormConditioning
from wellcond.spectral.shift import identity
from wellcond.spectral.shift_conditioning import ShiftConditioning
from wellcond.spectral.sigma_reparam import SigmaReparamConditioning
from wellcond.spectral.weight_conditioning import RowNormConditioning
from wellcond.spectral.weights import ROLES, Strength, strengths

METHODS: dict[str, type[Conditioning]] = {
    cls.method: cls
    for cls in (
        ShiftConditioning,
        PolarConditioning,
        SigmaReparamConditioning,
        RowNormConditioning,
        QkNormConditioning,
        TokenConditioning,
    )
}


@checked
@neutral()
def condition_(
    model: nn.Module,
    method: str = "shift",
    *,
    strength: Strength | None = None,
    mode: Literal["folded", "live"] | None = None,
    roles: str | tuple[str, ...] = ROLES,
    layers: LayerFilter = None,
    as_original: bool = True,
    **options: Any,
) -> Conditioning:
    r"""Keep the query, key and value weights of every attention head well conditioned while the model trains.

    Spectral Conditioning of Attention (Theorems 3.5 and 3.8) and what it is compared with. Each head uses `W + C`
    instead of `W`: $C = \lambda I$ for `"shift"`, $C = \sigma_{max}(W) P$ with the polar factor P for `"polar"`.

    Args:
        model: any model, wrapped, compiled or sharded; wrapping it afterwards is fine too.
        method: `"shift"`, `"polar"`, or a peer (see `wellcond.spectral.condition.METHODS`).
        strength: λ (10 for `"shift"`, as in the paper; for `"polar"` the multiple of σ_max, 1), or `{role: λ}`.
        mode: `"folded"` (the stored weight becomes W + C and decay is anchored: no cost, no new keys), `"live"` (the
            stored weight stays W; needed by `"polar"`, half-precision storage and LAMB-like optimizers). By default
            folded where that is possible.
        roles: some of query, key, value: `"qk"`, `("value",)`.
        layers: shell pattern on the layer name, a list of them, or a predicate; None for all.
        as_original: False if the model holds W + C already, loaded from a checkpoint of a conditioned model.
        options: `placement="head" | "layer"` for `"shift"`; `every=1` steps between recomputations for `"polar"`.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> c = wc.condition_(model, "polar")
    >>> max(head.after for head in c.summary().heads) <= 2.0001
    True
    """
    chosen = METHODS.get(method)
    if chosen is None:
        raise SchemeError(f"no conditioning {method!r}; there are {', '.join(METHODS)}")
    unknown = set(options) - set(chosen.defaults)
    if unknown:
        has = ", ".join(chosen.defaults) or "none"
        raise SchemeError(f"'{method}' has no option {', '.join(sorted(unknown))}; it has {has}")
    if chosen.strength_default is None and strength is not None:
        raise SchemeError(f"'{method}' has no strength")
    found = attention_layers(model).select(layers)
    by_role = strengths(strength, roles, chosen.strength_default or 1.0)
    handle = chosen(model, found, by_role, dict(chosen.defaults) | options)
    handle.check()
    handle.start_(_mode(mode, chosen, handle), as_original)
    _warn(handle)
    return handle


def _mode(wanted: str | None, chosen: type[Conditioning], handle: Conditioning) -> str:
    if wanted is None:
        half = isinstance(handle, WeightConditioning) and any(w.stored.dtype in HALF for w in handle.weights)
        return "live" if half else chosen.modes[0]
    if wanted not in chosen.modes:
        only = " or ".join(f"'{mode}'" for mode in chosen.modes)
        why = ": its correction follows the weights" if wanted == "folded" else ""
        raise SchemeError(f"mode of '{chosen.method}' is {only}, got {wanted!r}{why}")
    return wanted


def _warn(handle: Conditioning) -> None:
    """Say where the guarantee does not hold, and where attention starts one-hot."""
    if not isinstance(handle, ShiftConditioning) or not handle.weights:
        return
    failing = [head for head in handle.summary().heads if head.status == "no guarantee"]
    if failing:
        worst = max(failing, key=lambda head: head.sigma_max)
        names = ", ".join(f"{head.layer} {head.role} head {head.head}" for head in failing[:3])
        more = f" and {len(failing) - 3} more" if len(failing) > 3 else ""
        warnings.warn(
            f"Theorem 3.8 promises nothing for {names}{more}: the strength is not above σ_max(W), up to "
            f"{worst.sigma_max:.3g}; κ may rise. See summary()",
            stacklevel=5,
        )
    strongest = _strongest([bias for layer in handle.layers for bias in _biases(layer)])
    if strongest is None or strongest.row().own <= ONE_HOT:
        return
    row = strongest.row()
    warnings.warn(
        f"attention starts one-hot: {strongest.layer} head {strongest.head} gives {row.own:.0%} to a token's own "
        f"column, entropy {row.entropy / math.log(TOKENS):.2g} log T (logit with itself {strongest.mean:.3g}, {TOKENS} "
        f"tokens of cosine {COSINE:g}), so queries and keys get no gradient. Half of it goes there from strength "
        f"{_largest(handle, 0.5):.3g} on; the largest strength for query and key that keeps every head below "
        f"{ONE_HOT:.0%} is {_largest(handle, ONE_HOT):.3g}",
        stacklevel=5,
    )


def _strongest(biases: list[SelfBias]) -> SelfBias | None:
    """The head that attends to itself most: heads are compared by an estimate, and one is integrated."""
    return max(biases, key=lambda bias: bias.margin, default=None)


def _biases(layer: AttentionLayer) -> list[SelfBias]:
    if layer.query is None or layer.key is None:
        return []
    return self_biases(layer, layer.query.read(), layer.key.read())


def _largest(handle: ShiftConditioning, level: float) -> float:
    """The largest strength (of the stronger of query and key) that gives no head's own column more, by bisection."""
    parts = {(part.layer.name, part.role): part for weight in handle.weights for part in weight.parts}
    pairs: list[tuple[AttentionLayer, list[tuple[Tensor, Tensor]]]] = []
    for layer in handle.layers:
        split: list[tuple[Tensor, Tensor]] = []
        for role, projection in layer.projections("query", "key"):
            used = projection.read().double()
            part = parts.get((layer.name, role))
            correction = identity(part, projection.shape, handle.placement) if part else torch.zeros_like(used)
            split.append((used - correction, correction))
        if len(split) == 2:
            pairs.append((layer, split))

    def exceeded(share: float) -> bool:
        strongest = _strongest(
            [
                bias
                for layer, ((query, cq), (key, ck)) in pairs
                for bias in self_biases(layer, query + share * cq, key + share * ck)
            ]
        )
        return strongest is not None and strongest.row().own > level

    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if exceeded(middle) else (middle, high)
    return low * max(abs(handle.strength.get(role, 0.0)) for role in ("query", "key"))
