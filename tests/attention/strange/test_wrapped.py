"""Compiled, replicated and sharded models: the same views and numbers, or a refusal with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.attention.strange.cases import CASES
from tests.preloaded import run_ranks
from wellcond.errors import NoAttentionError

NAMES = ("cosine", "rotary, complex", "gated output", "grouped by reshape", "fused, head-major", "bank at the root")


def summary(model: nn.Module, name: str) -> list[tuple[object, ...]]:
    """Names, standings, weights and entropies."""
    batch = CASES[name].batch()
    try:
        layers = wc.attention_layers(model, batch)
    except NoAttentionError:
        return []
    found = wc.diagnose(model, batch, progress=False)
    return [
        (
            layer.name,
            layer.standing,
            *(round(float(p.read().abs().sum()), 9) for _, p in layer.projections()),
            *(round(head.entropy, 9) for head in record.heads if head.entropy is not None),
            *(round(j.condition.value, 5) for j in record.jacobian if j.condition.value is not None),
        )
        for layer, record in zip(layers, found.layers, strict=True)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_compiled(name: str) -> None:
    model = CASES[name].model()
    expected = summary(model, name)
    compiled = torch.compile(model, backend="eager")
    compiled(*CASES[name].batch())
    assert summary(compiled, name) == expected
    compiled(*CASES[name].batch())


def test_compiled_inside() -> None:
    model = CASES["cosine"].model()
    expected = summary(model, "cosine")
    for block in model:
        block.attention.compile(backend="eager")
    assert summary(model, "cosine") == expected


WORKER = """
import json, os, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from tests.attention.strange.cases import CASES
from tests.attention.strange.test_wrapped import summary
from wellcond.errors import WellcondError

mode, name = sys.argv[1:]
dist.init_process_group("gloo")
model = CASES[name].model()
if mode == "ddp":
    model = DistributedDataParallel(model)
else:
    for child in model.children():
        fully_shard(child)
    fully_shard(model)
try:
    found = summary(model, name)
except WellcondError as error:
    found = str(error)
print("FOUND " + json.dumps(found))
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["cosine", "fused, head-major"])
def test_distributed(mode: str, name: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    environment = {"PYTHONPATH": f"{root / 'src'}:{root}"}
    (done,) = run_ranks(WORKER, mode, name, cwd=tmp_path, env=environment, ranks=1)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    if isinstance(found, str):
        assert len(found.split()) > 3
    else:
        expected = [list(row) for row in summary(CASES[name].model(), name)]
        assert [row for row, same in zip(found, expected, strict=True) if row[1] == "verified" and row != same] == []
