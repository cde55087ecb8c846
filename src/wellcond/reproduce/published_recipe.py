"""Published recipes: what the laboratory runs for a table or figure, and beside it what the paper says."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from wellcond.errors import WellcondError
from wellcond.lab.recipe.recipe import Recipe, merged, named_parts, valid_recipe
from wellcond.lab.recipe.refusals import recipe_refusal
from wellcond.lab.recipe.settings import Named, RecipeTable
from wellcond.lab.recipe.stages import stages_of

GENERATED_TASKS = ("listops", "pathfinder")


class PublishedRow(RecipeTable):
    """A row of a table, or a curve of a figure.

    Args:
        where: the table, figure or appendix, as in `ci-table2`.
        label: what the row is called there.
        source: where the numbers were read: section, table and row.
        values: by arm of the recipe: a number, or several by metric (`{ box = 44.9, box50 = 66.1 }`).
        spread: standard deviations, in the same form, where the paper has them.
        scale: what our metric is multiplied by to be theirs: 100 for per cent.
        note: what is odd about it.
    """

    where: str = Field(pattern=r"^(ci|sc)-(table|figure|appendix)\d+$")
    label: str
    source: str = Field(min_length=1)
    values: dict[str, float | dict[str, float]] = Field(default_factory=dict)
    spread: dict[str, float | dict[str, float]] = Field(default_factory=dict)
    scale: float = 100.0
    note: str = ""


class Published(RecipeTable):
    """The part of a recipe that is about the paper, and not for the laboratory.

    Args:
        only: a short name of data and model, for `--only`.
        rows: where it appears, and with what numbers.
        parameters: of the model at its full size.
        status: `confirmed` if every setting was read in the paper or the authors' code; `partly` if some were chosen;
            `chosen` if most were.
        unconfirmed: settings that were chosen, and why.
        gpu: what to state hours for.
        gpus: how many of them.
        smoke: changes of the recipe for a few steps on fake data: only sizes.
    """

    only: str
    rows: tuple[PublishedRow, ...] = Field(min_length=1)
    parameters: int = Field(gt=0)
    status: Literal["confirmed", "partly", "chosen"]
    unconfirmed: dict[str, str] = Field(default_factory=dict)
    gpu: str = "A100 80GB"
    gpus: int = Field(8, ge=1)
    smoke: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _said(self) -> Published:
        if (self.status == "confirmed") == bool(self.unconfirmed):
            raise ValueError("status = 'confirmed' has nothing unconfirmed, and another has")
        return self


class PublishedRecipe(RecipeTable):
    """A recipe of the laboratory, its folders of data relative to `--data`, with what the paper says."""

    name: str
    recipe: Recipe
    published: Published


def published_names() -> list[str]:
    """Return the names of all recipes of the papers.

    >>> len(published_names()) == len(set(published_names()))
    True
    """
    folder = resources.files("wellcond.reproduce") / "recipes"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def load_published(name: str, changes: Mapping[str, Any] | None = None) -> PublishedRecipe:
    """Load a recipe of the papers by name, with some of its keys changed; tables are merged key by key."""
    text = (resources.files("wellcond.reproduce") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    published = data.pop("published", {})
    try:
        whole = named_parts(merged(named_parts(data), changes or {}))
        recipe = valid_recipe(whole, f"{name}.toml") if changes else Recipe.model_validate(whole)
        return PublishedRecipe(name=name, recipe=recipe, published=published)
    except ValidationError as error:
        raise WellcondError(f"{name}.toml: {recipe_refusal(error, Recipe)}") from None


def tasks_of(recipe: Recipe) -> list[Named]:
    """Return the tasks that a recipe trains on: with stages, that of each."""
    return [stage.task for stage, _ in stages_of(recipe, Path())]


def needed_folders(entry: PublishedRecipe) -> list[str]:
    """Return the folders of data sets that a recipe reads; what is generated needs none.

    >>> [needed_folders(load_published(name)) for name in ("ci-vit-t-cifar10", "ci-nystromformer-listops")]
    [['cifar10'], []]
    """
    tasks = [task for task in tasks_of(entry.recipe) if "folder" in task.options and task.name not in GENERATED_TASKS]
    return list(dict.fromkeys(str(task.options["folder"]) for task in tasks))
