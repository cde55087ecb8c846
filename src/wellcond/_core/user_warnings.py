"""Warnings that point at the line of the user's script, however many loops and callbacks lie between."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

# Loops that call our callbacks; nobody can act on a line of theirs.
LIBRARIES = frozenset(
    {
        "wellcond",
        "accelerate",
        "contextlib",
        "lightning",
        "lightning_fabric",
        "pytorch_lightning",
        "torch",
        "transformers",
    }
)


def warn_user(warning: Warning | str) -> None:
    """Warn as if from the innermost frame that is neither ours nor a training library's; the outermost, if all are.

    `warnings.warn(skip_file_prefixes=…)` does this from Python 3.12 on.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_user("look here")
    >>> str(caught[0].message)
    'look here'
    """
    frame: FrameType | None = sys._getframe(1)
    last = frame
    while frame is not None and _package(frame) in LIBRARIES:
        last, frame = frame, frame.f_back
    at = frame or last
    assert at is not None
    warnings.warn_explicit(
        warning,
        type(warning) if isinstance(warning, Warning) else UserWarning,
        at.f_code.co_filename,
        at.f_lineno,
        at.f_globals.get("__name__", "<unknown>"),
        at.f_globals.setdefault("__warningregistry__", {}),
    )


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
