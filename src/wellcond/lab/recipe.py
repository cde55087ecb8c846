"""A comparison as a file: TOML, checked before anything runs; only differences from the defaults are written."""

from __future__ import annotations

import difflib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wellcond.errors import WellcondError


class Part(BaseModel):
    """A table of the recipe; a key that it does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(BaseModel):
    """A task or a model: its name, and its own options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """All but the name."""
        return dict(self.model_extra or {})


class Arm(Part):
    """One of the schemes that are compared: how weights begin, and what keeps them.

    Args:
        init: a scheme of `wc.init_`, or a composition by roles; none leaves the model as its library makes it.
        options: of that scheme.
        condition: a method of `wc.condition_`.
        strength: of the method.
        control: whether to add the scale-matched Gaussian control.
        lr: in place of the recipe's.
    """

    init: str | dict[str, str] | None = None
    options: dict[str, Any] = {}
    condition: str | None = None
    strength: float | None = None
    control: bool = False
    lr: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _controlled(self) -> Arm:
        if self.control and self.init is None:
            raise ValueError("control needs init: only an initialisation has a scale to match")
        if self.strength is not None and self.condition is None:
            raise ValueError("strength needs condition")
        return self


class Training(Part):
    """The loop: optimizer, schedule, and how often to look."""

    steps: int = Field(300, ge=1)
    batch: int = Field(64, ge=1)
    lr: float = Field(1e-3, gt=0)
    schedule: Literal["cosine", "constant", "linear", "one-cycle"] = "cosine"
    warmup: float = Field(0.1, ge=0, le=1)
    final_lr: float = Field(0.0, ge=0)
    weight_decay: float = Field(0.05, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = Field(1.0, gt=0)
    smoothing: float = Field(0.0, ge=0, lt=1)
    accumulate: int = Field(1, ge=1)
    ema: float | None = Field(None, gt=0, lt=1)
    precision: Literal["no", "bf16", "fp16"] = "no"
    compile: bool = False
    log_every: int = Field(10, ge=1)
    test_every: int = Field(50, ge=1)
    checkpoint_every: int = Field(100, ge=1)

    @model_validator(mode="after")
    def _aligned(self) -> Training:
        # A checkpoint between two entries would have to carry half a mean along.
        if self.checkpoint_every % self.log_every:
            raise ValueError(f"checkpoint_every is a multiple of log_every, which is {self.log_every}")
        return self


class Looking(Part):
    """The monitor, at fixed steps so that its records are the same each time."""

    every: int = Field(100, ge=1)
    heads: int = Field(2, ge=1)
    examples: int = Field(8, ge=1)
    tiers: tuple[Literal["weights", "attention", "jacobian"], ...] = ("weights", "attention", "jacobian")


class Tuning(Part):
    """Learning rates to try for each scheme, on seeds that are not reported."""

    lr: tuple[float, ...] = Field(min_length=2)
    seeds: tuple[int, ...] = Field((1000,), min_length=1)


class Recipe(Part):
    """What is compared on what.

    >>> recipe = load_recipe("digits")
    >>> recipe.task.name, recipe.baseline, list(recipe.schemes)[:2]
    ('digits', 'default', ['default', 'mimetic'])
    """

    title: str = ""
    task: Named
    model: Named
    schemes: dict[str, Arm] = Field(min_length=1)
    baseline: str = "default"
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    train: Training = Training()
    monitor: Looking | None = Looking()
    tuning: Tuning | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.baseline not in self.schemes:
            raise ValueError(f"baseline is one of the schemes {', '.join(self.schemes)}; got '{self.baseline}'")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds are different numbers, got {list(self.seeds)}")
        if self.tuning and set(self.tuning.seeds) & set(self.seeds):
            raise ValueError("tuning.seeds are not among seeds: what was tuned on is not reported")
        return self


def shipped() -> dict[str, str]:
    """The recipes that come with the library, by name, with their titles.

    >>> "digits" in shipped()
    True
    """
    folder = resources.files("wellcond.lab") / "recipes"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): tomllib.loads(f.read_text()).get("title", "") for f in files}


def recipe_text(source: str | Path) -> tuple[str, str]:
    """A recipe's text, and what to call it in messages: a file, or one that comes with the library."""
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        try:
            return path.read_text(), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise WellcondError(f"the recipe '{path}' cannot be read: {error}") from None
    if str(source) not in shipped():
        close = difflib.get_close_matches(str(source), shipped(), n=1)
        hint = f"; the closest is {close[0]}" if close else ""
        raise WellcondError(f"there is no file and no recipe '{source}'{hint}. `wellcond recipes` lists them")
    return (resources.files("wellcond.lab") / "recipes" / f"{source}.toml").read_text(), str(source)


def load_recipe(source: str | Path, **changes: Any) -> Recipe:
    """A recipe from a file or by name, with some of its keys changed."""
    text, name = recipe_text(source)
    return parse_recipe(text, name, **changes)


def parse_recipe(text: str, name: str, **changes: Any) -> Recipe:
    """A recipe from its text; an error names the file, the key and what is allowed there.

    >>> parse_recipe('task = "digits"', "my.toml")
    Traceback (most recent call last):
    wellcond.errors.WellcondError: my.toml: model: Field required (and 1 more)
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WellcondError(f"{name} is not TOML: {error}") from None
    for part in ("task", "model"):  # a bare name is enough
        if isinstance(data.get(part), str):
            data[part] = {"name": data[part]}
    try:
        return Recipe.model_validate({**data, **changes})
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        where = ".".join(map(str, first["loc"]))
        allowed = f"; {_known(first['loc'])}" if first["type"] == "extra_forbidden" else ""
        got = f", got {first['input']!r}" if first["type"] not in ("missing", "extra_forbidden", "value_error") else ""
        more = f" (and {len(others)} more)" if others else ""
        message = first["msg"].removeprefix("Value error, ").replace("Extra inputs are not permitted", "no such key")
        raise WellcondError(f"{name}: {where + ': ' if where else ''}{message}{got}{allowed}{more}") from None


def _known(where: tuple[Any, ...]) -> str:
    """The keys of the table that an unknown one was found in."""
    tables: dict[str, type[BaseModel]] = {"train": Training, "monitor": Looking, "tuning": Tuning, "schemes": Arm}
    table = tables.get(str(where[0]), Recipe) if len(where) > 1 else Recipe
    close = difflib.get_close_matches(str(where[-1]), table.model_fields, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(table.model_fields)}"
