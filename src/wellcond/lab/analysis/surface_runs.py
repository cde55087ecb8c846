"""Read a response surface off the runs of a grid of starts, and hold the arms of the recipe against it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from wellcond._core.student import quantile
from wellcond.errors import WellcondError
from wellcond.lab.analysis.explained import Share, held_out, noise_share, share_of
from wellcond.lab.analysis.outcome import Outcome, final_loss, read_outcomes
from wellcond.lab.analysis.paired_test import sd_of
from wellcond.lab.analysis.response import Best, Response, seed_means
from wellcond.lab.analysis.surface import ArmPlace, GridPlace, Surface, fit_grid
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.recipe.recipe import Recipe, load_recipe
from wellcond.lab.recipe.surface_grid import point_name

FEWEST_PLACES = 9
NORMAL = 1.96
ON_DIAGRAM = ("beta", "value_gain")
# Numbers of the first look, from which results of arms are predicted; each alone, but for the last.
AT_START = {
    "β": ("beta",),
    "g": ("branch",),
    "κ(J)": ("kappa_jacobian",),
    "κ_eq(J)": ("kappa_equilibrated",),
    "κ(W_Q)": ("kappa_query",),
    "κ(W_V)": ("kappa_value",),
    "κ(W_Q W_Kᵀ)": ("kappa_qk",),
    "κ(W_V W_O)": ("kappa_vo",),
    "β and g": ("beta", "branch"),
}
KEYS = tuple(dict.fromkeys(key for keys in AT_START.values() for key in keys))
BY_SURFACE = "β and g, by the surface"


def read_surface(folder: Path) -> Surface:
    """Read a surface off the folder of `wellcond surface`."""
    return surface_of(load_recipe(folder / "recipe.toml"), read_outcomes(folder))


def surface_of(recipe: Recipe, outcomes: Iterable[Outcome]) -> Surface:
    """Read a surface off the runs of a `surface_grid`, whose first test is of untrained models.

    Runs of arms and seeds that the recipe does not have are passed over: another grid may have been trained before.
    """
    names, seeds = [arm.name for arm in arms_of(recipe)], sorted(recipe.seeds)
    runs = [run for run in outcomes if run.arm in names and run.seed in seeds]
    if not runs:
        raise WellcondError("a surface takes 9 starts or more; none has a result")
    some = runs[0]
    in_logarithm = some.metric == "perplexity"
    sign = 1 if some.higher_is_better else -1
    by_arm: dict[str, dict[int, Outcome]] = {}
    for run in runs:
        if run.status in ("finished", "diverged") and _was_tested(run, in_logarithm):
            by_arm.setdefault(run.arm, {})[run.seed] = run
    whole = {arm: own for arm, own in by_arm.items() if sorted(own) == seeds}
    left_out = [f"'{arm}', of which not every seed has a result" for arm in names if arm not in whole]

    def results(own: Mapping[int, Outcome]) -> dict[int, float]:
        return {seed: -sign * final_loss(own[seed], in_logarithm) for seed in seeds}

    grid = [
        GridPlace(b, g, results(own), _lost(own), _on_diagram(own))
        for b in recipe.surface.beta
        for g in recipe.surface.branch
        if (own := whole.pop(point_name(b, g), {}))
    ]
    if len(grid) < FEWEST_PLACES:
        raise WellcondError(f"a surface takes {FEWEST_PLACES} starts or more; {len(grid)} have a result of every seed")
    found = fit_grid(grid, some.higher_is_better)
    means = seed_means({(place.beta, place.branch): place.results for place in grid})
    arms = tuple(_arm(name, own, results(own), means, found, sign) for name, own in whole.items())
    inside = [one for one in arms if one.predicted is not None]
    best = found.best()
    first = [run.test[0][1] for own in by_arm.values() for run in own.values()]
    return Surface(
        f"log {some.metric}" if in_logarithm else some.metric,
        some.higher_is_better,
        fmean(math.log(metric) if in_logarithm else metric for metric in first),
        recipe.baseline,
        tuple(grid),
        arms,
        found.noise,
        Best(best.place, sign * best.value, best.first, best.second),
        tuple(_shares(inside)),
        noise_share({one.arm: one.results for one in inside}) if len(inside) > 1 else None,
        tuple(left_out),
    )


def _was_tested(run: Outcome, in_logarithm: bool) -> bool:
    """Whether a run has a number from before its first step, which is what it counts for where it was lost."""
    known = bool(run.test) and run.test[0][0] == 0 and math.isfinite(run.test[0][1])
    return known and (not in_logarithm or all(value > 0 or math.isnan(value) for _, value in run.test))


def _arm(
    name: str,
    runs: Mapping[int, Outcome],
    results: Mapping[int, float],
    means: Mapping[int, float],
    found: Response,
    sign: int,
) -> ArmPlace:
    """An arm with what the surface says of it; `means` are the seeds' over the grid."""
    numbers = {key: _start(runs, key) for key in KEYS}
    beta, branch = numbers["beta"], numbers["branch"]
    predicted = residual = ends = None
    if beta is not None and branch is not None and found.reaches((beta, branch)):
        mean, deviation = found.at([(beta, branch)])
        predicted = sign * float(mean[0])
        whole = fmean(means.values())
        apart = [value - (means[seed] - whole) - predicted for seed, value in results.items()]
        residual = fmean(apart)
        spread = sd_of(apart)
        if spread is not None:
            error = quantile(0.95, len(apart) - 1) * spread / math.sqrt(len(apart))
            half = math.hypot(error, NORMAL * float(deviation[0]))
            ends = (residual - half, residual + half)
    control_of = next(iter(runs.values())).control_of
    least, largest = _start(runs, "branch_min"), _start(runs, "branch_max")
    layers = None if least is None or largest is None else (least, largest)
    return ArmPlace(name, control_of, beta, branch, layers, results, _lost(runs), predicted, residual, ends, numbers)


def _shares(inside: list[ArmPlace]) -> Iterable[Share]:
    """Of arms inside the grid, so that all predictors are asked of the same ones, but for what is not known of some."""
    means = [fmean(one.results.values()) for one in inside]
    yield share_of(BY_SURFACE, means, [one.predicted for one in inside if one.predicted is not None])
    for name, keys in AT_START.items():
        rows = [[value for key in keys if (value := one.numbers[key]) is not None] for one in inside]
        known = [(row, mean) for row, mean in zip(rows, means, strict=True) if len(row) == len(keys)]
        own = [mean for _, mean in known]
        yield share_of(name, own, held_out([row for row, _ in known], own))


def _start(runs: Mapping[int, Outcome], key: str) -> float | None:
    """A number of the first look, the geometric mean over seeds."""
    return _geometric([_first_look(run).get(key) for run in runs.values()])


def _first_look(run: Outcome) -> Mapping[str, Any]:
    return run.monitor[0] if run.monitor and run.monitor[0]["step"] == 0 else {}


def _on_diagram(runs: Mapping[int, Outcome]) -> tuple[float, float] | None:
    beta, gain = (_geometric([run.start.get(key) for run in runs.values()]) for key in ON_DIAGRAM)
    return None if beta is None or gain is None else (beta, gain)


def _geometric(values: list[Any]) -> float | None:
    known = [float(value) for value in values if value is not None and value > 0 and math.isfinite(value)]
    return math.exp(fmean(map(math.log, known))) if known and len(known) == len(values) else None


def _lost(runs: Mapping[int, Outcome]) -> int:
    return sum(run.result is None for run in runs.values())
