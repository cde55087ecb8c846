"""The same seed gives the same bits on one process, under DDP, and under FSDP2 on two gloo processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import wellcond as wc
from tests.cases import CASES
from tests.preloaded import run_ranks
from wellcond.testing import same_bits

WORKER = """
import os, sys, torch, torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
import wellcond as wc
from tests.cases import CASES

mode, case, scheme, out = sys.argv[1:]
dist.init_process_group("gloo")
model = CASES[case].model()
torch.manual_seed(dist.get_rank())          # ranks disagree about the global generator, on purpose
before = torch.random.get_rng_state()
if mode == "views-first":
    layers = wc.attention_layers(model)
    fully_shard(model)
    weights = wc.init_(model, scheme, seed=7)
    assert torch.equal(layers[0].query.read(), weights.layers[0].query.read())
elif mode == "fsdp":
    for layer in wc.attention_layers(model):
        fully_shard(layer.module)
    fully_shard(model)
    wc.init_(model, scheme, seed=7)
else:
    model = DistributedDataParallel(model)
    wc.init_(model, scheme, seed=7)
assert torch.equal(before, torch.random.get_rng_state())
whole = {
    name.removeprefix("module."): (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
    for name, value in model.named_parameters()
}
assert wc.audit(model, scheme).passed
print(wc.init_(model, scheme, seed=7))      # printing gathers too
save_file(whole, f"{out}/{dist.get_rank()}.safetensors")
dist.barrier()                              # no rank leaves while another still talks to it
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)                                 # gloo's threads now and then abort the interpreter's own shutdown
"""


@pytest.mark.parametrize(
    ("mode", "case", "scheme"),
    [
        ("ddp", "timm-vit", "conditioned"),
        ("fsdp", "timm-vit", "conditioned"),
        pytest.param("views-first", "hf-llama", "conditioned", marks=pytest.mark.long),
        pytest.param("fsdp", "hf-gpt2", "orthogonal", marks=pytest.mark.long),
        pytest.param("fsdp", "timm-vit", "mimetic", marks=pytest.mark.long),  # a law of two roles together
        ("fsdp", "hf-gpt2", "small_init"),  # biases to zero, and the MLP
    ],
)
def test_two_processes(mode: str, case: str, scheme: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root / 'src'}:{root}"}
    for done in run_ranks(WORKER, mode, case, scheme, str(tmp_path), cwd=tmp_path, env=environment):
        assert done.returncode == 0, done.stderr[-3000:]
    model = CASES[case].model()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # another number of threads than the workers, on purpose
    try:
        wc.init_(model, scheme, seed=7)
    finally:
        torch.set_num_threads(threads)
    for rank in (0, 1):
        stored = load_file(tmp_path / f"{rank}.safetensors")
        expected = dict(model.named_parameters())
        assert stored.keys() == expected.keys()
        for name, value in expected.items():
            assert same_bits(stored[name], value.detach()), (rank, name)
