"""Centering: each token subtracts part of its attention average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.init.compose import as_scheme
from wellcond.init.identity import identity_law
from wellcond.init.laws import SemiOrthogonal
from wellcond.init.orthogonal_pair import OrthogonalPair, Structure, orthogonal_pair_refusal
from wellcond.init.products import value_output_refusal
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme, missing_roles


@register_scheme("centring", citation="ours, experimental", published="γ = 0.5 with conditioned query and key")
@dataclass(frozen=True)
class Centering(Scheme):
    r"""Value a block identity, W_O = −γ I: attention subtracts γ times its average; Q and K by another scheme.

    The value–output product $-\gamma I$ removes the common mode of the tokens that rank collapse feeds on. Where key
    and value heads are shared by m query heads each, or heads · d is not D, the value heads together are a
    semi-orthogonal draw, $W_V^g = U_g$, and $W_O^h = -(\gamma/m)\,U_g^\top$: the sum over heads is
    $-\gamma \sum_g U_g U_g^\top$, which is $-\gamma I$ on as many dimensions as the value heads have.

    Args:
        gamma: γ.
        qk: the scheme for query and key, in any form `init_` takes.
        structure: `"rotation"` puts a random orthogonal matrix in place of I: a control with the same singular values,
            and no trace.
        sign: 1 adds the average instead: a control too.
    """

    gamma: float = 0.5
    qk: Any = "conditioned"
    structure: Structure = "identity"
    sign: Literal[-1, 1] = -1

    def __post_init__(self) -> None:
        """Refuse a bad scheme at once."""
        if as_scheme(self.qk).functional():
            raise SchemeError("'centring' takes qk as a scheme that has laws, not a function")
        if self.gamma == 0:
            raise SchemeError("'centring' takes a gamma other than 0: the branch would pass nothing on")

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs values that read and outputs that write one width, and whatever the other scheme needs."""
        own = missing_roles(layer, "query", "key") or orthogonal_pair_refusal(layer)
        return own or as_scheme(self.qk).applies_to(layer, frozenset(["query", "key"]))

    def laws(self, layer: AttentionLayer) -> Laws:
        """Q and K from the other scheme, V and O as one product."""
        chosen = {roles: law for roles, law in as_scheme(self.qk).laws(layer).items() if set(roles) <= {"query", "key"}}
        if not chosen and as_scheme(self.qk).name != "keep":
            raise SchemeError(f"'centring' takes qk as a scheme for query and key; {self.qk!r} sets neither")
        return chosen | self._value_output(layer)

    def _value_output(self, layer: AttentionLayer) -> Laws:
        assert layer.value is not None
        strength = self.sign * self.gamma
        if value_output_refusal(layer) is not None:
            return {("value", "output"): OrthogonalPair(1.0, strength, self.structure)}
        shape = layer.value.shape
        identity = self.structure == "identity"
        output = identity_law(shape, strength, block=True) if identity else SemiOrthogonal(strength, whole=True)
        return {("value",): identity_law(shape, block=True), ("output",): output}
