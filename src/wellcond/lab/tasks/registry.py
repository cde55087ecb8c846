"""Registry of tasks by name; each registers itself where it is defined."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from wellcond._core.argument_kinds import REFUSED, kind_of
from wellcond._core.keyed_random import neutral
from wellcond._core.short_repr import short_repr
from wellcond.errors import WellcondError
from wellcond.inputs.own_functions import names_a_function
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.own.task_file import file_task

Build = TypeVar("Build", bound=Callable[..., Task])


@dataclass(frozen=True)
class RegisteredTask:
    """A task that can be built, by a function of keyword options."""

    build: Callable[..., Task]
    description: str  # in one line
    source: str = ""  # where its data come from, for one that needs a folder

    @property
    def options(self) -> tuple[str, ...]:
        """Return the names of its options."""
        return tuple(inspect.signature(self.build).parameters)


_TASKS: dict[str, RegisteredTask] = {}


def register_task(name: str, description: str, source: str = "") -> Callable[[Build], Build]:
    """Register the function below under a name; a name is taken once."""

    def added(build: Build) -> Build:
        if name in _TASKS:
            raise WellcondError(f"there is already a task {name!r}: choose another name")
        _TASKS[name] = RegisteredTask(build, description, source)
        return build

    return added


def task(name: str, **options: Any) -> Task:
    """Build a task; nothing is downloaded.

    Args:
        name: one of `tasks()`, or `path/to/file.py:function` for one of your own.
        options: its own: `seed`, `folder`, …; an unknown one is an error that lists them.

    >>> task("digits").description
    "scikit-learn's handwritten digits, 8 × 8 grey: 1437 to train on, 360 to test, stratified by seed 0"
    >>> task("digit")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    wellcond.errors.WellcondError: there is no task 'digit'; the closest is digits. tasks() lists them: ...
    """
    if names_a_function(name):
        with neutral():
            return file_task(name, options)
    found = _registered(name)
    unknown = [option for option in options if option not in found.options]
    if unknown:
        known = f"its options are {', '.join(found.options)}" if found.options else "it has none"
        raise WellcondError(f"task {name!r} has no option {unknown[0]!r}; {known}")
    for option, parameter in inspect.signature(found.build).parameters.items():
        if parameter.default is parameter.empty and option not in options:
            source = f" The data: {found.source}" if found.source else ""
            raise WellcondError(f"task {name!r} needs {option}=…; its options are {', '.join(found.options)}.{source}")
    with neutral():
        return found.build(**options)


def wrong_option(name: str, options: Mapping[str, Any]) -> str:
    """Say which option is not of the kind that the task's annotations ask for; nothing if all are, or it is unknown.

    >>> wrong_option("digits", {"seed": "a"})
    "seed is a whole number; got 'a'"
    """
    hints = get_type_hints(_TASKS[name].build, include_extras=True) if name in _TASKS else {}
    for option, value in options.items():
        kind = kind_of(hints.get(option, Any))
        if kind is not None and kind.take(value) is REFUSED:
            return f"{option} is {kind.words}; got {short_repr(value)}"
    return ""


def tasks() -> dict[str, str]:
    """Return the description of every task by its name.

    >>> tasks()["digits"]
    "scikit-learn's handwritten digits, 8 × 8"
    """
    return {name: found.description for name, found in sorted(_TASKS.items())}


def options_of(name: str) -> tuple[str, ...]:
    """Return the names of a task's options.

    >>> options_of("digits")
    ('seed',)
    """
    return _registered(name).options


def _registered(name: str) -> RegisteredTask:
    if name not in _TASKS:
        close = difflib.get_close_matches(str(name), _TASKS, n=1)
        hint = f"; the closest is {close[0]}" if close else ""
        raise WellcondError(f"there is no task {name!r}{hint}. tasks() lists them: {', '.join(sorted(_TASKS))}")
    return _TASKS[name]
