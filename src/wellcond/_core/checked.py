"""Check arguments at the public door, from their annotations: one line with the argument, what came, what is allowed.

A function decorated with `@checked` refuses what its annotations do not allow before it begins. Numbers are finite and
no booleans; `Annotated[float, Range(0, 1)]` has bounds, `Annotated[T, predicate, "words"]` a condition of its own and
words for the message. Numbers of NumPy and torch become Python's, a member of a `StrEnum` its word where a `Literal`
allows that, and a list becomes the tuple that is asked for; all else is handed on as it came.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

from wellcond._core.argument_kinds import REFUSED, Kind, kind_of
from wellcond._core.short_repr import short_repr
from wellcond.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])


def checked(target: F) -> F:
    """Check the arguments of a function, or of a class's constructor, against their annotations at each call.

    >>> from wellcond._core.argument_types import Share
    >>> import numpy as np
    >>> from collections.abc import Collection
    >>> @checked
    ... def mix(share: Share, names: Collection[str] = ()) -> float:
    ...     return share
    >>> mix(np.float32(0.5))
    0.5
    >>> mix(1.5)
    Traceback (most recent call last):
    wellcond.errors.ArgumentError: mix: share is a number from 0 to 1; got 1.5
    >>> mix(0.5, names="all")
    Traceback (most recent call last):
    wellcond.errors.ArgumentError: mix: names is several of: a string; got 'all'
    """
    if isinstance(target, type):
        target.__init__ = checked(target.__init__)  # type: ignore[misc]
        return target
    door: _Door | None = None

    @wraps(target)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal door
        if door is None:  # not at definition, when names that annotations use may not be there yet
            door = _Door(target)
        return target(*door.positional(args), **door.named(kwargs))

    return cast(F, wrapper)


class _Door:
    """The parameters of one function, ready to be checked."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[2]
        hints = _hints(function)
        self.order: list[tuple[str, Kind | None]] = []
        self.kinds: dict[str, Kind | None] = {}
        self.rest: Kind | None = None
        for name, parameter in inspect.signature(function).parameters.items():
            kind = kind_of(hints.get(name, Any))
            if parameter.kind is parameter.VAR_KEYWORD:
                self.rest = kind
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                self.kinds[name] = kind
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    self.order.append((name, kind))

    def positional(self, args: tuple[Any, ...]) -> Iterable[Any]:
        """Check the arguments given by position; surplus ones are left for Python to refuse."""
        known = [self.take(name, kind, value) for (name, kind), value in zip(self.order, args, strict=False)]
        return [*known, *args[len(known) :]]

    def named(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Check the arguments given by name."""
        return {name: self.take(name, self.kinds.get(name, self.rest), value) for name, value in kwargs.items()}

    def take(self, name: str, kind: Kind | None, value: Any) -> Any:
        taken = value if kind is None else kind.take(value)
        if taken is REFUSED:
            assert kind is not None
            raise ArgumentError(f"{self.name}: {name} is {kind.words}; got {short_repr(value)}")
        return taken


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's parameters, resolved; what it returns may be known to type checkers only."""
    inner = inspect.unwrap(function)
    wanted = {name: hint for name, hint in inner.__annotations__.items() if name != "return"}
    scope = types.SimpleNamespace(__annotations__=wanted)
    return typing.get_type_hints(scope, inner.__globals__, include_extras=True)
