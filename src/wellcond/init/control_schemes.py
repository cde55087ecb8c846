"""Base classes of controls: schemes that take another scheme's weights and change them in one respect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wellcond.attention.layers import AttentionLayers
from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.init.compose import as_scheme
from wellcond.init.laws import Law
from wellcond.init.scheme import Laws, Scheme, Target

PRODUCTS = (("key", "query"), ("output", "value"))  # W_Q W_Kᵀ and W_V W_O; of each the factor to change comes first


@dataclass(frozen=True)
class ControlScheme(Scheme):
    """A scheme made of another one's laws: it applies where that one does, and sets what that one sets."""

    of: Any = "conditioned"

    def __post_init__(self) -> None:
        """Refuse a bad scheme at once."""
        if self.controlled.functional():
            raise SchemeError(f"'{self}' needs a scheme with a known law; a function has none")

    @property
    def controlled(self) -> Scheme:
        """The other scheme."""
        return as_scheme(self.of)

    def applies(self, layer: AttentionLayer) -> str | None:
        """Applies where the other scheme does."""
        return self.controlled.applies(layer)

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """What the other scheme sets elsewhere, as it does."""
        return self.controlled.beyond(layers)

    def zeroed(self) -> frozenset[str]:
        """The biases that the other scheme zeroes."""
        return self.controlled.zeroed()

    def check_layers(self, layers: AttentionLayers) -> None:
        """Refuse a scheme that sets nothing by a law: there is nothing to change."""
        if layers and not any(self.laws(layer) for layer in layers):
            raise SchemeError(f"'{self}' needs a scheme that draws weights; '{self.controlled}' draws none")


@dataclass(frozen=True)
class ProductControl(ControlScheme, ABC):
    """A control that changes one factor of W_Q W_Kᵀ and one of W_V W_O: the key and the output, where they are set."""

    @abstractmethod
    def changed(self, law: Law, index: int, role: str) -> Law:
        """Return a law with one of its roles changed, which is at `index` of them."""

    def applies(self, layer: AttentionLayer) -> str | None:
        """Needs two factors that are not the same parameter."""
        for roles in PRODUCTS:
            slots = [(id(p.parameter()), p.weight.layout) for _, p in layer.projections(*roles)]
            if len(set(slots)) < len(slots):
                return f"its {' and '.join(roles)} are one matrix, so that their product cannot be changed by one"
        return super().applies(layer)

    def laws(self, layer: AttentionLayer) -> Laws:
        """The other scheme's laws, those of the factors to change in their changed form."""
        laws = self.controlled.laws(layer)
        owned = [role for roles in laws for role in roles]
        factors = [next((role for role in roles if role in owned), None) for roles in PRODUCTS]
        for roles, law in laws.items():
            for index, role in enumerate(roles):
                if role in factors:
                    law = self.changed(law, index, role)
            laws[roles] = law
        return laws
