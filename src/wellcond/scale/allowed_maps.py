"""Which changes of coordinates leave a layer's function as it is, found by trying them on the module itself.

The module's copy in float64 is given random weights of unit scale, so that queries matter whatever the model's own
weights are, and run on what the model gave it, before and after a random change of coordinates. Rotary positions,
QK-norms, gates and learned keys need no description: what they do not allow changes the output.
"""

from __future__ import annotations

from inspect import signature

import torch
from torch import Tensor

from wellcond._core.keyed_random import Draw
from wellcond._core.safe_text import briefly
from wellcond.attention.replay import Call, concatenate_heads
from wellcond.attention.view import AttentionLayer
from wellcond.scale.module_alone import OUTSIDE, is_whole
from wellcond.scale.products import PAIRS
from wellcond.scale.random_twin import RandomTwin, same_output

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
    twin = RandomTwin(layer, call)
    try:
        out = twin.run()
        if part == "qk" and same_output(_scaled(twin, "query", 3.0), out):
            return NORMALISED
        found = tuple(kind for kind in TRIED[part] if same_output(_mapped(twin, PAIRS[part], kind), out))
    except (AttributeError, RuntimeError, TypeError, ValueError, LookupError) as problem:
        return f"its module cannot be tried alone, on other weights: {briefly(problem, 100)}"
    return found or "no change of coordinates leaves its output as it is: something lies between its factors"


def _scaled(twin: RandomTwin, role: str, scale: float) -> Tensor:
    """The output with one role's weights and bias multiplied."""
    biases = {role: twin.biases[role] * scale} if role in twin.biases else {}
    return twin.run({role: twin.weights[role] * scale}, biases)


def _mapped(twin: RandomTwin, roles: tuple[str, ...], kind: str) -> Tensor:
    """The output in random coordinates of this kind."""
    groups, width = min(twin.weights[role].shape[0] for role in roles), twin.weights[roles[0]].shape[2]
    g = _random_map(kind, groups, width)
    weights, biases = dict[str, Tensor](), dict[str, Tensor]()
    for role, m in zip(roles, (g, torch.linalg.inv(g).mT), strict=True):
        mine = m.repeat_interleave(len(twin.weights[role]) // groups, 0)
        weights[role] = twin.weights[role] @ mine
        if role in twin.biases:
            biases[role] = (twin.biases[role][:, None] @ mine)[:, 0]
    return twin.run(weights, biases)


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
