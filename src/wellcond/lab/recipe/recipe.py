"""Recipes, comparisons as TOML files: checked before anything runs, and written without what is the default."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field, ValidationError, model_validator

from wellcond._core.file_names import check_path
from wellcond.errors import WellcondError
from wellcond.lab.recipe.contrasts import Contrast
from wellcond.lab.recipe.controls import control_name
from wellcond.lab.recipe.refusals import recipe_refusal
from wellcond.lab.recipe.settings import (
    OFF,
    ArmSettings,
    Augment,
    Looking,
    Named,
    RecipeTable,
    Stage,
    SurfaceGrid,
    Training,
    Tuning,
    Weights,
)


class Recipe(RecipeTable):
    """A comparison in words: which arms, on what task, by what model, how trained.

    Args:
        title: of the report.
        task: what is learnt.
        model: by what.
        arms: by name, in the order of tables.
        baseline: the arm that the others are compared with.
        seeds: of weights, order and augmentation; each arm has them all.
        train: the loop.
        augment: of images.
        monitor: `false` for none.
        tuning: learning rates to choose from first.
        rates: learning rates by arm, as tuning chose them.
        weights: of an earlier comparison to begin from.
        stages: comparisons one after the other, in place of one.
        surface: starts that `wellcond surface` trains.
        contrasts: hypotheses about two arms, written down before the runs.

    >>> recipe = load_recipe("digits")
    >>> recipe.task.name, recipe.baseline, list(recipe.arms)[:2]
    ('digits', 'default', ['default', 'mimetic'])
    """

    title: str = ""
    task: Named
    model: Named
    arms: dict[str, ArmSettings] = Field(min_length=1)
    baseline: str = "default"
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    train: Training = Training()
    augment: Augment | None = None
    monitor: Annotated[Looking | None, OFF] = Looking()
    tuning: Tuning | None = None
    rates: dict[str, float] = Field(default_factory=dict)
    weights: Weights | None = None
    stages: tuple[Stage, ...] = ()
    surface: SurfaceGrid = SurfaceGrid()
    contrasts: tuple[Contrast, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        names = [name for name, _ in self.arm_settings()]
        controls = [control_name(name, each) for name, settings in self.arm_settings() for each in settings.control]
        twice = {name for name in names + controls if (names + controls).count(name) > 1}
        if twice:
            raise ValueError(f"arms: two are called '{twice.pop()}'")
        if self.baseline not in names:
            raise ValueError(f"baseline is one of the arms {', '.join(names)}; got '{self.baseline}'")
        for contrast in self.contrasts:
            for name in (contrast.arm, contrast.against):
                if name not in names + controls:
                    raise ValueError(f"contrasts: '{name}' is none of the arms {', '.join(names + controls)}")
        unknown = [name for name in self.rates if name not in names + controls]
        if unknown:
            raise ValueError(f"rates: '{unknown[0]}' is none of the arms {', '.join(names + controls)}")
        for name, settings in self.arm_settings():
            try:
                self.training(settings)
            except ValidationError as error:
                raise ValueError(f"arms.{name}.train.{recipe_refusal(error, Training)}") from None
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds are different numbers, got {list(self.seeds)}")
        if self.tuning and set(self.tuning.seeds) & set(self.seeds):
            raise ValueError("tuning.seeds are not among seeds: what was tuned on is not reported")
        if self.tuning and (self.stages or self.weights):
            raise ValueError("tuning is of a training from the beginning: leave out stages and weights, or tuning")
        return self

    def training(self, arm: ArmSettings) -> Training:
        """Return the settings of training, with an arm's own in their place."""
        return Training.model_validate(self.train.model_dump(exclude_unset=True) | arm.train)

    def arm_settings(self) -> Iterator[tuple[str, ArmSettings]]:
        """Yield the name and the settings of each arm, one for each strength of those that have several."""
        for name, settings in self.arms.items():
            if isinstance(settings.strength, tuple):
                for strength in settings.strength:
                    yield f"{name} {strength:g}", settings.model_copy(update={"strength": strength})
            else:
                yield name, settings


def shipped() -> dict[str, str]:
    """Return the recipes that come with the library, by name, with their titles.

    >>> "digits" in shipped()
    True
    """
    folder = resources.files("wellcond.lab") / "recipes"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): tomllib.loads(f.read_text(encoding="utf-8")).get("title", "") for f in files}


