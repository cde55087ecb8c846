"""When to measure: at fixed steps, or as often as a share of the time allows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Schedule:
    """Keeps track of what is due, and of what measuring has cost.

    A tier is due when its share of the time that passed since its last record (our own time left out) pays for what
    that record cost: it stretches its own interval. Tiers share the budget equally.

    >>> schedule = Schedule(("weights",), every=10)
    >>> [step for step in range(25) if schedule.due("weights", step)]
    [0, 10, 20]
    """

    tiers: Sequence[str]  # what can be measured
    every: int | None = None  # steps between two records; None to go by the budget
    budget: float = 0.01  # share of the time that may be spent
    spent: float = 0.0
    started: float = field(default_factory=lambda: time.perf_counter())
    last: dict[str, tuple[float, float]] = field(default_factory=dict)  # cost, and time of training when it was paid

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    @property
    def overhead(self) -> float:
        """The share of the time that was spent on measuring so far."""
        return self.spent / max(self.elapsed, 1e-9)

    def due(self, tier: str, step: int) -> bool:
        """Whether a tier is to be measured at this step."""
        if self.every is not None:
            return step % self.every == 0
        if tier not in self.last:
            return True
        cost, then = self.last[tier]
        return (self.elapsed - self.spent - then) * self.budget / len(self.tiers) >= cost

    @contextmanager
    def paying(self, tier: str) -> Iterator[None]:
        """Charge what is done inside to a tier."""
        start = time.perf_counter()
        try:
            yield
        finally:
            cost = time.perf_counter() - start
            self.spent += cost
            self.last[tier] = cost, self.elapsed - self.spent
