"""The comparison of a recipe's arms with a grid of calibrated starts: every β with every g."""

from __future__ import annotations

from wellcond.errors import WellcondError
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.recipe.settings import ArmSettings, Looking, Targets

TIERS = Looking().tiers  # of the monitor: all, as β, g and κ of the starts are what is asked for
NEVER = 10**9  # steps between tests, and looks of the monitor, which are at the start and at the end in any case


def surface_grid(recipe: Recipe) -> Recipe:
    """Return the comparison of all arms that begin by a scheme, their controls too, and of a grid of starts.

    A start of the grid is the baseline's weights, scaled on a batch to a sharpness β of all heads and a gain g of all
    branches. What is conditioned, penalised or kept within bands is left out: where it begins does not tell it.

    >>> from wellcond.lab.recipe.recipe import load_recipe
    >>> list(surface_grid(load_recipe("digits")).arms)[:6]
    ['default', 'mimetic', 'conditioned', 'centring', 'β 0.005, g 0.015', 'β 0.005, g 0.06']
    """
    if recipe.stages:
        raise WellcondError(
            "a recipe with stages has several beginnings: write the one to look at as a recipe of its own"
        )
    arms = {name: one for name, one in recipe.arms.items() if name == recipe.baseline or begins_only(one)}
    own = dict(recipe.arm_settings())[recipe.baseline]
    arms.setdefault(recipe.baseline, own)
    for b in recipe.surface.beta:
        for g in recipe.surface.branch:
            targets, name = Targets(beta=b, branch=g), point_name(b, g)
            if name in arms:
                raise WellcondError(f"the arm '{name}' has the name of a start of the grid: rename it")
            arms[name] = own.model_copy(update={"calibrate": targets, "control": ()})
    train = recipe.train.model_copy(update={"test_first": True, "test_every": NEVER})
    looking = (recipe.monitor or Looking()).model_copy(update={"every": NEVER, "tiers": TIERS})
    changes = {"arms": arms, "seeds": recipe.surface.seeds, "train": train, "monitor": looking}
    return recipe.model_copy(update={**changes, "tuning": None, "rates": {}, "contrasts": ()})


def begins_only(arm: ArmSettings) -> bool:
    """Whether an arm differs by its first weights alone.

    >>> begins_only(ArmSettings(init="mimetic")), begins_only(ArmSettings(init="mimetic", condition="shift"))
    (True, False)
    """
    about = arm.model_dump(exclude_defaults=True)
    return about.keys() <= {"init", "options", "calibrate", "coordinates", "balance", "control"}


def point_name(beta: float, branch: float) -> str:
    """Return the name of a grid's start.

    >>> point_name(0.1, 0.05)
    'β 0.1, g 0.05'
    """
    return f"β {beta:g}, g {branch:g}"
