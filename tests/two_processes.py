"""A small ViT trained in two real processes, wrapped by DDP or sharded by FSDP2, and the same in one."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.preloaded import run_ranks
from tests.training import batches, loss

WORKER = """
import importlib, os, sys, torch, torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from tests.training import batches, loss

test, mode, out = importlib.import_module(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo")
model, rank = test.start(), dist.get_rank()
given = list(batches(model, torch.float64, 4))
if mode == "fsdp":
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = test.optimizer_of(model)
for images, labels in given:
    optimizer.zero_grad()
    loss(model, (images[4 * rank : 4 * rank + 4], labels[4 * rank : 4 * rank + 4])).backward()
    optimizer.step()
whole = {
    name.removeprefix("module."): (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
    for name, value in model.named_parameters()
}
save_file(whole, f"{out}/{rank}.safetensors")
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""


def weights_of_two_processes(worker: str, *arguments: str, folder: Path) -> dict[str, Tensor]:
    """The weights that two processes write to a folder, their last argument, which are the same to the bit."""
    root = Path(__file__).parents[1]
    environment = {"PYTHONPATH": f"{root / 'src'}:{root}"}
    for done in run_ranks(worker, *arguments, str(folder), cwd=folder, env=environment):
        assert done.returncode == 0, done.stderr[-3000:]
    first, second = (load_file(folder / f"{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    return first


def check_two_processes_train_as_one(test: str, mode: str, folder: Path) -> None:
    """Train `start()` of a test's module by its `optimizer_of(model)`, and compare the last weights."""
    first = weights_of_two_processes(WORKER, test, mode, folder=folder)
    module = importlib.import_module(test)
    model = module.start()
    optimizer = module.optimizer_of(model)
    for batch in batches(model, torch.float64, 4):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(first[name], value.detach(), rtol=1e-6, atol=1e-8)
