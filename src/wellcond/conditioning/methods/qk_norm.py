"""QK-norm: queries and keys are normalised per head before their product."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wellcond._core.linalg import svdvals
from wellcond.attention.paths import resolve
from wellcond.attention.roles import QKV
from wellcond.attention.storage import split_path
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.cost import CostRow, projection_costs
from wellcond.conditioning.guarantee import HeadCondition, head_conditions
from wellcond.conditioning.method import register_method
from wellcond.conditioning.model_checks import check_unwrapped
from wellcond.conditioning.storage.base import Added, Effective, ModuleChange
from wellcond.conditioning.storage.live_parameter import parameter_of
from wellcond.errors import InapplicableError, SchemeError, WeightError

SLOTS = {"query": "q_norm", "key": "k_norm"}
FLOPS = {"layer": 8, "rms": 4, "l2": 4}  # per number: what is added, multiplied, divided


@final
class UnitNorm(nn.Module):
    r"""`g x / |x|`: the query's has a trained gain g, over the scale that the layer multiplies its logits by.

    Henry et al., Query-Key Normalization for Transformers (2020): logits are $g\,\hat q \hat k^T$, at most g.
    """

    gain: Tensor | None

    def __init__(self, gain: float | None, scale: float, like: Tensor) -> None:
        super().__init__()
        self.scale = scale
        value = None if gain is None else nn.Parameter(torch.full((1,), gain, device=like.device, dtype=like.dtype))
        self.register_parameter("gain", value)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        unit = F.normalize(x, dim=-1)
        return (unit if self.gain is None else unit * (self.gain / self.scale)).to(x.dtype)


@register_method
@final
class QkNorm(ModuleChange):
    r"""A norm in the layer's own slots for queries and keys (timm's `q_norm` and `k_norm`).

    `norm="layer"` is timm's `qk_norm=True`, and its state dictionary the one of a model built so (Dehghani et al.,
    Scaling Vision Transformers to 22 Billion Parameters, 2023); `"rms"` without the mean; both keep the logits'
    $1/\sqrt d$. `"l2"` is Henry et al.'s $g\,\hat q \hat k^T$, without it; `gain` is its first g (x-transformers: 10).

    >>> import torch, wellcond as wc
    >>> from timm.layers import Attention
    >>> model = Attention(12, 3)
    >>> c = wc.condition_(model, "qk_norm")
    >>> type(model.q_norm).__name__, model.q_norm.eps, c.cost()["parameters"]
    ('LayerNorm', 1e-06, (432, 448, 448))
    >>> c.remove_()
    >>> model.q_norm
    Identity()
    """

    name = "qk_norm"
    citation = "Henry et al., Query-Key Normalization for Transformers, 2020"
    defaults = MappingProxyType({"norm": "layer", "gain": 10.0})

    def check_options(self) -> None:
        """Raise unless norm, gain and roles mean something; values are left out."""
        norm, gain = self.options["norm"], self.options["gain"]
        if not isinstance(norm, str) or norm not in FLOPS:
            raise SchemeError(f"norm is 'layer', 'rms' or 'l2', got {norm!r}")
        if not isinstance(gain, (int, float)) or isinstance(gain, bool) or not (math.isfinite(gain) and gain > 0):
            raise SchemeError(f"gain is a positive number, got {gain!r}")
        self.strength = {role: value for role, value in self.strength.items() if role in SLOTS}
        if not self.strength:
            raise SchemeError("'qk_norm' normalises queries and keys; roles has neither")
        self._slots: list[tuple[nn.Module, str, nn.Module]] = []  # module, slot and what was in it

    def claims(self, active: bool = False) -> Mapping[Hashable, Hashable]:
        """Return each slot."""
        return {(id(layer.module), SLOTS[role]): True for layer in self.layers for role in self.strength}

    def check(self) -> None:
        """Raise unless every layer has free slots."""
        check_unwrapped(self.model, self.name)
        for layer in self.layers:
            reason = self._refusal(layer)
            if reason:
                raise InapplicableError(
                    f"'qk_norm' does not apply to '{layer.name}' ({type(layer.module).__name__}): {reason}. Build the "
                    "model with its own QK norm if it has one, or leave the layer out with layers=…"
                )
            if _weight(layer).is_meta:
                raise WeightError(f"'{layer.name}' is on the meta device: materialise the model (to_empty) first")

    def _refusal(self, layer: AttentionLayer) -> str:
        slots = [layer.module._modules.get(SLOTS[role]) for role in self.strength]
        if layer.query is None or layer.key is None or None in slots:
            return "its class has no place for a norm of queries and keys (children q_norm and k_norm)"
        if not all(isinstance(slot, nn.Identity) for slot in slots):
            return "it normalises queries and keys already"
        if self.options["norm"] == "l2" and layer.scale is None:
            return "'l2' replaces the scale of its logits, which is not one number"
        return ""

    def enter_(self, effective: Effective | None = None) -> None:
        """Fill the slots."""
        made = [
            (layer.module, SLOTS[role], self._norm(layer, role).train(layer.module.training))
            for layer in self.layers
            for role in self.strength
        ]
        for module, slot, norm in made:
            self._slots.append((module, slot, module._modules[slot]))  # type: ignore[arg-type]
            module._modules[slot] = norm

    def _norm(self, layer: AttentionLayer, role: str) -> nn.Module:
        like = _weight(layer)
        if self.options["norm"] == "l2":
            gain = float(self.options["gain"]) if role == next(iter(self.strength)) else None
            return UnitNorm(gain, layer.scale or 1.0, like)
        width = getattr(layer.module, "head_dim", layer.head_dim)  # differential attention normalises half a head
        cls = nn.LayerNorm if self.options["norm"] == "layer" else nn.RMSNorm
        return cls(width, eps=_eps(layer), device=like.device, dtype=like.dtype)

    def leave_(self) -> None:
        """Put back what was in the slots."""
        for module, slot, before in self._slots:
            module._modules[slot] = before

    def added(self) -> Added:
        """Return the parameters of the norms."""
        return [
            (f"{layer.name}.{SLOTS[role]}.{name}".strip("."), parameter, _weight(layer))
            for layer in self.layers
            for role in self.strength
            for name, parameter in getattr(layer.module, SLOTS[role]).named_parameters()
        ]

    def heads(self) -> list[HeadCondition]:
        """Return κ of the query and key weights, which the norm leaves as they are."""
        found: list[HeadCondition] = []
        for layer in self.layers:
            for role, projection in layer.projections(*self.strength):
                heads = projection.read()
                found += head_conditions(layer.name, role, svdvals(heads), heads, None)
        return found

    def cost(self, tokens: int) -> list[CostRow]:
        """Count `c N d` FLOPs for each head and role, with c = 8 (layer) or 4 (rms, l2) operations per number."""
        shapes = [p.shape for layer in self.layers for _, p in layer.projections(*self.strength)]
        new, normed = sum(p.numel() for _, p, _ in self.added()), tokens * sum(h * d for h, _, d in shapes)
        every = [p for layer in self.layers for _, p in layer.projections(*QKV)]
        return projection_costs(every, tokens, new, flops=FLOPS[self.options["norm"]] * normed, kept=normed)


def _weight(layer: AttentionLayer) -> Tensor:
    """Return the parameter that holds the queries."""
    assert layer.query is not None
    assert layer.root is not None
    owner, name = split_path(layer.query.weight.path)
    return parameter_of(resolve(layer.root, owner), name)


def _eps(layer: AttentionLayer) -> float:
    """Return ε of the norms around the layer, as the layer's own class would choose; 1e-6 where there is none."""
    around = [resolve(layer.root, name) for name in layer.block.norms] if layer.root and layer.block else []
    values = [getattr(module, "eps", None) for module in (*around, *layer.module.modules())]
    return next((value for value in values if isinstance(value, float) and 0 < value < 1), 1e-6)
