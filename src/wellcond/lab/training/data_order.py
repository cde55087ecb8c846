"""Order of examples, random generators and schedules: functions of seed and step alone, so that arms are paired."""

from __future__ import annotations

import math
import random
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wellcond._core.keyed_random import key
from wellcond.lab.recipe.settings import Training


def indices(seed: int, step: int, batch: int, examples: int) -> Tensor:
    """Return the indices of a step's examples: every epoch is a permutation of its own, and a batch may span two.

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
    """Return a random generator of its own for each key."""
    return torch.Generator().manual_seed(key("lab", *parts))


def seed_global_(device: torch.device, seed: int) -> None:
    """Seed what dropout, and code of the user's own, draws from.

    torch.manual_seed would take a millisecond, for devices that are not used.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed >> 32, seed % 2**32])
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def learning_rate(step: int, peak: float, settings: Training) -> float:
    """Return the learning rate of a step: a linear rise over the first part, then as the schedule says.

    >>> settings = Training(steps=10, warmup=0.2)
    >>> [round(learning_rate(step, 1.0, settings), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.038]
    """
    rising = _rising(settings)
    if step < rising:
        return settings.first_lr + (peak - settings.first_lr) * (step + 1) / rising
    part = (step - rising) / max(1, settings.steps - rising)
    if settings.schedule == "constant":
        return peak
    if settings.schedule == "steps":
        return peak * 0.1 ** sum(step >= milestone * settings.steps for milestone in settings.milestones)
    left = 0.5 * (1 + math.cos(math.pi * part)) if settings.schedule == "cosine" else 1 - part
    return settings.final_lr + (peak - settings.final_lr) * left


def momentum(step: int, settings: Training) -> float:
    """Return the first β of a step: constant, or falling while the learning rate rises and back (Smith 2018).

    >>> settings = Training(steps=10, warmup=0.5, momentum_cycle=(0.85, 0.95))
    >>> [round(momentum(step, settings), 2) for step in (0, 4, 5, 9)]
    [0.93, 0.85, 0.85, 0.93]
    """
    if settings.momentum_cycle is None:
        return settings.betas[0]
    low, high = settings.momentum_cycle
    rising = _rising(settings)
    height = (step + 1) / rising if step < rising else 1 - (step - rising) / max(1, settings.steps - rising)
    return high + (low - high) * height


def _rising(settings: Training) -> int:
    return round(settings.warmup * settings.steps)
