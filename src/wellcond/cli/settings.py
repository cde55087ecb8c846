"""Schemes and `--set NAME=VALUE` as commands are given them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from wellcond.errors import SchemeError

if TYPE_CHECKING:
    from wellcond.init.scheme import Scheme


def setting(text: str) -> tuple[str, Any]:
    """Split `name=value`; the value is TOML (a number, true, false, a list, a quoted string), else a plain string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise SchemeError(f"--set takes OPTION=VALUE, got '{text}'")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return name.strip(), value.strip()
    return name.strip(), parsed["value"] if len(parsed) == 1 else value


def nested(texts: Iterable[str]) -> dict[str, Any]:
    """Return settings as nested tables, which their names lead into.

    >>> nested(["train.steps=100", "train.lr=1e-3", "monitor=false"])
    {'train': {'steps': 100, 'lr': 0.001}, 'monitor': False}
    """
    found: dict[str, Any] = {}
    for name, value in map(setting, texts):
        *path, last = name.split(".")
        table = found
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise SchemeError(f"--set {name}: '{part}' is a value, not a table")
        table[last] = value
    return found


def scheme_given(text: str, settings: list[str] | None) -> Scheme:
    """Return the scheme of a name or of `qk=conditioned,vo=mimetic`, with `--set alpha=0.4` or `--set vo.alpha=0.4`."""
    from wellcond.init.compose import as_scheme

    options = dict(map(setting, settings or []))
    if "=" not in text:
        return as_scheme(text, options)
    parts: dict[str, tuple[str, dict[str, Any]]] = {}
    for part in text.split(","):
        roles, _, name = (piece.strip() for piece in part.partition("="))
        if not roles or not name or roles in parts:
            raise SchemeError(f"'{text}' is not a composition: write each role once, as in qk=conditioned,vo=mimetic")
        parts[roles] = (name, {})
    for key, value in options.items():
        roles, _, option = key.partition(".")
        if roles not in parts or not option:
            raise SchemeError(f"--set {key}: in a composition an option is written {next(iter(parts))}.OPTION=VALUE")
        parts[roles][1][option] = value
    return as_scheme(parts)
