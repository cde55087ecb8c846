"""Centering: each token subtracts part of its attention average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.init.compose import as_scheme
from wellcond.init.identity import identity_law
from wellcond.init.products import value_output_refusal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, missing_roles


@register_scheme("centring", citation="ours, experimental", published="γ = 0.5 with conditioned query and key")
@dataclass(frozen=True)
class Centering(Scheme):
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
        own = missing_roles(layer, "query", "key") or value_output_refusal(layer)
        return own or as_scheme(self.qk).applies_to(layer, frozenset(["query", "key"]))

    def laws(self, layer: AttentionLayer) -> Laws:
        """Q and K from the other scheme, V and O fixed."""
        assert layer.value is not None
        chosen = {roles: law for roles, law in as_scheme(self.qk).laws(layer).items() if set(roles) <= {"query", "key"}}
        if not chosen and as_scheme(self.qk).name != "keep":
            raise SchemeError(f"'centring' takes qk as a scheme for query and key; {self.qk!r} sets neither")
        shape = layer.value.shape
        chosen[("value",)] = identity_law(shape, block=True)
        chosen[("output",)] = identity_law(shape, -self.gamma, block=True)
        return chosen
