"""`wc.condition_`: from a model and a method to a handle."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch import nn

from wellcond.attention.find import attention_layers
from wellcond.callers import warn_user
from wellcond.checked import checked
from wellcond.draw import neutral
from wellcond.errors import SchemeError
from wellcond.initialise import LayerFilter
from wellcond.propagation.verdict import Thresholds
from wellcond.spectral.conditioned_tokens import TokenConditioning
from wellcond.spectral.corrections import WeightConditioning
from wellcond.spectral.guarantee import COSINE, ONE_HOT, TOKENS
from wellcond.spectral.handle import Conditioning, all_or_nothing
from wellcond.spectral.holding import settled
from wellcond.spectral.polar import PolarConditioning
from wellcond.spectral.present import present, refuse, same
from wellcond.spectral.qk_norm import QkNormConditioning
from wellcond.spectral.safe import largest, moments_of, strongest_at
from wellcond.spectral.shift_conditioning import SAFE, ShiftConditioning
from wellcond.spectral.sigma_reparam import SigmaReparamConditioning
from wellcond.spectral.weight_conditioning import RowNormConditioning
from wellcond.spectral.weights import ROLES, Strength, strengths
from wellcond.visible import visible

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
    strength: Strength | Literal["safe"] | None = None,
    mode: Literal["folded", "live"] | None = None,
    roles: str | tuple[str, ...] = ROLES,
    layers: LayerFilter = None,
    as_original: bool | None = None,
    **options: Any,
) -> Conditioning:
    r"""Keep the query, key and value weights of every attention head well conditioned while the model trains.

    Spectral Conditioning of Attention (Theorems 3.5 and 3.8) and what it is compared with. Each head uses `W + C`
    instead of `W`: $C = \lambda I$ for `"shift"`, $C = \sigma_{max}(W) P$ with the polar factor P for `"polar"`.

    Args:
        model: any model, wrapped, compiled or sharded; wrapping it afterwards is fine too.
        method: `"shift"`, `"polar"`, or a peer (see `wellcond.spectral.condition.METHODS`).
        strength: λ, or `{role: λ}`. By default, also called `"safe"`, a shift has the largest λ up to 10 at which no
            head gives more than half of its attention to a token's own column; the paper's is 10. For `"polar"` it is
            the multiple of σ_max, 1.
        mode: `"folded"` (the stored weight becomes W + C and decay is anchored: no cost, no new keys), `"live"` (the
            stored weight stays W; needed by `"polar"`, half-precision storage and LAMB-like optimizers). By default
            folded where that is possible.
        roles: some of query, key, value: `"qk"`, `("value",)`.
        layers: shell pattern on the layer name, a list of them, or a predicate; None for all.
        as_original: True if the weights hold W, False if they hold W + C already, loaded from a checkpoint of a
            conditioned model. None finds out: from the header of the file that `wc.load_weights_` read, else from the
            look of the weights, which is refused with the two ways to say what is meant.
        options: `placement="head" | "layer"` for `"shift"`; `every=1` steps between recomputations for `"polar"`.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> c = wc.condition_(model, "polar")
    >>> max(head.after for head in c.summary().heads) <= 2.0001
    True
    >>> wc.condition_(model, "polar") is c                               # the same again is what is there
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
    if strength == SAFE and chosen is not ShiftConditioning:
        raise SchemeError(f"only 'shift' has a strength called '{SAFE}'; '{method}' takes a number")
    _check_mode(mode, chosen)
    safe = chosen is ShiftConditioning and (strength is None or strength == SAFE)
    found = attention_layers(model).select(layers)
    by_role = strengths(1.0 if safe else strength, roles, chosen.strength_default or 1.0)  # type: ignore[arg-type]
    handle = chosen(model, found, by_role, dict(chosen.defaults) | options)
    there = present(handle)
    if len(there) == 1 and as_original is not True and same(handle, there[0], mode, safe):
        return there[0]
    if there:
        refuse(handle, there)
    handle.check()
    original = as_original is not False
    if isinstance(handle, WeightConditioning):
        handle, original = settled(handle, safe, as_original)
        handle.check_strength(handle.weights)
    with all_or_nothing(handle):
        handle.start_(_mode(mode, chosen, handle), original)
        _warn(handle)
    return handle


def _check_mode(wanted: str | None, chosen: type[Conditioning]) -> None:
    if wanted is not None and wanted not in chosen.modes:
        only = " or ".join(f"'{mode}'" for mode in chosen.modes)
        why = ": its correction follows the weights" if wanted == "folded" else ""
        raise SchemeError(f"mode of '{chosen.method}' is {only}, got {wanted!r}{why}")


def _mode(wanted: str | None, chosen: type[Conditioning], handle: Conditioning) -> str:
    if wanted is None:
        return "live" if isinstance(handle, WeightConditioning) and not handle.foldable else chosen.modes[0]
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
        warn_user(
            f"Theorem 3.8 promises nothing for {visible(names)}{more}: the strength is not above σ_max(W), up to "
            f"{worst.sigma_max:.3g}; κ may rise. See summary()"
        )
    if handle.chosen:
        return  # so that attention does not start one-hot
    moments = moments_of(handle.logits(handle.strength))  # λ is what the strengths are multiplied by
    found = strongest_at(moments, 1.0)
    if found is None or found[0].row().own <= ONE_HOT:
        return
    hot, row = found[0], found[0].row()
    strength = max(abs(handle.strength.get(role, 0.0)) for role in ("query", "key"))
    half, most = (largest(moments, level, 1.0) * strength for level in (Thresholds().own, ONE_HOT))
    warn_user(
        f"attention starts one-hot: {visible(hot.layer)} head {hot.head} gives {row.own:.0%} to a token's own "
        f"column, entropy {row.entropy / math.log(TOKENS):.2g} log T (logit with itself {hot.mean:.3g}, {TOKENS} "
        f"tokens of cosine {COSINE:g}), so queries and keys get no gradient. Half of it goes there from strength "
        f"{half:.3g} on; the largest strength for query and key that keeps every head below {ONE_HOT:.0%} is "
        f"{most:.3g}"
    )
