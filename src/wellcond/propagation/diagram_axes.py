"""Axes of a diagram: which parameters may be one, the values and the trainable interval along it, others' defaults."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from wellcond.errors import ArgumentError, WellcondError
from wellcond.propagation.parameters import REAL_PARAMETERS

Axis = Annotated[
    tuple[str, float, float] | tuple[str, float, float, str],
    'an axis: (name, lowest, highest), or with "log" for even ratios',
]

REAL_AXES = (*REAL_PARAMETERS, "mlp_gain")
WHOLE_AXES = ("depth", "tokens", "width", "head_dim")
SETS_STATISTICS = ("tokens", "head_dim")  # each value has statistics of its own, and takes a third of a second
MAX_STATISTICS = 24  # values along such an axis


def as_parameter(name: str, value: Tensor) -> Any:
    """Return a parameter's value from a number of its axis: both of the MLP's gains are one number there."""
    if name == "mlp_gain":
        return (value, value)
    return int(value) if name in WHOLE_AXES and value.dim() == 0 else value


def all_parameters(function: Callable[..., Any], parameters: Mapping[str, Any], axes: Sequence[Any]) -> dict[str, Any]:
    """Return all parameters of a function, defaults filled in; those of the axes are left out."""
    known = inspect.signature(function).parameters
    for axis in axes:
        if axis[0] not in (*REAL_AXES, *WHOLE_AXES):
            known_names = ", ".join((*REAL_AXES, *WHOLE_AXES))
            raise ArgumentError(f"an axis is (name, lowest, highest) with a name of {known_names}; got {axis!r}")
    names = [axis[0] for axis in axes]
    if len(set(names)) < len(names):
        raise WellcondError(f"the two axes are different parameters, got '{names[0]}' twice")
    for name in parameters:
        if name not in known or name == "thresholds":
            raise WellcondError(f"'{name}' is no parameter of a diagram; there are {', '.join(known)}")
        if name in names:
            raise WellcondError(f"'{name}' is an axis of the diagram, so it has no single value")
    given = {name: parameters.get(name, parameter.default) for name, parameter in known.items() if name != "thresholds"}
    missing = [name for name, value in given.items() if value is inspect.Parameter.empty and name not in names]
    if missing:
        raise WellcondError(f"a diagram wants {' and '.join(f'{name}=' for name in missing)} as well, or as an axis")
    return {name: value for name, value in given.items() if name not in names}


def axis_values(axis: Axis, resolution: int) -> Tensor:
    """Return the values along an axis, evenly spaced or in even ratios.

    >>> axis_values(("tokens", 16, 1024), 3).tolist()                                    # even ratios, whole numbers
    [16.0, 128.0, 1024.0]
    """
    name, low, high, *rest = axis
    if rest and rest[0] != "log":
        raise WellcondError(f'the fourth part of an axis is "log" or left out, got {rest[0]!r}')
    if not low < high:
        raise ArgumentError(f"the axis '{name}' runs from a lower to a higher number, got {low!r} to {high!r}")
    if rest and low <= 0:
        raise WellcondError(f"the axis '{name}' cannot have even ratios from {low}: begin above 0")
    count = min(resolution, MAX_STATISTICS) if name in SETS_STATISTICS else resolution
    if rest or name in SETS_STATISTICS:
        along = torch.logspace(math.log10(low), math.log10(high), count, dtype=torch.float64)
    else:
        along = torch.linspace(low, high, count, dtype=torch.float64)
    return torch.tensor(sorted(set(along.round().tolist())), dtype=torch.float64) if name in WHOLE_AXES else along


def widest_interval(at: list[float], excess: Tensor) -> tuple[float, float] | None:
    """Return the widest run of points where no criterion is exceeded, its ends interpolated to where one is."""
    worst = excess.amax(0)
    good = (worst <= 0).tolist()
    best: tuple[float, float] | None = None
    start = None
    for i, fine in enumerate([*good, False]):
        if fine and start is None:
            start = i
        if not fine and start is not None:
            low = at[start] if start == 0 else _crossing(at, worst, start, start - 1)
            high = at[i - 1] if i == len(at) else _crossing(at, worst, i - 1, i)
            if best is None or high - low > best[1] - best[0]:
                best = (low, high)
            start = None
    return best


def _crossing(at: list[float], worst: Tensor, inside: int, outside: int) -> float:
    a, b = float(worst[inside]), float(worst[outside])
    return at[inside] + (at[outside] - at[inside]) * (-a / (b - a) if math.isfinite(b) and b > a else 0.0)
