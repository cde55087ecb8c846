"""Parts of torch that take as long to import as torch itself: asked for here, imported by whoever uses them.

`torch.distributed.tensor` brings sympy and `torch._dynamo` the compiler; most users of wellcond need neither.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch._compile import _disable_dynamo as not_compiled  # torch.compiler.disable, from the first call on

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["is_dtensor", "not_compiled"]


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Return whether a tensor is sharded; where nobody has imported `DTensor`, none is.

    >>> import torch
    >>> is_dtensor(torch.ones(2))
    False
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)
