"""Centring: each token subtracts part of its attention average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.schemes.base import Laws, Scheme, missing, register
from wellcond.schemes.compose import as_scheme
from wellcond.schemes.conditioned import identity


@register("centring", citation="ours, experimental", published="γ = 0.5 with conditioned query and key")
@dataclass(frozen=True)
class Centring(Scheme):
    r"""Value a block identity, W_O = −γ I: attention subtracts γ times its average; Q and K by another scheme.

    The value–output product $-\gamma I$ removes the common mode of the tokens that rank collapse feeds on.

    Args:
        gamma: γ.
        qk: the scheme for query and key, in any form `init_` takes.
    """

    gamma: float = 0.5
    qk: Any = "conditioned"

    def __post_init__(self) -> None:
        """Refuse a bad scheme at once."""
        if as_scheme(self.qk).functional():
            raise SchemeError("'centring' takes qk as a scheme that has laws, not a function")
        if self.gamma == 0:
            raise SchemeError("'centring' takes a gamma other than 0: the branch would pass nothing on")

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs a square value–output product, and whatever the other scheme needs."""
        own = missing(layer, "query", "key") or square_value_output(layer)
        return own or as_scheme(self.qk).applies_to(layer, frozenset(["query", "key"]))

    def laws(self, layer: AttentionLayer) -> Laws:
        """Q and K from the other scheme, V and O fixed."""
        assert layer.value is not None
        chosen = {roles: law for roles, law in as_scheme(self.qk).laws(layer).items() if set(roles) <= {"query", "key"}}
        if not chosen and as_scheme(self.qk).name != "keep":
            raise SchemeError(f"'centring' takes qk as a scheme for query and key; {self.qk!r} sets neither")
        shape = layer.value.shape
        chosen[("value",)] = identity(shape, block=True)
        chosen[("output",)] = identity(shape, -self.gamma, block=True)
        return chosen


def square_value_output(layer: AttentionLayer) -> str | None:
    """Say why a layer has no square value–output product, or None."""
    lacking = missing(layer, "value", "output")
    if lacking:
        return lacking
    assert layer.value is not None
    assert layer.output is not None
    heads, width, d = layer.value.shape
    if layer.output.heads != heads:
        return f"grouped-query: {layer.output.heads} output heads share {heads} value heads"
    if layer.output.shape != layer.value.shape or heads * d != width:
        return f"needs heads · d = D on both sides: value {width} × {heads}·{d}, output {layer.output.shape[1]}"
    return None
