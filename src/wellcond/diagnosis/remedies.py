"""Remedies of what a verdict finds: words, and a line of code that runs as it stands, given `model` and `wc`.

The advice knows what `wc.condition_` has applied already: a strength is changed, not advised a second time, and a
correction that stands in the way of another is removed by the same line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping

from wellcond.diagnosis.readings import ROLES, Record

Advice = tuple[str, str]  # in words, as code
Remedy = Callable[[Record, Collection[str]], Advice]  # of a layer's record, and of the roles whose weights it is about
QK = ("query", "key")
OF_WEIGHTS = ("shift", "polar", "sigma_reparam", "weight_conditioning")  # one of them at a time in a weight
BROKEN = "[name for name, p in model.named_parameters() if not p.isfinite().all()]"


def _applied(layer: Record, roles: Collection[str], methods: Collection[str]) -> Record | None:
    """Return what acts on some of the roles' weights by one of the methods."""
    return next((a for a in layer["conditioning"] if a["method"] in methods and set(a["strength"]) & set(roles)), None)


def _handles(method: str, call: str) -> str:
    return f"[c.{call} for c in wc.handles_of(model) if c.method == {json.dumps(method)}]"


def _condition(layer: Record, options: str, in_place_of: Record | None) -> str:
    """Condition this layer; or every layer, where a handle of several layers has to go first."""
    if in_place_of is None:
        return f"wc.condition_(model, {options}, layers={json.dumps(layer['name'])})"
    return f"{_handles(in_place_of['method'], 'remove_()')}; wc.condition_(model, {options})"


def _initialise(layer: Record, scheme: str, *, whole: bool = False) -> str:
    """Start this layer anew, or the whole model; what is conditioned is given its own weights first."""
    where = ', on_inapplicable="skip"' if whole else f", layers={json.dumps(layer['name'])}"
    first = _applied(layer, ROLES, OF_WEIGHTS)
    before = "" if first is None else f"{_handles(first['method'], 'remove_()')}; "
    return f"{before}wc.init_(model, {scheme}{where})"


def _strength(applied: Record, change: Callable[[float], float]) -> tuple[Mapping[str, float], str]:
    """Change the strength of queries and keys, the values' staying as it is."""
    new = {role: round(change(value), 6) if role in QK else value for role, value in applied["strength"].items()}
    return new, _handles(applied["method"], f"strength_({json.dumps(new)})")


def _calm(layer: Record, strength: float) -> float:
    """Return a shift with which a token's own logit, λ² √d, is half of what outweighs T others, log T."""
    least = math.log(max(layer["tokens"], 2)) / (2 * math.sqrt(layer["shape"][2]))
    return float(f"{min(math.sqrt(least), strength / 2):.2g}")


def soften(layer: Record, roles: Collection[str]) -> Advice:
    """Advise against one-hot attention: less of the shift that makes it so, or a bound on the logits.

    >>> layer = {"name": "attn", "shape": (2, 2, 4, 8), "tokens": 6, "conditioning": []}
    >>> soften(layer, ROLES)[1]
    'wc.condition_(model, "sigma_reparam", gain=1.0, per="head", roles="qk", layers="attn")'
    """
    shift = _applied(layer, QK, ("shift",))
    if shift is not None:
        new, line = _strength(shift, lambda value: _calm(layer, value))
        now = max(shift["strength"][role] for role in QK if role in shift["strength"])
        then = max(new[role] for role in QK if role in new)
        return f"a shift of {now:g} is applied, which draws tokens to themselves; lower it to {then:g}", line
    other = _applied(layer, QK, OF_WEIGHTS)
    instead = "" if other is None else f" in place of {other['method']}"
    options = '"sigma_reparam", gain=1.0, per="head", roles="qk"'
    return f"bound the logits by a spectral norm{instead}", _condition(layer, options, other)


