"""Check arguments at the public door, from their annotations: one line with the argument, what came, what is allowed.

A function decorated with `@checked` refuses what its annotations do not allow before it begins. Numbers are finite and
no booleans; `Annotated[float, Range(0, 1)]` has bounds, `Annotated[T, predicate, "words"]` a condition of its own and
words for the message. Numbers of NumPy and torch become Python's, and a list becomes the tuple that is asked for; all
else is handed on as it came.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from os import PathLike, fspath
from pathlib import Path
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


def _is_path(value: str | PathLike[str]) -> bool:
    text = fspath(value)
    return bool(text) and "\0" not in text


def _is_file(value: str | PathLike[str]) -> bool:
    return _is_path(value) and Path(value).name != ""


Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, open=True)]
NotNegative = Annotated[float, Range(0)]
Bytes = Annotated[float, Range(0, infinite=True)]
Seed = Annotated[int, Range(-(2**63), 2**64 - 1), "a whole number of 64 bits"]
Folder = Annotated[str | PathLike[str], _is_path, "a path"]
File = Annotated[str | PathLike[str], _is_file, "the path of a file"]


@dataclass(frozen=True)
class Kind:
    """What one annotation allows.

    Args:
        words: for the message.
        take: gives a value as it is handed on, or `REFUSED`.
        number: whether it is one number.
    """

    words: str
    take: Take
    number: bool = False


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
    inner = inspect.unwrap(function)
    wanted = {name: hint for name, hint in inner.__annotations__.items() if name != "return"}
    scope = types.SimpleNamespace(__annotations__=wanted)
    return typing.get_type_hints(scope, inner.__globals__, include_extras=True)


def short(value: Any) -> str:
    """A value in few words, whatever it is.

    >>> short(3.5), short(nn.ReLU()), short(np.ones((2, 3)))
    ('3.5', 'a torch.ReLU', 'a numpy.ndarray of shape (2, 3)')
    """
    if isinstance(value, Tensor) and value.ndim == 0 and not value.is_meta:
        value = value.item()
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{_a(_named(type(value)))} of shape {tuple(value.shape)}"
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
    return _a(_named(type(value)))


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
        return Kind("a function", lambda value: value if _called(value) else REFUSED)
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
    """A whole or a real number, no boolean, as Python has it."""
    zero_dimensional = not whole and isinstance(value, Tensor) and value.ndim == 0 and not value.is_meta
    if zero_dimensional or isinstance(value, (np.integer, np.floating)):
        value = value.item()
    return value if type(value) in ((int,) if whole else (int, float)) or _like(value, whole) else REFUSED


def _like(value: Any, whole: bool) -> bool:
    """A sub-class of a number, such as an enumeration's member."""
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)


def _bounded(whole: bool, bounds: Range) -> Kind:
    def take(value: Any) -> Any:
        number = _number(value, whole)
        return number if number is not REFUSED and number in bounds else REFUSED

    return Kind(f"a{' whole' if whole else ''} number {bounds}".strip(), take, number=True)


def _annotated(inner: Any, *notes: Any) -> Kind | None:
    kind = kind_of(inner)
    for note in notes:
        if isinstance(note, Range):
            kind = _bounded(inner is int, note)
        elif isinstance(note, str) and kind is not None:
            kind = replace(kind, words=note)
        elif callable(note) and kind is not None:
            kind = _where(kind, note)
    return kind


def _where(kind: Kind, holds: Callable[[Any], bool]) -> Kind:
    def take(value: Any) -> Any:
        taken = kind.take(value)
        return taken if taken is not REFUSED and holds(taken) else REFUSED

    return replace(kind, take=take)


def _literal(allowed: tuple[Any, ...]) -> Kind:
    known = {(type(value), value) for value in allowed}  # 1 is not True

    def take(value: Any) -> Any:
        plain = type(value) in (str, bool, int, type(None))
        return value if plain and (type(value), value) in known else REFUSED

    return Kind(_or([repr(value) for value in allowed]), take)


def _union(kinds: list[Kind | None]) -> Kind | None:
    # Numbers last: a tensor where one is allowed stays a tensor.
    known = sorted((kind for kind in kinds if kind is not None), key=lambda kind: kind.number)
    if len(known) < len(kinds):
        return None

    def take(value: Any) -> Any:
        return next((taken for kind in known if (taken := kind.take(value)) is not REFUSED), REFUSED)

    return Kind(_or([kind.words for kind in kinds if kind is not None]), take)


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
        if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 1 and not getattr(value, "is_meta", False):
            value = value.tolist()
        if not isinstance(value, Collection) or isinstance(value, (str, bytes, Mapping, Tensor, np.ndarray)):
            return REFUSED
        right = kind is None or all(kind.take(each) is not REFUSED for each in value)
        return value if right else REFUSED

    return Kind(f"several of: {kind.words}" if kind else "a list", take)


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


def _called(value: Any) -> bool:
    """Whether a value can be called; a list of modules only seems so."""
    return callable(value) and not (isinstance(value, nn.Module) and type(value).forward is nn.Module.forward)


def _subclass(value: Any, cls: Any) -> bool:
    return isinstance(value, type) and issubclass(value, cls)


def _named(cls: Any) -> str:
    if cls is nn.Module:
        return "torch.nn.Module"
    library = str(getattr(cls, "__module__", "")).partition(".")[0]
    return f"{library}." * (library in ("torch", "numpy")) + str(getattr(cls, "__name__", cls))


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _or(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


_PLAIN: dict[Any, Kind] = {
    bool: Kind("True or False", lambda value: bool(value) if isinstance(value, (bool, np.bool_)) else REFUSED),
    int: _bounded(True, Range()),
    float: _bounded(False, Range()),
    str: Kind("a string", lambda value: value if isinstance(value, str) else REFUSED),
}
