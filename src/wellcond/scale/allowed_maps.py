"""Which changes of coordinates leave a layer's function as it is, found by trying them on the module itself.

The module's copy in float64 is given random weights of unit scale, so that queries matter whatever the model's own
weights are, and run on what the model gave it, before and after a random change of coordinates. Rotary positions,
QK-norms, gates and learned keys need no description: what they do not allow changes the output.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond._core.keyed_random import Draw
from wellcond._core.safe_text import briefly
from wellcond.attention.paths import resolve
from wellcond.attention.projection import Projection
from wellcond.attention.replay import Call, concatenate_heads
from wellcond.attention.storage import fetch, split_path
from wellcond.attention.view import AttentionLayer
from wellcond.scale.module_alone import OUTSIDE, is_whole, module_alone
from wellcond.scale.products import PAIRS

SAME = (
    1e-5  # of the largest output: a module may compute in float32 inside; a map that is not allowed changes all of it
)
NORMALISED = "queries and keys are normalised, so their scale has no effect"
TRIED = {"qk": ("full", "halves", "neighbours", "scalar"), "vo": ("full", "scalar")}  # the most general first


Maps = tuple[str, ...] | str  # kinds of maps, the most general first; or why there are none


def allowed_maps(layer: AttentionLayer, call: Call | None, part: str, known: dict[object, Maps]) -> Maps:
    """Return the kinds of maps that leave the layer's function as it is, the most general first; or why there are none.

    Without a call a module of a known class is tried on random tokens, if it takes nothing else; `known` keeps what was
    found for modules of the same class and sizes.
    """
    if call is not None:
        return _tried(layer, call, part)
    if layer.standing != "described" or layer.replay is None or layer.kind != "softmax":
        return "its class does not say what lies between its factors: give a batch"
    if part == "qk" and layer.rotary and not layer.qk_norm:  # turned by what a model gives it
        return ("scalar",)
    needed = [p for p in signature(layer.module.forward).parameters.values() if p.default is p.empty]
    alone = len(needed) == 1 and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD
    if alone or layer.replay.assemble is not concatenate_heads:
        return _tried_on_tokens(layer, part, known)
    if part == "qk" and layer.qk_norm:
        return NORMALISED
    return TRIED[part]


def _tried_on_tokens(layer: AttentionLayer, part: str, known: dict[object, Maps]) -> Maps:
    """Try a module on random tokens; once for all of the same class that print the same, sizes and parts included."""
    key = type(layer.module), str(layer.module), part
    if key not in known:
        x = Draw(0, "tokens").normal("query", 1, 6, layer.width)
        known[key] = _tried(layer, Call(layer, layer.module, {}, given=((x,), {})), part)
    return known[key]


@torch.no_grad()
def _tried(layer: AttentionLayer, call: Call, part: str) -> tuple[str, ...] | str:
    if not is_whole(layer):
        return OUTSIDE
    twin = _Twin(layer, call)
    try:
        out = twin.run()
        if part == "qk" and _same(twin.run_with("query", scale=3.0), out):
            return NORMALISED
        found = tuple(kind for kind in TRIED[part] if _same(twin.run_mapped(PAIRS[part], kind), out))
    except (RuntimeError, TypeError, ValueError, LookupError) as problem:
        return f"its module cannot be tried alone, on other weights: {briefly(problem, 100)}"
    return found or "no change of coordinates leaves its output as it is: something lies between its factors"


def _same(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= SAME * b.abs().max())


class _Twin:
    """A copy of an attention module in float64 with random weights, on what the model gave the module."""

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

    def run(self) -> Tensor:
        return self._run(self.weights, self.biases)

    def run_with(self, role: str, scale: float) -> Tensor:
        """The output with one role's weights and bias multiplied."""
        biases = self.biases | ({role: self.biases[role] * scale} if role in self.biases else {})
        return self._run(self.weights | {role: self.weights[role] * scale}, biases)

    def run_mapped(self, roles: tuple[str, ...], kind: str) -> Tensor:
        """The output in random coordinates of this kind."""
        groups, width = min(self.weights[role].shape[0] for role in roles), self.weights[roles[0]].shape[2]
        g = _random_map(kind, groups, width)
        weights, biases = dict(self.weights), dict(self.biases)
        for role, m in zip(roles, (g, torch.linalg.inv(g).mT), strict=True):
            mine = m.repeat_interleave(len(weights[role]) // groups, 0)
            weights[role] = weights[role] @ mine
            if role in biases:
                biases[role] = (biases[role][:, None] @ mine)[:, 0]
        return self._run(weights, biases)

    def _run(self, weights: dict[str, Tensor], biases: dict[str, Tensor]) -> Tensor:
        for role, weight in weights.items():
            self.projections[role].weight.layout.write_(self.projections[role].parameter(), weight)
        for role, bias in biases.items():
            self.projections[role].store_bias_(bias)
        out: Any = self.module(
            *map(_without_cache, self.args), **{k: _without_cache(v) for k, v in self.kwargs.items()}
        )
        return next(x for x in tree_leaves(out) if isinstance(x, Tensor) and x.is_floating_point())


def _without_cache(value: Any) -> Any:
    """Return an argument, but no cache: the model's pass has filled it with keys that would be seen twice."""
    return None if any("Cache" in cls.__name__ for cls in type(value).__mro__) else value


def _unit(role: str, projection: Projection) -> float:
    """A scale that keeps tokens of unit size at unit size."""
    heads, width, d = projection.shape
    return float((heads * d if role == "output" else width) ** -0.5)


def _random_map(kind: str, groups: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    sizes = 0.5 + torch.rand(groups, width, generator=generator, dtype=torch.float64)
    if kind == "scalar":
        return torch.diag_embed(sizes[:, :1].expand(-1, width))
    if kind == "halves" and width % 2 == 0:
        return torch.diag_embed(sizes[:, : width // 2].repeat(1, 2))
    if kind == "neighbours" and width % 2 == 0:
        return torch.diag_embed(sizes[:, ::2].repeat_interleave(2, 1))
    turns: Tensor = torch.linalg.qr(torch.randn(groups, width, width, generator=generator, dtype=torch.float64))[0]
    return turns * sizes[:, None]
