"""Check that plain tensors make a head: shapes that fit, finite real numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from wellcond._core.short_repr import short_repr
from wellcond.errors import ArgumentError, NotFiniteError


def check_tensors(
    x: Tensor,
    memory: Tensor | None,
    weights: tuple[Tensor, Tensor, Tensor],
    biases: Mapping[str, Tensor],
    of_logits: Mapping[str, Any],
) -> None:
    """Raise, with its name and the shape it should have, at the first tensor that does not fit the others.

    All are as `softmax_head` has them; `of_logits` is by name what is added to logits or multiplied with them, of which
    numbers and None are left to others.

    >>> check_tensors(torch.ones(5, 6), None, (torch.ones(6, 3), torch.ones(6, 3), torch.ones(7, 3)), {}, {})
    Traceback (most recent call last):
    wellcond.errors.ArgumentError: softmax_head: w_v has finite real numbers of shape (6, d_v); got float32 (7, 3)
    """
    _check("x", x, x.ndim in (2, 3), "(N, D) or (B, N, D)")
    sequences, batch = x.shape[:-2], "".join(f"{size}, " for size in x.shape[:-2])
    read = x if memory is None else memory
    _check("memory", read, read.ndim == x.ndim and read.shape[:-2] == sequences, f"({batch}T, D)")
    w_q, w_k, w_v = weights
    _check("w_q", w_q, w_q.ndim == 2 and w_q.shape[0] == x.shape[-1], f"({x.shape[-1]}, d)")
    d, width = w_q.shape[1], read.shape[-1]
    _check("w_k", w_k, tuple(w_k.shape) == (width, d), f"({width}, {d})")
    _check("w_v", w_v, w_v.ndim == 2 and w_v.shape[0] == width, f"({width}, d_v)")
    sizes = {"query": d, "key": d, "value": w_v.shape[1]}
    for role, bias in biases.items():
        if role not in sizes:
            raise ArgumentError(f"softmax_head: biases has some of the keys {', '.join(sizes)}; got {short_repr(role)}")
        _check(f"the {role}'s bias", bias, tuple(bias.shape) == (sizes[role],), f"({sizes[role]},)")
    logits = (*(sequences or (1,)), 1, x.shape[-2], read.shape[-2])
    for name, given in of_logits.items():
        if isinstance(given, Tensor):
            pairs = zip(reversed(given.shape), reversed(logits), strict=False)
            fits = given.ndim <= len(logits) and all(size in (1, whole) for size, whole in pairs)
            hidden = -torch.inf if name == "bias" else 0.0  # a key that a mask takes out
            _check(name, given, fits, f"that broadcasts to {logits}", hidden)


def _check(name: str, given: Tensor, fits: bool, shape: str, hidden: float = 0.0) -> None:
    kind = "no numbers (meta)" if given.is_meta else str(given.dtype).removeprefix("torch.")
    if not fits or given.is_meta or not given.is_floating_point() or not given.numel():
        raise ArgumentError(
            f"softmax_head: {name} has finite real numbers of shape {shape}; got {kind} {tuple(given.shape)}"
        )
    if not bool((torch.isfinite(given) | (given == hidden)).all()):
        raise NotFiniteError(f"softmax_head: {name} is not finite, so there is no Jacobian")
