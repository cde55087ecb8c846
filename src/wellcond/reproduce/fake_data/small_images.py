"""Fake small images in the files of CIFAR-10, CIFAR-100 and Fashion-MNIST."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellcond.reproduce.fake_data import new_file

Pixels = NDArray[np.uint8]
Value = str | int | Pixels | list[str] | list[int]


def write_cifar10(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`cifar-10-batches-py`: `data_batch_1` to `_5` and `test_batch` of 20 images, and `batches.meta`."""
    inside = folder / "cifar-10-batches-py"
    colours = colours_of(draw, 10)
    names = [(f"data_batch_{number}", f"training batch {number} of 5") for number in range(1, 6)]
    for name, title in (*names, ("test_batch", "testing batch 1 of 1")):
        labels = draw.permutation(np.arange(20) % 10).tolist()
        _write(inside / name, title, {"labels": labels}, coloured_rows(draw, colours, labels))
    kinds = [f"kind{number}" for number in range(10)]
    meta: dict[str, Value] = {"num_cases_per_batch": 20, "label_names": kinds, "num_vis": 3072}
    (inside / "batches.meta").write_bytes(old_pickle(meta))


def write_cifar100(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`cifar-100-python`: `train` of 200 images and `test` of 100, 20 coarse classes of 5 fine ones, and `meta`."""
    inside = folder / "cifar-100-python"
    colours = colours_of(draw, 100)
    for name, count, title in (("train", 200, "training batch 1 of 1"), ("test", 100, "testing batch 1 of 1")):
        labels = draw.permutation(np.arange(count) % 100).tolist()
        both = {"fine_labels": labels, "coarse_labels": [label // 5 for label in labels]}
        _write(inside / name, title, both, coloured_rows(draw, colours, labels))
    coarse, fine = ([f"{name}{number}" for number in range(n)] for name, n in (("group", 20), ("kind", 100)))
    (inside / "meta").write_bytes(old_pickle({"fine_label_names": fine, "coarse_label_names": coarse}))


def write_fashion_mnist(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two of `t10k`: 28 × 28 grey, 10 classes."""
    for name, count in (("train", 100), ("t10k", 20)):
        labels = draw.permutation(np.arange(count) % 10).astype(np.uint8)
        images = (labels[:, None, None] * 20 + draw.integers(60, size=(count, 28, 28))).astype(np.uint8)
        for values, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
            head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            (folder / f"{name}-{kind}-ubyte").write_bytes(head + values.tobytes())


def colours_of(draw: np.random.Generator, classes: int) -> NDArray[np.int64]:
    """A colour `(classes, 3)` for each class, from 30 to 219: noise of ±30 can be added to it."""
    return draw.integers(30, 220, size=(classes, 3))


def coloured_rows(draw: np.random.Generator, colours: NDArray[np.int64], labels: list[int]) -> Pixels:
    """Images of the colour of their class with noise: `(N, 3072)`, all red values, then green, then blue."""
    noise = draw.integers(-30, 31, size=(len(labels), 3, 1024))
    return (colours[labels][:, :, None] + noise).astype(np.uint8).reshape(len(labels), 3072)


def _write(path: Path, title: str, labels: Mapping[str, list[int]], rows: Pixels) -> None:
    files = [f"fake_{number:06d}.png" for number in range(len(rows))]
    new_file(path, old_pickle({"batch_label": title, **labels, "data": rows, "filenames": files}))


def old_pickle(content: Mapping[str, Value]) -> bytes:
    """A dict as Python 2 pickled it (protocol 2), which Python 3 can read but no longer write.

    Strings are byte strings there, and the arrays come from `numpy.core.multiarray`; readers of CIFAR count on both.

    >>> pickle.loads(old_pickle({"labels": [3, 7]}), encoding="latin1")
    {'labels': [3, 7]}
    """
    items = b"".join(_string(name) + _value(value) for name, value in content.items())
    return pickle.PROTO + b"\2" + pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS + pickle.STOP


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, list):
        return pickle.EMPTY_LIST + pickle.MARK + b"".join(map(_value, value)) + pickle.APPENDS
    return _array(value)


def _array(values: Pixels) -> bytes:
    """Pickle an array as numpy's `__reduce__` does: an empty one, then its version, shape, dtype, order and bytes."""
    empty = _name("numpy", "ndarray") + _integer(0) + pickle.TUPLE1 + _string("b") + pickle.TUPLE3
    kind = _name("numpy", "dtype") + _string("u1") + _integer(0) + _integer(1) + pickle.TUPLE3 + pickle.REDUCE
    numbers = b"".join(map(_integer, (-1, -1, 0)))
    kind += pickle.MARK + _integer(3) + _string("|") + 3 * pickle.NONE + numbers + pickle.TUPLE + pickle.BUILD
    shape = pickle.MARK + b"".join(map(_integer, values.shape)) + pickle.TUPLE
    state = pickle.MARK + _integer(1) + shape + kind + pickle.NEWFALSE + _string(values.tobytes()) + pickle.TUPLE
    return _name("numpy.core.multiarray", "_reconstruct") + empty + pickle.REDUCE + state + pickle.BUILD


def _name(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _integer(value: int) -> bytes:
    return pickle.BININT + struct.pack("<i", value)


def _string(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return pickle.BINSTRING + struct.pack("<i", len(content)) + content
