"""A short question to `wc.recommend`, its answer, and the generators that they must not move."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

ASKED: dict[str, Any] = {"seconds": 0.1, "schemes": ["fan_in"]}


def generators() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def found_by(found: Any) -> dict[str, Any]:
    """A recommendation without the names of what was given, and without what an unused output takes."""
    return {name: value for name, value in found.to_dict().items() if name not in ("settings", "memory")}
