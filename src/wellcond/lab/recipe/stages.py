"""Comparisons that follow each other: pre-train, then load or select weights, then fine-tune or test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wellcond.errors import WellcondError
from wellcond.lab.recipe.recipe import Recipe, merged
from wellcond.lab.recipe.refusals import recipe_refusal
from wellcond.lab.recipe.settings import Stage, Training, Weights


def stages_of(recipe: Recipe, out: Path) -> list[tuple[Recipe, Path]]:
    """Return each stage as a recipe of its own, and its folder; a recipe without stages is its own only one.

    Arms and seeds are the same in all, so the weights that a run leaves are those that its namesake begins from.

    >>> from wellcond.lab.recipe.recipe import load_recipe
    >>> steps = Stage(name="long"), Stage(name="short", after="long", train={"steps": 0})
    >>> found = stages_of(load_recipe("digits").model_copy(update={"stages": steps}), Path("runs"))
    >>> [(each.train.steps, each.train.keep, folder.name) for each, folder in found]
    [(300, True, 'long'), (0, False, 'short')]
    """
    if not recipe.stages:
        return [(recipe, out)]
    known: list[str] = []
    for stage in recipe.stages:
        if stage.name in known:
            raise WellcondError(f"there are two stages '{stage.name}': each has a name of its own")
        if stage.after is not None and stage.after not in known:
            earlier = f"of the stages before it, {', '.join(known)}" if known else "no stage: it is the first"
            raise WellcondError(f"the stage '{stage.name}' comes after one {earlier}; got '{stage.after}'")
        known.append(stage.name)
    return [(_alone(recipe, stage, out), out / stage.name) for stage in recipe.stages]


def _alone(recipe: Recipe, stage: Stage, out: Path) -> Recipe:
    wanted = any(other.after == stage.name for other in recipe.stages)
    given = merged(recipe.train.model_dump(exclude_unset=True), stage.train | ({"keep": True} if wanted else {}))
    changes: dict[str, Any] = {name: getattr(stage, name) for name in ("task", "model") if getattr(stage, name)}
    changes |= {name: getattr(stage, name) for name in ("augment", "monitor") if name in stage.model_fields_set}
    try:
        changes["train"] = Training.model_validate(given)
    except ValidationError as error:
        raise WellcondError(f"stages: '{stage.name}': train.{recipe_refusal(error, Training)}") from None
    if stage.after is not None:
        changes["weights"] = Weights(runs=str(out / stage.after), take=stage.take, under=stage.under)
    title = f"{recipe.title or recipe.model.name}: {stage.name}"
    return recipe.model_copy(update={**changes, "stages": (), "title": title})
