"""Several processes: which of them this is, and one model over all of them, sharded block by block."""

from __future__ import annotations

import os

import torch
from accelerate import PartialState
from torch import nn

import wellcond as wc
from wellcond.errors import WellcondError

ALONE = "sharding = 'fsdp2' needs several processes: torchrun --nproc-per-node N -m wellcond …"


def first_process() -> bool:
    """Whether this process writes: the only one, or the first of those that torchrun or accelerate started."""
    return int(os.environ.get("RANK", "0")) == 0


def processes() -> int:
    """How many torchrun or accelerate started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_all() -> None:
    """Until every process is here, if there are several: the first has claimed the folder that the others write in."""
    if processes() > 1:
        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


def shard_(model: nn.Module) -> None:
    """Shard a model's parameters over all processes (FSDP2), each block on its own.

    Accelerate's own FSDP2 refuses processors; torch's `fully_shard`, which it calls, takes them.
    """
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    if not distributed.is_initialized():
        raise WellcondError(ALONE)
    for name in blocks(model):
        fully_shard(model.get_submodule(name))
    fully_shard(model)


def blocks(model: nn.Module) -> list[str]:
    """Names of the modules that repeat and hold attention, the innermost of each.

    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> blocks(nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)))
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
