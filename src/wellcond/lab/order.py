"""Randomness as a function of the seed and the step alone, so that schemes are paired and a run can go on anywhere."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from wellcond.draw import key


def indices(seed: int, step: int, batch: int, examples: int) -> Tensor:
    """The examples of a step: every epoch is a permutation of its own, and a batch may span two.

    >>> first, second = indices(0, 0, 4, 6), indices(0, 1, 4, 6)
    >>> sorted([*first.tolist(), *second.tolist()[:2]])
    [0, 1, 2, 3, 4, 5]
    """
    places = torch.arange(step * batch, (step + 1) * batch)
    epochs = places // examples
    spanned = range(int(epochs[0]), int(epochs[-1]) + 1)
    return torch.cat([_permutation(seed, e, examples)[places[epochs == e] % examples] for e in spanned])


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, examples: int) -> Tensor:
    return torch.randperm(examples, generator=generator(seed, "order", epoch))


def generator(*parts: object) -> torch.Generator:
    """A generator of its own for each key."""
    return torch.Generator().manual_seed(key("lab", *parts))


def learning_rate(step: int, steps: int, peak: float, final: float, warmup: float, schedule: str) -> float:
    """The rate of a step: a linear rise over the first part, then as the schedule says.

    >>> [round(learning_rate(step, 10, 1.0, 0.0, 0.2, "cosine"), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.038]
    """
    rising = round(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    part = (step - rising) / max(1, steps - rising)
    if schedule == "constant":
        return peak
    if schedule == "cosine":
        return final + (peak - final) * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * part, dtype=torch.float64))))
    return final + (peak - final) * (1 - part)  # linear, and the fall of one-cycle
