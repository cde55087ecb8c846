r"""κ of trained and effective weights against what a correction promises, and the self-bias of a shift.

The theorem's own condition is not enough: `diag(−1.9, 0.5)` with λ = 2 meets it, and κ rises from 3.8 to 25. Sound is
$\lambda > \sigma_{max}(W)$, then $\kappa(W + \lambda I) \le (\lambda + \sigma_{max}) / (\lambda - \sigma_{max})$.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from wellcond._core.linalg import condition_numbers, conditions
from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.status import Status
from wellcond.attention.view import AttentionLayer
from wellcond.propagation.exact_rows import RowStatistics, exact_row, free_energy

ONE_HOT = 0.95  # the weight of a token's own column from which a row counts as one-hot
TOKENS = 256  # the sequence length assumed where none is known; it enters by its logarithm
COSINE = 0.2  # and the similarity of tokens


class GuaranteeStatus(Status):
    """How a head's κ stands to what the theorem promises, with what to do about it; a string, as in JSON.

    >>> GuaranteeStatus("no guarantee").remedy
    'the strength is not above σ_max(W): raise it, or wc.condition_(model, "polar")'
    """

    OK = "ok"
    NO_GUARANTEE = "no guarantee", 'the strength is not above σ_max(W): raise it, or wc.condition_(model, "polar")'
    ZERO = "zero", "W = 0, which nothing conditions: initialise it first"
    VIOLATED = "violated", "κ is above its bound: the weight was written after the correction; condition it again"
    NO_BATCH = "no batch yet", "the correction is of tokens: run the model on a batch"


@dataclass(frozen=True)
class HeadCondition:
    """One head: κ of W and of W + C, and the bound where there is one.

    Attributes:
        trained: κ(W).
        effective: κ(W + C).
        sigma_max: σ_max(W).
        bound: what the theorem promises for κ(W + C); `inf` where its condition does not hold, None without a theorem.
        status: whether the bound holds, with the remedy; also given as its word.

    >>> import torch, wellcond as wc
    >>> head = wc.condition_(torch.nn.MultiheadAttention(8, 2), "polar").summary().heads[0]
    >>> head.role, head.bound, head.status, head.effective < head.trained
    ('query', 2.0, 'ok', True)
    """

    layer: str
    role: str
    head: int
    trained: float
    effective: float
    sigma_max: float
    bound: float | None
    status: GuaranteeStatus

    def __post_init__(self) -> None:
        """Take a status also by its word."""
        object.__setattr__(self, "status", GuaranteeStatus(self.status))


@dataclass(frozen=True)
class ConditioningSummary(Tabular):
    """Every head's conditioning; prints as one row per layer and role.

    >>> import torch, wellcond as wc
    >>> summary = wc.condition_(torch.nn.MultiheadAttention(8, 2), "polar").summary()
    >>> summary.holds, max(head.effective for head in summary.heads) <= 2.0001
    (True, True)
    """

    title: str
    heads: tuple[HeadCondition, ...] = field(repr=False)

    @property
    def holds(self) -> bool:
        """Whether every head that could be conditioned is within its bound."""
        return all(head.status in (GuaranteeStatus.OK, GuaranteeStatus.ZERO) for head in self.heads)

    def records(self) -> list[dict[str, Any]]:
        """Return one row per layer, role and head.

        >>> import torch, wellcond as wc
        >>> rows = wc.condition_(torch.nn.MultiheadAttention(8, 2), "polar").summary().records()
        >>> len(rows), rows[0]["role"], rows[0]["bound"]
        (6, 'query', 2.0)
        """
        return [asdict(head) for head in self.heads]

    def _result_table(self) -> ResultTable:
        groups: dict[tuple[str, str], list[HeadCondition]] = {}
        for head in self.heads:
            groups.setdefault((head.layer, head.role), []).append(head)
        rows = []
        for (layer, role), heads in groups.items():
            bounds = [head.bound for head in heads if head.bound is not None]
            words = Counter(head.status for head in heads)
            rows.append(
                [
                    layer,
                    role,
                    _range([head.trained for head in heads]),
                    _range([head.effective for head in heads]),
                    f"{max(bounds):.3g}" if bounds else "",
                    _range([head.sigma_max for head in heads]),
                    ", ".join(f"{word} ({count})" if len(words) > 1 else word for word, count in words.items()),
                ]
            )
        return ResultTable(["layer", "role", "κ(W)", "κ now", "bound", "σ_max(W)", "guarantee"], rows, self.title)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} … {high}"


def head_conditions(
    layer: str, role: str, sigma: Tensor, effective: Tensor, bounds: Sequence[float] | None
) -> list[HeadCondition]:
    """Return κ of each head of one role against its bound, from the singular values of W and W + C `(heads, D, d)`."""
    numbers = conditions(sigma, max(effective.shape[1:])), condition_numbers(effective), sigma[:, 0]
    found = []
    # W + C is rounded to its dtype: relative eps in each entry moves κ by at most about 2 √(D d) eps κ.
    slack = 2 * math.sqrt(effective.shape[1] * effective.shape[2]) * torch.finfo(effective.dtype).eps
    for head, (trained, kappa, largest) in enumerate(zip(*(each.tolist() for each in numbers), strict=True)):
        bound, status = None if bounds is None else bounds[head], GuaranteeStatus.OK
        if bound is not None:
            if not largest > 0:
                status = GuaranteeStatus.ZERO
            elif math.isinf(bound):
                status = GuaranteeStatus.NO_GUARANTEE
            elif kappa > bound * (1 + slack * bound):
                status = GuaranteeStatus.VIOLATED
        found.append(HeadCondition(layer, role, head, trained, kappa, largest, bound, status))
    return found


def shift_bounds(largest: Tensor, correction: Tensor) -> list[float]:
    """Return the sound bound of each head from σ_max(W) and `λ I` `(heads, D, d)`; `inf` where it has none."""
    whole = correction.count_nonzero((1, 2)) == min(correction.shape[1:])
    shift = correction.abs().amax((1, 2)) * whole
    room = shift - largest
    return torch.where(room > 0, (shift + largest) / room, math.inf).tolist()


@dataclass(frozen=True)
class SelfBias:
    r"""The strength with which a query head attends to its own token at initialisation, from the weights alone.

    For tokens of unit variance, $\mu = s\,tr(W_Q^T W_K)$ is the mean logit of a token with itself and
    $\sigma^2 = s^2 tr(W_Q^T W_Q W_K^T W_K)$ the variance of its logits with the others; what tokens have in common
    drops out of both, so that a row is the planted one of `wellcond.propagation.exact_rows` with $(1-\rho)\mu$ and
    $\sqrt{1-\rho}\,\sigma$.

    >>> round(SelfBias("", 0, 8.0, 1.3).row(197).own, 2)
    0.59
    """

    layer: str
    head: int
    mean: float
    deviation: float

    def margin(self, tokens: int = TOKENS) -> float:
        """Return how far the own logit is above the free energy of the others, in its own deviations."""
        shift, s = (1 - COSINE) * self.mean, math.sqrt(1 - COSINE) * self.deviation
        return (shift - free_energy(torch.tensor(s, dtype=torch.float64), tokens).item()) / (1 + s)

    def row(self, tokens: int = TOKENS, cosine: float = COSINE) -> RowStatistics:
        """Return the averages of the head's attention rows."""
        return exact_row(math.sqrt(1 - cosine) * self.deviation, tokens, (1 - cosine) * self.mean)


def has_self_bias(layer: AttentionLayer, query: Tensor, key: Tensor) -> bool:
    """Return whether a layer is a softmax over its own tokens whose logits follow from the two weights alone."""
    known = layer.kind == "softmax" and layer.scale is not None
    return known and not layer.cross and not layer.qk_norm and query.shape[1:] == key.shape[1:]
