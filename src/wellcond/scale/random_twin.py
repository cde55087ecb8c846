"""A copy of an attention module with random weights, in which every head matters, on what the model gave the module."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond._core.keyed_random import Draw
from wellcond.attention.paths import resolve
from wellcond.attention.projection import Projection
from wellcond.attention.replay import Call
from wellcond.attention.storage import fetch, split_path
from wellcond.attention.view import AttentionLayer
from wellcond.scale.module_alone import module_alone

# Of the largest output: a module may compute in float32 inside; what is not the same differs in all of it.
SAME: Final = 1e-5
NOTHING: Final[Mapping[str, Tensor]] = MappingProxyType({})


class RandomTwin:
    """A copy of a layer's module in float64 with random weights of unit scale.

    Attributes:
        projections: views of the copy, by role.
        weights: of each role, `(heads, D, d)`.
        biases: of each role whose bias is split into heads, `(heads, d)`.
    """

    def __init__(self, layer: AttentionLayer, call: Call) -> None:
        view, (self.args, self.kwargs) = module_alone(layer, call.given)
        self.module, self.projections = view.module, dict(view.projections())
        for projection in self.projections.values():  # which are the model's own where it is in float64
            for path in filter(None, (projection.weight.path, projection.bias)):
                owner, name = split_path(path)
                parameters = resolve(self.module, owner)._parameters
                parameters[name] = fetch(self.module, path).detach().clone()  # type: ignore[assignment]
        draw = Draw(0, "coordinates")
        self.weights = {
            role: draw.normal(role, *p.shape).double() * _unit(role, p) for role, p in self.projections.items()
        }
        self.biases = {
            role: draw.normal(f"{role} bias", 1, p.heads, p.width)[0].double()
            for role, p in self.projections.items()
            if p.bias is not None and p.bias_layout is not None
        }

    @torch.no_grad()
    def run(self, weights: Mapping[str, Tensor] = NOTHING, biases: Mapping[str, Tensor] = NOTHING) -> Tensor:
        """The output, with some roles' weights and biases in place of the copy's."""
        for role, weight in (self.weights | dict(weights)).items():
            self.projections[role].weight.layout.write_(self.projections[role].parameter(), weight)
        for role, bias in (self.biases | dict(biases)).items():
            self.projections[role].store_bias_(bias)
        return self.run_as_it_is()

    @torch.no_grad()
    def run_as_it_is(self) -> Tensor:
        """The output with the parameters that the copy has now."""
        out: Any = self.module(
            *map(_without_cache, self.args), **{k: _without_cache(v) for k, v in self.kwargs.items()}
        )
        return next(x for x in tree_leaves(out) if isinstance(x, Tensor) and x.is_floating_point())


def same_output(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs differ by no more than rounding where they are numbers, which they are in the same places."""
    known = torch.isfinite(b)
    if not bool(known.any()) or not torch.equal(known, torch.isfinite(a)):
        return False
    return bool((a - b)[known].abs().max() <= SAME * b[known].abs().max())


def _without_cache(value: Any) -> Any:
    """Return an argument, but no cache: the model's pass has filled it with keys that would be seen twice."""
    return None if any("Cache" in cls.__name__ for cls in type(value).__mro__) else value


def _unit(role: str, projection: Projection) -> float:
    """A scale that keeps tokens of unit size at unit size."""
    heads, width, d = projection.shape
    return float((heads * d if role == "output" else width) ** -0.5)
