"""Scheme: the base class of every initialisation, and what one sets outside Q, K, V and O."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from wellcond._core.keyed_random import Draw
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.projection import Projection
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.init.laws import Law

Laws = dict[tuple[str, ...], Law]

OnInapplicable = Literal["error", "skip"]
"""Treatment of a layer that a scheme does not apply to: refuse the model, or pass the layer over."""


@dataclass(frozen=True)
class Target:
    """A matrix outside Q, K, V and O that a scheme sets.

    Args:
        scope: what its draws are keyed by: the block's or the module's canonical path.
        role: `"mlp_in.0"`, `"mlp_out.0"`, `"embedding"`, `"position"`.
    """

    scope: str
    role: str
    projection: Projection
    law: Law


class Scheme:
    """An initialisation: which law each role of a layer gets. Sub-classes are frozen dataclasses; fields are options.

    Attributes:
        name, citation, published: set by `@register_scheme`.
        stand_ins: values for the options that have no default, to ask where the scheme applies without the user's.

    >>> import torch, wellcond as wc
    >>> from dataclasses import dataclass
    >>> from wellcond.init.laws import Normal
    >>> @dataclass(frozen=True)
    ... class SmallQueries(wc.Scheme):
    ...     std: float = 0.01
    ...     def laws(self, layer):
    ...         return {("query",): Normal(self.std)}
    >>> wc.init_(torch.nn.MultiheadAttention(8, 2), SmallQueries(0.1)).entries[0].law
    'N(0, 0.1²)'
    """

    name: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    published: ClassVar[str] = ""
    stand_ins: ClassVar[Mapping[str, Any]] = {}
    composable: ClassVar[bool] = True  # False for a scheme that sets whole parameters, whatever their roles
    runs_model: ClassVar[bool] = False  # True for a scheme that finishes by running the model

    def applies(self, layer: AttentionLayer) -> str | None:
        """Return why the scheme does not apply to a layer, or None if it does."""
        return None

    def applies_to(self, layer: AttentionLayer, roles: frozenset[str]) -> str | None:
        """Return why the scheme does not apply to some roles of a layer, as a composition asks, or None if it does."""
        return self.applies(layer)

    def laws(self, layer: AttentionLayer) -> Laws:
        """Return the laws of the layer's roles; a role without one is left alone."""
        return {}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """Yield the matrices that the scheme sets outside Q, K, V and O: MLP matrices, embeddings, positions."""
        return iter(())

    def zeroed(self) -> frozenset[str]:
        """Return the roles (and `"mlp"`) whose biases are set to zero."""
        return frozenset()

    def parameters(
        self, layers: AttentionLayers, seed: int, wanted: Container[str] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield whole parameters that the scheme sets, by canonical path; if given, only those `wanted`."""
        return iter(())

    def functional(self) -> frozenset[str]:
        """Return the roles whose weights a user's function returns, so that no law is known for them."""
        return frozenset()

    def returned(self, layer: AttentionLayer, draw: Draw) -> dict[str, Tensor]:
        """Return the weights that this function makes for a layer: `{role: (heads, D, d)}`."""
        return {}

    def finish_(self, layers: AttentionLayers, writes: ParameterWrites) -> None:
        """Change what was drawn by running the model, if the scheme does."""

    def check_layers(self, layers: AttentionLayers) -> None:
        """Raise if what the user asked for has no effect on these layers."""

    def __str__(self) -> str:
        return self.name or type(self).__name__


def missing_roles(layer: AttentionLayer, *roles: str) -> str | None:
    """Return in words which of these roles a layer lacks, or None."""
    lacking = [role for role in roles if getattr(layer, role) is None]
    return f"{layer.kind} attention without {' and '.join(lacking)}" if lacking else None
