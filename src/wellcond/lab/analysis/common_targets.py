"""One sharpness and one gain for several tasks: chosen on all but one, and what they cost on the one left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellcond._core.json_safe import plain
from wellcond._core.numbers import three_digits
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.errors import WellcondError
from wellcond.lab.analysis.response import Place
from wellcond.lab.analysis.surface import Surface
from wellcond.scale.calibration_targets import BETA, BRANCH, BY_DEPTH

Regret = tuple[float, float, float]  # mean and ends
# How the gain depends on the number L of layers: g = c × this.
RULES = {"constant": lambda layers: 1.0, BY_DEPTH: lambda layers: 1 / math.sqrt(2 * layers)}
# Targets to compare with what is chosen, as β, rule and c: the defaults of `wc.calibrate_`, and the sharpness of tuned
# training code with branches that together add as much as the stream.
REFERENCES = {
    f"default, β {BETA:g}, g {BRANCH:g}": (BETA, "constant", BRANCH),
    "β 0.33, g 1/√(2L)": (0.33, BY_DEPTH, 1.0),
}
ALONG = 33  # values of β, and of c, among which is chosen


@dataclass(frozen=True)
class Choice:
    """Targets, and by how much the result with them falls short of a task's best start.

    Args:
        rule: how g depends on depth.
        left_out: the task that the targets were not chosen on; None where all were asked.
        beta: β*.
        factor: c, where g = c × the rule.
        regret: by task, or of the left-out task alone, in the metric: the mean and 95 % of what fits the runs.
    """

    rule: str
    left_out: str | None
    beta: float
    factor: float
    regret: Mapping[str, Regret]


@dataclass(frozen=True)
class CommonTargets(Tabular):
    """Targets for several tasks; prints as a table.

    Args:
        layers: of each task's model.
        metrics: of each task.
        noise: deviation of one run of each task around its surface.
        baseline: what the model's own weights fall short of the best start by, as measured; None without that arm.
        references: for each of `REFERENCES` the regret by task; None outside the grid.
        choices: for each rule, chosen on all tasks, and on all but one.
    """

    layers: Mapping[str, int]
    metrics: Mapping[str, str]
    noise: Mapping[str, float]
    baseline: Mapping[str, float | None]
    references: Mapping[str, Mapping[str, Regret | None]]
    choices: tuple[Choice, ...]

    def chosen(self, rule: str) -> Choice:
        """Return the targets of all tasks together."""
        return next(one for one in self.choices if one.rule == rule and one.left_out is None)

    def left_out(self, rule: str, task: str) -> Choice:
        """Return the targets chosen without a task, with what they cost on it."""
        return next(one for one in self.choices if (one.rule, one.left_out) == (rule, task))

    def mean_regret(self, rule: str) -> float:
        """Return the mean over tasks, each left out in turn, in deviations of one run."""
        return fmean(self.left_out(rule, task).regret[task][0] / self.noise[task] for task in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dictionaries."""
        data: dict[str, Any] = plain(asdict(self) | {"mean_regret": {rule: self.mean_regret(rule) for rule in RULES}})
        return data

    def records(self) -> list[dict[str, Any]]:
        """Return one row per task and rule, the task being left out."""
        held = [(one, one.left_out) for one in self.choices if one.left_out is not None]
        return [
            {"task": task, "rule": one.rule, "beta": one.beta, "factor": one.factor}
            | dict(zip(("regret", "low", "high"), one.regret[task], strict=True))
            for one, task in held
        ]

    def _result_table(self) -> ResultTable:
        rows = [
            [
                task,
                f"{layers}",
                self.metrics[task],
                three_digits(self.baseline[task]),
                *(_regret(regret[task]) for regret in self.references.values()),
                *(_regret(self.left_out(rule, task).regret[task]) for rule in RULES),
            ]
            for task, layers in self.layers.items()
        ]
        header = ["task", "layers", "metric", "own weights", *self.references, *(f"chosen, g ∝ {r}" for r in RULES)]
        notes = ["", "chosen on all tasks, and their mean regret where each is left out, in deviations of one run:"]
        for rule in RULES:
            one = self.chosen(rule)
            gain = f"{one.factor:.2g}" if rule == "constant" else f"{one.factor:.2g} × {rule}"
            notes.append(f"  β {one.beta:.2g}, g {gain}: {self.mean_regret(rule):.2f}")
        return ResultTable(header, rows, "what each start falls short of the task's best by", notes)


