"""`balance_` and `calibrate_` under FSDP2 and DDP: on every process the weights that one process has on all batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.two_processes import weights_of_two_processes

WORKER = """
import os, sys, torch, torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
import wellcond as wc
from tests.scale.test_distributed import images, model_of

mode, case, out = sys.argv[1:]
dist.init_process_group("gloo")
model = model_of(case)
batch = images().chunk(2)[dist.get_rank()]

def whole():
    return {
        name.removeprefix("module."): (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in model.state_dict().items()  # which has shards where a failed pass has left copies
    }

def refuse(*_):
    raise ValueError("no further")

if mode == "ddp":
    model = DistributedDataParallel(model)
else:
    if mode == "layers":
        for layer in wc.attention_layers(model):
            fully_shard(layer.module)
    if mode == "kept":
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=False)
    fully_shard(model)
    model(batch)  # which leaves the root gathered
wc.balance_(model, batch if case == "plain" else None)
before = whole()
hook = model.get_submodule("module.head" if mode == "ddp" else "head").register_forward_pre_hook(refuse)
try:
    wc.calibrate_(model, batch)
except wc.errors.BatchError:
    hook.remove()
assert all(torch.equal(value, before[name]) for name, value in whole().items())
done = wc.calibrate_(model, batch, beta=0.4, branch=0.2)
assert not done.skipped
assert mode == "ddp" or all(isinstance(value, DTensor) for value in model.parameters())
after = whole()
done.undo_()
assert all(torch.equal(value, before[name]) for name, value in whole().items())
save_file(after, f"{out}/{dist.get_rank()}.safetensors")
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""


def model_of(case: str) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **sizes, qk_norm=case == "QK-norm").eval()


def images() -> Tensor:
    return torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("mode", "case"),
    [
        ("ddp", "plain"),
        ("layers", "plain"),
        pytest.param("root", "plain", marks=pytest.mark.long),
        pytest.param("layers", "QK-norm", marks=pytest.mark.long),
        ("kept", "QK-norm"),
    ],
)
def test_two_processes(mode: str, case: str, tmp_path: Path) -> None:
    first = weights_of_two_processes(WORKER, mode, case, folder=tmp_path)
    model = model_of(case)
    wc.balance_(model, images() if case == "plain" else None)
    wc.calibrate_(model, images(), beta=0.4, branch=0.2)
    for name, value in model.named_parameters():
        torch.testing.assert_close(first[name], value.detach(), rtol=1e-5, atol=1e-7)
