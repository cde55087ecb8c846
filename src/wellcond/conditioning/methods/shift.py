"""Theorem 3.8 of Spectral Conditioning: C = λ I, the same all through training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor

from wellcond._core.deferred_torch import is_dtensor
from wellcond._core.safe_text import visible
from wellcond._core.short_repr import short_repr
from wellcond.attention.layouts import AnyLayout
from wellcond.attention.storage import full, like
from wellcond.conditioning.guarantee import COSINE, ONE_HOT, TOKENS, ConditioningSummary, shift_bounds
from wellcond.conditioning.method import FixedCorrection, register_method
from wellcond.conditioning.safe_strength import PAPER_STRENGTH, Logits, largest, moments_of, safe_strength, strongest_at
from wellcond.conditioning.storage.rule import StatelessRule
from wellcond.conditioning.target_weights import Entries, TargetHeads, TargetWeight, weights_of
from wellcond.errors import SchemeError
from wellcond.propagation.thresholds import Thresholds

MAX_HEADS_NAMED = 3  # in a warning


@final
class ShiftRule(StatelessRule):
    """`W + C` with the same C always."""

    fixed_gradient = True

    def __init__(self, change: Entries) -> None:
        super().__init__()
        self.change = change

    def effective(self, weight: Tensor) -> Tensor:
        """Return a copy of W with the entries added."""
        effective = weight.clone(memory_format=torch.contiguous_format)
        self.change.add_(effective)
        return effective

    def compute(self, weight: Tensor) -> Tensor:
        """Return `W + C`, differentiable in W, also inside a compiled graph."""
        if is_dtensor(weight):
            return weight + like(weight, self.effective(torch.zeros_like(full(weight))))
        mine = self.change.on(weight)
        return weight.reshape(-1).index_add(0, mine.index, mine.value).view(weight.shape)

    def invert(self, effective: Tensor) -> Tensor:
        """Return `V − C`."""
        weight = effective.clone(memory_format=torch.contiguous_format)
        self.change.add_(weight, -1.0)
        return weight


@register_method
@final
class Shift(FixedCorrection):
    """`λ I` for each head.

    `placement="head"` puts the identity on the first d coordinates of every head (the paper's reading); `"layer"` is
    the identity of the whole `D × heads·d` matrix, so that head h has coordinates `h·d … (h+1)·d − 1`.
    """

    name = "shift"
    citation = "Spectral Conditioning of Attention, Theorem 3.8"
    strength_default = PAPER_STRENGTH
    defaults = MappingProxyType({"placement": "head"})

    def check_options(self) -> None:
        """Raise unless the placement is known."""
        place = self.options["placement"]
        if not isinstance(place, str) or place not in ("head", "layer"):
            raise SchemeError(f"placement is 'head' or 'layer', got {short_repr(place)}")

    def check_numbers(self) -> None:
        """Do nothing: every strength that the arithmetic can do is one."""

    def rule(self, weight: TargetWeight) -> ShiftRule:
        """Return the rule that adds the identity."""
        return ShiftRule(self.entries(weight))

    def fixed(self, part: TargetHeads) -> Tensor:
        """Return λ I for each head, `(heads, D, d)`."""
        heads, width, d = part.projection.shape
        if self.options["placement"] == "layer":
            whole = torch.eye(width, heads * d, dtype=torch.float64)
            return part.strength * whole.view(width, heads, d).transpose(0, 1)
        return part.strength * torch.eye(width, d, dtype=torch.float64).expand(heads, width, d)

    def bounds(self, part: TargetHeads, largest: Tensor) -> list[float]:
        """Return the sound form of Theorem 3.8."""
        return shift_bounds(largest, self.fixed(part))

    @torch.no_grad()
    def safe_strength(self, held: Mapping[str, float]) -> float:
        """Return the largest strength that leaves attention to other tokens; values set no limit."""
        if self.strength.keys() <= {"value"}:
            return PAPER_STRENGTH
        return safe_strength(self.logits(dict.fromkeys(self.strength, 1.0), held))

    def logits(self, strength: Mapping[str, float], held: Mapping[str, float]) -> Iterator[Logits]:
        """Yield W and C of each layer's queries and keys, for C of a `strength` where `held` is in the weights now."""
        wanted, now = self._identities(strength), self._identities(held)
        for layer in self.layers:
            found: list[tuple[Tensor, Tensor]] = []
            for _, projection in layer.projections("query", "key"):
                effective, key = projection.read().double(), (projection.weight.path, projection.weight.layout)
                zero = torch.zeros_like(effective)
                change, present = (parts[key].to(effective) if key in parts else zero for parts in (wanted, now))
                found.append((effective - present, change))
            if len(found) == 2:
                yield layer, found[0], found[1]

    def _identities(self, strength: Mapping[str, float]) -> dict[tuple[str, AnyLayout], Tensor]:
        weights = weights_of(self.layers, strength)
        return {(weight.path, part.layout): self.fixed(part) for weight in weights for part in weight.parts}

    def warnings(self, summary: ConditioningSummary, chosen: bool) -> Iterator[str]:
        """Say where the guarantee does not hold, and where attention starts one-hot."""
        failing = [head for head in summary.heads if head.status == "no guarantee"]
        if failing:
            worst = max(failing, key=lambda head: head.sigma_max)
            names = ", ".join(f"{head.layer} {head.role} head {head.head}" for head in failing[:MAX_HEADS_NAMED])
            others = len(failing) - MAX_HEADS_NAMED
            yield (
                f"Theorem 3.8 promises nothing for {visible(names)}{f' and {others} more' if others > 0 else ''}: the "
                f"strength is not above σ_max(W), up to {worst.sigma_max:.3g}; κ may rise. See summary()"
            )
        if chosen:
            return  # so that attention does not start one-hot
        moments = moments_of(self.logits(self.strength, self.strength))  # λ is what the strengths are multiplied by
        found = strongest_at(moments, 1.0)
        if found is None or found[0].row().own <= ONE_HOT:
            return
        hot, row = found[0], found[0].row()
        strength = max(abs(self.strength.get(role, 0.0)) for role in ("query", "key"))
        half, most = (largest(moments, level, 1.0) * strength for level in (Thresholds().own, ONE_HOT))
        yield (
            f"attention starts one-hot: {visible(hot.layer)} head {hot.head} gives {row.own:.0%} to a token's own "
            f"column, entropy {row.entropy / math.log(TOKENS):.2g} log T (logit with itself {hot.mean:.3g}, {TOKENS} "
            f"tokens of cosine {COSINE:g}), so queries and keys get no gradient. Half of it goes there from strength "
            f"{half:.3g} on; the largest strength for query and key that keeps every head below {ONE_HOT:.0%} is "
            f"{most:.3g}"
        )
