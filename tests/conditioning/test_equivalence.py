"""Folded, live and the paper's literal W + C are one training run: compared by the weights that are used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import wellcond as wc
from tests.preloaded import run_ranks
from tests.training import MODELS, distance, effective, literal, optimizer_of, train

pytestmark = pytest.mark.filterwarnings("ignore:attention starts one-hot", "ignore:Theorem 3.8 promises")
ROOT = Path(__file__).parents[2]


def perturbed(model: nn.Module, seed: int) -> nn.Module:
    """Every parameter moved by one unit in its last place, up or down."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            up = torch.randint(2, parameter.shape, generator=generator).bool()
            target = torch.where(up, torch.inf, -torch.inf).to(parameter.dtype)
            parameter.copy_(torch.nextafter(parameter, target))
    return model


def run(
    name: str, how: str, strength: float, steps: int, *, optimizer: str = "adamw", dtype=torch.float64, seed: int = 0
) -> dict[str, Tensor]:
    model = MODELS[name](dtype)
    if seed:
        perturbed(model, seed)
    if how == "literal":
        stepped = optimizer_of(optimizer, literal(model, strength))
    else:
        handle = wc.condition_(model, "shift", strength=strength, mode=how)
        stepped = optimizer_of(optimizer, model)
        handle.attach(stepped)
    train(model, stepped, steps)
    return effective(model)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("optimizer", "strength", "steps"),
    [
        pytest.param("adamw", 1, 300, marks=pytest.mark.long),
        ("adamw", 1, 100),
        pytest.param("adamw", 2, 300, marks=pytest.mark.long),
        pytest.param("adam", 2, 300, marks=pytest.mark.long),
        pytest.param("nesterov", 2, 300, marks=pytest.mark.long),
        ("adamw", 10, 20),
        ("adam", 10, 20),
        ("nesterov", 10, 20),
    ],
)
def test_float64(name: str, optimizer: str, strength: float, steps: int) -> None:
    reference = run(name, "literal", strength, steps, optimizer=optimizer)
    for how in ("live", "folded"):
        assert distance(run(name, how, strength, steps, optimizer=optimizer), reference) < 1e-10, how


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("steps", [60, pytest.param(300, marks=pytest.mark.long)])
def test_float32_strength_1(name: str, steps: int) -> None:
    reference = run(name, "literal", 1, steps, dtype=torch.float32)
    for how in ("live", "folded"):
        assert distance(run(name, how, 1, steps, dtype=torch.float32), reference) < 1e-4, how


def spread(name: str, strength: float, dtype: torch.dtype) -> tuple[dict[str, Tensor], float]:
    """A live run, and the largest distance to it among five that start one unit in the last place away."""
    live = run(name, "live", strength, 300, dtype=dtype)
    others = [run(name, "live", strength, 300, dtype=dtype, seed=seed) for seed in range(1, 6)]
    return live, max(distance(other, live) for other in others)


@pytest.mark.long
@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_float32_strength_2_is_as_close_as_rounding_allows(name: str) -> None:
    live, rounding = spread(name, 2, torch.float32)
    for how in ("literal", "folded"):
        assert distance(run(name, how, 2, 300, dtype=torch.float32), live) <= 3 * rounding, how


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_strength_10_diverges_no_faster_than_two_live_runs(name: str) -> None:
    """At λ = 10 the dynamics itself is chaotic."""
    live, rounding = spread(name, 10, torch.float64)
    for how in ("literal", "folded"):
        assert distance(run(name, how, 10, 300), live) <= 2 * rounding, how


@pytest.mark.parametrize("strength", [1, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_folded_and_live_are_the_same_bits(name: str, dtype: torch.dtype, strength: float) -> None:
    """So neither chaos nor rounding tells them apart; only the literal reference sums gradients in another order."""
    folded = run(name, "folded", strength, 30, dtype=dtype)
    assert distance(folded, run(name, "live", strength, 30, dtype=dtype)) == 0


def test_without_attach_the_decay_pulls_elsewhere() -> None:
    model = MODELS["vit"](torch.float64)
    wc.condition_(model, "shift", strength=2)
    optimizer = optimizer_of("adamw", model)
    with pytest.warns(UserWarning, match="attach"):
        train(model, optimizer, 20)
    assert distance(effective(model), run("vit", "literal", 2, 20)) > 1e-4


WORKER = """
import os, sys, warnings, torch, torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
import wellcond as wc
from tests.training import MODELS, effective, optimizer_of, train

warnings.simplefilter("ignore")
name, how, order, optimizer_name, steps, out = sys.argv[1:]
dist.init_process_group("gloo")
model = MODELS[name](torch.float64)

def shard():
    for layer in wc.attention_layers(model):
        fully_shard(layer.module)
    fully_shard(model)

method, mode = ("polar", "live") if how == "polar" else ("shift", how)
strength = {"polar": None}.get(how, 2)
if order == "after":
    shard()
handle = wc.condition_(model, method, strength=strength, mode=mode)
if order == "before":
    shard()
optimizer = optimizer_of(optimizer_name, model)
handle.attach(optimizer)
half = slice(0, 4) if dist.get_rank() == 0 else slice(4, 8)
train(model, optimizer, int(steps), half)
whole = lambda value: value.full_tensor() if isinstance(value, DTensor) else value
used = {name: value.contiguous() for name, value in effective(model).items()}
saved = {name: whole(value).detach().contiguous().clone() for name, value in model.state_dict().items()}
state = handle.state_dict()
if mode == "live":
    handle.load_state_dict(state)
assert "layers" in str(handle.summary())
save_file(used, f"{out}/used{dist.get_rank()}.safetensors")
save_file(saved, f"{out}/saved{dist.get_rank()}.safetensors")
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""


SHARDED = [
    ("vit", "folded", "before", "adamw"),
    pytest.param("gpt2", "folded", "after", "nesterov", marks=pytest.mark.long),
    pytest.param("vit", "live", "after", "adamw", marks=pytest.mark.long),
    pytest.param("gpt2", "live", "before", "adam", marks=pytest.mark.long),
    pytest.param("vit", "polar", "before", "adamw", marks=pytest.mark.long),
]


@pytest.mark.parametrize("steps", [40, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize(("name", "how", "order", "optimizer"), SHARDED)
def test_fsdp2_on_two_processes(name: str, how: str, order: str, optimizer: str, steps: int, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    arguments = (name, how, order, optimizer, str(steps), str(tmp_path))
    for done in run_ranks(WORKER, *arguments, cwd=tmp_path, env=environment):
        assert done.returncode == 0, done.stderr[-3000:]
    if how == "polar":
        model = MODELS[name](torch.float64)
        wc.condition_(model, "polar")
        train(model, optimizer_of(optimizer, model), steps)
        reference = effective(model)
    else:
        reference = run(name, "literal", 2, steps, optimizer=optimizer)
    for rank in (0, 1):
        used = load_file(tmp_path / f"used{rank}.safetensors")
        assert distance(used, reference) < 1e-10
        saved = load_file(tmp_path / f"saved{rank}.safetensors")
        plain = MODELS[name](torch.float64)
        plain.load_state_dict(saved)
        assert distance(effective(plain), reference) < 1e-10
