"""Reader of the pickles that CIFAR is distributed as, which runs nothing that is in them; torchvision's would."""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellcond.errors import WellcondError
from wellcond.lab.tasks.checks import read_bytes


def _bytes_of(text: str, encoding: str = "latin1") -> bytes:
    """Return `bytes` as Python 3 writes them in the old protocols; `_codecs.encode` itself would take any codec."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


class _Kind:
    """Stands for a dtype: only that of unsigned bytes, whatever state it is given."""

    def __init__(self, name: object, *_: object) -> None:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array of dtype {name!r}, not u1")

    def __setstate__(self, state: object) -> None:
        """Nothing to be told: numpy's own would believe sizes and flags of anybody."""


class _Array:
    """Stands for an array: its state is checked, then taken as bytes."""

    values: NDArray[np.uint8]

    def __init__(self, *_: object) -> None:
        self.values = np.zeros(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        content = content if isinstance(content, bytes) else _bytes_of(content)
        if not isinstance(kind, _Kind) or by_columns or math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape!r} and {len(content)} bytes")
        self.values = np.frombuffer(content, np.uint8).reshape(shape)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _bytes_of,
}


class _Plain(pickle.Unpickler):
    """Numbers, strings, lists, dicts and arrays of bytes; anything else by name is refused before it is called."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file does")
        return allowed

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it refers to something outside, {pid!r}")


def read_pickle(path: Path) -> dict[Any, Any]:
    """Read the dict in a CIFAR file, with its keys as bytes and its arrays as numpy's.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "data_batch_1")
    ...     _ = path.write_bytes(pickle.dumps({b"labels": [3, 7]}, protocol=2))
    ...     read_pickle(path)
    {b'labels': [3, 7]}
    """
    content = read_bytes(path)
    try:
        found = _Plain(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # damaged pickles raise anything: EOFError, KeyError, ValueError, UnicodeDecodeError…
        reason = " ".join(str(error).split())
        raise WellcondError(
            f"{str(path)!r} ({len(content)} bytes) is cut short or is no CIFAR file: {type(error).__name__}: {reason}"
        ) from error
    if not isinstance(found, dict):
        raise WellcondError(f"{str(path)!r} holds a {type(found).__name__}, not the dict of a CIFAR file")
    return {key: value.values if isinstance(value, _Array) else value for key, value in found.items()}
