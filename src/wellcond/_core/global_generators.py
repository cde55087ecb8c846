"""The global generators of Python, NumPy and torch, which other people's code draws from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from wellcond._core.keyed_random import key


@contextmanager
def restored_generators() -> Iterator[None]:
    """Leave the global generators as they were.

    >>> before = torch.get_rng_state()
    >>> with restored_generators():
    ...     _ = torch.rand(3)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    python, numbers, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        torch.set_rng_state(tensors)


def seed_generators(*parts: object) -> None:
    """Seed all three by a key; `torch.manual_seed` would seed every GPU too.

    >>> with restored_generators():
    ...     seed_generators("example", 3)
    ...     first = random.random(), np.random.rand(), torch.rand(()).item()
    ...     seed_generators("example", 3)
    ...     first == (random.random(), np.random.rand(), torch.rand(()).item())
    True
    """
    number = key(*parts)
    random.seed(number)
    np.random.seed([number >> 32, number % 2**32])
    torch.default_generator.manual_seed(number)
