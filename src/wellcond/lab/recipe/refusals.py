"""Refusals of a recipe in one line, from pydantic's findings."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ValidationError

from wellcond.lab.recipe.contrasts import Contrast
from wellcond.lab.recipe.settings import ArmSettings, Augment, Looking, Stage, SurfaceGrid, Training, Tuning, Weights

TABLES: dict[str, type[BaseModel]] = {
    "train": Training,
    "monitor": Looking,
    "tuning": Tuning,
    "arms": ArmSettings,
    "augment": Augment,
    "weights": Weights,
    "stages": Stage,
    "surface": SurfaceGrid,
    "contrasts": Contrast,
}


def recipe_refusal(error: ValidationError, whole: type[BaseModel]) -> str:
    """Return the first of pydantic's findings: where, what, and the key that was meant.

    The error is of validating a `whole`, the table that the others are in.

    >>> try:
    ...     Training.model_validate({"stepps": 5})
    ... except ValidationError as error:
    ...     recipe_refusal(error, Training)
    'stepps: no such key; did you mean steps?'
    """
    first, *others = error.errors(include_url=False)
    where = ".".join(map(str, first["loc"]))
    allowed = f"; {_known(first['loc'], whole)}" if first["type"] == "extra_forbidden" else ""
    got = f", got {first['input']!r}" if first["type"] not in ("missing", "extra_forbidden", "value_error") else ""
    more = f" (and {len(others)} more)" if others else ""
    message = first["msg"].removeprefix("Value error, ").replace("Extra inputs are not permitted", "no such key")
    return f"{where + ': ' if where else ''}{message}{got}{allowed}{more}"


def _known(where: tuple[Any, ...], whole: type[BaseModel]) -> str:
    """The keys of the table that an unknown one was found in."""
    table = TABLES.get(str(where[0]), whole) if len(where) > 1 else whole
    close = difflib.get_close_matches(str(where[-1]), table.model_fields, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(table.model_fields)}"
