"""`balance_` under FSDP2 and `calibrate_` under DDP: the same weights on every process; a sharded model is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import wellcond as wc
from tests.cases import CASES
from tests.preloaded import run_ranks

WORKER = """
import os, sys, torch, torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
import wellcond as wc
from tests.cases import CASES

mode, out = sys.argv[1:]
dist.init_process_group("gloo")
model = CASES["timm-vit"].model().eval()
batch = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
if mode == "fsdp":
    for layer in wc.attention_layers(model):
        fully_shard(layer.module)
    fully_shard(model)
    assert len(wc.balance_(model).heads) == 12
    try:
        wc.calibrate_(model, batch)
    except wc.errors.WeightError as error:
        assert "first, then fully_shard" in str(error)
    else:
        raise AssertionError("a sharded model was calibrated")
else:
    model = DistributedDataParallel(model)
    wc.calibrate_(model, batch, beta=0.4, branch=0.2)
whole = {
    name.removeprefix("module."): (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
    for name, value in model.named_parameters()
}
save_file(whole, f"{out}/{dist.get_rank()}.safetensors")
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("mode", ["fsdp", "ddp"])
def test_two_processes(mode: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root / 'src'}:{root}"}
    for done in run_ranks(WORKER, mode, str(tmp_path), cwd=tmp_path, env=environment):
        assert done.returncode == 0, done.stderr[-3000:]
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    model = CASES["timm-vit"].model().eval()
    before = {name: value.clone() for name, value in model.named_parameters()}
    assert any(not torch.equal(first[name], value) for name, value in before.items())
    if mode == "fsdp":
        wc.balance_(model)
        for name, value in model.named_parameters():
            torch.testing.assert_close(first[name], value.detach(), rtol=1e-5, atol=1e-7)
