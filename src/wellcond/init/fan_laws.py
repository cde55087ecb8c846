"""Laws whose spread follows from the fans of a map: Xavier's (Glorot & Bengio 2010) and Kaiming's (He et al. 2015)."""

from __future__ import annotations

import math
from typing import Literal

from wellcond.attention.projection import Projection
from wellcond.init.laws import Law, Normal, Uniform
from wellcond.init.roles import fans

Distribution = Literal["uniform", "normal"]
Granularity = Literal["projection", "head", "matrix"]
_LAWS = {"uniform": Uniform, "normal": Normal}


def xavier_law(
    role: str,
    projection: Projection,
    gain: float,
    distribution: Distribution = "uniform",
    granularity: Granularity = "projection",
) -> Law:
    """Variance 2 gain² ÷ (fan_in + fan_out)."""
    fan_in, fan_out = fans(role, projection, granularity)
    return _LAWS[distribution](gain * math.sqrt(2 / (fan_in + fan_out)), f"fan {fan_in} + {fan_out}")


def kaiming_law(
    role: str, projection: Projection, slope: float, distribution: Distribution, granularity: Granularity
) -> Law:
    """Variance 2 ÷ ((1 + slope²) fan_in)."""
    fan_in = fans(role, projection, granularity)[0]
    return _LAWS[distribution](math.sqrt(2 / ((1 + slope**2) * fan_in)), f"fan in {fan_in}")
