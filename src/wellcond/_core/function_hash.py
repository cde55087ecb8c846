"""Hash functions of the user's own by their compiled code, so that comments and places in a file do not count."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

INSTALLED = "site-packages"  # in the path of code that is a library's, known by its name


def digest_of(*values: Any) -> str:
    """Return a hash of functions, tensors and plain values, also in lists and dicts; others count by their class.

    >>> one, same, other = (digest_of(f) for f in (lambda x: x + 1, lambda x: x + 1, lambda x: x + 2))
    >>> one == same, one == other
    (True, False)
    >>> digest_of(torch.zeros(2)) == digest_of(torch.zeros(2, 1))
    False
    """
    digest = hashlib.sha256()
    for part in _parts(values, set()):
        content = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        digest.update(f"{len(content)}:".encode() + content)
    return digest.hexdigest()[:16]


def _parts(value: Any, seen: set[int]) -> Iterator[str | bytes]:
    if isinstance(value, (str, bytes, int, float, complex, type(None))):
        yield repr(value)
    elif isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().flatten()
        yield f"{value.dtype}{tuple(value.shape)}"
        yield flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    elif isinstance(value, (np.ndarray, np.generic)):
        yield f"{value.dtype}{value.shape}"
        yield value.tobytes()
    elif isinstance(value, Mapping):
        yield from _several([*value.items()], seen)
    elif isinstance(value, (tuple, list)):
        yield from _several(value, seen)
    elif callable(value):
        yield from _function(value, seen)
    else:
        yield type(value).__qualname__


def _several(values: Iterable[Any], seen: set[int]) -> Iterator[str | bytes]:
    yield "("
    for value in values:
        yield from _parts(value, seen)
    yield ")"


def _function(function: Any, seen: set[int]) -> Iterator[str | bytes]:
    """What of a function decides what it does, as far as it can be seen: its code, and values that it has kept."""
    if id(function) in seen:  # of functions that know each other, as a class and its methods do
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        yield from _several([function.func, function.args, function.keywords], seen)
    elif isinstance(function, types.MethodType):
        yield from _function(function.__func__, seen)
    elif isinstance(function, types.FunctionType):
        if INSTALLED in function.__code__.co_filename:
            yield f"{function.__module__}.{function.__qualname__}"
            return
        yield from _compiled(function.__code__)
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
        yield from _several([function.__defaults__, function.__kwdefaults__, cells], seen)
    else:  # a class, or an object that is called
        yield repr(function) if isinstance(function, nn.Module) else str(getattr(function, "__qualname__", ""))
        if isinstance(function, nn.Module):
            yield from _several([*function.named_parameters(), *function.named_buffers()], seen)
        elif not isinstance(function, type):
            yield from _parts(getattr(function, "__dict__", {}), seen)
        own = vars(function if isinstance(function, type) else type(function))
        for name in ("__init__", "__call__", "forward"):
            if isinstance(own.get(name), types.FunctionType):
                yield from _function(own[name], seen)


def _compiled(code: types.CodeType) -> Iterator[str]:
    """The instructions of a function and of those inside of it, without names of files and numbers of lines."""
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _compiled(constant)
        else:
            yield repr(sorted(constant, key=repr)) if isinstance(constant, frozenset) else repr(constant)
