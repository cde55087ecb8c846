"""Muon in two processes, wrapped by DDP or sharded by FSDP2, trains as one process does on the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import wellcond as wc
from tests.preloaded import run_ranks
from tests.training import batches, loss, vit

STEPS = 4
WORKER = """
import os, sys, torch, torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
import wellcond as wc
from tests.training import batches, loss, vit

mode, out = sys.argv[1:]
dist.init_process_group("gloo")
model = vit(torch.float64)
given = list(batches(model, torch.float64, 4))
if mode == "fsdp":
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = wc.optim.Muon(model, lr=0.02, per_head=True, ns_dtype=torch.float64)
rank = dist.get_rank()
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


@pytest.mark.parametrize("mode", ["fsdp", pytest.param("ddp", marks=pytest.mark.long)])
def test_two_processes_train_as_one(mode: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root / 'src'}:{root}"}
    for done in run_ranks(WORKER, mode, str(tmp_path), cwd=tmp_path, env=environment):
        assert done.returncode == 0, done.stderr[-3000:]
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    model = vit(torch.float64)
    optimizer = wc.optim.Muon(model, lr=0.02, per_head=True, ns_dtype=torch.float64)
    for batch in batches(model, torch.float64, STEPS):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(first[name], value.detach(), rtol=1e-7, atol=1e-9)
