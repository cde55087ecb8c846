"""What to do about each concern: words, and a line of code that runs as it stands, given `model` and `wc`.

The advice knows what `wc.condition_` has applied already: a strength is changed, not advised a second time, and a
correction that stands in the way of another is removed by the same line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping

from wellcond.diagnose.records import ROLES, AppliedRecord, LayerRecord

Advice = tuple[str, str]  # in words, as code
QK = ("query", "key")
OF_WEIGHTS = ("shift", "polar", "sigma_reparam", "weight_conditioning")  # one of them at a time in a weight
BROKEN = "[name for name, p in model.named_parameters() if not p.isfinite().all()]"


def remedy(code: str, record: LayerRecord, roles: Collection[str] = ROLES) -> Advice:
    """What to do about a concern.

    Args:
        code: of the concern.
        record: of its layer.
        roles: whose weights it is about.

    >>> layer = LayerRecord("attn", "softmax", (2, 2, 4, 8), 6, None, None, (), ())
    >>> remedy("ill conditioned", layer)[1]
    'wc.condition_(model, "polar", layers="attn")'
    """
    return _REMEDIES[code](record, roles)


def _applied(record: LayerRecord, roles: Collection[str], methods: Collection[str]) -> AppliedRecord | None:
    """What acts on some of the roles' weights by one of the methods."""
    return next((a for a in record.conditioning if a.method in methods and set(a.strength) & set(roles)), None)


def _handles(method: str, call: str) -> str:
    return f"[c.{call} for c in wc.handles_of(model) if c.method == {json.dumps(method)}]"


def _condition(record: LayerRecord, options: str, in_place_of: AppliedRecord | None) -> str:
    """Condition this layer; or every layer, where a handle of several layers has to go first."""
    if in_place_of is None:
        return f"wc.condition_(model, {options}, layers={json.dumps(record.name)})"
    return f"{_handles(in_place_of.method, 'remove_()')}; wc.condition_(model, {options})"


def _initialise(record: LayerRecord, scheme: str, *, whole: bool = False) -> str:
    """Start this layer anew, or the whole model; what is conditioned is given its own weights first."""
    where = ', on_inapplicable="skip"' if whole else f", layers={json.dumps(record.name)}"
    first = _applied(record, ROLES, OF_WEIGHTS)
    before = "" if first is None else f"{_handles(first.method, 'remove_()')}; "
    return f"{before}wc.init_(model, {scheme}{where})"


def _strength(applied: AppliedRecord, change: Callable[[float], float]) -> tuple[Mapping[str, float], str]:
    """Another strength of queries and keys, the values' as it is."""
    new = {role: round(change(value), 6) if role in QK else value for role, value in applied.strength.items()}
    return new, _handles(applied.method, f"strength_({json.dumps(new)})")


def _calm(record: LayerRecord, strength: float) -> float:
    """A shift of queries and keys with which a token's own logit, λ² √d, is half of what outweighs T others, log T."""
    least = math.log(max(record.tokens, 2)) / (2 * math.sqrt(record.shape[2]))
    return float(f"{min(math.sqrt(least), strength / 2):.2g}")


def _sharp(record: LayerRecord, roles: Collection[str]) -> Advice:
    """Attention that is one-hot: less of the shift that makes it so, or a bound on the logits."""
    shift = _applied(record, QK, ("shift",))
    if shift is not None:
        new, line = _strength(shift, lambda value: _calm(record, value))
        now = max(shift.strength[role] for role in QK if role in shift.strength)
        then = max(new[role] for role in QK if role in new)
        return f"a shift of {now:g} is applied, which draws tokens to themselves; lower it to {then:g}", line
    other = _applied(record, QK, OF_WEIGHTS)
    instead = "" if other is None else f" in place of {other.method}"
    options = '"sigma_reparam", gain=1.0, per="head", roles="qk"'
    return f"bound the logits by a spectral norm{instead}", _condition(record, options, other)


def _self_attending(record: LayerRecord, roles: Collection[str]) -> Advice:
    if _applied(record, QK, ("shift",)) is not None:
        return _sharp(record, roles)
    return "start queries and keys anew, or train on: it may be learned", _initialise(record, '{"qk": "conditioned"}')


def _uniform(record: LayerRecord, roles: Collection[str]) -> Advice:
    applied = _applied(record, QK, ("shift", "polar"))
    if applied is not None:
        _, line = _strength(applied, lambda value: 2 * value)
        return f"{applied.method} is applied; double its strength for queries and keys", line
    return "start from a larger W_Q and W_K", _initialise(record, '{"qk": "conditioned"}')


def _alike(record: LayerRecord, roles: Collection[str]) -> Advice:
    """Tokens that become alike do so in all layers before, so all of them are concerned."""
    heads, shared, width, whole = record.shape
    if heads == shared and heads * width == whole:
        return "start from attention that subtracts what tokens have in common", _initialise(
            record, '"centring"', whole=True
        )
    return "start from weaker branches against the skip", _initialise(record, '"gpt2_residual"', whole=True)


def _weights(record: LayerRecord, roles: Collection[str]) -> Advice:
    """A weight that lacks rank, or nearly so."""
    if any(w.role in roles and w.head is not None and w.raw.sigma_max == 0 for w in record.weights):
        return "it is zero, which nothing conditions; initialise it anew", _initialise(record, '"conditioned"')
    applied = _applied(record, roles, OF_WEIGHTS)
    if applied is not None and applied.method == "polar":
        strength = {role: max(value, 1.0) for role, value in applied.strength.items()}
        return "polar is applied with too small a strength; use 1", _handles(
            "polar", f"strength_({json.dumps(strength)})"
        )
    instead = "" if applied is None else f" in place of {applied.method}"
    return f"condition it{instead}: polar keeps κ at 2", _condition(record, '"polar"', applied)


def _jacobian(record: LayerRecord, roles: Collection[str]) -> Advice:
    applied = _applied(record, roles, OF_WEIGHTS)
    if applied is None or applied.method != "polar":
        return _weights(record, roles)
    if record.causal:
        words, line = _alike(record, roles)
        return f"weights are conditioned already (polar), so the tokens are the reason; {words}", line
    words = "weights are conditioned already (polar), so the tokens are the reason; condition those"
    return words, 'wc.condition_(model, "conditioned_tokens")'


def _not_finite(record: LayerRecord, roles: Collection[str]) -> Advice:
    if not roles:
        return "look upstream for what is not finite, or lower the learning rate", BROKEN
    return "go back to an earlier checkpoint, or start it anew", _initialise(record, '"conditioned"')


_REMEDIES: dict[str, Callable[[LayerRecord, Collection[str]], Advice]] = {
    "not finite": _not_finite,
    "rank collapse": _alike,
    "entropy collapse": _sharp,
    "self-attending": _self_attending,
    "saturated": _sharp,
    "rank deficient": _weights,
    "ill conditioned": _weights,
    "rank-deficient Jacobian": _jacobian,
    "ill-conditioned Jacobian": _jacobian,
    "uniform": _uniform,
}
