"""Put examples into a batch as torch does; lists of numbers become tensors, and columns of text are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from wellcond._core.safe_text import briefly
from wellcond.attention.capture import batch_words
from wellcond.errors import DataError

COLLATED = "a pair (input, target), or a dict of names and tensors"
EXAMPLE = "a pair (input, target), or a dict"
HELP = "give collate=…, a function of a list of examples"


def collated(examples: Sequence[Any]) -> Any:
    """Return a batch of examples: a pair of pairs, a dict of dicts.

    >>> collated([([1, 2], 0), ([3, 4], 1)])
    (tensor([[1, 2],
            [3, 4]]), tensor([0, 1]))
    >>> collated([{"ids": [1, 2], "text": "a b"}, {"ids": [3], "text": "c"}])
    Traceback (most recent call last):
    wellcond.errors.DataError: 'ids' differ in shape, (2,) and (1,): give collate=…, a function of a list of examples
    """
    first = examples[0]
    if isinstance(first, Mapping):
        names = [name for name in first if not isinstance(first[name], (str, bytes))]
        other = next((one for one in examples if not isinstance(one, Mapping) or first.keys() != one.keys()), None)
        if other is not None:
            has = f"has {', '.join(map(str, other))}" if isinstance(other, Mapping) else f"is {batch_words(other)}"
            raise DataError(f"one has {', '.join(map(str, first))}, another {has}")
        if not names:
            raise DataError(f"they are texts ({', '.join(map(str, first))}), and a model takes numbers: tokenize them")
        if not all(isinstance(name, str) for name in names):
            raise DataError(f"the names of a dict are texts, got {names[0]!r}")
        return {name: _column(f"'{name}'", [one[name] for one in examples]) for name in names}
    for one in examples:
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            raise DataError(f"an example is {EXAMPLE}; got {batch_words(one)}")
    return _column("inputs", [one[0] for one in examples]), _column("targets", [one[1] for one in examples])


def _column(name: str, values: list[Any]) -> Any:
    """One entry of all examples, stacked."""
    values = [_plain(name, value) for value in values]
    shapes = list(dict.fromkeys(tuple(value.shape) for value in values if isinstance(value, Tensor)))
    if len(shapes) > 1:
        raise DataError(f"{name} differ in shape, {shapes[0]} and {shapes[1]}: {HELP}")
    try:
        return default_collate(values)
    except Exception as error:  # torch's, of images and the like
        raise DataError(f"{name} are not put together by torch ({briefly(error, 120)}): {HELP}") from error


def _plain(name: str, value: Any) -> Any:
    """Lists of numbers and arrays as tensors; texts and nothing are refused."""
    if isinstance(value, (str, bytes)) or value is None:
        what = "nothing (None)" if value is None else "text"
        raise DataError(f"{name} are {what}, and a model takes numbers: {HELP}")
    if isinstance(value, (list, np.ndarray)):
        try:
            return torch.tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{name} are lists that make no tensor ({briefly(error, 120)}): {HELP}") from error
    return value
