"""The comparison of every arm at every learning rate of a grid, and its runs sorted by arm and rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from wellcond.lab.recipe.arms import Arm, arms_of
from wellcond.lab.recipe.controls import control_name
from wellcond.lab.recipe.recipe import Recipe

if TYPE_CHECKING:
    from wellcond.lab.analysis.outcome import Outcome


def grid_recipe(recipe: Recipe, lr: Sequence[float], seeds: Sequence[int], *, test_first: bool = False) -> Recipe:
    """Return the comparison of every arm, its controls too, at every learning rate; nothing is monitored or kept.

    Args:
        recipe: of the arms.
        lr: the grid.
        seeds: of its runs.
        test_first: whether untrained models are tested, too.

    >>> from wellcond.lab.recipe.recipe import load_recipe
    >>> list(grid_recipe(load_recipe("digits"), (1e-3, 1e-2), (7,)).arms)[:3]
    ['default at 0.001', 'default at 0.01', 'mimetic at 0.001']
    """
    arms = {
        _at(arm.name, rate): arm.settings.model_copy(update={"lr": rate})
        for arm in arms_of(recipe)
        if arm.control_of is None
        for rate in lr
    }
    train = recipe.train.model_copy(update={"keep": False, "test_first": test_first})
    changes = {"arms": arms, "baseline": next(iter(arms)), "seeds": tuple(seeds), "train": train}
    return recipe.model_copy(update={**changes, "tuning": None, "monitor": None, "rates": {}, "contrasts": ()})


def runs_by_rate(
    recipe: Recipe, lr: Sequence[float], outcomes: Iterable[Outcome]
) -> dict[str, dict[float, list[Outcome]]]:
    """Return the outcomes of a `grid_recipe` by arm of the recipe and learning rate."""
    named: dict[tuple[str, str | None], list[Outcome]] = {}
    for run in outcomes:
        named.setdefault((run.arm, run.control_of), []).append(run)
    return {arm.name: {rate: named.get(_tried(arm, rate), []) for rate in lr} for arm in arms_of(recipe)}


def _at(name: str, lr: float) -> str:
    return f"{name} at {lr:g}"


def _tried(arm: Arm, lr: float) -> tuple[str, str | None]:
    """The name of an arm at a learning rate, and of the arm that it is a control of."""
    if arm.control_of is None or arm.control is None:
        return _at(arm.name, lr), None
    own = _at(arm.control_of, lr)
    return control_name(own, arm.control), own
