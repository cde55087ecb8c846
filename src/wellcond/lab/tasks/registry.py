"""Tasks by name, registered where they are defined."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from wellcond.draw import neutral
from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Task

Build = TypeVar("Build", bound=Callable[..., Task])


@dataclass(frozen=True)
class Entry:
    """A task that can be built.

    Args:
        build: a function of keyword options.
        description: in one line.
        source: where its data come from, for one that needs a folder.
    """

    build: Callable[..., Task]
    description: str
    source: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of its options."""
        return tuple(inspect.signature(self.build).parameters)


_ENTRIES: dict[str, Entry] = {}


def register(name: str, description: str, source: str = "") -> Callable[[Build], Build]:
    """Register the function below under a name; a name is taken once."""

    def enter(build: Build) -> Build:
        if name in _ENTRIES:
            raise WellcondError(f"there is already a task {name!r}: choose another name")
        _ENTRIES[name] = Entry(build, description, source)
        return build

    return enter


def task(name: str, **options: Any) -> Task:
    """Build a task; nothing is downloaded.

    Args:
        name: one of `tasks()`.
        options: its own: `seed`, `folder`, …; an unknown one is an error that lists them.

    >>> task("digits").description
    "scikit-learn's handwritten digits, 8 × 8 grey: 1437 to train on, 360 to test, stratified by seed 0"
    >>> task("digit")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    wellcond.errors.WellcondError: there is no task 'digit'; the closest is digits. tasks() lists them: ...
    """
    entry = _ENTRIES.get(name)
    if entry is None:
        close = difflib.get_close_matches(str(name), _ENTRIES, n=1)
        hint = f"; the closest is {close[0]}" if close else ""
        raise WellcondError(f"there is no task {name!r}{hint}. tasks() lists them: {', '.join(sorted(_ENTRIES))}")
    unknown = [option for option in options if option not in entry.options]
    if unknown:
        known = f"its options are {', '.join(entry.options)}" if entry.options else "it has none"
        raise WellcondError(f"task {name!r} has no option {unknown[0]!r}; {known}")
    for option, parameter in inspect.signature(entry.build).parameters.items():
        if parameter.default is parameter.empty and option not in options:
            source = f" The data: {entry.source}" if entry.source else ""
            raise WellcondError(f"task {name!r} needs {option}=…; its options are {', '.join(entry.options)}.{source}")
    with neutral():
        return entry.build(**options)


def tasks() -> dict[str, str]:
    """Every name, and what it is.

    >>> tasks()["digits"]
    "scikit-learn's handwritten digits, 8 × 8"
    """
    return {name: entry.description for name, entry in sorted(_ENTRIES.items())}


def options_of(name: str) -> tuple[str, ...]:
    """The options of a task.

    >>> options_of("digits")
    ('seed',)
    """
    if name not in _ENTRIES:
        raise WellcondError(f"there is no task {name!r}. tasks() lists them: {', '.join(sorted(_ENTRIES))}")
    return _ENTRIES[name].options
