"""One run over several processes, replicated or sharded; and what is read ahead by others."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.commands import wait_until
from tests.laboratory import TINY, in_two_processes, losses, metrics, prepared, quiet, write
from tests.preloaded import WELLCOND, run_ranks, start
from wellcond.errors import WellcondError
from wellcond.lab.api import compare_recipe
from wellcond.lab.comparison import run_all
from wellcond.lab.engines.distributed import attention_blocks
from wellcond.lab.engines.engine import Engine
from wellcond.lab.models import lab_model
from wellcond.lab.recipe.recipe import load_recipe, parse_recipe
from wellcond.lab.recipe.settings import Training
from wellcond.lab.tasks import task
from wellcond.lab.tasks.base import Task
from wellcond.lab.training.batches import Batches
from wellcond.lab.training.evaluate import EvaluationParts, evaluate
from wellcond.lab.training.optimize import optimizer_for

# Each process draws its own dropout, so there is none; "shift 1" has folded weights, which shards must follow.
PLAIN = TINY.replace("dropout = 0.1", "dropout = 0.0").replace("steps = 40", "steps = 50")
PLAIN = PLAIN.replace("depth = 1", "depth = 2").replace(
    PLAIN[PLAIN.index("[arms.conditioned]") : PLAIN.index('[arms."shift')], ""
)


def accuracies(out: Path) -> list[list[float]]:
    return [[line["accuracy"] for line in map(json.loads, text.splitlines()) if line["kind"] == "test"]
            for _, text in sorted(metrics(out).items())]  # fmt: skip


def of_dtype(dtype: str) -> str:
    return PLAIN.replace("steps = 50", f'steps = 50\ndtype = "{dtype}"')


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The runs of one process in a dtype, which are made once."""

    @cache
    def run(dtype: str) -> Path:
        folder = tmp_path_factory.mktemp(dtype)
        run_all(prepared(write(folder, of_dtype(dtype)), folder / "out", seeds=(0,)), quiet)
        return folder / "out"

    return run


@pytest.mark.parametrize(
    ("sharding", "dtype", "tolerance"),
    [
        ("none", "float32", 1e-4),
        ("fsdp2", "float32", 1e-4),
        pytest.param("fsdp2", "float64", 1e-10, marks=pytest.mark.long),
        pytest.param("none", "float64", 1e-10, marks=pytest.mark.long),
    ],
)
def test_two_processes_have_the_loss_curve_of_one(
    sharding: str, dtype: str, tolerance: float, one_process: Callable[[str], Path], tmp_path: Path
) -> None:
    """Half of the batch each, over gloo. In float64 sums in another order differ by 1e-16, amplified by 50 steps."""
    one, two = one_process(dtype), tmp_path / "two"
    path = write(tmp_path, of_dtype(dtype).replace("steps = 50", f'steps = 50\nsharding = "{sharding}"'))
    if sharding == "none":
        in_two_processes(path, two, "--seeds", "1")  # started by torchrun itself
    else:
        for rank in run_ranks(WELLCOND, "compare", str(path), "--out", str(two), "--seeds", "1", cwd=tmp_path):
            assert rank.returncode == 0, rank.stderr[-3000:]
    assert [len(curve) for curve in losses(one)] == [10, 10]
    for alone, together in zip(losses(one), losses(two), strict=True):
        assert alone == pytest.approx(together, abs=tolerance)
    # 360 examples in two parts, one for each process: an argmax may go the other way where two are equal to rounding.
    for alone, together in zip(accuracies(one), accuracies(two), strict=True):
        assert len(alone) == 3
        assert alone == pytest.approx(together, abs=1.5 / 360 if dtype == "float32" else 0)


@pytest.mark.long
def test_a_sharded_run_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN.replace("steps = 50", 'steps = 50\nsharding = "fsdp2"'))
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    in_two_processes(path, whole, "--seeds", "1")
    lines = sum(text.count("\n") for text in metrics(whole).values())
    in_two_processes(
        path, resumed, "--seeds", "1", kill_after=lines - 4
    )  # in the conditioned run, with its folded state
    in_two_processes(path, resumed, "--seeds", "1")
    assert metrics(resumed) == metrics(whole)


def test_sharding_takes_the_blocks_one_by_one() -> None:
    options = {"depths": (2, 1), "num_heads": (1, 2), "embed_dim": 8, "patch_size": 1, "window_size": 4}
    model = lab_model("timm:swin_tiny_patch4_window7_224", options, task("digits"), 0)
    assert attention_blocks(model) == ["layers.0.blocks.0", "layers.0.blocks.1", "layers.1.blocks.0"]


def test_sharding_one_process_is_refused(tmp_path: Path) -> None:
    text = PLAIN.replace("steps = 50", 'steps = 50\nsharding = "fsdp2"')
    with pytest.raises(WellcondError, match="torchrun --nproc-per-node"):
        prepared(write(tmp_path, text), tmp_path / "out")


def test_a_batch_smaller_than_its_parts_is_refused(tmp_path: Path) -> None:
    text = PLAIN.replace("batch = 16", "batch = 3\naccumulate = 4")
    with pytest.raises(WellcondError, match="a batch of 3 cannot be divided into 4 parts"):
        prepared(write(tmp_path, text), tmp_path / "out")


