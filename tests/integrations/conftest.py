"""Short probes by a clock that every look moves on, so that two calls have equal plans."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.advice.models import CountedTime
from wellcond.advice import probe as probing


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Trials of few steps; a call sets the clock back."""
    monkeypatch.setattr(probing, "ENOUGH_STEPS", 6)
    monkeypatch.setattr(probing, "FEWEST_STEPS", 4)

    def set_back() -> None:
        monkeypatch.setattr(probing.time, "perf_counter", CountedTime())

    set_back()
    return set_back
