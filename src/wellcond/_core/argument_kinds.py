"""Kinds of arguments: from an annotation to a check of values, and to words for the message."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from wellcond._core.argument_types import Range
from wellcond._core.short_repr import class_name, class_words, is_a

Take = Callable[[Any], Any]  # a value as it is handed on, or REFUSED
REFUSED: Any = object()
ARRAYS = ("torch.Tensor", "numpy.ndarray")


@dataclass(frozen=True)
class Kind:
    """The values that one annotation allows."""

    words: str  # for the message
    take: Take  # gives a value as it is handed on, or `REFUSED`
    number: bool = False  # whether it is one number


def kind_of(hint: Any) -> Kind | None:
    """Return the kind that an annotation stands for; None where that is anything."""
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
        words, base = f"a sub-class of {class_name(parts[0])}", parts[0]
        return Kind(words, lambda value: value if isinstance(value, type) and issubclass(value, base) else REFUSED)
    if origin is Callable or hint is Callable:
        return Kind("a function", lambda value: value if _called(value) else REFUSED)
    cls = origin or hint
    if isinstance(cls, type) and issubclass(cls, Mapping):
        return _mapping(*(kind_of(part) for part in parts or (Any, Any)))
    if isinstance(cls, type) and cls.__module__ == "collections.abc" and issubclass(cls, Iterable):
        return _several(kind_of(parts[0]) if parts else None)
    return Kind(class_words(cls), lambda value: value if isinstance(value, cls) else REFUSED)


def _number(value: Any, whole: bool) -> Any:
    """A whole or a real number, no boolean, as Python has it."""
    zero_dimensional = not whole and is_a(value, "torch.Tensor") and value.ndim == 0 and not value.is_meta
    if zero_dimensional or is_a(value, "numpy.integer", "numpy.floating"):
        value = value.item()
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    return value if right else REFUSED


def _bounded(whole: bool, bounds: Range) -> Kind:
    words = f"a{' whole' if whole else ''} number {bounds}".strip()
    return _where(Kind(words, lambda value: _number(value, whole), number=True), bounds.__contains__)


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
        if isinstance(value, StrEnum):
            value = value.value
        simple = type(value) in (str, bool, int, type(None))
        return value if simple and (type(value), value) in known else REFUSED

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
        if is_a(value, *ARRAYS) and value.ndim == 1 and not getattr(value, "is_meta", False):
            value = value.tolist()
        if not isinstance(value, Collection) or isinstance(value, (str, bytes, Mapping)) or is_a(value, *ARRAYS):
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
    """Return whether a value can be called; a list of modules only seems so."""
    return callable(value) and not (
        is_a(value, "torch.nn.Module") and type(value).forward is sys.modules["torch.nn"].Module.forward
    )


def _or(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


_PLAIN: dict[Any, Kind] = {
    bool: Kind(
        "True or False", lambda value: bool(value) if isinstance(value, bool) or is_a(value, "numpy.bool_") else REFUSED
    ),
    int: _bounded(True, Range()),
    float: _bounded(False, Range()),
    str: Kind("a string", lambda value: value if isinstance(value, str) else REFUSED),
}