def look_around(layer: Record, roles: Collection[str]) -> Advice:
    """Advise where tokens attend to themselves."""
    if _applied(layer, QK, ("shift",)) is not None:
        return soften(layer, roles)
    return "start queries and keys anew, or train on: it may be learned", _initialise(layer, '{"qk": "conditioned"}')


def slow_down(layer: Record, roles: Collection[str]) -> Advice:
    """Advise where updates collapse into few directions, which comes before logits explode."""
    return "lower the learning rate, or keep its logits within bands", "wc.control_(model, optimizer)"


def sharpen(layer: Record, roles: Collection[str]) -> Advice:
    """Advise where attention is uniform."""
    applied = _applied(layer, QK, ("shift", "polar"))
    if applied is not None:
        _, line = _strength(applied, lambda value: 2 * value)
        return f"{applied['method']} is applied; double its strength for queries and keys", line
    return "start from a larger W_Q and W_K", _initialise(layer, '{"qk": "conditioned"}')


def keep_apart(layer: Record, roles: Collection[str]) -> Advice:
    """Advise where tokens become alike, which they do in all layers before, so that all of them are concerned."""
    heads, shared, width, whole = layer["shape"]
    if heads == shared and heads * width == whole:
        return "start from attention that subtracts what tokens have in common", _initialise(
            layer, '"centring"', whole=True
        )
    return "start from weaker branches against the skip", _initialise(layer, '"gpt2_residual"', whole=True)


def condition_weights(layer: Record, roles: Collection[str]) -> Advice:
    """Advise where a weight lacks rank, or nearly so."""
    own = [weight for weight in layer["weights"] if weight["role"] in roles and weight["head"] is not None]
    if any(weight["effective"]["sigma_max"] == 0 for weight in own):
        return "it is zero, which nothing conditions; initialise it anew", _initialise(layer, '"conditioned"')
    applied = _applied(layer, roles, OF_WEIGHTS)
    if applied is not None and applied["method"] == "polar":
        strength = {role: max(value, 1.0) for role, value in applied["strength"].items()}
        return "polar is applied with too small a strength; use 1", _handles(
            "polar", f"strength_({json.dumps(strength)})"
        )
    instead = "" if applied is None else f" in place of {applied['method']}"
    return f"condition it{instead}: polar keeps κ at 2", _condition(layer, '"polar"', applied)


def balance(layer: Record, roles: Collection[str]) -> Advice:
    """Advise where a factor is conditioned worse than its product asks for, or where its other factor has no spectrum.

    >>> balance({"name": "attn", "conditioning": []}, ["query"])[1]
    'wc.balance_(model, part="qk", layers="attn")'
    """
    if _applied(layer, roles, OF_WEIGHTS) is not None:
        return condition_weights(layer, roles)
    part = "qk" if set(roles) <= set(QK) else "vo" if not set(roles) & set(QK) else "both"
    line = f'wc.balance_(model, part="{part}", layers={json.dumps(layer["name"])})'
    return "balance it against its other factor, which leaves the function as it is", line


def condition_inputs(layer: Record, roles: Collection[str]) -> Advice:
    """Advise where a Jacobian lacks rank, or nearly so: its weights, or the tokens where those are conditioned."""
    applied = _applied(layer, roles, OF_WEIGHTS)
    if applied is None or applied["method"] != "polar":
        return condition_weights(layer, roles)
    if layer["causal"]:
        words, line = keep_apart(layer, roles)
        return f"weights are conditioned already (polar), so the tokens are the reason; {words}", line
    words = "weights are conditioned already (polar), so the tokens are the reason; condition those"
    return words, 'wc.condition_(model, "conditioned_tokens")'


def look_upstream(layer: Record, roles: Collection[str]) -> Advice:
    """Advise where attention is not finite."""
    return "look upstream for what is not finite, or lower the learning rate", BROKEN


def start_anew(layer: Record, roles: Collection[str]) -> Advice:
    """Advise where a weight is not finite."""
    return "go back to an earlier checkpoint, or start it anew", _initialise(layer, '"conditioned"')
