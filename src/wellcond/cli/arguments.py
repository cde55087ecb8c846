"""Models, weights, files and `--set NAME=VALUE` as commands are given them."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import wellcond as wc
from wellcond._core.file_names import check_path
from wellcond.cli.app import GIVEN
from wellcond.errors import CheckpointError, SchemeError, WellcondError


def model_shapes(model: str) -> Any:
    """Build a model without weights; a user's own function may need real ones, so it is called as it is."""
    return wc.build_model(model, device="meta" if model.startswith(("timm:", "hf:")) else None)


def load_weights_given(model: Any, weights: Path | None, allow_pt: bool) -> None:
    """Load weights, if there are any; the refusal of a pickle names the command that reads it."""
    if weights is None:
        return
    from wellcond.checkpoint.safetensors_files import PICKLES

    if weights.suffix in PICKLES and not allow_pt:
        again = shlex.join(["wellcond", *GIVEN.get(), "--allow-pt"])
        raise CheckpointError(
            f"'{weights}' is named like a pickle, which can run code when it is loaded. To read "
            f"nothing but its tensors: {again}"
        )
    wc.load_weights_(model, weights, allow_pt=allow_pt)


def model_and_inputs(model: str, seed: int, weights: Path | None, allow_pt: bool, **given: Any) -> tuple[Any, Any]:
    """Build a model, load its weights if there are any, and make what it is fed."""
    from wellcond.inputs.example_inputs import inputs_for

    built = wc.build_model(model, seed=seed)
    load_weights_given(built, weights, allow_pt)
    return built, inputs_for(built, seed=seed, **given)


def check_folder_of(target: Path) -> None:
    """Refuse a file to write whose folder is not there, or that is a folder, before any work is done for it."""
    if check_path(target).is_dir():
        raise WellcondError(f"'{target}' is a directory; give the name of a file")
    if not target.parent.is_dir():
        raise WellcondError(f"there is no directory '{target.parent}' to write '{target.name}' into; make it first")


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


def nested(texts: Iterable[str] | None) -> dict[str, Any]:
    """Return settings, if there are any, as nested tables, which their names lead into.

    >>> nested(["train.steps=100", "train.lr=1e-3", "monitor=false"])
    {'train': {'steps': 100, 'lr': 0.001}, 'monitor': False}
    """
    found: dict[str, Any] = {}
    for name, value in map(setting, texts or ()):
        *path, last = name.split(".")
        table = found
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise SchemeError(f"--set {name}: '{part}' is a value, not a table")
        table[last] = value
    return found
