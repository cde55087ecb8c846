"""ConditionNumber and Bound: what is known of a Jacobian's spectrum, and how well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from wellcond._core.status import Status

JacobianConvention = Literal["side-by-side", "vertical"]
JacobianMethod = Literal["auto", "gram", "factor", "matrix-free"]


_DEAD = "some directions of the weights have no effect"
_ALL_ROWS = 'measure every query row, rows=None, or jacobian="exact" of wc.diagnose'


class SpectrumStatus(Status):
    """How well the condition number of a Jacobian is known, with what to do about it; a string, as in JSON.

    >>> SpectrumStatus.LOWER_BOUND == "lower bound"
    True
    >>> print(SpectrumStatus("lower bound").remedy)
    κ is at least this: measure every query row, rows=None, or jacobian="exact" of wc.diagnose
    """

    OK = "ok"
    DEFICIENT = "rank deficient", f'{_DEAD}: wc.condition_(model, "polar"), or initialise them anew'
    UNRESOLVED = "unresolved", "σ_min is below the precision of float64: κ is at least this; condition the weights"
    LOWER_BOUND = "lower bound", f"κ is at least this: {_ALL_ROWS}"  # from some rows of a Jacobian with full row rank
    SAMPLE = "row sample", f"κ is about this: {_ALL_ROWS}"  # from some rows of another
    LARGEST = "largest only", "only σ_max fits in memory: measure fewer query rows, rows=…, or raise max_memory"


@dataclass(frozen=True)
class ConditionNumber:
    """The condition number of a Jacobian, with what is needed to judge it.

    κ is σ_max ÷ σ at the structural rank: directions that no weights of this architecture could use do not count.

    Args:
        value: κ; for `"unresolved"` and `"lower bound"` κ is at least this; for `"rank deficient"` it is taken over the
            singular values that are not zero; None for `"largest only"`.
        sigma_max: the largest singular value.
        sigma_min: the smallest that counts (at the structural rank, or at the rank if that is lower); None if not
            computed.
        rank: how many singular values are above their error; None if not computed.
        structural_rank: the rank that generic weights would have on the same tokens; None if not computed.
        error: estimated absolute error of `sigma_min`.
        method: `"gram"`, `"factor"` or `"matrix-free"`.
        status: how well κ is known, with the remedy; also given as its word.
        block_norms: ‖J_Q‖₂, ‖J_K‖₂ and ‖J_V‖₂ by role, of blocks side by side; empty if not computed.
        equilibrated: κ_eq, the condition number of [J_Q/‖J_Q‖₂, J_K/‖J_K‖₂, J_V/‖J_V‖₂], which does not change where
            W_Q grows as W_K shrinks, or W_V as W_O, as κ does; None for κ_eq itself, or if not computed.

    >>> print(ConditionNumber(2e9, 4.0, 2e-9, 640, 640, 1e-14, "factor", "ok"))
    2e+09
    >>> print(ConditionNumber(3e13, 4.0, 1e-16, 639, 640, 1e-13, "factor", "unresolved"))
    ≥ 3e+13 (unresolved)
    """

    value: float | None
    sigma_max: float
    sigma_min: float | None
    rank: int | None
    structural_rank: int | None
    error: float | None
    method: str
    status: SpectrumStatus
    block_norms: Mapping[str, float] = field(default_factory=dict, hash=False)
    equilibrated: ConditionNumber | None = None

    def __post_init__(self) -> None:
        """Take a status also by its word, as JSON has it."""
        object.__setattr__(self, "status", SpectrumStatus(self.status))

    @property
    def sign(self) -> str:
        """`"≥"` where κ is at least the value, `"~"` where it is about that, else nothing."""
        known = {SpectrumStatus.UNRESOLVED: "≥", SpectrumStatus.LOWER_BOUND: "≥", SpectrumStatus.SAMPLE: "~"}
        return known.get(self.status, "")

    def __str__(self) -> str:
        if self.value is None:
            return f"σ_max {self.sigma_max:.3g} ({self.status})"
        if self.status == SpectrumStatus.DEFICIENT:
            return f"{self.value:.3g} (rank {self.rank} of {self.structural_rank})"
        text = f"{self.sign} {self.value:.3g}".strip()
        return text if self.status == SpectrumStatus.OK else f"{text} ({self.status})"


@dataclass(frozen=True)
class Bound:
    """The papers' bound on κ of the vertically stacked Jacobian, and its parts (non-zero singular values).

    κ(X)³ κ(Λ) κ(W_V) (κ(W_Q) + κ(W_K)) + κ(X) κ(P).

    Args:
        value: the bound; None where a part is unresolved.
        tokens: κ(X).
        probabilities: κ(P).
        softmax: κ(Λ), Λ the derivative of the softmax over all rows; None where a probability underflowed.
        vertical: κ of the vertically stacked Jacobian, which the bound is about; None if not asked for.
        full_rank: whether that Jacobian has full rank, which the papers assume; None if not known.
    """

    value: float | None
    tokens: float
    probabilities: float
    softmax: float | None
    vertical: ConditionNumber | None = None
    full_rank: bool | None = None
