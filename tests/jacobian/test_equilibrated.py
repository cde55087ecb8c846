"""κ_eq(J) and the norms of J's blocks: definition, invariance, nearness to the best scaling, and lower bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from wellcond import jacobian
from wellcond.jacobian.head import Head

SHAPES = [(6, 8, 4), (24, 32, 8), (60, 6, 3), (9, 5, 5)]  # tokens, D, d: wide, wide, tall, between


def drawn(seed: int, tokens: int, width: int, d: int, scales: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> Head:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    x = normal(tokens, width) + normal(width)
    return jacobian.softmax_head(x, *(s * normal(width, d) / math.sqrt(width) for s in scales))


def blocks_by_autograd(head: Head) -> list[Tensor]:
    """J_Q, J_K and J_V by differentiating the head's formula, which shares nothing with the closed form."""
    x = head.tokens["query"][0]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax((x @ q) @ (x @ k).T / math.sqrt(q.shape[1]), -1) @ (x @ v)

    found = torch.autograd.functional.jacobian(attend, tuple(head.weights.values()))
    return [block.reshape(x.shape[0] * head.value_width, -1) for block in found]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ["auto", "factor"])
def test_definition(shape: tuple[int, int, int], method: str) -> None:
    head = drawn(0, *shape, scales=(0.05, 0.6, 0.2))
    found = jacobian.spectrum(head, method=method)  # type: ignore[arg-type]
    blocks = blocks_by_autograd(head)
    norms = [float(torch.linalg.matrix_norm(block, 2)) for block in blocks]
    assert list(found.block_norms.values()) == pytest.approx(norms, rel=1e-12)
    sigma = torch.linalg.svdvals(torch.cat([b / norm for b, norm in zip(blocks, norms, strict=True)], 1))
    assert found.equilibrated is not None
    assert found.equilibrated.structural_rank == found.structural_rank
    expected = float(sigma[0] / sigma[found.structural_rank - 1])  # type: ignore[operator]
    assert found.equilibrated.value == pytest.approx(expected, rel=1e-6)
    assert found.equilibrated.status == found.status == "ok"


@pytest.mark.parametrize("shape", SHAPES)
def test_scalings_of_the_factors_change_only_kappa(shape: tuple[int, int, int]) -> None:
    head = drawn(1, *shape)
    q, k, v = head.weights.values()
    found, changes = jacobian.spectrum(head), []
    for a, r in ((37.0, 0.003), (0.02, 50.0)):
        other = jacobian.spectrum(jacobian.softmax_head(head.tokens["query"], a * q, k / a, r * v))
        assert other.equilibrated.value == pytest.approx(found.equilibrated.value, rel=1e-6)  # type: ignore[union-attr]
        changes.append(abs(math.log10(other.value / found.value)))  # type: ignore[operator]
    assert max(changes) > 0.5


def test_no_scaling_is_better_by_more_than_the_root_of_three() -> None:
    for seed in range(200):
        head = drawn(seed, 5, 4, 2, scales=(0.1, 1.0, 0.3))
        found = jacobian.spectrum(head)
        j_q, j_k, j_v = (block.numpy() for block in blocks_by_autograd(head))
        rank = found.structural_rank
        assert rank is not None

        def kappa(logs: np.ndarray, blocks: tuple[np.ndarray, ...] = (j_q, j_k, j_v), rank: int = rank) -> float:
            a, r = np.exp(logs)
            sigma = np.linalg.svd(np.hstack([r / a * blocks[0], r * a * blocks[1], blocks[2]]), compute_uv=False)
            return float(np.log(sigma[0] / sigma[rank - 1]))

        best = scipy.optimize.minimize(kappa, np.zeros(2), method="Nelder-Mead", options={"maxiter": 80})
        assert found.equilibrated.value <= math.sqrt(3) * math.exp(best.fun) * (1 + 1e-9)  # type: ignore[union-attr, operator]


def test_some_rows_bound_all_rows_from_below() -> None:
    for seed in range(20):
        head = drawn(seed, 8, 16, 4)
        whole, part = jacobian.spectrum(head), jacobian.spectrum(head, rows=3)
        assert part.equilibrated is not None
        assert part.status == part.equilibrated.status == "lower bound"
        assert part.equilibrated.value <= whole.equilibrated.value * (1 + 1e-9)  # type: ignore[union-attr, operator]


def test_a_tall_matrix_is_factorised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from wellcond.jacobian import softmax_operators

    made = []
    real = softmax_operators.SideBySide.column_gram
    monkeypatch.setattr(softmax_operators.SideBySide, "column_gram", lambda self: made.append(self.shape) or real(self))
    assert jacobian.spectrum(drawn(0, 60, 6, 3), method="gram").equilibrated is not None
    assert made == [(180, 54)]


def test_a_block_without_effect_has_norm_zero() -> None:
    head = drawn(0, 6, 8, 4)
    q, k, v = head.weights.values()
    found = jacobian.spectrum(jacobian.softmax_head(head.tokens["query"], q, k, 0 * v))
    assert found.block_norms["query"] == found.block_norms["key"] == 0.0
    assert found.block_norms["value"] > 0
    assert found.equilibrated is not None
    assert found.equilibrated.value == pytest.approx(found.value)


def test_not_asked_of_the_vertical_convention_nor_of_the_largest_alone() -> None:
    head = drawn(0, 6, 8, 4)
    for options in ({"convention": "vertical"}, {"method": "matrix-free"}):
        found = jacobian.spectrum(head, **options)  # type: ignore[arg-type]
        assert found.equilibrated is None
        assert not found.block_norms
