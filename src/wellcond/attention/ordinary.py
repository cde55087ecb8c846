"""Ordinary arithmetic inside whatever a caller has switched on: inference mode, autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

import torch

DEVICES = ("cpu", "cuda", "mps", "xpu")
_CALLERS: ContextVar[tuple[tuple[str, torch.dtype], ...]] = ContextVar("autocast of the caller", default=())


def autocasts() -> tuple[tuple[str, torch.dtype], ...]:
    """Return the autocast that is on, by kind of device.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocasts()
    (('cpu', torch.bfloat16),)
    """
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in DEVICES if torch.is_autocast_enabled(kind))


@contextmanager
def ordinary() -> Iterator[None]:
    """Compute in ordinary tensors and in their own precision; only a model runs in its caller's autocast.

    >>> with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), ordinary():
    ...     x = torch.ones(1, 1) @ torch.ones(1, 1)
    >>> x.dtype, x.is_inference()
    (torch.float32, False)
    """
    callers = autocasts()
    token = _CALLERS.set(callers) if callers else None
    try:
        with ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())
            for kind, _ in callers:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        if token is not None:
            _CALLERS.reset(token)


@contextmanager
def as_called() -> Iterator[None]:
    """Go back into the caller's autocast; weights are cast at each use, not kept, so that a pass shows it.

    >>> with torch.autocast("cpu", torch.bfloat16), ordinary(), as_called():
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.bfloat16
    """
    with ExitStack() as stack:
        for kind, dtype in _CALLERS.get():
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
        yield


@contextmanager
def with_gradients() -> Iterator[None]:
    """Record gradients, also where a caller is in inference mode.

    >>> with torch.inference_mode(), with_gradients():
    ...     x = torch.ones(1, requires_grad=True) * 2
    >>> x.requires_grad
    True
    """
    with torch.inference_mode(False), torch.enable_grad():
        yield
