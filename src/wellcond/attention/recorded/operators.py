"""What operators of aten do to the elements of a tensor: re-arrange them, keep each in its place, or make new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wellcond.attention.recorded.tape import Step

NONE = -1  # the number of an element that comes from nothing that is numbered
SEVERAL = -2  # of one that is a sum of results of several linear maps

# The place of the axis among the arguments.
SOFTMAX = {"_softmax": 1, "_safe_softmax": 1, "_log_softmax": 1, "_masked_softmax": 2}
CASTS = {"_to_copy", "alias", "detach", "lift_fresh"}
# The first result has the elements of the first argument, each in its place.
KEPT = {
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "_fused_rms_norm"),
    *("_native_batch_norm_legit_no_training", "_to_copy", "native_dropout", "cudnn_batch_norm"),
}
NORMS = {"native_layer_norm", "native_group_norm", "_fused_rms_norm"}  # of those, what depends on other elements
LOOKED_UP = {"index", "index_select", "gather"}
REARRANGED = LOOKED_UP | {
    *("clone", "copy", "copy_", "cat", "stack", "_unsafe_view", "repeat", "repeat_interleave", "flip", "roll"),
    *("index_copy", "index_copy_", "index_put", "index_put_", "_index_put_impl_", "scatter", "scatter_"),
    *("slice_scatter", "select_scatter", "masked_scatter", "where", "im2col", "constant_pad_nd", "pixel_shuffle"),
    *("pixel_unshuffle", "channel_shuffle", "reflection_pad2d", "replication_pad2d", "tril", "triu", "unfold_copy"),
    *("reflection_pad1d", "replication_pad1d"),
}
# Re-arrangements whose operands are all elements, whatever their type, but for masks.
JOINING = {"cat", "stack", "copy", "copy_", "where"}
# Re-arrangements that fill with zeros, and those that exist for floating-point numbers alone.
FILLING = {"im2col", "tril", "triu"}
FOR_FLOATS = {"im2col", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"}
# Element by element, though they carry no tag that says so.
POINTWISE = {"masked_fill", "masked_fill_", "addcmul", "addcmul_", "lerp", "lerp_"}
# What they make is an angle's function, no column of anything.
ANGLES = {"cos", "sin", "cos_", "sin_"}
POOLED = {
    *("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "max_pool2d_with_indices"),
    *("max_pool3d_with_indices", "upsample_nearest2d", "upsample_bilinear2d", "_upsample_bilinear2d_aa"),
    *("upsample_nearest1d", "upsample_linear1d", "upsample_bicubic2d", "_adaptive_avg_pool3d"),
}
REDUCED = {"mean", "sum", "amax", "amin"}
CREATED = {
    *("empty", "zeros", "ones", "full", "empty_strided", "empty_like", "zeros_like", "full_like"),
    *("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
}
GATES = {"sigmoid", "silu", "tanh", "softplus", "gelu", "relu", "hardsigmoid", "hardtanh"}
SUMS = {"add", "sub", "rsub", "addcmul", "lerp"}


def has_elements(x: Any) -> bool:
    """Return whether something is a tensor whose elements are followed: of floating-point or complex numbers."""
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def is_pointwise(step: Step) -> bool:
    """Return whether each element of the result is a function of the elements in its place."""
    return torch.Tag.pointwise in step.func.tags or step.name in POINTWISE


def is_sum(step: Step) -> bool:
    """Return whether a step adds its operands."""
    return step.name.removesuffix("_") in SUMS


def is_rearrangement(step: Step) -> bool:
    """Return whether each element of the results is one of the operands' elements."""
    returned = step.func._schema.returns
    view = bool(returned) and returned[0].alias_info is not None and not returned[0].alias_info.is_write
    return view or step.name in REARRANGED


def rearranged(step: Step, change: Callable[[Any], Any]) -> list[Tensor]:
    """Apply a re-arrangement to numbers: `change` gives those of each operand that has elements."""

    def numbers(x: Any) -> Any:
        whole = step.name in JOINING and isinstance(x, Tensor) and x.dtype != torch.bool  # no index, but elements
        if isinstance(x, Tensor) and not has_elements(x):  # numbers are on the CPU, so indices and masks have to be
            return torch.full(x.shape, NONE) if whole else x.cpu()
        return change(x)

    args, kwargs = tree_map(numbers, (step.args, step.kwargs))
    kwargs = {name: value for name, value in kwargs.items() if name not in ("dtype", "memory_format")}
    # A number that is written between elements comes from nothing.
    scalar = [argument.type.kind() == "NumberType" for argument in step.func._schema.arguments]
    args = [NONE if number else x for x, number in zip(args, scalar, strict=False)]
    result: Any
    if step.name in ("view", "_unsafe_view"):  # numbers may lie in memory otherwise than what they number
        result = args[0].reshape(args[1])
    elif step.name == "as_strided":
        result = _restrided(step.args[0], args[0], step)
    elif step.name == "constant_pad_nd":
        result = step.func(args[0], args[1], NONE)
    elif step.name in FOR_FLOATS | FILLING:  # numbered so that nothing is 0; exact in double precision below 2⁵³
        above = args[0] - NONE
        above = above.double() if step.name in FOR_FLOATS else above
        result = step.func(above, *args[1:], **kwargs).long() + NONE
    else:
        result = step.func(*args, **kwargs)
    return [result] if isinstance(result, Tensor) else list(result)


def _restrided(x: Tensor, numbers: Tensor, step: Step) -> Tensor:
    """An operator that speaks of memory: numbers are laid out as what they number, if that is all there is in it."""
    if x.storage_offset() or x.numel() * x.element_size() != x.untyped_storage().nbytes():
        return torch.full(step.result.shape, NONE)
    laid = torch.empty_strided(x.shape, x.stride(), dtype=torch.long).copy_(numbers)
    return laid.as_strided(*step.args[1:], **step.kwargs)


def resized(numbers: Tensor, shape: torch.Size) -> Tensor:
    """Numbers on a grid of another size: those of the nearest elements.

    >>> resized(torch.arange(4)[None], torch.Size([1, 2]))
    tensor([[0, 2]])
    """
    for dim, size in enumerate(shape):
        if numbers.shape[dim] != size:
            numbers = numbers.index_select(dim, torch.arange(size) * numbers.shape[dim] // size)
    return numbers
