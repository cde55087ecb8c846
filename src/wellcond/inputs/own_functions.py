"""Functions of the user's own, named as `path/to/file.py:function`: a model, a task, batches, a loss."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from wellcond._core.file_names import check_path
from wellcond._core.safe_text import briefly
from wellcond.errors import WellcondError

MAX_MESSAGE = 300  # characters of somebody else's message


def names_a_function(name: str) -> bool:
    """Return whether a name is meant as a function in a file of Python.

    >>> names_a_function("my.py:task"), names_a_function("digits")
    (True, False)
    """
    return ".py:" in name or name.endswith(".py")


def own_function(name: str, refusal: type[WellcondError]) -> Callable[..., Any]:
    """Run a file, once however often it is asked for, and return the function that is named in it."""
    path_text, _, function = name.rpartition(":")
    path = Path(path_text)
    if not path_text.endswith(".py") or not function.isidentifier():
        raise refusal(f"'{name}' names no function: write path/to/file.py:function")
    if not check_path(path, refusal).is_file():
        raise refusal(f"there is no file '{path}'")
    about = path.stat()
    with refusing(f"'{path}' cannot be run:", refusal, path):
        module = _module(path.absolute(), about.st_mtime_ns, about.st_size)
    found = getattr(module, function, None)
    if not callable(found):
        raise refusal(f"'{path}' has no function '{function}'")
    return found  # type: ignore[no-any-return]


def call_own(name: str, offered: Mapping[str, Any], refusal: type[WellcondError], **options: Any) -> Any:
    """Call a function in a file with its options, and with what it has parameters for among what is offered.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "my.py"
    >>> _ = path.write_text("def double(classes): return 2 * classes")
    >>> call_own(f"{path}:double", {"classes": 5, "channels": 1}, WellcondError)
    10
    """
    function = own_function(name, refusal)
    path = Path(name.rpartition(":")[0])
    with _neighbours(path), refusing(f"{name} raised", refusal, path):
        return function(**{key: offered[key] for key in offered.keys() & _parameters(function)} | options)


@contextmanager
def refusing(what: str, refusal: type[WellcondError], file: Path | None = None) -> Iterator[None]:
    """Put whatever somebody else's code raises into one line, with that of the user's file, if it was in one."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if file is None and isinstance(error, refusal):
            raise  # our own
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if file and Path(frame.filename).absolute() == file.absolute()]
        where = f" (line {lines[-1]})" if lines else ""
        raise refusal(f"{what} {briefly(error, MAX_MESSAGE)}{where}") from error


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Names that a function can be given; what `**options` would swallow is not among them."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, found in inspect.signature(function).parameters.items() if found.kind in named}


@contextmanager
def _neighbours(path: Path) -> Iterator[None]:
    """Let a file import those beside it, as python does."""
    with mock.patch.object(sys, "path", [str(path.absolute().parent), *sys.path]):
        yield


# By time and size, so that a file that was edited is run again.
@lru_cache(maxsize=16)
def _module(path: Path, changed: int, size: int) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"wellcond_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look the module up there
    with _neighbours(path):
        spec.loader.exec_module(module)
    return module
