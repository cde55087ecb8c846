"""Reader of the idx format of MNIST and its successors.

torchvision reads it too, but not the compressed files that are distributed, and a damaged one is an AssertionError.
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.checks import read_bytes

_AGAIN = ". Download it again"


def read_idx(path: Path) -> Tensor:
    """Read bytes of any number of dimensions.

    Format: two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension as a big-endian
    32-bit number, then the values (Y. LeCun, C. Cortes, C. Burges, The MNIST database).

    Args:
        path: the file, also compressed by gzip.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "labels-idx1-ubyte")
    ...     _ = path.write_bytes(struct.pack(">HBBI", 0, 8, 1, 3) + bytes([5, 0, 4]))
    ...     read_idx(path)
    tensor([5, 0, 4], dtype=torch.uint8)
    """
    content, whole = _unpacked(path)
    dimensions = content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08"[: len(content)]:
        raise WellcondError(f"{str(path)!r} is not an idx file of bytes: it begins with {content[:4].hex(' ')}{_AGAIN}")
    expected = begin = 4 + 4 * dimensions
    shape: tuple[int, ...] = ()
    if len(content) >= begin:
        shape = struct.unpack(f">{dimensions}I", content[4:begin])
        expected += math.prod(shape)
    if len(content) != expected or not whole:
        what = "is too long" if len(content) > expected else "is cut short"
        raise WellcondError(f"{str(path)!r} {what}: {expected} bytes expected, {len(content)} found{_AGAIN}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[begin:].view(shape)


def _unpacked(path: Path) -> tuple[bytes, bool]:
    """Return as much as there is, and whether that is all: it says how much is missing, gzip itself does not."""
    content = read_bytes(path)
    if content[:2] != b"\x1f\x8b":
        return content, True
    unpacker = zlib.decompressobj(wbits=31)  # 31: with the header and checksum of gzip
    try:
        return unpacker.decompress(content), unpacker.eof
    except zlib.error as error:
        raise WellcondError(f"{str(path)!r} is damaged: {error}{_AGAIN}") from error
