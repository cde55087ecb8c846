"""A handle's state in one safetensors file: tensors as tensors, the rest as JSON in the header, and no pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from wellcond._core.argument_types import File
from wellcond._core.checked import checked
from wellcond._core.json_files import parse_json
from wellcond.checkpoint.safetensors_files import file_target, open_file, refuse_pickle, write_named
from wellcond.conditioning.handle import Conditioning
from wellcond.errors import CheckpointError

KEY = "wellcond"  # where the JSON is in the header
TENSOR = "$tensor"  # in the JSON, {TENSOR: name} stands for a tensor of the file
PLAIN = (str, int, float, bool, type(None))


@checked
def save_state(handle: Conditioning, path: File) -> None:
    """Write what a bit-exact continuation needs beside the model's and the optimizer's state.

    The file appears whole or not at all; for a sharded model every rank calls.

    Args:
        handle: what `wc.condition_` returned.
        path: ends in `.safetensors`; a file that exists is replaced.

    >>> import tempfile, torch, wellcond as wc
    >>> handle = wc.condition_(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), "polar")
    >>> other = wc.condition_(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), "polar")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_state(handle, f"{folder}/state.safetensors")
    ...     load_state_(other, f"{folder}/state.safetensors")
    >>> torch.equal(handle.model.self_attn.in_proj_weight, other.model.self_attn.in_proj_weight)
    True
    """
    write_state(handle.state_dict(), path)


@checked
def load_state_(handle: Conditioning, path: File) -> None:
    """Continue from a file of `save_state`, before or after the model's weights are loaded.

    Args:
        handle: conditions a model of the same kind in the same way, or nothing is changed.
        path: the file.
    """
    handle.load_state_dict(read_state(path))


def write_state(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write nested dictionaries of tensors and plain values."""
    tensors: dict[str, Tensor] = {}
    header = json.dumps(split_state(state, "", tensors))
    write_named(file_target(path), tensors.items(), {KEY: header})


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write_state` wrote."""
    refuse_pickle(Path(path))
    with ExitStack() as stack:
        file = open_file(Path(path), stack)
        try:
            state = parse_json((file.metadata() or {})[KEY], f"the header of '{path}'", error=CheckpointError)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dictionary)
            joined: dict[str, Any] = join_state(state, tensors)
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise CheckpointError(f"'{path}' is not the state of a conditioning ({error!r})") from error
    return joined


def split_state(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON has it, with its tensors put aside."""
    if isinstance(value, Tensor):
        if name in tensors:
            raise CheckpointError(f"two tensors of the state would both be called '{name}'")
        tensors[name] = value
        return {TENSOR: name}
    if isinstance(value, Mapping) and all(isinstance(key, str) and key != TENSOR for key in value):
        return {key: split_state(inner, f"{name}/{key}" if name else key, tensors) for key, inner in value.items()}
    if isinstance(value, list):
        return [split_state(inner, f"{name}/{index}", tensors) for index, inner in enumerate(value)]
    if type(value) in PLAIN:
        return value
    raise CheckpointError(f"'{name}' of the state is a {type(value).__name__}, which a file without pickle cannot hold")


def join_state(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return a value of `split_state` with its tensors back in place."""
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        return {key: join_state(inner, tensors) for key, inner in value.items()}
    if isinstance(value, list):
        return [join_state(inner, tensors) for inner in value]
    return value
