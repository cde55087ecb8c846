"""The candidates of `wc.recommend` as arms of a comparison, so that each is trained to the end."""

from __future__ import annotations

from collections.abc import Sequence

from wellcond.advice.candidates import Candidate
from wellcond.errors import WellcondError
from wellcond.lab.models import lab_model
from wellcond.lab.recipe.arms import Arm
from wellcond.lab.recipe.controls import control_name
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.recipe.settings import ArmSettings, Looking
from wellcond.lab.recipe.surface_grid import NEVER
from wellcond.lab.tasks import task as build_task

SCHEMES = ("conditioned", "fan_in", "mimetic")  # as many as can be trained to the end, beside yours
SEEDS = (0, 1, 2, 3, 4)
OWN = Candidate().name
LOOKED_AT = 2  # examples, as a look at the Jacobian of 8 takes as long as 20 to 200 steps, by recipe


def evidence_recipe(
    recipe: Recipe, schemes: Sequence[str] = SCHEMES, seeds: Sequence[int] = SEEDS, advised: Sequence[str] = ()
) -> Recipe:
    """Return a recipe whose arms are what `wc.recommend` chooses from: the model's own weights and each scheme.

    Each is there as it is and calibrated. A scheme that does not apply to the recipe's model is left out.

    Args:
        recipe: whose task, model and training are taken.
        schemes: to choose from.
        seeds: of the runs.
        advised: candidates that must be among the arms, if they are controls too.

    >>> from wellcond.lab.recipe.recipe import load_recipe
    >>> list(evidence_recipe(load_recipe("digits"), ["fan_in"]).arms)
    ['yours', 'yours + calibrated', 'fan_in', 'fan_in + calibrated']
    """
    if recipe.stages or recipe.task.name in ("shapes", "coco"):
        raise WellcondError(f"'{recipe.title}' has no loss that a short training could judge by: take another recipe")
    arms = {OWN: ArmSettings(), Candidate(calibrated=True).name: ArmSettings(calibrate=True)}
    task = build_task(recipe.task.name, **recipe.task.options)
    model = lab_model(recipe.model.name, recipe.model.options, task, seed=0)
    for scheme in schemes:
        wanted = control_name(scheme, "calibrated") in map(arm_of, advised)
        plain = ArmSettings(init=scheme, control=("calibrated",) if wanted else ())
        try:
            Arm(scheme, plain).planned(model, seed=0)
        except WellcondError:
            continue
        arms[scheme] = plain
        arms[Candidate(scheme, calibrated=True).name] = ArmSettings(init=scheme, calibrate=True)
    changes = {"arms": arms, "baseline": OWN, "seeds": tuple(seeds), "rates": {}, "tuning": None}
    return recipe.model_copy(update=changes | {"monitor": Looking(every=NEVER, examples=LOOKED_AT)})


def arm_of(candidate: str) -> str:
    """Return the arm that begins as a candidate does, by its name.

    >>> arm_of("yours at the β and g of fan_in"), arm_of("fan_in + calibrated")
    ('fan_in, calibrated default', 'fan_in + calibrated')
    """
    before, _, scheme = candidate.partition(" of ")
    if not before.startswith(f"{OWN} at the "):
        return candidate
    calibrated = Candidate("", calibrated=True).name.removeprefix(OWN)
    return f"{OWN}{calibrated}" if scheme.endswith(calibrated) else control_name(scheme, "calibrated")
