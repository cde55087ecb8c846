"""Moments of an optimizer in new coordinates of its parameters: m → m/c and v → v/c² where W → c W.

A gradient with respect to c W is the gradient with respect to W ÷ c, so these are the moments that the optimizer would
hold, had all its gradients been taken in the new coordinates. Its steps are not scaled along: neither SGD nor Adam is
blind to coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from wellcond.attention.projection import Projection
from wellcond.attention.storage import assign_, fetch, full
from wellcond.errors import ArgumentError

# By the name of the state: the power of 1/c that it takes.
POWERS = {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2, "momentum_buffer": 1}


def check_optimizer(optimizer: torch.optim.Optimizer, projections: Iterable[Projection], group: str) -> None:
    """Raise where the moments of a started optimizer could not go along."""
    for projection in projections:
        state = optimizer.state.get(projection.parameter(), {})
        unknown = [
            name for name, value in state.items() if isinstance(value, Tensor) and value.ndim and name not in POWERS
        ]
        if unknown:
            raise ArgumentError(
                f"{type(optimizer).__name__} keeps '{unknown[0]}' of '{projection.weight.path}', and what new "
                "coordinates make of it is not known: balance before training, or with Adam, AdamW or SGD"
            )
        if group == "full" and any(isinstance(value, Tensor) and value.ndim for value in state.values()):
            raise ArgumentError(
                f"{type(optimizer).__name__} has moments of '{projection.weight.path}', which a full map would mix: "
                "use group='scalar', or balance before training"
            )


@torch.no_grad()
def rescale_moments_(
    optimizer: torch.optim.Optimizer, changes: Sequence[tuple[Projection, Tensor]]
) -> Callable[[], None]:
    """Rescale the moments of projections whose heads are multiplied by diagonal maps; return what puts them back."""
    saved: dict[int, tuple[Tensor, Tensor]] = {}
    for projection, maps in changes:
        factors = maps.diagonal(dim1=1, dim2=2)  # (heads, d)
        parts = [(projection.parameter(), projection.weight.layout, factors[:, None, :])]
        if projection.bias is not None and projection.bias_layout is not None:
            assert projection.root is not None
            parts.append((fetch(projection.root, projection.bias), projection.bias_layout, factors))
        for parameter, layout, factor in parts:
            for name, value in optimizer.state.get(parameter, {}).items():
                if name in POWERS and isinstance(value, Tensor):
                    saved.setdefault(id(value), (value, value.detach().clone()))
                    whole = full(value).clone()
                    read, write = (
                        (layout.read, layout.write_) if factor.ndim == 3 else (layout.read_vector, layout.write_vector_)  # type: ignore[union-attr]
                    )
                    write(whole, (read(whole).double() / factor.to(whole.device) ** POWERS[name]).to(whole.dtype))
                    assign_(value, whole)

    @torch.no_grad()
    def restore() -> None:
        for value, before in saved.values():
            value.copy_(before)

    return restore
