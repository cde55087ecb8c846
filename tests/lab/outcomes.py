"""Runs written by hand, for the statistics of the laboratory."""

from __future__ import annotations

import math
from typing import Any

from wellcond.lab.analysis.outcome import Outcome


def outcome(arm: str, seed: int, value: float | None, **changes: Any) -> Outcome:
    """A run with its result; None is one that diverged. Its first test is 0.1, of the untrained model."""
    tests = ((0, 0.1), (9, math.nan if value is None else value))
    fields = {"status": "diverged" if value is None else "finished", "metric": "accuracy", "higher_is_better": True}
    fields |= {"error": "", "steps": 9, "train": (), "test": tests[:1] if value is None else tests}
    fields |= {"control_of": None, "monitor": (), "seconds": 1.0, "start": {}}
    return Outcome(arm=arm, seed=seed, **(fields | changes))
