"""The mean of measured numbers over the processes of a distributed run, so that each does the same with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def mean_over_processes(numbers: Sequence[float | None]) -> list[float | None]:
    """Return the mean of each number over all processes; the numbers themselves where there is one process.

    >>> mean_over_processes([0.5, None])
    [0.5, None]
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return list(numbers)
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    known = torch.tensor([x is not None for x in numbers], dtype=torch.float64, device=device)
    total = torch.tensor([x or 0.0 for x in numbers], dtype=torch.float64, device=device)
    both = torch.stack([total, known])
    dist.all_reduce(both)
    return [float(t / c) if c else None for t, c in zip(both[0], both[1], strict=True)]


def max_over_processes(numbers: Sequence[float]) -> list[float]:
    """Return the largest of each number over all processes; the numbers themselves where there is one process.

    >>> max_over_processes([0.5, 2.0])
    [0.5, 2.0]
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return list(numbers)
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    largest = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return [float(x) for x in largest]
