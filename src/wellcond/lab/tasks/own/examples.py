"""Examples of the user's own by index: what reads them may draw random numbers, which follow from seed and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from wellcond._core.global_generators import restored_generators, seed_generators
from wellcond._core.safe_text import briefly
from wellcond.attention.capture import batch_words
from wellcond.errors import DataError, WellcondError
from wellcond.lab.tasks.base import Batch
from wellcond.lab.tasks.checks import checked_indices
from wellcond.lab.tasks.own.collate import COLLATED, collated

MAX_MESSAGE = 200  # characters of somebody else's message


@dataclass(frozen=True)
class TensorExamples:
    """Examples in two tensors, of inputs and of targets.

    >>> import torch
    >>> TensorExamples(torch.arange(6).view(3, 2), torch.arange(3))[torch.tensor([2, 0])].inputs
    tensor([[4, 5],
            [0, 1]])
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, indices: Tensor) -> Batch:
        chosen = checked_indices(indices, len(self))
        return Batch(self.inputs[chosen], self.targets[chosen], len(chosen))


@dataclass(frozen=True)
class OwnExamples:
    """Examples of a dataset that is read by index, put into batches.

    Args:
        data: has a length, and an example at each index.
        length: of it.
        collate: makes a batch of a list of examples; None for torch's own, see `collated`.
        where: what to call it in messages.

    >>> import torch
    >>> data = [{"x": [1.0, 2.0], "y": 0}, {"x": [3.0, 4.0], "y": 1}]
    >>> OwnExamples(data, 2, None, "my.py:task: train")[torch.tensor([1])].inputs
    {'x': tensor([[3., 4.]]), 'y': tensor([1])}
    """

    data: Any
    length: int
    collate: Callable[[list[Any]], Any] | None
    where: str

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, indices: Tensor) -> Batch:
        """Return the examples at these indices, each as it always is."""
        chosen = checked_indices(indices, len(self)).tolist()
        return self._batch(chosen, [("example", index) for index in chosen])

    def drawn(self, indices: Tensor, seed: int, step: int, first: int = 0) -> Batch:
        """Return examples for a step, what is random in them drawn anew by seed, step and place in the batch."""
        chosen = checked_indices(indices, len(self)).tolist()
        return self._batch(chosen, [("example", seed, step, place) for place, _ in enumerate(chosen, first)])

    def _batch(self, chosen: Sequence[int], keys: Sequence[tuple[object, ...]]) -> Batch:
        with restored_generators():
            examples = []
            for index, key in zip(chosen, keys, strict=True):
                seed_generators(*key)
                examples.append(self._read(index))
            seed_generators("collate", *keys[:1])
            return self._as_batch(self._collated(examples, chosen), len(chosen))

    def _read(self, index: int) -> Any:
        try:
            return self.data[index]
        except WellcondError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(f"{self.where}[{index}] raised {briefly(error, MAX_MESSAGE)}") from error

    def _collated(self, examples: list[Any], chosen: Sequence[int]) -> Any:
        shown = ", ".join(map(str, chosen[:3])) + ", …" * (len(chosen) > 3)
        try:
            return collated(examples) if self.collate is None else self.collate(examples)
        except DataError as error:
            raise DataError(f"{self.where}: the examples {shown} are no batch: {error}") from error
        except (Exception, SystemExit) as error:
            name = getattr(self.collate, "__name__", type(self.collate).__name__)
            raise DataError(
                f"{self.where}: {name}, which is given a list of examples, raised {briefly(error, MAX_MESSAGE)} for "
                f"those at {shown}"
            ) from error

    def _as_batch(self, found: Any, size: int) -> Batch:
        if isinstance(found, Mapping) and found and all(isinstance(name, str) for name in found):
            return Batch(dict(found), None, size)
        if isinstance(found, (tuple, list)) and len(found) == 2:
            given, target = found
            return Batch(tuple(given) if isinstance(given, list) else given, target, size)
        name = getattr(self.collate, "__name__", type(self.collate).__name__)
        raise DataError(f"{self.where}: {name} returned {batch_words(found)}; expected {COLLATED}")
