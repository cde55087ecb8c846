"""Laws whose spread follows from the fans of a map: from both (Glorot & Bengio 2010) or from what it reads alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from wellcond.attention.projection import Projection
from wellcond.init.laws import Law, Normal, Uniform

Distribution = Literal["uniform", "normal"]
Granularity = Literal["projection", "head", "matrix"]
DISTRIBUTIONS: dict[Distribution, Callable[[float, str], Law]] = {"uniform": Uniform, "normal": Normal}


def fans(role: str, projection: Projection, granularity: Granularity = "projection") -> tuple[int, int]:
    """Return `(fan_in, fan_out)` of a map: of one head, of the role's whole projection, or of the stored matrix.

    An output projection (and an MLP's second matrix) reads its `d` side and writes its `D` side.
    """
    heads, width, d = projection.shape
    if granularity == "matrix":
        near, far = projection.stored_shape
    else:
        near, far = width, d if granularity == "head" else heads * d
    return (far, near) if role in ("output", "mlp_out") else (near, far)


def xavier_law(
    role: str,
    projection: Projection,
    gain: float,
    distribution: Distribution = "uniform",
    granularity: Granularity = "projection",
) -> Law:
    """Variance 2 gain² ÷ (fan_in + fan_out)."""
    fan_in, fan_out = fans(role, projection, granularity)
    return DISTRIBUTIONS[distribution](gain * math.sqrt(2 / (fan_in + fan_out)), f"fan {fan_in} + {fan_out}")


def fan_in_law(
    role: str,
    projection: Projection,
    gain: float,
    distribution: Distribution = "normal",
    granularity: Granularity = "projection",
) -> Law:
    """Variance gain² ÷ fan_in."""
    fan_in, _ = fans(role, projection, granularity)
    return DISTRIBUTIONS[distribution](gain / math.sqrt(fan_in), f"fan in {fan_in}")