def recipe_text(source: str | Path) -> tuple[str, str]:
    """Return a recipe's text, and what to call it in messages: a file, or one that comes with the library."""
    path = check_path(source)
    if path.suffix == ".toml" or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise WellcondError(f"the recipe '{path}' cannot be read: {error}") from None
    if str(source) not in shipped():
        close = difflib.get_close_matches(str(source), shipped(), n=1)
        hint = f"; the closest is {close[0]}" if close else ""
        raise WellcondError(f"there is no file and no recipe '{source}'{hint}. `wellcond recipes` lists them")
    return (resources.files("wellcond.lab") / "recipes" / f"{source}.toml").read_text(encoding="utf-8"), str(source)


def load_recipe(source: str | Path, **changes: Any) -> Recipe:
    """Load a recipe from a file or by name, with some of its keys changed.

    >>> load_recipe("digits", seeds=[7], train={"steps": 5}).train.lr
    0.002
    """
    text, name = recipe_text(source)
    return parse_recipe(text, name, **changes)


def parse_recipe(text: str, name: str, **changes: Any) -> Recipe:
    """Parse a recipe; an error names the file, the key and what is allowed there.

    >>> parse_recipe('task = "digits"', "my.toml")
    Traceback (most recent call last):
    wellcond.errors.WellcondError: my.toml: model: Field required (and 1 more)
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise WellcondError(f"{name} is not TOML: {error}") from None
    whole = named_parts(merged(named_parts(data), changes))
    if "schemes" in whole:
        raise WellcondError(f"{name}: what a recipe compares are arms: write [arms.NAME] in place of [schemes.NAME]")
    for each in _texts(whole):
        if not each.isprintable() and any("\ud800" <= character <= "\udfff" for character in each):
            raise WellcondError(f"{name}: '{each}' has half a character, which no file can hold: write it in UTF-8")
    return valid_recipe(whole, name)


def valid_recipe(data: Mapping[str, Any], name: str) -> Recipe:
    """Make a recipe of its tables, the options of its tasks checked too; an error names the file."""
    from wellcond.lab.tasks.registry import wrong_option  # needs torch, which whoever lists recipes does not wait for

    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise WellcondError(f"{name}: {recipe_refusal(error, Recipe)}") from None
    for task in (recipe.task, *(stage.task for stage in recipe.stages if stage.task)):
        wrong = wrong_option(task.name, task.options)
        if wrong:
            raise WellcondError(f"{name}: task.{wrong}")
    return recipe


def _texts(data: Any) -> Iterator[str]:
    """All texts of nested tables, names of keys included."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        yield from _texts([*data, *data.values()])
    elif isinstance(data, (list, tuple)):
        for each in data:
            yield from _texts(each)


def named_parts(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe in which a task or model that is a bare name is a table with it, in stages too.

    >>> named_parts({"task": "digits", "seeds": [0]})
    {'task': {'name': 'digits'}, 'seeds': [0]}
    """
    found = {key: {"name": v} if key in ("task", "model") and isinstance(v, str) else v for key, v in data.items()}
    if isinstance(found.get("stages"), list):
        found["stages"] = [named_parts(stage) if isinstance(stage, dict) else stage for stage in found["stages"]]
    return found


def merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes into nested tables; stages are merged by their names.

    >>> merged({"train": {"lr": 1, "epochs": 5}}, {"train": {"steps": 2}})
    {'train': {'lr': 1, 'steps': 2}}
    """
    found = dict(data)
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if one in changes:
            found.pop(other, None)
    for key, value in changes.items():
        old = found.get(key)
        if key == "stages" and isinstance(old, list) and isinstance(value, Mapping):
            names = [stage.get("name") for stage in old]
            for name in value:
                if name not in names:
                    raise WellcondError(f"there is no stage '{name}'; there are {', '.join(map(str, names))}")
            found[key] = [merged(stage, value.get(stage.get("name"), {})) for stage in old]
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            found[key] = merged(old, value)
        else:
            found[key] = value
    return found


def recipe_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML: what differs from the defaults.

    >>> recipe = load_recipe("digits", seeds=(0, 1))
    >>> parse_recipe(recipe_toml(recipe), "again.toml") == recipe
    True
    """
    kept = recipe.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    return tomli_w.dumps(kept | ({"monitor": False} if recipe.monitor is None else {}))


def with_steps(recipe: Recipe, examples: int) -> Recipe:
    """Return the recipe with its epochs as steps, for so many examples.

    >>> recipe = load_recipe("digits")
    >>> shorter = recipe.model_copy(update={"train": Training(epochs=2, batch=10)})
    >>> with_steps(shorter, 95).train.steps
    19
    """
    train = recipe.train
    if train.epochs is None:
        return recipe
    steps = max(1, round(train.epochs * examples / train.batch))
    return recipe.model_copy(update={"train": train.model_copy(update={"steps": steps, "epochs": None})})
