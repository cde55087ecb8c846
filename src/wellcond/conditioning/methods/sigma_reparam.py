"""σReparam: each effective weight has a spectral norm of its own that is trained."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond._core.linalg import leading_triples
from wellcond._core.short_repr import short_repr
from wellcond.attention.storage import assign_, full
from wellcond.conditioning.method import Correction, register_method
from wellcond.conditioning.storage.rule import ScalingRule, computing
from wellcond.conditioning.target_weights import TargetHeads, TargetWeight
from wellcond.errors import InapplicableError, SchemeError


@final
class SigmaRule(ScalingRule):
    r"""`(γ / σ(W)) W` with a trained γ for each group.

    Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse (ICML 2023).
    $\sigma = u^T W v$ with constant u and v, so that its gradient is $u v^T$, that of the spectral norm; one power
    iteration for each change of W keeps them at the leading pair. The published code iterates in each training forward
    pass, which is the same for one pass per step. Between the steps nothing moves here: recomputed activations,
    accumulated gradients and evaluation all see one function.
    """

    def __init__(self, weight: TargetWeight, per_head: bool, gain: float | None) -> None:
        super().__init__(weight, per_head)
        self.first = gain  # None: σ(W)
        units = self.units(full(weight.parameter))
        self.u, self.v = units.new_zeros(len(units)), units.new_zeros(self.groups, units.shape[1])
        self.parameters["gain"] = nn.Parameter(units.new_zeros(self.groups))
        self._own: Tensor | None = None  # what u and v belong to
        self._iterated: int | None = None  # its version then; None in a copy
        self._due = False  # whether an iteration waits for a sharded weight to be whole
        self.start_(weight.parameter, gain)

    @computing()
    def start_(self, weight: Tensor, gain: float | None) -> None:
        """Set the leading pair of each group, exactly, and γ."""
        units = self._followed(full(weight))
        for index in range(self.groups):
            mine = self.group == index
            u, _, v = leading_triples(units[mine], 1)
            self.u[mine], self.v[index] = u[:, 0].to(self.u), v[0].to(self.v)
        assign_(self.extra("gain"), self.sigma(units) if gain is None else units.new_full((self.groups,), gain))
        self._mark(weight)

    @computing()
    def iterate_(self, weight: Tensor) -> None:
        """Take one power iteration: u along W v, then v along Wᵀ u."""
        units = self._followed(weight.detach())
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
        self.revision += 1

    def _along(self, units: Tensor) -> Tensor:
        """Return `W v`, each unit with its group's v; zero for the others."""
        every = units @ torch.cat([self.v, torch.zeros_like(self.v[:1])]).mT
        return every.gather(1, self.group[:, None])[:, 0]

    def sigma(self, units: Tensor) -> Tensor:
        """Return `uᵀ W v` of each group."""
        return units.new_zeros(self.groups + 1).index_add(0, self.group, self.u * self._along(units))[:-1]

    def scales(self, units: Tensor) -> Tensor:
        """Return `γ / σ` for the conditioned units."""
        self._follow(units)
        gain = self.extra("gain")
        gain = (gain.full_tensor() if is_dtensor(gain) else gain).to(units.dtype)
        ratio = gain / self.sigma(units)
        return torch.cat([ratio, ratio.new_ones(1)])[self.group]

    def settle(self, weight: Tensor) -> None:
        """Make up for an iteration that waited for a sharded weight to be whole; a copy finds its own weight."""
        if self._due:
            self.iterate_(full(weight))
        elif self._iterated is None and not torch.compiler.is_compiling():
            self._own, self._iterated = weight, weight._version

    def stepped(self, weight: Tensor, told: bool, sharded: bool) -> None:
        """Iterate if the step changed W."""
        if sharded:
            self._due = True
        elif not weight.is_meta and ((told and weight is self._own) or weight._version != self._iterated):
            self.iterate_(weight)

    def advance(self) -> None:
        """Do nothing: u and v follow steps, not reads."""

    def _followed(self, weight: Tensor) -> Tensor:
        """Return the units of a weight, with u and v in the same place and precision."""
        units = self.units(weight)
        self._follow(units)
        return units

    def _follow(self, units: Tensor) -> None:
        if (self.u.device, self.u.dtype) != (units.device, units.dtype):
            self.u, self.v = self.u.to(units), self.v.to(units)

    def invert(self, effective: Tensor) -> Tensor:
        """Return V itself: `loaded` makes γ = σ(V)."""
        return effective.clone(memory_format=torch.contiguous_format)

    def loaded(self, weight: Tensor, effective: Tensor | None) -> None:
        """Begin again: γ = σ(V) for an effective weight V, as at first for a weight W."""
        self.start_(weight, self.first if effective is None else None)

    def state(self) -> dict[str, Tensor]:
        """Return u, v and γ."""
        return {"u": self.u.clone(), "v": self.v.clone(), "gain": full(self.extra("gain")).clone()}

    def load(self, state: dict[str, Tensor], weight: Tensor) -> None:
        """Take over u, v and γ of another process, and the weight they belong to as it is now."""
        self.u, self.v = state["u"].to(self.u, copy=True), state["v"].to(self.v, copy=True)
        assign_(self.extra("gain"), state["gain"])
        self._mark(weight)

    def __getstate__(self) -> dict[str, Any]:
        """Have a copy find its own weight."""
        return self.__dict__ | {"_own": None, "_iterated": None}


@register_method
@final
class SigmaReparam(Correction):
    """One spectral norm for all that is conditioned in a parameter (as published: a fused qkv has one).

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

    name = "sigma_reparam"
    citation = "Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse, ICML 2023"
    defaults = MappingProxyType({"per": "matrix", "gain": "initial"})
    adds_parameters = True

    def check_options(self) -> None:
        """Raise unless `per` and `gain` mean something."""
        per, gain = self.options["per"], self.options["gain"]
        if per not in ("matrix", "head"):
            raise SchemeError(f"per is 'matrix' or 'head', got {per!r}")
        number = isinstance(gain, (int, float)) and not isinstance(gain, bool)
        if not (number and 0 < gain < 1e38) and not (isinstance(gain, str) and gain == "initial"):
            raise SchemeError(f"gain is 'initial' or a positive number below 1e38, got {short_repr(gain)}")

    def check_numbers(self) -> None:
        """Raise unless every spectral norm can be divided by."""
        for weight in self.weights:
            zero = [not head.any() for part in weight.parts for head in part.layout.views(full(weight.parameter))]
            if all(zero) or (self.options["per"] == "head" and any(zero)):
                raise InapplicableError(
                    f"'{weight.path}' of shape {tuple(weight.parameter.shape)} has a spectral norm of zero, which "
                    "'sigma_reparam' would divide by; initialise it first, or leave the layer out with layers=…"
                )

    def bounds(self, part: TargetHeads, largest: Tensor) -> None:
        """Return None: no κ is promised."""

    def rule(self, weight: TargetWeight) -> SigmaRule:
        """Return γ, u and v for one parameter."""
        gain = self.options["gain"]
        return SigmaRule(weight, self.options["per"] == "head", None if gain == "initial" else float(gain))
