"""σReparam: each weight is used with a spectral norm of its own that is trained."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wellcond.attention.layouts import Layout
from wellcond.attention.storage import WIDE, assign_, full
from wellcond.checked import short
from wellcond.errors import InapplicableError, SchemeError
from wellcond.linalg import leading_triples
from wellcond.rules import computing
from wellcond.spectral.corrections import WeightConditioning
from wellcond.spectral.scaling import ScaleRule
from wellcond.spectral.trained import check_trained, check_unwrapped, holds_any
from wellcond.spectral.weights import Weight


class SigmaRule(ScaleRule):
    r"""`(γ / σ(W)) W` with a trained γ for each group.

    Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse (ICML 2023).
    $\sigma = u^T W v$ with constant u and v, so that its gradient is $u v^T$, that of the spectral norm; one power
    iteration for each change of W keeps them at the leading pair. The published code iterates in each training forward
    pass, which is the same for one pass per step. Between the steps nothing moves here: recomputed activations,
    accumulated gradients and evaluation all see one function.
    """

    def __init__(self, weight: Weight, per_head: bool, gain: float | None) -> None:
        super().__init__(weight, per_head)
        self.first = gain  # None: σ(W)
        units = self.units(full(weight.stored))
        self.u, self.v = units.new_zeros(len(units)), units.new_zeros(self.groups, units.shape[1])
        self.parameters["gain"] = nn.Parameter(units.new_zeros(self.groups))
        self._own: Tensor | None = None  # what u and v belong to
        self._iterated: int | None = None  # its version then; None in a copy
        self._due = False
        self.start_(weight.stored, gain)

    @computing()
    def start_(self, weight: Tensor, gain: float | None) -> None:
        """The leading pair of each group, exactly, and γ."""
        whole = full(weight)
        self.follow(whole)
        units = self.units(whole)
        for index in range(self.groups):
            mine = self.group == index
            u, _, v = leading_triples(units[mine], 1)
            self.u[mine], self.v[index] = u[:, 0].to(self.u), v[0].to(self.v)
        assign_(self.extra("gain"), self.sigma(units) if gain is None else units.new_full((self.groups,), gain))
        self._mark(weight)

    @computing()
    def iterate_(self, weight: Tensor) -> None:
        """One power iteration: u along W v, then v along Wᵀ u."""
        self.follow(weight)
        units = self.units(weight.detach())
        tiny = torch.finfo(units.dtype).tiny
        along = self._along(units)
        square = along.new_zeros(self.groups + 1).index_add(0, self.group, along.square())
        self.u.copy_(along / square.sqrt().clamp(min=tiny)[self.group])
        own = units.new_zeros(self.groups + 1, len(units))
        own[self.group, torch.arange(len(units), device=units.device)] = self.u
        back = own[:-1] @ units
        self.v.copy_(back / back.square().sum(1, keepdim=True).sqrt().clamp(min=tiny))
        self._mark(weight)

    def _mark(self, weight: Tensor) -> None:
        """Remember which weight, and when, u and v were brought up to date with."""
        self._own, self._iterated, self._due = weight, weight._version, False
        if not self.written:
            self._source, self._version = weight, ()  # `after_step` takes the source away where it saw a step

    def _along(self, units: Tensor) -> Tensor:
        """`W v`, each unit with its group's v; zero for the others."""
        every = units @ torch.cat([self.v, torch.zeros_like(self.v[:1])]).mT
        return every.gather(1, self.group[:, None])[:, 0]

    def sigma(self, units: Tensor) -> Tensor:
        """`uᵀ W v` of each group."""
        return units.new_zeros(self.groups + 1).index_add(0, self.group, self.u * self._along(units))[:-1]

    def scales(self, units: Tensor) -> Tensor:
        """`γ / σ` for the conditioned units."""
        gain = self.extra("gain")
        gain = (gain.full_tensor() if isinstance(gain, DTensor) else gain).to(units.dtype)
        ratio = gain / self.sigma(units)
        return torch.cat([ratio, ratio.new_ones(1)])[self.group]

    def __call__(self, weight: Tensor) -> Tensor:
        """The effective weight."""
        self.settle_(weight)
        return super().__call__(weight)

    def export(self, weight: Tensor) -> Tensor:
        """See `Rule.export`."""
        self.settle_(weight)
        return super().export(weight)

    def settle_(self, weight: Tensor) -> None:
        """Make up for an iteration that waited for a sharded weight to be whole; a copy finds its own weight."""
        if self._due:
            self.iterate_(full(weight))
        elif self._iterated is None and not torch.compiler.is_compiling():
            self._mark(weight)

    def stepped(self, weight: Tensor) -> None:
        """Iterate if the step changed W."""
        if isinstance(weight, DTensor) or self._sharded:
            self._due = True  # ranks do not come here in the same order, so nothing may be gathered
        elif not weight.is_meta:
            told = weight is self._own and self._source is None
            if told or weight._version != self._iterated:
                self.iterate_(weight)

    def follow(self, weight: Tensor) -> None:
        """Also to the weight's dtype."""
        super().follow(weight)
        dtype = weight.dtype if weight.dtype in WIDE else torch.float32
        if (self.u.device, self.u.dtype) != (weight.device, dtype):
            self.u, self.v = self.u.to(weight.device, dtype), self.v.to(weight.device, dtype)

    def invert(self, effective: Tensor) -> Tensor:
        """V itself: `loaded` makes γ = σ(V)."""
        return effective.clone(memory_format=torch.contiguous_format)

    def loaded(self, weight: Tensor, effective: Tensor | None = None) -> None:
        """Begin again: γ = σ(V) for a weight V that is used, as at first for a weight W."""
        super().loaded(weight, effective)
        self.start_(weight, self.first if effective is None else None)

    def state(self) -> dict[str, Tensor]:
        """u, v and γ."""
        return {"u": self.u.clone(), "v": self.v.clone(), "gain": full(self.extra("gain")).clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over u, v and γ of another process, and the weight they belong to as it is now."""
        self.u, self.v = state["u"].to(self.u, copy=True), state["v"].to(self.v, copy=True)
        assign_(self.extra("gain"), state["gain"])
        if self._holder is not None:
            registered, name = self._holder
            self._mark(registered[name])

    def __getstate__(self) -> dict[str, Any]:
        """A copy's weight is another."""
        return super().__getstate__() | {"_own": None, "_iterated": None}


class SigmaReparamConditioning(WeightConditioning):
    """One spectral norm for all that is conditioned in a stored parameter (as published: a fused qkv has one).

    `per="head"` gives each head of each role its own; `gain` is `"initial"` (γ = σ(W), so that the model starts as it
    was) or a number (1 in the paper's speech models).

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(8, 2)
    >>> c = wc.condition_(model, "sigma_reparam", gain=1.0)
    >>> round(float(torch.linalg.matrix_norm(model.in_proj_weight.detach(), 2)), 4)
    1.0
    >>> [name for name, _ in model.named_parameters() if name.endswith("gain")]
    ['in_proj_weight_gain']
    """

    method = "sigma_reparam"
    citation = "Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse, ICML 2023"
    defaults = MappingProxyType({"per": "matrix", "gain": "initial"})

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._made: dict[tuple[int, tuple[Layout, ...]], SigmaRule] | None = None  # while they are installed
        per, gain = self.options["per"], self.options["gain"]
        if per not in ("matrix", "head"):
            raise SchemeError(f"per is 'matrix' or 'head', got {per!r}")
        number = isinstance(gain, (int, float)) and not isinstance(gain, bool)
        if not (number and 0 < gain < 1e38) and not (isinstance(gain, str) and gain == "initial"):
            raise SchemeError(f"gain is 'initial' or a positive number below 1e38, got {short(gain)}")

    def check(self) -> None:
        """Every spectral norm can be divided by, and the model takes further parameters."""
        super().check()
        check_unwrapped(self.model, self.method)
        for weight in self.weights:
            zero = [not head.any() for part in weight.parts for head in part.layout.views(full(weight.stored))]
            if all(zero) or (self.options["per"] == "head" and any(zero)):
                raise InapplicableError(
                    f"'{weight.path}' of shape {tuple(weight.stored.shape)} has a spectral norm of zero, which "
                    "'sigma_reparam' would divide by; initialise it first, or leave the layer out with layers=…"
                )

    def rule(self, weight: Weight) -> SigmaRule:
        """γ, u and v for one stored parameter."""
        key = id(weight.stored), tuple(part.layout for part in weight.parts)
        made = {} if self._made is None else self._made
        if key not in made:
            gain = self.options["gain"]
            first = None if gain == "initial" else float(gain)
            made[key] = SigmaRule(weight, self.options["per"] == "head", first)
        return made[key]

    def install_(self) -> None:
        """Tied weights have one γ."""
        self._made = {}
        super().install_()
        self._made = None

    def unfold_(self) -> None:
        """Train what is stored, with γ its spectral norm; which γ and W it was folded from is not known any more."""
        check_unwrapped(self.model, self.method)
        super().unfold_()

    def attach(self, optimizer: Any) -> Self:
        """Check that the optimizer trains γ; a weight that is live decays as it should."""
        if self.mode == "live":
            check_trained(optimizer, self.method, self._gains())
        return self

    def concerns(self, optimizer: Any) -> bool:
        """Whether the optimizer trains one of the conditioned weights."""
        return self.mode == "live" and holds_any(optimizer, [weight.stored for weight in self.weights])

    def after_step(self, optimizer: Any = None) -> None:
        """Iterate, for a loop that changes the weights without a torch optimizer."""
        for weight in self.weights if self.mode == "live" else ():
            self._live_rule(weight).stepped(weight.stored)

    def state_dict(self) -> dict[str, Any]:
        """See `Conditioning.state_dict`."""
        for weight in self.weights if self.mode == "live" else ():
            rule = self._live_rule(weight)
            assert isinstance(rule, SigmaRule)
            rule.settle_(weight.stored)
        return super().state_dict()

    def _gains(self) -> list[tuple[str, Tensor, Tensor]]:
        return [(f"{w.path}_gain", self._live_rule(w).extra("gain"), w.stored) for w in self.weights]
