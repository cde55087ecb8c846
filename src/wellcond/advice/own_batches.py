"""Batches of the user's own: some to judge by, the others to train on, each taken once and kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from wellcond._core.global_generators import restored_generators
from wellcond._core.safe_text import briefly
from wellcond.errors import BatchError, NotFiniteError, WellcondError

JUDGING = 4  # batches that are judged by, and a quarter of all at most
MOST_BATCHES = 256  # that are kept
MOST_BYTES = 2**30  # that they may take


class OwnBatches:
    """The first batches of an iterable; the global generators and a loader's own stay where they are.

    Args:
        given: a list, a `DataLoader`, any iterable of batches, or a single batch: a dict, or a pair of tensors.

    Attributes:
        judging: batches that nothing is trained on; where there is only one, it is both.
        training: the others.

    >>> batches = OwnBatches([(torch.full((2, 1), float(i)), torch.zeros(2)) for i in range(5)])
    >>> len(batches.judging), len(batches.training), batches.shared
    (1, 4, False)
    """

    def __init__(self, given: Any) -> None:
        found = list(_taken(given))
        if not found:
            raise BatchError("there is no batch: give a list of batches, or a loader that has some")
        count = max(1, min(JUDGING, len(found) // 4))
        self.shared = len(found) == 1
        self.judging = found[:count]
        self.training = found if self.shared else found[count:]

    @property
    def every(self) -> list[Any]:
        """All batches that are kept, as they came."""
        return self.training if self.shared else [*self.judging, *self.training]

    @contextmanager
    def naming(self, batch: Any) -> Iterator[None]:
        """Say in an error which of the batches it is about, counted from one.

        >>> batches = OwnBatches([(torch.ones(1), 0), (torch.ones(1), 1)])
        >>> with batches.naming(batches.every[1]):
        ...     raise BatchError("it has no target")
        Traceback (most recent call last):
        wellcond.errors.BatchError: batch 2 of 2: it has no target
        """
        try:
            yield
        except (BatchError, NotFiniteError) as error:
            every = self.every
            number = next(i for i, one in enumerate(every, 1) if one is batch)
            raise type(error)(f"batch {number} of {len(every)}: {error}") from (error.__cause__ or error)

    @property
    def bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(map(batch_bytes, self.every))

    def order(self, seed: int) -> Iterator[Any]:
        """Yield training batches without end, every pass in an order of its own, the same for equal seeds."""
        drawn = torch.Generator().manual_seed(seed)
        while True:
            for index in torch.randperm(len(self.training), generator=drawn).tolist():
                yield self.training[index]


def batch_bytes(batch: Any) -> int:
    """Return the bytes of a batch's tensors.

    >>> batch_bytes({"x": torch.zeros(3)})
    12
    """
    leaves = tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
    return sum(x.nbytes for x in leaves if isinstance(x, Tensor))


def _taken(given: Any) -> Iterator[Any]:
    """The first batches, as many as may be kept."""
    if isinstance(given, (Tensor, str, bytes)):
        raise BatchError(
            f"batches are several: a list or a loader of (input, target) or of dicts; got a {type(given).__name__}"
        )
    pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Tensor)
    if isinstance(given, Mapping) or pair:
        yield given
        return
    of_examples = isinstance(given, Dataset) and not isinstance(given, Iterable)
    if of_examples or type(given).__module__ == "datasets.arrow_dataset":
        raise BatchError(
            f"batches are a list or a loader of (input, target) or of dicts; got {type(given).__name__}, whose items "
            "are single examples: give DataLoader(dataset, batch_size=…)"
        )
    if not isinstance(given, Iterable):
        raise BatchError(f"batches are a list or a loader of (input, target) or of dicts; got {type(given).__name__}")
    total = 0
    with _generators_kept(given):
        try:
            for count, batch in enumerate(given, 1):
                yield batch
                total += batch_bytes(batch)
                if count == MOST_BATCHES or total > MOST_BYTES:
                    return
        except WellcondError:
            raise
        except (Exception, SystemExit) as error:
            raise BatchError(f"the batches cannot be read: {_words(error)}") from error


def _words(error: BaseException) -> str:
    """An exception in brief; of a worker's, whose text is a traceback, the end."""
    if "Original Traceback" not in str(error):
        return briefly(error, 300)
    text = " ".join(str(error).split())
    return text[text.rfind(f"{type(error).__name__}:") :][:300]


@contextmanager
def _generators_kept(given: Any) -> Iterator[None]:
    """Put back the generators that a loader draws from."""
    owners = [given, *(getattr(given, name, None) for name in ("sampler", "batch_sampler"))]
    owners.append(getattr(owners[-1], "sampler", None))
    own = [g for owner in owners if isinstance(g := getattr(owner, "generator", None), torch.Generator)]
    states = [(generator, generator.get_state()) for generator in own]
    try:
        with restored_generators():
            yield
    finally:
        for generator, state in states:
            generator.set_state(state)
