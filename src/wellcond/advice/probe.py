"""Probe candidates by short trainings within a time: halve their number, then compare what is left on fresh seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from wellcond._core.progress import bar
from wellcond._core.safe_text import briefly
from wellcond.advice.candidates import Candidate
from wellcond.advice.trial import OutOfTime, TrialSettings, run_trial
from wellcond.advice.trial_records import Losses, TrialRecords, losses_of
from wellcond.errors import WellcondError

SHARES = (0.3, 0.15)  # of the time, for the two rungs that choose; the last has the rest
FINALISTS = 4  # the model's own weights, the two best, and the control of the first
MANY = 12  # candidates that the first rung has in any case, if the time allows FEWEST_STEPS of each
SEEDS = 6  # that the last rung is planned for
FEWEST_SEEDS = 3  # from which an interval means something
FEWEST_STEPS = 10  # of trials that choose
ENOUGH_STEPS = 20  # of trials from which conclusions are drawn
MOST_STEPS = 2000
MOST_PASSES = 4  # over the training batches: of more, the loss on others says how a model learns by heart
LATE = 1.08  # times the given seconds, at which a trial is broken off: so the last round ends after nine tenths
DIVERGENCE = "lower the learning rate, and look at what the loss and its gradient are on your batches"
MARKS = (1, 5, 20, 80, 320, 1280)  # steps after which losses are told


@dataclass(frozen=True)
class Rung:
    """Trials of one length: of every candidate that was left, on seeds that no other rung has.

    Args:
        steps: of each trial.
        seeds: that all its candidates finished.
        losses: by candidate and seed: of each judging batch, by the number of steps.
        failed: candidates that could not be trained, and why.
    """

    steps: int
    seeds: tuple[int, ...]
    losses: dict[str, dict[int, Losses]] = field(hash=False)
    failed: dict[str, str] = field(default_factory=dict, hash=False)

    def final(self, name: str, seed: int) -> float:
        """The mean loss of a trial after its last step."""
        return _mean(self.losses[name][seed][self.steps])

    def first(self, name: str, seed: int) -> float:
        """The mean loss of a trial before its first step."""
        return _mean(self.losses[name][seed][0])

    def mean(self, name: str) -> float:
        """The same over all seeds."""
        return _mean([self.final(name, seed) for seed in self.seeds])

    def ranked(self) -> list[str]:
        """Names from the lowest loss to the highest; what has none comes last."""
        return sorted(self.losses, key=lambda name: (self.mean(name) != self.mean(name), self.mean(name)))


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found.

    Args:
        rungs: those that chose, in their order.
        last: that of the finalists, from which conclusions are drawn; None if its seeds are too few.
        seconds: that were spent.
        control: of the best, the model's own weights at its scale, if it is among the finalists.
        untried: candidates for which there was no time.
        note: why there is no last rung, if there is none.
        diverged: whether that is because every candidate diverged, the model's own weights too.
    """

    rungs: tuple[Rung, ...]
    last: Rung | None
    seconds: float
    control: Candidate | None = None
    untried: tuple[str, ...] = ()
    note: str = ""
    diverged: bool = False


