"""Theorem 3.5 of Spectral Conditioning: C = σ_max(W) times the polar factor of W, so that κ(W + C) ≤ 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor

from wellcond._core.deferred_torch import is_dtensor
from wellcond._core.linalg import svd
from wellcond._core.polar import polar_rows
from wellcond._core.short_repr import short_repr
from wellcond.attention.layouts import AnyLayout, Layout, as_matrix
from wellcond.attention.storage import WIDE_DTYPES, full, like
from wellcond.conditioning.method import Correction, register_method
from wellcond.conditioning.storage.rule import Rule, computing
from wellcond.conditioning.target_weights import TargetHeads, TargetWeight
from wellcond.errors import CheckpointError, SchemeError

MAX_UNITS_OFF = 16  # units in the last place of the largest number up to which W gives what was loaded


@final
class PolarRule(Rule):
    r"""`W + s σ_max(W) P` for each head, with P the polar factor of W; no gradient flows through the correction.

    Singular values $\sigma_i$ become $\sigma_i + s\sigma_{max}$, hence
    $\kappa = (1 + s)\sigma_{max} / (\sigma_{min} + s\sigma_{max}) \le 1 + 1/s$: 2 for the theorem's $s = 1$.
    """

    fixed_gradient = True
    traceable = False  # the polar factor asks its own numbers how to go on

    def __init__(self, weight: TargetWeight, every: int = 1) -> None:
        super().__init__()
        self.every = every
        self.parts = [(part.layout, part.strength, part.name) for part in weight.parts]
        self.side_by_side = _side_by_side([layout for layout, _, _ in self.parts], weight.parameter)
        self.age = 0  # changes of W since the correction was computed
        self.correction: Tensor | None = None  # kept only where it is not a function of W

    def compute(self, weight: Tensor) -> Tensor:
        """Return `W + C`, differentiable in W as the identity."""
        if is_dtensor(weight):
            whole = full(weight)
            return weight + like(weight, self.effective(whole) - whole)
        return weight + (self.effective(weight.detach()) - weight.detach())

    def effective(self, weight: Tensor) -> Tensor:
        """Return `W + C`, with a new C every `every` changes of W."""
        if self.correction is None:
            effective = self._apply(weight)
            if self.every == 1:
                return effective
            self.correction = effective - weight
        return weight + self.correction.to(weight)

    def advance(self) -> None:
        """Forget a correction that has served its time."""
        if self.correction is not None:
            self.age += 1
            if self.age >= self.every:
                self.age, self.correction = 0, None

    def settle(self, weight: Tensor) -> None:
        """Do nothing: no step leaves anything undone."""

    def stepped(self, weight: Tensor, told: bool, sharded: bool) -> None:
        """Do nothing: `advance` is told when W has changed."""

    def invert(self, effective: Tensor) -> Tensor:
        """Return `V − s/(1+s) σ_max(V) P(V)` where κ(V) ≤ 1 + 1/s; refuse V elsewhere."""
        weight = effective.clone(memory_format=torch.contiguous_format)
        for layout, strength, name in self.parts:
            heads = layout.read(effective)
            layout.write_(weight, _trained(heads, strength, name))
        return weight

    @computing()
    def loaded(self, weight: Tensor, effective: Tensor | None) -> None:
        """Use what was loaded as it is until the next step where W does not give it: P of a singular W is not unique.

        W itself is right to its last digits, and P of a matrix with κ(W) = 1/eps depends on those.
        """
        self.age, self.correction = 0, None
        if effective is not None and not weight.is_meta:
            whole, wanted = full(weight), full(effective).to(weight)
            error = (self._apply(whole) - wanted).abs().max()
            if not error <= MAX_UNITS_OFF * torch.finfo(whole.dtype).eps * wanted.abs().max():
                self.correction = wanted - whole

    def state(self) -> dict[str, Tensor]:
        """Return the correction and its age, where they are not a function of W."""
        if self.correction is None:
            return {}
        return {"correction": self.correction.clone(), "age": torch.tensor(self.age)}

    def load(self, state: dict[str, Tensor], weight: Tensor) -> None:
        """Take over a correction and its age."""
        self.correction = state["correction"].clone() if "correction" in state else None
        self.age = int(state["age"]) if "age" in state else 0

    def _apply(self, weight: Tensor) -> Tensor:
        """Return `W + C`, all heads of one shape at once."""
        if self.side_by_side and weight.ndim == 2 and weight.is_contiguous() and weight.dtype in WIDE_DTYPES:
            # The usual nn.Linear: its rows are the heads' rows already, and nothing needs to be copied.
            strengths = [strength for layout, strength, _ in self.parts for _ in layout.starts]
            rows = weight.view(len(strengths), -1, weight.shape[1])
            return _add_polar(rows, rows.new_tensor(strengths)).view(weight.shape)
        effective = weight.clone(memory_format=torch.contiguous_format)
        shapes: dict[torch.Size, list[tuple[AnyLayout, float, Tensor]]] = {}
        for layout, strength, _ in self.parts:
            rows = layout.read(weight).mT  # as nn.Linear stores them: d rows of D numbers for each head
            shapes.setdefault(rows.shape[1:], []).append((layout, strength, rows))
        for members in shapes.values():
            every = torch.cat([rows for _, _, rows in members])
            every = every if every.dtype in WIDE_DTYPES else every.float()  # rounded once, at the end
            every = _add_polar(every, torch.cat([every.new_full((len(rows),), s) for _, s, rows in members]))
            first = 0
            for layout, _, rows in members:
                layout.write_(effective, every[first : first + len(rows)].mT)
                first += len(rows)
        return effective


def _side_by_side(layouts: Sequence[AnyLayout], parameter: Tensor) -> bool:
    """Return whether the rows of a parameter are those of heads of one width, one after the other."""
    rows = [layout for layout in layouts if isinstance(layout, Layout) and (layout.axis, layout.step) == (0, 1)]
    if len(rows) < len(layouts) or len({layout.width for layout in rows}) > 1:
        return False
    starts = [start for layout in rows for start in layout.starts]
    return starts == list(range(0, as_matrix(parameter).shape[0], rows[0].width))


def _add_polar(rows: Tensor, strengths: Tensor) -> Tensor:
    """Return `R + s σ_max P` for `(heads, d, D)` and `(heads,)`."""
    with torch.autocast(rows.device.type, enabled=False):  # products in bfloat16 give no polar factor
        factor, largest = polar_heads(rows)
    return torch.addcmul(rows, factor, (strengths * largest)[:, None, None])


def polar_heads(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return polar factor and σ_max of `(heads, d, D)`, whichever of d and D is larger."""
    if rows.shape[1] <= rows.shape[2]:
        return polar_rows(rows)
    transposed, largest = polar_rows(rows.mT)
    return transposed.mT, largest


