"""Fashion-MNIST, and the reader of its idx files."""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import first_of, folder_of, read_bytes, whole
from wellcond.lab.tasks.images.pixels import PixelExamples, image_task, resized
from wellcond.lab.tasks.registry import register_task

DEBIAN = "/usr/share/datasets/fashion-mnist"  # where the package below puts it
SOURCE = "apt install dataset-fashion-mnist, or https://github.com/zalandoresearch/fashion-mnist (four idx files)"
MEAN, STD = (0.2860,), (0.3530,)  # of the training images
_AGAIN = ". Download it again"


@register_task("fashion-mnist", "photographs of clothes, 28 × 28 grey, from idx files", SOURCE)
def fashion_mnist(
    *, folder: str | Path = DEBIAN, train_images: int | None = None, test_images: int | None = None, size: int = 28
) -> Task:
    """70 000 photographs of clothes, 10 classes.

    H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset, arXiv 1708.07747.

    Args:
        folder: of the four idx files, also compressed (.gz); by default that of the Debian package.
        train_images: only the first so many, whose labels are in random order as published.
        test_images: the same for the test.
        size: side, resized from 28.

    >>> fashion_mnist(folder="/nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    wellcond.errors.WellcondError: there is no folder '/nowhere'. The data: apt install dataset-fashion-mnist, or ...
    """
    path = folder_of(folder, SOURCE)
    train, test = (
        _part(path, prefix, resized(size, 28)).first(None if count is None else whole(name, count))
        for prefix, name, count in (("train", "train_images", train_images), ("t10k", "test_images", test_images))
    )
    return image_task("fashion-mnist", "Fashion-MNIST", train, test, channels=1, classes=10)


def _part(folder: Path, prefix: str, size: int | None) -> PixelExamples:
    names = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    paths = [first_of(folder, (name, f"{name}.gz"), SOURCE) for name in names]
    images, labels = map(read_idx, paths)
    if images.ndim != 3 or images.shape[1:] != (28, 28):
        raise WellcondError(f"{str(paths[0])!r} holds {tuple(images.shape)}, not N × 28 × 28 bytes. The data: {SOURCE}")
    if labels.ndim != 1 or len(labels) != len(images) or (len(labels) and int(labels.max()) > 9):
        raise WellcondError(f"{str(paths[1])!r} does not hold {len(images)} labels from 0 to 9. The data: {SOURCE}")
    return PixelExamples(images[:, None], labels.long(), MEAN, STD, size)


def read_idx(path: Path) -> Tensor:
    """Read a file of bytes of any number of dimensions in MNIST's idx format, also compressed by gzip.

    torchvision reads it too, but not the compressed files that are distributed, and a damaged one is an AssertionError.
    Format: two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension as a big-endian
    32-bit number, then the values (Y. LeCun, C. Cortes, C. Burges, The MNIST database).

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
