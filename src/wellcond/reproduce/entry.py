"""A recipe of a published result: what the laboratory runs, and beside it what the paper says."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from wellcond.errors import WellcondError
from wellcond.lab.recipe import Recipe, merged, named_parts
from wellcond.lab.refusals import refusal
from wellcond.lab.settings import Named, Part
from wellcond.lab.stages import stages_of

GENERATED = ("listops", "pathfinder")


class Row(Part):
    """A row of a table, or a curve of a figure.

    Args:
        where: the table, figure or appendix, as in `ci-table2`.
        label: what the row is called there.
        source: where the numbers were read: section, table and row.
        values: by scheme of the recipe: a number, or several by metric (`{ box = 44.9, box50 = 66.1 }`).
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


class Published(Part):
    """What belongs to a recipe and is not for the laboratory.

    Args:
        only: a short name of data and model, for `--only`.
        rows: where it appears, and with what numbers.
        parameters: of the model at its full size.
        status: `confirmed` if every setting was read in the paper or the authors' code; `partly` if some were chosen;
            `chosen` if most were.
        unconfirmed: settings that were chosen, and why.
        gpu: what to state hours for.
        gpus: how many of them.
        smoke: changes of the recipe for a few steps on made-up data: only sizes.
    """

    only: str
    rows: tuple[Row, ...] = Field(min_length=1)
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


class Entry(Part):
    """One recipe.

    Args:
        name: of its file.
        recipe: for the laboratory; folders of data are relative to `--data`.
        published: what the paper says.
    """

    name: str
    recipe: Recipe
    published: Published


def entry_names() -> list[str]:
    """All recipes of the papers.

    >>> len(entry_names()) == len(set(entry_names()))
    True
    """
    folder = resources.files("wellcond.reproduce") / "recipes"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def load_entry(name: str, changes: Mapping[str, Any] | None = None) -> Entry:
    """A recipe of the papers by name, with some keys of the recipe changed; tables are merged key by key."""
    text = (resources.files("wellcond.reproduce") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    published = data.pop("published", {})
    try:
        recipe = Recipe.model_validate(named_parts(merged(named_parts(data), changes or {})))
        return Entry(name=name, recipe=recipe, published=published)
    except ValidationError as error:
        raise WellcondError(f"{name}.toml: {refusal(error, Recipe)}") from None


def tasks_of(recipe: Recipe) -> list[Named]:
    """Those that are trained on: with stages, that of each."""
    return [stage.task for stage, _ in stages_of(recipe, Path())]


def needed_folders(entry: Entry) -> list[str]:
    """Where an entry looks for its data in the folder of data sets; what is generated is not looked for.

    >>> needed_folders(load_entry("ci-vit-t-cifar10")), needed_folders(load_entry("ci-nystromformer-listops"))
    (['cifar10'], [])
    """
    tasks = [task for task in tasks_of(entry.recipe) if "folder" in task.options and task.name not in GENERATED]
    return list(dict.fromkeys(str(task.options["folder"]) for task in tasks))
