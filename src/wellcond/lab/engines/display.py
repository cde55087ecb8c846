"""A live display of a comparison: runs, steps, loss, time left; a line per run where nobody is watching."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn

from wellcond._core.progress import bars, watched
from wellcond._core.safe_text import visible
from wellcond.lab.comparison import Experiment
from wellcond.lab.engines.distributed import first_process


class Display:
    """Bars on stderr: one for all steps of all runs, one for each run that is under way."""

    def __init__(self, experiment: Experiment, *, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.out, self.steps = experiment.out, experiment.recipe.train.steps
        left, total = experiment.left(), list(experiment.runs())
        self.runs, self.done = len(total), len(total) - len(left)
        self.bars = bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
            console=self.console,
            shown=bool(left) and first_process(),
        )
        self.all = self.bars.add_task(self._title(), total=len(left) * self.steps, loss="")
        self.under_way: dict[tuple[str, int], TaskID] = {}
        self.reached: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        self._line(f"{self.runs} runs in {self.out}, {self.done} of them done already")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.bars.stop()

    def said(self, arm: str, seed: int, step: int, loss: float) -> None:
        """Show that a run has made some steps."""
        run = arm, seed
        if run not in self.under_way:
            shown = visible(arm)
            name = shown if len(shown) < 28 else shown[:27] + "…"
            # Brackets in a name are not rich's markup.
            self.under_way[run] = self.bars.add_task(
                f"  {name}, seed {seed}".replace("[", r"\["), total=self.steps, loss=""
            )
        self.bars.update(self.under_way[run], completed=step, loss=f"loss {loss:.3g}")
        self.bars.advance(self.all, step - self.reached.get(run, 0))
        self.reached[run] = step
        if step >= self.steps:
            self.ended(arm, seed)

    def ended(self, arm: str, seed: int) -> None:
        """Show that a run is done."""
        bar = self.under_way.pop((arm, seed), None)
        if bar is not None:
            self.bars.remove_task(bar)
        self.done += 1
        self.bars.update(self.all, description=self._title())
        self._line(f"run {self.done} of {self.runs}: {arm}, seed {seed}")

    def _line(self, text: str) -> None:
        """Say it where there are no bars."""
        if not watched(self.console) and first_process():
            print(visible(text), file=sys.stderr, flush=True)  # noqa: T201

    def _title(self) -> str:
        return f"run {min(self.done + 1, self.runs)} of {self.runs}"
