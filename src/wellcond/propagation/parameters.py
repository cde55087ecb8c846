"""The names that `wc.propagate` and `wc.trainability` share: what each may be, and the block they describe."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.propagation.block import Architecture
from wellcond.propagation.kernels import kernel

CHOICES = {
    "norm": ("pre", "post", "none"),
    "attention": ("softmax", "centred"),
    "loss": ("token", "pooled"),
    "theory": ("finite", "asymptotic"),
}


def triple(value_gain: Any) -> tuple[Any, Any, Any]:
    """The gain of what differs between tokens, that of what they have in common, and the trace."""
    return value_gain if isinstance(value_gain, tuple) else (value_gain, value_gain, 0.0)


def architecture(given: Mapping[str, Any]) -> Architecture:
    """The block of these parameters, which `check` has seen."""
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


def changed(given: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The parameters with every tensor changed, also those inside a pair or triple."""

    def one(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(one, value))
        return change(value) if isinstance(value, Tensor) else value

    return {name: one(value) for name, value in given.items()}


def doubled(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in double precision, in which everything is computed."""
    return changed(given, lambda tensor: tensor.double())


def check(given: Mapping[str, Any]) -> None:
    """Refuse what has no meaning, before any work; numbers may be tensors of them."""
    for name, choices in CHOICES.items():
        if given[name] not in choices:
            raise WellcondError(f"{name} is one of {', '.join(choices)}; got {given[name]!r}")
    if not isinstance(given["causal"], bool):
        raise WellcondError(f"causal is True or False, got {given['causal']!r}")
    for name, lowest in (("depth", 1), ("tokens", 2), ("width", 1), ("head_dim", 1)):
        value, optional = given[name], name in ("width", "head_dim")
        if not (optional and value is None) and not (_whole(value) and value >= lowest):
            raise WellcondError(f"{name} is a whole number of at least {lowest}, got {value!r}")
    for name in ("beta", "bias", "residual_attention", "residual_mlp"):
        if not is_number(given[name], lambda x: x >= 0):
            raise WellcondError(f"{name} is a number of at least 0, got {given[name]!r}")
    for name, sizes in (("value_gain", (1, 3)), ("mlp_gain", (2,))):
        value = given[name]
        parts = value if isinstance(value, tuple) else (value,)
        if len(parts) not in sizes or not all(is_number(part, lambda x: x >= 0) for part in parts[:2]):
            shape = "a number, or three" if len(sizes) > 1 else "a pair of numbers"
            raise WellcondError(f"{name} is {shape}, gains of at least 0; got {value!r}")
        if not all(map(is_number, parts[2:])):
            raise WellcondError(f"{name}'s third number, the trace, is finite; got {value[2]!r}")
    if not is_number(given["self_bias"]):
        raise WellcondError(f"self_bias is a number, got {given['self_bias']!r}")
    least = -1 / (given["tokens"] - 1)
    if not is_number(given["cosine"], lambda x: (x >= least) & (x <= 1)):
        raise WellcondError(
            f"cosine lies between {least:.3g}, the least that {given['tokens']} tokens can have in common, and 1; "
            f"got {given['cosine']!r}"
        )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any, holds: Callable[[Any], Any] = lambda x: True) -> bool:
    """Whether a value is a finite number for which something holds, or a tensor of such numbers."""
    if isinstance(value, Tensor):
        return not value.is_complex() and bool(value.isfinite().all()) and (value.numel() == 0 or _all(holds(value)))
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and bool(holds(value))
    )


def _all(found: bool | Tensor) -> bool:
    return bool(found.all()) if isinstance(found, Tensor) else found
