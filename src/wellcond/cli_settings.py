"""`--set NAME=VALUE` of the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from wellcond.errors import SchemeError


def setting(text: str) -> tuple[str, Any]:
    """`name=value`; the value is read as TOML (numbers, true, false, lists, quoted strings), else as a plain string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise SchemeError(f"--set takes OPTION=VALUE, got '{text}'")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return name.strip(), value.strip()
    return name.strip(), parsed["value"] if len(parsed) == 1 else value


def nested(texts: Iterable[str]) -> dict[str, Any]:
    """Settings whose names lead into tables.

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