@pytest.mark.parametrize(("batch", "accumulate", "processes"), [(5, 1, 2), (7, 2, 3), (16, 3, 1)])
def test_every_example_counts_alike_however_the_batch_is_divided(batch: int, accumulate: int, processes: int) -> None:
    """The share of a part is that of each of its examples: what processes average is the mean over the batch."""
    recipe = parse_recipe(PLAIN.replace("batch = 16", f"batch = {batch}\naccumulate = {accumulate}"), "plain.toml")
    shares = [
        share / len(part) / processes
        for process in range(processes)
        for part, share in Batches(recipe, task("digits"), 0, process, processes)[0]
    ]
    assert shares == pytest.approx([1 / batch] * len(shares))


@pytest.mark.parametrize("augment", ["", "[augment]\nflip = 0.5\nmixup = 0.2\nerasing = 0.5\nrepeats = 2\n"])
def test_what_is_read_ahead_is_the_same(augment: str, tmp_path: Path) -> None:
    text = PLAIN.replace("[monitor]", f"{augment}[monitor]").replace("steps = 50", "steps = 20")
    here, ahead = tmp_path / "here", tmp_path / "ahead"
    run_all(prepared(write(tmp_path, text), here, seeds=(0,)), quiet)
    run_all(prepared(write(tmp_path, text), ahead, seeds=(0,), train={"workers": 2}), quiet)
    assert metrics(here) == metrics(ahead)


def test_batches_do_not_draw_from_the_global_generator() -> None:
    recipe = parse_recipe(PLAIN, "plain.toml")
    batches = Batches(recipe, task("digits"), seed=0)
    before = torch.get_rng_state()
    next(batches.since(3))
    assert torch.equal(torch.get_rng_state(), before)


class FakeProcess:
    """One of several processes: what they gather is what all of them found so far, so the last one has everything."""

    device = torch.device("cpu")

    def __init__(self, index: int, count: int) -> None:
        self.process_index, self.num_processes = index, count

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_test_is_the_same_by_however_many_processes_it_is_made(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 12 parts: each example once, and as many forwards in every process, which wait for each other."""
    digits = task("digits")
    settings = Training(batch=32)
    monkeypatch.setattr("wellcond.lab.training.evaluate.MAX_PART_EXAMPLES", 32)
    model = lab_model("vit", {"width": 16, "depth": 1, "heads": 2, "patch": 4}, digits, seed=0)
    calls: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    alone = evaluate(model, digits, settings, FakeProcess(0, 1))
    assert calls == [32] * 11 + [8]
    with torch.no_grad():
        every = digits.test[torch.arange(len(digits.test))]
        right = (model.eval()(every.inputs).argmax(-1) == every.targets).sum()
    assert alone == {"accuracy": float(right) / 360}
    found: list[object] = []
    monkeypatch.setattr("wellcond.lab.training.evaluate.gather_object", lambda own: found.extend(own) or found)
    for index in range(count):
        calls.clear()
        together = evaluate(model, digits, settings, FakeProcess(index, count))
        assert len(calls) == -(-12 // count)
    assert together == alone
    assert len(found) == 12


def test_parts_of_a_test_are_as_large_as_fits() -> None:
    """256; fewer of a detector's images and of a large vocabulary, but no fewer than training takes at a time."""
    digits = task("digits")
    gpt2 = replace(digits, kind="causal-text", metric="perplexity", shape={"tokens": 512, "vocabulary": 50_257})
    small = replace(gpt2, shape={"tokens": 64, "vocabulary": 260})

    def size(of: Task, batch: int, accumulate: int = 1) -> int:
        return EvaluationParts.of(of, Training(batch=batch, accumulate=accumulate)).size

    assert [size(digits, 32), size(digits, 4096), size(digits, 64, 8)] == [256, 256, 256]
    assert [size(gpt2, 1280, 16), size(gpt2, 8), size(gpt2, 1), size(gpt2, 1280)] == [80, 8, 2, 256]
    assert size(small, 16) == 256
    assert [size(task("shapes"), 8), size(task("shapes"), 8, 8)] == [8, 1]


HOLD = "import sys, time; from pathlib import Path; from wellcond.lab.engines.engine import locked_folder\n"
HOLD += "with locked_folder(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"


def test_two_commands_do_not_write_into_one_folder_and_a_killed_one_lets_it_go(tmp_path: Path) -> None:
    recipe = load_recipe(str(write(tmp_path)), train={"steps": 2}, seeds=[0])
    compare_recipe(recipe, tmp_path / "out", Engine())
    other = start(HOLD, str(tmp_path / "out"), cwd=tmp_path)
    try:
        wait_until(other.stdout.read_text)
        assert other.stdout.read_text() == "held\n"
        assert other.alive()
        with pytest.raises(WellcondError, match="another command is at work in"):
            compare_recipe(recipe, tmp_path / "out", Engine())
    finally:  # a test that fails must not wait for it
        other.kill()
        other.wait()
    compare_recipe(recipe, tmp_path / "out", Engine())


def test_what_the_recipe_names_does_not_decay() -> None:
    model = lab_model("vit", {"width": 16, "depth": 1, "heads": 2, "patch": 4}, task("digits"), seed=0)
    decaying = {
        names: {id(p) for p in optimizer_for(model, 1e-3, Training(undecayed=names)).param_groups[0]["params"]}
        for names in ((), ("pos_embed", "cls_token"))
    }
    own = {id(p): name for name, p in model.named_parameters()}
    assert {own[p] for p in decaying[()] - decaying["pos_embed", "cls_token"]} == {"pos_embed", "cls_token"}
    assert all(model.get_parameter(own[p]).dim() > 1 for p in decaying[()])
