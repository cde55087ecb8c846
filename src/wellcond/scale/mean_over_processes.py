"""The mean of measured numbers over the processes of a distributed run, so that each does the same with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def mean_over_processes(numbers: Sequence[float | None]) -> list[float | None]:
    """Return the mean of each number over all processes; the numbers themselves where there is one process.

    >>> mean_over_processes([0.5, None])
    [0.5, None]
    """
    if not _several():
        return list(numbers)
    total, known = _reduced([[x or 0.0 for x in numbers], [float(x is not None) for x in numbers]], dist.ReduceOp.SUM)
    return [float(t / c) if c else None for t, c in zip(total, known, strict=True)]


def max_over_processes(numbers: Sequence[float]) -> list[float]:
    """Return the largest of each number over all processes; the numbers themselves where there is one process.

    >>> max_over_processes([0.5, 2.0])
    [0.5, 2.0]
    """
    return [float(x) for x in _reduced([numbers], dist.ReduceOp.MAX)[0]] if _several() else list(numbers)


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _reduced(rows: Sequence[Sequence[float]], how: dist.ReduceOp.RedOpType) -> Tensor:
    """Rows of numbers, each reduced over all processes."""
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    numbers = torch.tensor(rows, dtype=torch.float64, device=device)
    dist.all_reduce(numbers, op=how)
    return numbers