def _trained(heads: Tensor, strength: float, name: str) -> Tensor:
    """Return W for V, by SVD in float64."""
    if not torch.isfinite(heads).all():
        raise CheckpointError(_refusal(name, "some numbers are not finite"))
    u, s, vt = svd(heads)
    bound = 1 + 1 / strength
    eps = torch.finfo(heads.dtype).eps
    # Rounding V moves a singular value by at most eps/2 |V|_F ≤ eps/2 √m σ_max; σ_max itself was found to 3e-6 in
    # float32 (`largest_eigenvalue`), and by LAPACK, whose errors are some m eps, in float64.
    found = 1e-13 if heads.dtype == torch.float64 else 3e-6
    slack = (1 + bound) / 2 * math.sqrt(s.shape[1]) * eps + found
    condition = (s[:, 0] / s[:, -1]).nan_to_num(nan=1.0)  # a zero head stays one
    worst = int(condition.argmax())
    if not condition[worst] <= bound * (1 + slack):
        raise CheckpointError(_refusal(f"{name} head {worst}", f"κ = {float(condition[worst]):.4g} > {bound:g}"))
    # A singular value that was zero comes back as a rounding error of either sign, and with the wrong one the polar
    # factor would turn around: keep it above the rounding.
    rest = (s - strength / (1 + strength) * s[:, :1]).maximum(8 * eps * s[:, :1])
    return ((u * rest[:, None]) @ vt).to(heads)


def _refusal(where: str, why: str) -> str:
    return (
        f"these weights are not what a live polar model exports ({where}: {why}), so no trained weight gives them. If "
        "they are weights W to be conditioned, say as_original=True (wc.load_weights_, or handle.load_weights_); to "
        "train them as they are, use a model that is not conditioned"
    )


@register_method
@final
class Polar(Correction):
    """σ_max times the polar factor, always live: C follows W."""

    name = "polar"
    citation = "Spectral Conditioning of Attention, Theorem 3.5"
    strength_default = 1.0
    defaults = MappingProxyType({"every": 1})

    def check_options(self) -> None:
        """Raise unless `every` counts steps."""
        every = self.options["every"]
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise SchemeError(f"every is a number of steps, 1 or more; got {short_repr(every)}")

    def check_numbers(self) -> None:
        """Raise unless the strength is positive, and not lost beside 1."""
        for weight in self.weights:
            low, eps = min(part.strength for part in weight.parts), torch.finfo(weight.parameter.dtype).eps
            if low < eps:
                raise SchemeError(
                    f"'polar' takes a positive strength ({eps:.3g} or more), 1 for the theorem; got {low:g}"
                )

    def rule(self, weight: TargetWeight) -> PolarRule:
        """Return a rule that is computed again every `every` steps."""
        return PolarRule(weight, int(self.options["every"]))

    def bounds(self, part: TargetHeads, largest: Tensor) -> list[float]:
        """Return 1 + 1/s for every head; 2 in the theorem."""
        return [1 + 1 / part.strength] * len(largest)
