"""`init_to_files`: initialise a model that does not fit in memory, block by block, into safetensors shards."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wellcond._core.argument_types import Folder
from wellcond._core.atomic import replacing
from wellcond._core.checked import checked
from wellcond._core.file_names import check_path
from wellcond._core.keyed_random import neutral
from wellcond._core.progress import bar
from wellcond.attention.layers import LayerFilter
from wellcond.attention.paths import unwrap
from wellcond.attention.storage import assign_, fetch, split_path
from wellcond.checkpoint.safetensors_files import INDEX, refuse_pickle, write_named
from wellcond.errors import CheckpointError, SchemeError, WellcondError
from wellcond.init.api import plan
from wellcond.init.compose import SchemeLike
from wellcond.init.model_defaults import INSTEAD, check_repeatable, initialise_part
from wellcond.init.plan import Plan, check_parameter
from wellcond.init.scheme import OnInapplicable
from wellcond.init.shards import Shard, check_set, cut, materialised


@checked
def init_to_files(
    build: Callable[[], nn.Module],
    scheme: SchemeLike,
    directory: Folder,
    seed: int = 0,
    *,
    layers: LayerFilter = None,
    on_inapplicable: OnInapplicable = "error",
    **options: Any,
) -> Plan:
    """Initialise a model block by block into safetensors shards; at no time is more than one block in memory.

    The model is built on the meta device. Each block gets the model's own initialisation, keyed by
    `(seed, block, module)`, then the scheme's weights, the same bits as `init_` writes, and is written to
    `model-00001-of-000NN.safetensors` with an index and, where the model has one, `config.json`, so that
    `from_pretrained(directory)` and `load_weights_` read it. The directory appears when all is done, or never.

    Args:
        build: makes the model; called once, under `torch.device("meta")`.
        scheme: as in `init_`.
        directory: where to write; absent or empty.
        seed: of the scheme and of the model's own initialisation.
        layers: as in `init_`.
        on_inapplicable: as in `init_`.
        options: the scheme's own.

    >>> import tempfile, torch, wellcond as wc
    >>> build = lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plan = wc.init_to_files(build, "conditioned", f"{folder}/out", seed=0)
    ...     wc.load_weights_(model := build(), f"{folder}/out")
    >>> wc.audit(model, "conditioned").passed
    True
    """
    target = directory_target(directory)
    model = _on_meta(build)
    made = plan(model, scheme, seed=seed, layers=layers, on_inapplicable=on_inapplicable, **options)
    if made.scheme.runs_model:
        raise SchemeError(f"'{made.scheme}' runs the model, which files block by block do not allow: use wc.init_")
    check_repeatable(model)
    shards = cut(model)
    with replacing(target, CheckpointError, durable=True) as folder:
        folder.mkdir()
        total, weight_map = 0, {}
        for number, shard in enumerate(bar(shards, "writing", unit="shard"), start=1):
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            with materialised(shard) as versions:
                initialise_part(model, {split_path(name)[0] for name in versions}, made.seed, shard.name)
                _write_scheme(made, shard, model)
                check_set(shard, versions)
                total += write_named(folder / file, ((item.name, item.effective) for item in shard.items))
            weight_map.update({item.name: file for item in shard.items})
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        _write_config(model, folder)
    made.written_to = target
    return made


def directory_target(path: str | os.PathLike[str]) -> Path:
    """Check that a directory of weights can be written at a path."""
    target = check_path(path, CheckpointError)
    refuse_pickle(target)
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"'{target}' is a file; give the name of a new directory")
    if target.is_dir() and any(target.iterdir()):
        raise CheckpointError(f"'{target}' is not empty; give a new directory, or remove that one first")
    if not target.absolute().parent.is_dir():
        raise CheckpointError(f"there is no directory '{target.parent}' to make '{target.name}' in; make it first")
    return target


def _on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    try:
        with torch.device("meta"):
            model = build()
    except WellcondError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"the model cannot be built on the meta device ({reason}). {INSTEAD}") from error
    if not isinstance(model, nn.Module):
        raise CheckpointError(f"build() returns a torch.nn.Module, got {type(model).__name__}")
    return unwrap(model)


@neutral()
def _write_scheme(made: Plan, shard: Shard, model: nn.Module) -> None:
    """Draw and write the part of a plan that lies in a shard."""
    names = shard.names
    part = replace(made, assignments=[a for a in made.assignments if a.projections[0].weight.path in names])
    for path, value in part.parameters(names):
        check_parameter(model, path, value)
        assign_(fetch(model, path), value)
    for projection, weight in part.values():
        projection.write_(weight)


def _write_config(model: nn.Module, folder: Path) -> None:
    """Write what transformers' `from_pretrained` reads beside the weights."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config = copy.deepcopy(config)
        config.architectures = [type(model).__name__]
        config.dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        config.save_pretrained(folder)
