"""Check arguments at the public door, from their annotations: one line with the argument, what came, what is allowed.

A function decorated with `@checked` refuses what its annotations do not allow before it begins. Numbers are finite and
no booleans; bounds are written `Annotated[float, Range(0, 1)]`, other words for what is allowed `Annotated[T, "words"]`.
NumPy's numbers become Python's and a list becomes the tuple that is asked for; all else is handed on as it came.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import wraps
from os import PathLike
from typing import Annotated, Any, Literal, TypeVar, cast

import numpy as np
from torch import Tensor, nn

from wellcond.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])
Take = Callable[[Any], Any]  # a value as it is handed on, or REFUSED
REFUSED: Any = object()
LONGEST = 80  # characters shown of a value


@dataclass(frozen=True)
class Range:
    """Bounds of a number, which belong to it unless `open`; infinity only does where it is a bound and not `open`.

    >>> str(Range(0, 1)), str(Range(1)), str(Range(0, 1, open=True))
    ('from 0 to 1', 'of at least 1', 'above 0 and below 1')
    """

    low: float = -math.inf
    high: float = math.inf
    open: bool = False
    infinite: bool = False

    def __contains__(self, number: Any) -> bool:
        if not self.infinite and not _finite(number):
            return False
        return bool(self.low < number < self.high) if self.open else bool(self.low <= number <= self.high)

    def __str__(self) -> str:
        above, below = ("above", "below") if self.open else ("of at least", "of at most")
        if math.isinf(self.high):
            return "" if math.isinf(self.low) else f"{above} {self.low:g}"
        if math.isinf(self.low):
            return f"{below} {self.high:g}"
        return f"above {self.low:g} and below {self.high:g}" if self.open else f"from {self.low:g} to {self.high:.15g}"


Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, open=True)]
NotNegative = Annotated[float, Range(0)]
Bytes = Annotated[float, Range(0, infinite=True)]
Seed = Annotated[int, Range(-(2**63), 2**64 - 1), "a whole number of 64 bits"]
File = str | PathLike[str]


@dataclass(frozen=True)
class Kind:
    """What one annotation allows.

    Args:
        words: for the message.
        take: gives a value as it is handed on, or `REFUSED`.
    """

    words: str
    take: Take


def checked(target: F) -> F:
    """Check the arguments of a function, or of a class's constructor, against their annotations at each call.

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
        """The arguments as they are handed on; surplus ones are left for Python to refuse."""
        known = [self.take(name, kind, value) for (name, kind), value in zip(self.order, args, strict=False)]
        return [*known, *args[len(known) :]]

    def named(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The same of those given by name."""
        return {name: self.take(name, self.kinds.get(name, self.rest), value) for name, value in kwargs.items()}

    def take(self, name: str, kind: Kind | None, value: Any) -> Any:
        taken = value if kind is None else kind.take(value)
        if taken is REFUSED:
            assert kind is not None
            raise ArgumentError(f"{self.name}: {name} is {kind.words}; got {short(value)}")
        return taken


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's parameters, resolved; what it returns may be known to type checkers only."""
    wanted = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    scope = types.SimpleNamespace(__annotations__=wanted)
    return typing.get_type_hints(scope, getattr(function, "__globals__", {}), include_extras=True)


def short(value: Any) -> str:
    """A value in few words, whatever it is.

    >>> short(3.5), short(nn.ReLU()), short(np.ones((2, 3)))
    ('3.5', 'a ReLU', 'a ndarray of shape (2, 3)')
    """
    if isinstance(value, (Tensor, np.ndarray)):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    plain = value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic))
    if plain or (isinstance(value, (tuple, list, set, dict)) and len(value) <= 10):
        try:
            text = " ".join(repr(value).split())
        except Exception:  # of something inside, or a number too long to print
            text = ""
        if text and (len(text) <= LONGEST or plain):
            return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return _a(type(value).__name__)


def kind_of(hint: Any) -> Kind | None:
    """What an annotation allows; None where that is anything."""
    if hint in (Any, object) or isinstance(hint, TypeVar):
        return None
    if hint is None or hint is type(None):
        return Kind("None", lambda value: value if value is None else REFUSED)
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated(*parts)
    if origin is Literal:
        return _literal(parts)
    if origin in (typing.Union, types.UnionType):
        return _union([kind_of(part) for part in parts])
    if origin is tuple:
        return _tuple(parts)
    if origin is type:
        return Kind(f"a sub-class of {_named(parts[0])}", lambda v: v if _subclass(v, parts[0]) else REFUSED)
    if origin is Callable or hint is Callable:
        return Kind("a function", lambda value: value if callable(value) else REFUSED)
    cls = origin or hint
    if isinstance(cls, type) and issubclass(cls, Mapping):
        return _mapping(*(kind_of(part) for part in parts or (Any, Any)))
    if isinstance(cls, type) and cls.__module__ == "collections.abc" and issubclass(cls, Iterable):
        return _several(kind_of(parts[0]) if parts else None)
    return Kind(_a(_named(cls)), lambda value: value if isinstance(value, cls) else REFUSED)


