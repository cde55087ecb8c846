"""A grid of tokens cut into windows and put together again, for layers that attend within windows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def partition(grid: Tensor, size: Sequence[int]) -> Tensor:
    """`(B, height, width, D)` to `(B·windows, h·w, D)`, the windows of one image next to each other, row by row.

    >>> import torch
    >>> partition(torch.arange(16).reshape(1, 4, 4, 1), (2, 2))[1].flatten().tolist()
    [2, 3, 6, 7]
    """
    batch, height, width, channels = grid.shape
    h, w = size
    cut = grid.reshape(batch, height // h, h, width // w, w, channels)
    return cut.transpose(2, 3).reshape(-1, h * w, channels)


def merge(windows: Tensor, size: Sequence[int], height: int, width: int) -> Tensor:
    """Undo `partition`.

    >>> import torch
    >>> grid = torch.rand(2, 4, 6, 3)
    >>> torch.equal(merge(partition(grid, (2, 3)), (2, 3), 4, 6), grid)
    True
    """
    h, w = size
    cut = windows.reshape(-1, height // h, width // w, h, w, windows.shape[-1])
    return cut.transpose(2, 3).reshape(-1, height, width, windows.shape[-1])


def per_window(mask: Tensor, windows: int) -> Tensor:
    """A mask of each window of an image, `(windows per image, N, N)`, for a batch of images: `(windows, 1, N, N)`."""
    return mask.repeat(windows // mask.shape[0], 1, 1)[:, None]
