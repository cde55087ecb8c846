"""Read JSON files that somebody may have damaged: whatever is wrong with one is an error in a line that names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wellcond._core.file_names import check_path
from wellcond.errors import WellcondError

MAX_LEVELS = 50  # of lists and objects; our files have ten at most, and a thousand would exhaust Python's stack
MAX_WHOLE_NUMBER = 2**63  # so that each of them is also a float


def read_json(path: Path, advice: str = "", error: type[WellcondError] = WellcondError, *, strict: bool = False) -> Any:
    """Read one JSON document.

    Args:
        path: of the file.
        advice: what to do if it cannot be read, for the end of the message.
        error: what to raise then.
        strict: whether to refuse what wellcond never writes: NaN and Infinity as other than words, whole numbers beyond
            64 bits, more than fifty levels.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "run.json").write_text('{"seed": [1, 2')
    ...     read_json(Path(folder) / "run.json", "delete it")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    wellcond.errors.WellcondError: '...run.json' is not JSON (Expecting ',' delimiter: line 1 column 15...): delete it
    """
    check_path(path, error)
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise _unreadable(path, problem, advice, error) from None
    return parse_json(content, f"'{path}'", advice, error, strict=strict)


def read_object(
    path: Path,
    advice: str = "",
    error: type[WellcondError] = WellcondError,
    missing: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Read a JSON object that wellcond wrote, or return `missing` where that is given and there is no file."""
    if missing is not None and not check_path(path, error).exists():
        return missing
    found = read_json(path, advice, error, strict=True)
    if not isinstance(found, dict):
        raise error(_told(f"'{path}' holds {_kind(found)} in place of an object", "", advice))
    return found


def read_lines(path: Path, advice: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a file that wellcond wrote, one JSON object a line, with the number of each; a line at a time.

    A last line without its end is being written, or was when its process was killed: it is left out if it is not whole.
    """
    check_path(path)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"'{path}', line {number}"
                    try:
                        found = parse_json(line, where, advice, strict=True)
                    except WellcondError:
                        if line.endswith(b"\n"):
                            raise
                        return
                    if not isinstance(found, dict):
                        raise WellcondError(_told(f"{where} holds {_kind(found)} in place of an object", "", advice))
                    yield number, found
    except OSError as problem:
        raise _unreadable(path, problem, advice, WellcondError) from None


def parse_json(
    content: bytes | str,
    where: str,
    advice: str = "",
    error: type[WellcondError] = WellcondError,
    *,
    strict: bool = False,
) -> Any:
    """Parse a document in memory, which messages name `where`; the other arguments are those of `read_json`."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        found = (_STRICT if strict else _LENIENT).decode(text)
    except (ValueError, RecursionError) as problem:
        raise error(_told(f"{where} is not JSON", str(problem), advice)) from None
    if strict and _deeper_than(found, MAX_LEVELS):
        raise error(_told(f"{where} is nested more than {MAX_LEVELS} deep", "", advice))
    return found


def _unreadable(path: Path, problem: OSError, advice: str, error: type[WellcondError]) -> WellcondError:
    return error(_told(f"'{path}' cannot be read", problem.strerror or str(problem), advice))


def _whole(digits: str) -> int:
    found = int(digits)
    if abs(found) > MAX_WHOLE_NUMBER:
        raise ValueError(f"{digits[:9]}… is too large a number")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


_STRICT = json.JSONDecoder(parse_int=_whole, parse_constant=_constant)
_LENIENT = json.JSONDecoder()


def _deeper_than(data: Any, levels: int) -> bool:
    """Return whether lists and objects are nested deeper; level by level, as a recursion would be as deep."""
    level = [data]
    for _ in range(levels + 1):
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [value for values in inside for value in values]
        if not level:
            return False
    return True


def _kind(data: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(data), "a number")


def _told(what: str, why: str, advice: str) -> str:
    return f"{what}{f' ({why})' if why else ''}{f': {advice}' if advice else ''}"