def _finite(number: Any) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # of a whole number beyond every float
        return False


def _number(value: Any, whole: bool) -> Any:
    """A whole or a real number, no boolean; of NumPy as Python has it, of torch (without dimensions) as it is."""
    if isinstance(value, Tensor):
        right = not value.is_floating_point() if whole else True
        return value if value.ndim == 0 and right and not value.is_complex() and not value.is_meta else REFUSED
    if isinstance(value, (np.integer, np.floating)):
        value = value.item()
    return value if type(value) in ((int,) if whole else (int, float)) or _like(value, whole) else REFUSED


def _like(value: Any, whole: bool) -> bool:
    """A sub-class of a number, such as an enumeration's member."""
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)


def _bounded(whole: bool, bounds: Range) -> Kind:
    def take(value: Any) -> Any:
        number = _number(value, whole)
        return number if number is not REFUSED and number in bounds else REFUSED

    return Kind(f"a{' whole' if whole else ''} number {bounds}".strip(), take)


def _annotated(inner: Any, *notes: Any) -> Kind | None:
    kind = kind_of(inner)
    for note in notes:
        if isinstance(note, Range):
            kind = _bounded(inner is int, note)
        elif isinstance(note, str) and kind is not None:
            kind = Kind(note, kind.take)
    return kind


def _literal(allowed: tuple[Any, ...]) -> Kind:
    def take(value: Any) -> Any:
        known = type(value) in (str, bool, int, type(None)) and any(
            value == a and type(value) is type(a) for a in allowed
        )
        return value if known else REFUSED

    return Kind(_or([repr(value) for value in allowed]), take)


def _union(kinds: list[Kind | None]) -> Kind | None:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None

    def take(value: Any) -> Any:
        return next((taken for kind in known if (taken := kind.take(value)) is not REFUSED), REFUSED)

    return Kind(_or([kind.words for kind in known]), take)


def _tuple(parts: tuple[Any, ...]) -> Kind:
    several = len(parts) == 2 and parts[1] is ...
    kinds = [kind_of(part) for part in parts if part is not ...]

    def take(value: Any) -> Any:
        if not isinstance(value, (tuple, list)) or (not several and len(value) != len(kinds)):
            return REFUSED
        each = kinds * len(value) if several else kinds
        taken = tuple(v if kind is None else kind.take(v) for kind, v in zip(each, value, strict=True))
        return REFUSED if any(v is REFUSED for v in taken) else taken

    words = [kind.words if kind else "anything" for kind in kinds]
    return Kind(f"a tuple of: {words[0]}" if several else f"a tuple ({', '.join(words)})", take)


def _several(kind: Kind | None) -> Kind:
    def take(value: Any) -> Any:
        if not isinstance(value, Collection) or isinstance(value, (str, bytes, Mapping)) or not _iterable(value):
            return REFUSED
        right = kind is None or all(kind.take(each) is not REFUSED for each in value)
        return value if right else REFUSED

    return Kind(f"several of: {kind.words}" if kind else "a list", take)


def _iterable(value: Any) -> bool:
    """Whether a collection can be gone through: a tensor without dimensions, or without numbers, cannot."""
    return not isinstance(value, (Tensor, np.ndarray)) or (value.ndim > 0 and not getattr(value, "is_meta", False))


def _mapping(keys: Kind | None, values: Kind | None) -> Kind:
    def take(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return REFUSED
        right = all(
            kind is None or all(kind.take(each) is not REFUSED for each in part)
            for kind, part in ((keys, value.keys()), (values, value.values()))
        )
        return value if right else REFUSED

    return Kind(f"a dict of: {values.words}" if values else "a dict", take)


def _subclass(value: Any, cls: Any) -> bool:
    return isinstance(value, type) and issubclass(value, cls)


def _named(cls: Any) -> str:
    known = {nn.Module: "torch.nn.Module", Tensor: "torch.Tensor", AbstractSet: "set"}
    return known.get(cls) or str(getattr(cls, "__name__", cls))


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _or(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


_PLAIN: dict[Any, Kind] = {
    bool: Kind(
        "True or False", lambda v: v if isinstance(v, bool) else bool(v) if isinstance(v, np.bool_) else REFUSED
    ),
    int: _bounded(True, Range()),
    float: _bounded(False, Range()),
    str: Kind("a string", lambda value: value if isinstance(value, str) else REFUSED),
}
