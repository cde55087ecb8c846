"""Parameters that `wc.propagate` and `wc.trainability` share: what each may be, and the block they describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellcond._core.short_repr import short_repr
from wellcond.errors import ArgumentError
from wellcond.propagation.activation_kernels import kernel
from wellcond.propagation.block import Architecture

CHOICES = {
    "norm": ("pre", "post", "none"),
    "attention": ("softmax", "centred"),
    "loss": ("token", "pooled"),
    "theory": ("finite", "asymptotic"),
}
# Blocks that are kept in memory, lengths and widths that a float64 counts, and numbers that it can square twice.
MAX_DEPTH, MAX_TOKENS, MAX_WIDTH, MAX_NUMBER = 10_000, 2**80, 2**40, 1e60
REAL_PARAMETERS = ("beta", "value_gain", "bias", "residual_attention", "residual_mlp", "cosine", "self_bias")


def triple(value_gain: Any) -> tuple[Any, Any, Any]:
    """Return the gain of what differs between tokens, that of what they have in common, and the trace."""
    return value_gain if isinstance(value_gain, tuple) else (value_gain, value_gain, 0.0)


def architecture(given: Mapping[str, Any]) -> Architecture:
    """Return the block of these parameters, which `check_parameters` has seen."""
    incoherent, coherent, trace = triple(given["value_gain"])
    bias = given["bias"]
    return Architecture(
        tokens=given["tokens"],
        beta=given["beta"],
        incoherent=incoherent,
        coherent=coherent,
        kernel=kernel(given["activation"]),
        trace=trace,
        mlp=given["mlp_gain"],
        bias=(bias, bias, bias),
        skip_attention=given["residual_attention"],
        skip_mlp=given["residual_mlp"],
        norm=given["norm"],
        centred=given["attention"] == "centred",
        self_bias=given["self_bias"],
    )


def map_tensors(given: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return the parameters with a function applied to every tensor, also inside a pair or triple."""

    def one(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(one, value))
        return change(value) if isinstance(value, Tensor) and not value.is_complex() else value

    return {name: one(value) for name, value in given.items()}


def tensors_in(given: Mapping[str, Any]) -> list[Tensor]:
    """Return the parameters that are tensors, also those inside a pair or triple."""
    parts = (part for value in given.values() for part in (value if isinstance(value, tuple) else (value,)))
    return [part for part in parts if isinstance(part, Tensor)]


def common_shape(given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape that all parameters have together: of one prediction, `()`."""
    try:
        return np.broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors_in(given)))
    except ValueError as error:
        raise ArgumentError(f"the shapes of parameters that are tensors do not go together: {error}") from error


def in_double_precision(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters in double precision, in which everything is computed."""
    numbers = {
        name: float(value) if name in REAL_PARAMETERS and is_number(value) and not isinstance(value, Tensor) else value
        for name, value in given.items()
    }
    return map_tensors(numbers, lambda tensor: tensor.double())


def check_parameters(given: Mapping[str, Any]) -> None:
    """Refuse parameters that have no meaning, before any work; numbers may be tensors of them."""
    for name, choices in CHOICES.items():
        if not isinstance(given[name], str) or given[name] not in choices:
            raise ArgumentError(f"{name} is one of {', '.join(choices)}; got {short_repr(given[name])}")
    if not isinstance(given["causal"], bool):
        raise ArgumentError(f"causal is True or False, got {short_repr(given['causal'])}")
    for name, lowest, highest in (
        ("depth", 1, MAX_DEPTH),
        ("tokens", 2, MAX_TOKENS),
        ("width", 1, MAX_WIDTH),
        ("head_dim", 1, MAX_WIDTH),
    ):
        value, optional = given[name], name in ("width", "head_dim")
        if not (optional and value is None) and not (_whole(value) and lowest <= value <= highest):
            raise ArgumentError(
                f"{name} is a whole number from {lowest} to {highest:,}{' or None' * optional}; got {short_repr(value)}"
            )
    for name in ("beta", "bias", "residual_attention", "residual_mlp"):
        if not is_number(given[name], lambda x: x >= 0):
            raise ArgumentError(f"{name} is a number from 0 to {MAX_NUMBER:g}, got {short_repr(given[name])}")
    for name, sizes in (("value_gain", (1, 3)), ("mlp_gain", (2,))):
        value = given[name]
        parts = value if isinstance(value, tuple) else (value,)
        if len(parts) not in sizes or not all(is_number(part, lambda x: x >= 0) for part in parts[:2]):
            shape = "a number, or three" if len(sizes) > 1 else "a pair of numbers"
            raise ArgumentError(f"{name} is {shape}, gains from 0 to {MAX_NUMBER:g}; got {short_repr(value)}")
        if not all(map(is_number, parts[2:])):
            raise ArgumentError(f"{name}'s third number, the trace, is finite; got {short_repr(value[2])}")
    if not is_number(given["self_bias"]):
        raise ArgumentError(
            f"self_bias is a number from -{MAX_NUMBER:g} to {MAX_NUMBER:g}, got {short_repr(given['self_bias'])}"
        )
    least = -1 / (given["tokens"] - 1)
    if not is_number(given["cosine"], lambda x: (x >= least) & (x <= 1)):
        raise ArgumentError(
            f"cosine lies between {least:.3g}, the least that {given['tokens']} tokens can have in common, and 1; "
            f"got {short_repr(given['cosine'])}"
        )
    kernel(given["activation"])
    common_shape(given)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any, holds: Callable[[Any], Any] = lambda x: True) -> bool:
    """Return whether a value is a number that can be squared and for which something holds, or a tensor of such."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.is_meta or value.dtype == torch.bool or not value.numel():
            return False
        return bool((value.abs() <= MAX_NUMBER).all()) and bool(torch.as_tensor(holds(value)).all())
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and -MAX_NUMBER <= value <= MAX_NUMBER and bool(holds(value))
