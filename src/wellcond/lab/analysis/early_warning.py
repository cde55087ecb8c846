"""Whether what a control saw came before the loss turned, in runs that it watched without acting (`act = false`)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wellcond._core.result_table import ResultTable, Tabular
from wellcond.control.keep_sharpness import BELOW
from wellcond.lab.analysis.outcome import Outcome

WINDOW = 5  # entries of the training loss that are averaged
RISE = 0.05  # of what had been gained: so far above its least value, a mean has turned
PARTS = {"sharpness": "attention too sharp", "updates": "updates collapse"}


@dataclass(frozen=True)
class WatchedRun:
    """One run that was watched: when its loss turned, and when it was first warned of.

    Args:
        arm: its name.
        lr: its learning rate.
        seed: its seed.
        turned: see `turning_step`.
        warned: step of the first warning by part of the control; None where there was none.
    """

    arm: str
    lr: float
    seed: int
    turned: int | None
    warned: Mapping[str, int | None]


@dataclass(frozen=True)
class EarlyWarnings(Tabular):
    """All runs that were watched; prints as a table, one row an arm and learning rate."""

    runs: tuple[WatchedRun, ...]

    def records(self) -> list[dict[str, Any]]:
        """Return one row per run."""
        return [{k: v for k, v in asdict(run).items() if k != "warned"} | dict(run.warned) for run in self.runs]

    def _result_table(self) -> ResultTable:
        groups: dict[tuple[str, float], list[WatchedRun]] = {}
        for run in self.runs:
            groups.setdefault((run.arm, run.lr), []).append(run)
        rows = []
        for (arm, lr), own in groups.items():
            cells = [_when([run.turned for run in own])]
            for part in PARTS:
                early = sum(_before(run, part) for run in own)
                lost = sum(run.turned is not None for run in own)
                cells += [_when([run.warned[part] for run in own]), f"{early} of {lost}" if lost else ""]
            rows.append([arm, f"{lr:g}", *cells])
        header = ["arm", "lr", "loss turned", *(word for name in PARTS.values() for word in (name, "before"))]
        notes = ["", "seeds @ median step; before: of the runs whose loss turned, those warned of at an earlier step"]
        return ResultTable(header, rows, notes=notes)


def early_warnings(by_rate: Mapping[str, Mapping[float, Sequence[Outcome]]], watched: Iterable[str]) -> EarlyWarnings:
    """Return when the runs of some arms turned, and when a control would have warned of it."""
    return EarlyWarnings(
        tuple(
            WatchedRun(arm, lr, run.seed, turning_step(run.train), {part: _first(run, part) for part in PARTS})
            for arm in watched
            for lr, runs in by_rate[arm].items()
            for run in runs
        )
    )


def turning_step(losses: Sequence[tuple[int, float]]) -> int | None:
    """Return the step at which the loss was least before it rose for good measure, None if it never did.

    A mean over five entries that is above the least such mean by more than 5 % of what had been gained since the first
    entry. The step is that of the least mean, which is known only afterwards: no rule that watches the loss can be
    earlier, so that a warning before it is a warning before the loss shows anything.

    >>> turning_step([(10 * k, loss) for k, loss in enumerate([3, 2, 1, 1, 1, 1, 1, 2, 2, 2, 2])])
    60
    >>> turning_step([(10 * k, 3.0 / (k + 1)) for k in range(20)]) is None
    True
    """
    least: tuple[float, int] | None = None
    for end in range(WINDOW, len(losses) + 1):
        mean = statistics.fmean(loss for _, loss in losses[end - WINDOW : end])
        if least is not None and not mean <= least[0] + RISE * max(losses[0][1] - least[0], 0.0):
            return least[1]
        if least is None or mean < least[0]:
            least = mean, losses[end - 1][0]
    return None


def _first(run: Outcome, part: str) -> int | None:
    """The first step at which a part of the control had something to say, heads below their band apart."""
    steps = (one["step"] for one in run.control_log if one["part"] == part and one["reason"] != BELOW)
    return min(steps, default=None)


def _before(run: WatchedRun, part: str) -> bool:
    step = run.warned[part]
    return run.turned is not None and step is not None and step < run.turned


def _when(steps: Sequence[int | None]) -> str:
    known = [step for step in steps if step is not None]
    return f"{len(known)} of {len(steps)}{f' @ {statistics.median(known):g}' if known else ''}"
