"""Data that every reader of JSON accepts."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(data: Any) -> str:
    """One JSON document; infinities and NaN, which JSON has not, as strings.

    >>> print(to_json({"kappa": float("inf")}))
    {
      "kappa": "inf"
    }
    """
    return json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False, default=str)


def plain(data: Any) -> Any:
    """Data that JSON can hold: keys are strings, infinities and NaN are too."""
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data
