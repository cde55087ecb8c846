"""Print how κ(J) and κ_eq(J) of three starts compare with the best κ(J) over scalings that keep the function.

Usage: `python docs/scale_table.py`
"""

from __future__ import annotations

import math

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from wellcond import jacobian

TOKENS, WIDTH, HEAD = 24, 64, 16
COSINES = (0.3, 0.8)  # between tokens


def tokens(cosine: float) -> Tensor:
    """Tokens of unit size with this mean cosine."""
    draw = torch.randn(TOKENS + 1, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return math.sqrt(cosine) * draw[0] + math.sqrt(1 - cosine) * draw[1:]


def starts() -> dict[str, list[Tensor]]:
    """W_Q, W_K and W_V of each start."""
    normal = torch.randn(3, WIDTH, HEAD, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    orthogonal = [torch.linalg.qr(w)[0] for w in normal[:2]]
    identity = torch.eye(WIDTH, HEAD, dtype=torch.float64)
    return {
        "std 0.02": list(0.02 * normal),
        "N(0, 1/D)": list(normal / math.sqrt(WIDTH)),
        "conditioned": [*orthogonal, identity],
    }


def best_scaling(head: jacobian.Head) -> float:
    """The least κ(J) over W_Q a, W_K / a, W_V r, W_O / r."""
    q, k, v = head.weights.values()

    def kappa(logs: np.ndarray) -> float:
        a, r = np.exp(logs)
        found = jacobian.spectrum(jacobian.softmax_head(head.tokens["query"], a * q, k / a, r * v)).value
        assert found is not None
        return math.log(found)

    result = scipy.optimize.minimize(kappa, np.zeros(2), method="Nelder-Mead", options={"maxiter": 60})
    return math.exp(result.fun)


def rows() -> list[str]:
    """Lines of the table."""
    lines = ["| | κ(J) as it stands | κ_eq(J) | best κ(J) over a, r |", "|---|---|---|---|"]
    for name, weights in starts().items():
        cells = []
        for cosine in COSINES:
            head = jacobian.softmax_head(tokens(cosine), *weights)
            found = jacobian.spectrum(head)
            assert found.value is not None
            assert found.equilibrated is not None
            cells.append([found.value, found.equilibrated.value or math.nan, best_scaling(head)])
        columns = [" / ".join(f"{x:.1e}" for x in both) for both in zip(*cells, strict=True)]
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
