"""`wc.condition_`: from a model and a method to a handle."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from wellcond._core.checked import checked
from wellcond._core.keyed_random import neutral
from wellcond._core.user_warnings import warn_user
from wellcond.attention.find import chosen_layers
from wellcond.attention.layers import LayerFilter
from wellcond.attention.roles import QKV
from wellcond.conditioning.detect_corrections import settled
from wellcond.conditioning.existing_handles import does_the_same, handles_with_claims_of, refuse_second
from wellcond.conditioning.handle import Conditioning, ConditioningMode
from wellcond.conditioning.method import Correction, FixedCorrection, Method
from wellcond.conditioning.methods import METHODS
from wellcond.conditioning.safe_strength import SAFE
from wellcond.conditioning.storage.folded_storage import fold_refusal
from wellcond.conditioning.target_weights import Strength, strengths
from wellcond.conditioning.transaction import all_or_nothing
from wellcond.errors import InapplicableError, SchemeError


@checked
@neutral()
def condition_(
    model: nn.Module,
    method: str = "shift",
    *,
    strength: Strength | Literal["safe"] | None = None,
    mode: ConditioningMode | None = None,
    roles: str | tuple[str, ...] = QKV,
    layers: LayerFilter = None,
    as_original: bool | None = None,
    **options: Any,
) -> Conditioning:
    r"""Keep the query, key and value weights of every attention head well conditioned while the model trains.

    Spectral Conditioning of Attention (Theorems 3.5 and 3.8) and what it is compared with. Each head uses `W + C`
    instead of `W`: $C = \lambda I$ for `"shift"`, $C = \sigma_{max}(W) P$ with the polar factor P for `"polar"`.

    Args:
        model: any model, wrapped, compiled or sharded; wrapping it afterwards is fine too.
        method: `"shift"`, `"polar"`, or a peer (see `wellcond.conditioning.methods.METHODS`).
        strength: λ, or `{role: λ}`. By default, also called `"safe"`, a shift has the largest λ up to 10 at which no
            head gives more than half of its attention to a token's own column; the paper's is 10. For `"polar"` it is
            the multiple of σ_max, 1.
        mode: `"folded"` (the parameter becomes W + C and decay is anchored: no cost, no new keys), `"live"` (the
            parameter stays W; needed by `"polar"`, half-precision storage and LAMB-like optimizers). By default folded
            where that is possible.
        roles: some of query, key, value: `"qk"`, `("value",)`.
        layers: shell pattern on the layer name, a list of them, or a predicate; None for all.
        as_original: True if the weights hold W, False if they hold W + C already, loaded from a checkpoint of a
            conditioned model. None finds out: from the header of the file that `wc.load_weights_` read, else from the
            look of the weights, which is refused with the two ways to say what is meant.
        options: `placement="head" | "layer"` for `"shift"`; `every=1` steps between recomputations for `"polar"`.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> c = wc.condition_(model, "polar")
    >>> max(head.effective for head in c.summary().heads) <= 2.0001
    True
    >>> wc.condition_(model, "polar") is c                               # the same again is what is there
    True
    """
    cls = _checked_method(method, mode, strength, options)
    safe = issubclass(cls, FixedCorrection) and (strength is None or strength == SAFE)
    found = chosen_layers(model, layers)
    for layer in found:
        if layer.reason:
            raise InapplicableError(f"'{layer.name}' is refused: {layer.reason}. Leave the layer out with layers=…")
    by_role = strengths(1.0 if safe else strength, roles, cls.strength_default or 1.0)  # type: ignore[arg-type]
    wanted, chosen, original = cls(model, found, by_role, dict(cls.defaults) | options), "", as_original is not False
    there = handles_with_claims_of(wanted)
    if len(there) == 1 and as_original is not True and does_the_same(there[0], wanted, mode, safe):
        return there[0]
    if there:
        refuse_second(wanted, there)
    wanted.check()
    if isinstance(wanted, Correction):
        wanted, chosen, original = settled(wanted, safe, as_original)
        wanted.check_strength()
    live = isinstance(wanted, Correction) and fold_refusal(wanted)
    handle = Conditioning(wanted, mode or ("live" if live else wanted.modes[0]), chosen)
    with all_or_nothing(handle):
        handle.start_(original)
        if isinstance(wanted, FixedCorrection) and wanted.weights:
            for text in wanted.warnings(handle.summary(), bool(chosen)):
                warn_user(text)
    return handle


def _checked_method(method: str, mode: str | None, strength: object, options: dict[str, Any]) -> type[Method]:
    """Find a method by name; raise for what it does not take."""
    cls = METHODS.get(method)
    if cls is None:
        there = sorted(
            METHODS.values(), key=lambda each: (not issubclass(each, FixedCorrection), each.strength_default is None)
        )
        raise SchemeError(f"no conditioning {method!r}; there are {', '.join(each.name for each in there)}")
    unknown = set(options) - set(cls.defaults)
    if unknown:
        has = ", ".join(cls.defaults) or "none"
        raise SchemeError(f"'{method}' has no option {', '.join(sorted(unknown))}; it has {has}")
    if cls.strength_default is None and strength is not None:
        raise SchemeError(f"'{method}' has no strength")
    if strength == SAFE and not issubclass(cls, FixedCorrection):
        safe = " and ".join(f"'{name}'" for name, each in METHODS.items() if issubclass(each, FixedCorrection))
        raise SchemeError(f"only {safe} has a strength called '{SAFE}'; '{method}' takes a number")
    if mode is not None and mode not in cls.modes:
        only = " or ".join(f"'{mode}'" for mode in cls.modes)
        why = ": its correction follows the weights" if mode == "folded" else ""
        raise SchemeError(f"mode of '{method}' is {only}, got {mode!r}{why}")
    return cls
