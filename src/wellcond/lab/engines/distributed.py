"""Processes that torchrun started: which of them this is, and one model sharded over them block by block."""

from __future__ import annotations

import os

import torch
from accelerate import PartialState
from torch import nn

import wellcond as wc
from wellcond.errors import WellcondError

NEEDS_TORCHRUN = "sharding = 'fsdp2' needs several processes: torchrun --nproc-per-node N -m wellcond …"


def first_process() -> bool:
    """Return whether this process writes: the only one, or the first of those that torchrun or accelerate started."""
    return int(os.environ.get("RANK", "0")) == 0


def processes() -> int:
    """Return how many processes torchrun or accelerate started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_all() -> None:
    """Wait until every process is here, if there are several: the first reserves the folder for all."""
    if processes() > 1:
        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


def shard_(model: nn.Module) -> None:
    """Shard a model's parameters over all processes (FSDP2), each block on its own.

    Accelerate's own FSDP2 refuses processors; torch's `fully_shard`, which it calls, takes them.
    """
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    if not distributed.is_initialized():
        raise WellcondError(NEEDS_TORCHRUN)
    for name in attention_blocks(model):
        fully_shard(model.get_submodule(name))
    fully_shard(model)


def attention_blocks(model: nn.Module) -> list[str]:
    """Return the names of the modules that repeat and hold attention, the innermost of each.

    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> attention_blocks(nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)))
    ['1.layers.0', '1.layers.1']
    """
    lists = {name for name, module in model.named_modules() if isinstance(module, (nn.ModuleList, nn.Sequential))}
    found: dict[str, None] = {}
    for layer in wc.attention_layers(model):
        path = layer.name.split(".")
        for length in range(len(path), 0, -1):
            if ".".join(path[: length - 1]) in lists:
                found[".".join(path[:length])] = None
                break
    return list(found)
