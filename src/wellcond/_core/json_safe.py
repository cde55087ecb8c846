"""Write data as JSON that every reader accepts."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(data: Any) -> str:
    """Return one JSON document; infinities and NaN, which JSON has not, as strings.

    >>> print(to_json({"kappa": float("inf")}))
    {
      "kappa": "inf"
    }
    """
    return _escaped(json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False, default=str))


def to_json_line(data: Any) -> str:
    r"""Return one JSON document in one line, with its end.

    >>> to_json_line({"title": "κ \ud800 \x9b"})
    '{"title": "κ \\ud800 \\u009b"}\n'
    """
    return _escaped(json.dumps(plain(data), ensure_ascii=False, allow_nan=False)) + "\n"


def plain(data: Any) -> Any:
    """Return data that JSON can hold: keys are strings, infinities and NaN are too."""
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def _escaped(text: str) -> str:
    """Escape, as JSON does, what a terminal acts on or UTF-8 lacks."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
