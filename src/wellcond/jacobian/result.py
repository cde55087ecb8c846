"""What is known of a Jacobian's spectrum, and how well."""

from __future__ import annotations

from dataclasses import dataclass

OK, DEFICIENT, UNRESOLVED = "ok", "rank deficient", "unresolved"
LOWER_BOUND, SAMPLE, LARGEST = "lower bound", "row sample", "largest only"


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
        status: `"ok"`; `"rank deficient"`, below the structural rank; `"unresolved"`, σ_min is below the precision of
            float64; `"lower bound"`, from some query rows of a Jacobian with full row rank;
            `"row sample"`, from some query rows of another, so only an estimate; `"largest only"`, nothing else fits in
            memory.

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
    status: str

    @property
    def sign(self) -> str:
        """`"≥"` where κ is at least the value, `"~"` where it is about that, else nothing."""
        return {UNRESOLVED: "≥", LOWER_BOUND: "≥", SAMPLE: "~"}.get(self.status, "")

    def __str__(self) -> str:
        if self.value is None:
            return f"σ_max {self.sigma_max:.3g} ({self.status})"
        if self.status == DEFICIENT:
            return f"{self.value:.3g} (rank {self.rank} of {self.structural_rank})"
        return f"{self.sign} {self.value:.3g}".strip() + ("" if self.status == OK else f" ({self.status})")


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
