"""`wc.control_` in two processes, under DDP and FSDP2: both act alike, as one process on the whole batch does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import wellcond as wc
from tests.control.test_control import sharp_vit
from tests.preloaded import run_ranks
from tests.training import batches, loss

WORKER = """
import os, sys, torch, torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
import wellcond as wc
from tests.control.test_control import sharp_vit
from tests.training import batches, loss

mode, out = sys.argv[1:]
dist.init_process_group("gloo")
model, rank = sharp_vit(), dist.get_rank()
given = list(batches(model, torch.float64, 4))
if mode == "fsdp":
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
control = wc.control_(model, optimizer, beta=(1e-9, 0.05), kappa=3.0, balance=1.5, every=2, examples=4, alarms=False)
for images, labels in given:
    optimizer.zero_grad()
    loss(model, (images[4 * rank : 4 * rank + 4], labels[4 * rank : 4 * rank + 4])).backward()
    optimizer.step()
assert {record.part for record in control.log if record.acted} >= {"sharpness", "spectrum"}, control.log
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


@pytest.mark.long
@pytest.mark.parametrize("mode", ["fsdp", "ddp"])
def test_two_processes_act_as_one(mode: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root / 'src'}:{root}"}
    for done in run_ranks(WORKER, mode, str(tmp_path), cwd=tmp_path, env=environment):
        assert done.returncode == 0, done.stderr[-3000:]
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    model = sharp_vit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wc.control_(model, optimizer, beta=(1e-9, 0.05), kappa=3.0, balance=1.5, every=2, examples=8, alarms=False)
    for batch in batches(model, torch.float64, 4):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(first[name], value.detach(), rtol=1e-6, atol=1e-8)