class Probe:
    """One probe of a model's candidates; `run` makes it.

    Args:
        model: the user's.
        candidates: the model's own weights first, then in the order in which they are to be tried if time is short.
        settings: of every trial.
        seconds: that it may take.
        records: of trials that are done already.
        control: makes the control of a finalist: the model's own weights at its scale; None where there is none.
    """

    def __init__(
        self,
        model: nn.Module,
        candidates: Sequence[Candidate],
        settings: TrialSettings,
        seconds: float,
        records: TrialRecords,
        control: Callable[[Candidate], Candidate | None],
    ) -> None:
        self.model, self.candidates, self.settings = model, list(candidates), settings
        self.seconds, self.records, self._control = seconds, records, control
        self._recorded = 0.0  # seconds of the trials that were taken from records so far, as if they were made again
        self._started = time.perf_counter()
        self._found_control: Candidate | None = None
        self._diverged = False
        self._cost = (0.0, 0.0)  # seconds of a trial without steps, and of a step

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self._recorded + time.perf_counter() - self._started

    def run(self) -> ProbeResult:
        """Make all trials that fit into the time."""
        rungs, last = list[Rung](), None
        with bar(None, "probing", total=round(self.seconds), unit="s") as self._bar:
            try:
                self._measure_cost(self.candidates[0])
                last = self._halve(rungs)
            except OutOfTime:
                pass  # what is whole counts
        tried = {name for rung in rungs for name in (*rung.losses, *rung.failed)}
        untried = tuple(one.name for one in self.candidates if one.name not in tried)
        enough = last is not None and len(last.seeds) >= FEWEST_SEEDS and last.steps >= ENOUGH_STEPS
        return ProbeResult(
            tuple(rungs),
            last if enough else None,
            self.spent,
            self._found_control if enough else None,
            untried,
            "" if enough else DIVERGENCE if self._diverged else self._lack(),
            self._diverged,
        )

    def _halve(self, rungs: list[Rung]) -> Rung | None:
        """Make rung after rung, and return the last; one that chooses is left out where its trials would be short."""
        own, *left = self.candidates
        if self._room(1.0) < FEWEST_SEEDS * 2 * self._trial(ENOUGH_STEPS):
            return None
        able, well = (int(self._room(SHARES[0]) // self._trial(steps)) for steps in (FEWEST_STEPS, ENOUGH_STEPS))
        count = min(len(self.candidates), able, max(well, MANY))
        if count > 2:
            rungs.append(self._rung(0, self.candidates[:count], 1, self._room(SHARES[0])))
            left = self._best(rungs[-1])
        count = min(max(FINALISTS, count // 4), int(self._room(SHARES[1]) // (2 * self._trial(FEWEST_STEPS))) - 1)
        if count >= FINALISTS - 1 and len(left) > count:
            rungs.append(self._rung(1, [own, *left[:count]], 2, self._room(SHARES[1])))
            left = self._best(rungs[-1])
        if rungs and not left:  # nothing else could be trained
            self._diverged = not math.isfinite(rungs[-1].mean(own.name))
            return None if self._diverged else self._last_rung(2, [own])
        each = int(self._room(1.0) // (FEWEST_SEEDS * self._trial(ENOUGH_STEPS)))  # finalists that there is time for
        left = left[: max(0, min(FINALISTS - 2, each - 1))]
        if not left:
            return None
        if each > len(left) + 1:
            self._found_control = self._control(left[0])
        return self._last_rung(2, [own, *left, *([self._found_control] if self._found_control else [])])

    def _lack(self) -> str:
        """Say that the time is too short, and what would do."""
        enough = 1.5 * FEWEST_SEEDS * FINALISTS * self._trial(ENOUGH_STEPS) / (1 - sum(SHARES))
        return (
            f"{self.seconds:g} seconds are too few, as {ENOUGH_STEPS} steps take {self._trial(ENOUGH_STEPS):.2g}: give "
            f"seconds={max(enough, 2 * self.seconds):.0f} or more, or smaller batches"
        )

    def _best(self, rung: Rung) -> list[Candidate]:
        """The candidates of a rung, the best first, without the model's own weights and what diverged."""
        named, own = {one.name: one for one in self.candidates}, self.candidates[0].name
        return [named[name] for name in rung.ranked() if name != own and rung.mean(name) < float("inf")]

    def _room(self, share: float) -> float:
        return min(share * self.seconds, self.seconds - self.spent)

    def _trial(self, steps: int) -> float:
        setup, step = self._cost
        return setup + steps * step

    def _measure_cost(self, own: Candidate) -> None:
        """Time a short trial; the first, which warms caches, does not count."""
        kept = self.records.get(("cost",))
        if kept is None:
            taken = [self._timed(own, steps) for steps in (1, 0, 2)]
            setup = taken[1]
            kept = {"setup": setup, "step": max(taken[2] - setup, 1e-6) / 2, "seconds": sum(taken)}
            self.records.add(("cost",), kept)
        else:
            self._recorded += kept["seconds"]
        self._cost = kept["setup"], kept["step"]

    def _timed(self, one: Candidate, steps: int) -> float:
        start = time.perf_counter()
        run_trial(self.model, one, self.settings, 0, steps, (0, steps), self._tick)
        return time.perf_counter() - start

    def _rung(self, number: int, candidates: Sequence[Candidate], seeds: int, room: float) -> Rung:
        """Trials of all candidates on some seeds, as long as the room allows."""
        steps = self._plan(number, room / (len(candidates) * seeds))
        rung = Rung(steps, tuple(100 * number + seed for seed in range(seeds)), {one.name: {} for one in candidates})
        taken = [self._try(rung, number, one, seed) for seed in rung.seeds for one in candidates]
        slower = sum(taken) / (len(taken) * self._trial(steps))  # than was measured: others may use the machine, too
        self._cost = self._cost[0] * slower, self._cost[1] * slower
        return self._complete(rung)

    def _last_rung(self, number: int, candidates: Sequence[Candidate]) -> Rung:
        """Trials of the finalists, seed by seed, until the time is up."""
        room = self._room(1.0) / len(candidates)
        seeds_planned = min(SEEDS, max(FEWEST_SEEDS, int(room // self._trial(ENOUGH_STEPS))))
        steps = self._plan(number, room / seeds_planned)
        rung = Rung(steps, (), {one.name: {} for one in candidates})
        seeds = list[int]()
        longest = 0.0
        while self._has_another(number, candidates, len(seeds), longest):
            seed, start = 100 * number + len(seeds), self.spent
            try:
                for one in candidates:
                    self._try(rung, number, one, seed)
            except OutOfTime:
                break
            seeds.append(seed)
            longest = max(longest, self.spent - start)
        if self.records.get(("ended", number)) is None:
            self.records.add(("ended", number), {"seeds": len(seeds)})
        return self._complete(Rung(steps, tuple(seeds), rung.losses, rung.failed))

    def _has_another(self, number: int, candidates: Sequence[Candidate], done: int, longest: float) -> bool:
        """Whether the last rung has one more seed: all that it ended with before, else as long as there is time.

        A call that asks again has spent another time outside of trials. Seeds that were made before count in any case.
        """
        ended = self.records.get(("ended", number))
        if ended is not None:
            return done < int(ended["seeds"])
        made = (self.records.get(("trial", number, one.name, 100 * number + done)) for one in candidates)
        return all(one is not None for one in made) or self.spent + longest <= LATE * self.seconds

    def _plan(self, number: int, each: float) -> int:
        """The number of steps of a rung, as it was planned before if the probe goes on."""
        kept = self.records.get(("rung", number))
        if kept is None:
            setup, step = self._cost
            most = max(ENOUGH_STEPS, min(MOST_STEPS, MOST_PASSES * len(self.settings.batches.training)))
            kept = {"steps": max(FEWEST_STEPS, min(most, int((each - setup) / step)))}
            self.records.add(("rung", number), kept)
        return int(kept["steps"])

    def _try(self, rung: Rung, number: int, one: Candidate, seed: int) -> float:
        """Make a trial, or take what was recorded of it; return the seconds that it took."""
        if one.name in rung.failed:
            return 0.0
        place = ("trial", number, one.name, seed)
        kept = self.records.get(place)
        if kept is None:
            start = time.perf_counter()
            marks = sorted({0, rung.steps, *(mark for mark in MARKS if mark < rung.steps)})
            try:
                losses = run_trial(self.model, one, self.settings, seed, rung.steps, marks, self._tick)
                kept = {"losses": losses}
            except WellcondError as error:
                if one.is_own:
                    raise
                kept = {"failed": briefly(error, 200)}
            kept["seconds"] = time.perf_counter() - start
            self.records.add(place, kept)
        else:
            self._recorded += kept["seconds"]
        if "failed" in kept:
            rung.failed[one.name] = kept["failed"]
        else:
            rung.losses[one.name][seed] = losses_of(kept)
        return float(kept["seconds"])

    def _complete(self, rung: Rung) -> Rung:
        """The rung without what failed in it, and without seeds that not all have."""
        losses = {
            name: {seed: found[seed] for seed in rung.seeds}
            for name, found in rung.losses.items()
            if name not in rung.failed
        }
        return Rung(rung.steps, rung.seeds, losses, rung.failed)

    def _tick(self) -> None:
        done = min(round(self.spent), round(self.seconds))
        self._bar.update(done - self._bar.n)
        if self.spent > LATE * self.seconds:
            raise OutOfTime


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