def common_targets(surfaces: Mapping[str, tuple[Surface, int]]) -> CommonTargets:
    """Choose targets that suit several tasks, where regret is counted in deviations of one run of a task.

    Args:
        surfaces: of each task, and the layers of its model.
    """
    if len(surfaces) < 2:
        raise WellcondError("targets are chosen on several tasks: give the folders of two surfaces or more")
    aims = [(rule, left_out, *aim) for rule in RULES for left_out, aim in _chosen(surfaces, rule).items()]
    regret = {task: _regrets(found, layers, aims) for task, (found, layers) in surfaces.items()}
    choices = [
        Choice(*aim, {task: own[number] for task, own in regret.items() if aim[1] in (None, task)})
        for number, aim in enumerate(aims)
    ]
    return CommonTargets(
        {task: layers for task, (_, layers) in surfaces.items()},
        {task: found.metric for task, (found, _) in surfaces.items()},
        {task: found.noise for task, (found, _) in surfaces.items()},
        {task: _measured(found) for task, (found, _) in surfaces.items()},
        {
            name: {task: _reference(found, layers, *aim) for task, (found, layers) in surfaces.items()}
            for name, aim in REFERENCES.items()
        },
        tuple(choices),
    )


def _chosen(surfaces: Mapping[str, tuple[Surface, int]], rule: str) -> dict[str | None, tuple[float, float]]:
    """β* and c of least mean regret, on a plane that all tasks have: on all of them, and on all but each."""
    betas = _common((_ends([one.beta for one in found.grid]) for found, _ in surfaces.values()), "β")
    scales = {task: RULES[rule](layers) for task, (_, layers) in surfaces.items()}
    grids = {task: [one.branch / scales[task] for one in found.grid] for task, (found, _) in surfaces.items()}
    factors = _common(map(_ends, grids.values()), "g")
    regret = {}
    for task, (found, _) in surfaces.items():
        mean, _ = found.response.at([(b, c * scales[task]) for b in betas for c in factors])
        regret[task] = (mean.max() - mean) / found.noise
    chosen: dict[str | None, tuple[float, float]] = {}
    for left_out in (None, *surfaces):
        least = int(np.argmin(np.mean([own for task, own in regret.items() if task != left_out], axis=0)))
        chosen[left_out] = float(betas[least // ALONG]), float(factors[least % ALONG])
    return chosen


def _common(ranges: Iterable[Place], what: str) -> NDArray[np.float64]:
    lows, highs = zip(*ranges, strict=True)
    if max(lows) >= min(highs):
        raise WellcondError(f"these surfaces have no {what} in common: train them over grids that overlap")
    return np.geomspace(max(lows), min(highs), ALONG)


def _regrets(found: Surface, layers: int, aims: Iterable[tuple[str, str | None, float, float]]) -> list[Regret]:
    """What the response falls short of its best by with each of some targets, with 95 % of what fits the runs."""
    places = [(beta, factor * RULES[rule](layers)) for rule, _, beta, factor in aims]
    return list(zip(*(part.tolist() for part in found.response.regret(places)), strict=True))


def _reference(found: Surface, layers: int, beta: float, rule: str, factor: float) -> Regret | None:
    reached = found.response.reaches((beta, factor * RULES[rule](layers)))
    return _regrets(found, layers, [(rule, None, beta, factor)])[0] if reached else None


def _measured(found: Surface) -> float | None:
    """What the model's own weights fall short of the best by."""
    own = [one.results.values() for one in found.arms if one.arm == found.baseline]
    sign = 1 if found.higher_is_better else -1
    return sign * (found.best.value - fmean(own[0])) if own else None


def _ends(values: Sequence[float]) -> Place:
    return min(values), max(values)


def _regret(one: Regret | None) -> str:
    return "outside" if one is None else f"{one[0]:.2g} [{one[1]:.2g}, {one[2]:.2g}]"
