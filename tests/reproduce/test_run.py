"""Tables of the papers made again: the list, what it costs, the same code in small, ours beside theirs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.preloaded import WELLCOND, start
from wellcond.cli.main import app
from wellcond.errors import WellcondError
from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.engines.engine import Engine
from wellcond.lab.recipe.recipe import load_recipe
from wellcond.lab.tasks import task
from wellcond.reproduce.catalogue import items, published_recipes
from wellcond.reproduce.cost import cost_of
from wellcond.reproduce.fake_data.writers import write_fake_data
from wellcond.reproduce.provenance import Provenance, read_provenance
from wellcond.reproduce.published_numbers import numbers_text, published_numbers
from wellcond.reproduce.published_recipe import PublishedRow, needed_folders, published_names, tasks_of
from wellcond.reproduce.run import reproduce

# Each of another kind: timm's families, transformers, our own, one stage or several, every way to condition.
SAMPLE = [
    "ci-vit-t-cifar10", "ci-xcit-m-imagenet", "ci-davit-b-imagenet", "sc-swin-b-imagenet", "ci-vit-t-selected",
    "ci-nystromformer-listops", "sc-nystromformer-retrieval", "ci-gpt2-472m-a-tinystories", "sc-nystromformer-text",
    "ci-xcit-s-coco",
]  # fmt: skip


def run_in_small(name: str, folder: Path) -> None:
    entry = published_recipes()[name]
    row = entry.published.rows[0]
    said: list[str] = []
    found = reproduce(row.where, folder, Engine(), only=name, smoke=True, say=said.append)
    assert said
    arms = set(entry.recipe.arms)
    for each in found:
        if each.arm in arms:
            assert len(each.ours) == 1, f"{each} did not finish"
    ended = [json.loads(path.read_text()) for path in folder.rglob("run.json")]
    assert ended
    assert {run["status"] for run in ended} == {"finished"}, [run["error"] for run in ended]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_recipe_runs_in_small_on_fake_data(name: str, tmp_path: Path) -> None:
    run_in_small(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in published_names() if name not in SAMPLE])
def test_every_recipe_runs_in_small_on_fake_data(name: str, tmp_path: Path) -> None:
    run_in_small(name, tmp_path)


def test_a_figure_is_drawn_and_its_runs_are_compared(tmp_path: Path) -> None:
    arguments = ["reproduce", "sc-figure17", "--smoke", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    drawn = {path.stem for path in (tmp_path / "sc-nystromformer-listops" / "runs" / "figures").glob("*.png")}
    assert drawn >= {"weights", "jacobian", "loss", "test", "reaching"}
    assert "arm" in done.stdout  # nothing was published as a number, so the comparison's own table is shown
    assert done.stdout.index("κ_eq(J)") < done.stdout.index("κ(J)")
    drawn_numbers = (tmp_path / "sc-nystromformer-listops" / "runs" / "figures" / "figures.json").read_text()
    assert '"kappa_equilibrated_at_least"' in drawn_numbers
    began = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl"))
    again = CliRunner().invoke(app, [*arguments[:1], "sc-table3", "--only", "listops", *arguments[2:]])
    assert again.exit_code == 0, again.output
    assert "sc-nystromformer-listops: all runs are done" in again.stdout
    assert "37.8 ± 0.23" in again.stdout  # the same runs serve the table, and nothing is trained again
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")) == began


def test_the_list_has_every_table_and_figure() -> None:
    done = CliRunner().invoke(app, ["reproduce", "--list"])
    assert done.exit_code == 0, done.output
    assert sum(line.startswith(("ci-table", "sc-table")) for line in done.stdout.splitlines()) == 25
    assert sum(line.startswith(("ci-figure", "sc-figure")) for line in done.stdout.splitlines()) == 28
    assert max(map(len, done.stdout.splitlines())) <= 110
    data = json.loads(CliRunner().invoke(app, ["reproduce", "--list", "--json"]).stdout)
    assert {item["id"] for item in data} == set(items())
    (one,) = json.loads(
        CliRunner().invoke(app, ["reproduce", "ci-table2", "--list", "--only", "pets", "--json"]).stdout
    )
    assert one["id"] == "ci-table2"
    assert [recipe["name"] for recipe in one["recipes"]] == ["ci-vit-t-pets"]


def test_a_table_says_what_is_published_and_what_is_not_confirmed() -> None:
    said = CliRunner().invoke(app, ["reproduce", "ci-table2", "--list"]).stdout
    assert "CIFAR-10   conditioned  94.1" in said
    assert "arms.mimetic: coefficients are not said" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ci-tabel2"], "the closest is ci-table2"),
        (["ci-table2", "--only", "svhn"], "ci-table2 has no 'svhn'; there is cifar10/vit-t"),
        (["ci-table2", "--only", "cifar10"], "needs data: --data DIR with cifar10 in it, or --smoke"),
        (["ci-table2", "--only", "cifar10", "--data", "nowhere"], "nowhere/cifar10"),
        (["sc-figure1"], "has nothing to train"),
        (["sc-table9", "--only", "x"], "sc-table9 has no 'x'; there is nothing: it is computed"),
        (["--list", "--only", "cifar10"], "give the table's id, too"),
        (["ci-table2", "--list", "--only", "svhn"], "ci-table2 has no 'svhn'"),
    ],
)
def test_what_cannot_be_made_again_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_is_trained_before_the_data_of_all_recipes_are_there(tmp_path: Path) -> None:
    write_fake_data("cifar10", tmp_path / "data" / "cifar10", {})
    arguments = ["reproduce", "ci-table2", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--set", "model.depth=1", "--set", "train.steps=1"])
    assert done.exit_code == 2, done.output
    assert "cifar100" in done.stderr
    assert "ci-vit-t-cifar10" in done.stdout
    assert not list(tmp_path.rglob("run.json"))


def test_who_has_only_one_data_set_is_told_the_time_and_can_begin(tmp_path: Path) -> None:
    """The recipe at its full size, which would take days here; killed once its first run has begun."""
    write_fake_data("cifar10", tmp_path / "data" / "cifar10", {})
    out = tmp_path / "out"
    arguments = ["reproduce", "ci-table2", "--only", "cifar10", "--data", str(tmp_path / "data"), "--out", str(out)]
    process = start(WELLCOND, *arguments, cwd=tmp_path)
    limit = time.monotonic() + 240
    while process.alive() and not list(out.rglob("run.json")) and time.monotonic() < limit:
        time.sleep(0.05)
    running = process.alive()
    process.kill()  # what it has started to read data sees that it is alone
    ended = process.wait()
    text = ended.stdout + ended.stderr
    assert running, text
    assert list(out.rglob("run.json"))
    assert "5,526,346 parameters" in text
    assert "on 8 × A100 80GB at 40% of 312 TFLOP/s" in text
    assert "on this machine" in text


def test_operations_are_those_of_the_formula() -> None:
    """A ViT by hand: 2 operations a weight and token in each linear map, 4 T² D in each attention, patches, head."""
    recipe, digits = load_recipe("digits"), task("digits")
    width, depth, tokens = 48, 3, 17  # 4 × 4 patches of 2 × 2, and the class
    linear = 2 * tokens * (4 * width * width + 8 * width * width)
    attention = 2 * 2 * tokens * tokens * width
    patches, head = 2 * 16 * 4 * width, 2 * width * 10
    cost = cost_of(recipe, digits, runs=21)
    assert cost.forward == depth * (linear + attention) + patches + head
    assert cost.step == 3 * cost.forward * recipe.train.batch
    hours = cost.hours(1e9)
    tested = 12 * 360  # every 25 of 300 steps
    assert hours == pytest.approx(21 * (300 * cost.step + tested * cost.forward) / 1e9 / 3600)
    # What autograd keeps is at least every linear map's input, and no more than a few times the same.
    inputs = 4 * depth * tokens * (3 * width + 4 * width)
    assert inputs < cost.saved < 5 * inputs


def test_memory_is_divided_where_it_is_sharded() -> None:
    cost = cost_of(load_recipe("digits"), task("digits"), runs=1)
    kept = cost.saved * cost.batch / 4
    assert cost.gigabytes(4, sharded=False, half=False) == pytest.approx((16 * cost.parameters + kept) / 1e9)
    assert replace(cost, averaged=True).gigabytes(4, sharded=False, half=False) == pytest.approx(
        (20 * cost.parameters + kept) / 1e9
    )
    assert cost.gigabytes(4, sharded=True, half=True) == pytest.approx((4 * cost.parameters + kept / 2) / 1e9)


def outcome(arm: str, seed: int, value: float, **final: float) -> Outcome:
    measured = {"accuracy": value, **final}
    return Outcome(arm, None, seed, "finished", "", "accuracy", True, 9, (), ((9, value),), (), 120.0, {}, measured)


def test_ours_is_the_last_stage_one_by_name_an_average_a_second_metric_or_minutes() -> None:
    stages = {
        "pretrain": [outcome("default", 0, 0.1)],
        "cola": [outcome("default", 0, 0.4), outcome("default", 1, 0.6)],
        "rte": [outcome("default", 0, 0.8, f1=0.7), outcome("default", 1, 0.9, f1=0.5)],
    }

    def ours(value: float | dict[str, float]) -> list[tuple[float, ...]]:
        row = PublishedRow(where="ci-table5", label="row", source="here", values={"default": value})
        return [tuple(round(number, 9) for number in each.ours) for each in published_numbers(row, stages)]

    assert ours(1.0) == [(80.0, 90.0)]
    assert ours({"cola": 1.0, "rte": 1.0, "average": 1.0}) == [(40.0, 60.0), (80.0, 90.0), (60.0, 75.0)]
    assert ours({"f1": 1.0}) == [(70.0, 50.0)]
    assert ours({"minutes": 1.0}) == [(200.0, 200.0)]
    stages["cola"].pop()  # then only seed 0 has both
    assert ours({"cola": 1.0, "rte": 1.0, "average": 1.0})[-1] == (60.0,)
    row = PublishedRow(where="ci-table5", label="row", source="here", values={"other": 1.0})
    assert published_numbers(row, stages)[0].ours == ()
    assert published_numbers(row, {})[0].ours == ()


def folder_of_runs(folder: Path, arm: str, values: list[float], **about: Any) -> None:
    """A comparison's folder as the laboratory writes it, with one test for each run."""
    for seed, value in enumerate(values):
        run = folder / "runs" / f"00-{arm}" / f"seed-{seed}"
        run.mkdir(parents=True)
        described = {"schema": 2, "arm": arm, "seed": seed, "status": "finished", "metric": "accuracy", "steps": 9}
        (run / "run.json").write_text(json.dumps(described | {"higher_is_better": True} | about))
        (run / "metrics.jsonl").write_text(json.dumps({"kind": "test", "step": 9, "accuracy": value}) + "\n")
        (run / "timings.jsonl").write_text(json.dumps({"kind": "train", "step": 9, "seconds": 90.0}) + "\n")


def results_of(id: str, folder: Path) -> dict[tuple[str, str], dict[str, list[float]]]:
    done = CliRunner().invoke(app, ["reproduce", id, "--results", "--out", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
    return {(line["of"], line["label"]): line["values"] for line in found["lines"]}


def test_results_are_what_was_published_what_was_run_and_the_small_versions(tmp_path: Path) -> None:
    empty = results_of("ci-table2", tmp_path)
    assert empty["published", "Pets"] == {"default": [26.7], "mimetic": [47.7], "conditioned": [47.7]}
    assert {of for of, _ in empty} == {"published"}
    folder_of_runs(tmp_path / "ci-vit-t-pets" / "runs", "mimetic", [0.25, 0.5])
    folder_of_runs(tmp_path / "fashion-mnist", "conditioned", [0.75])
    folder_of_runs(tmp_path / "fashion-mnist", "polar", [0.5])  # not in this table
    found = results_of("ci-table2", tmp_path)
    assert found["ours", "Pets, ci-vit-t-pets"] == {"default": [], "mimetic": [25.0, 50.0], "conditioned": []}
    assert found["in small", "fashion-mnist, changed"] == {"conditioned": [75.0]}
    text = CliRunner().invoke(app, ["reproduce", "ci-table2", "--results", "--out", str(tmp_path)]).stdout
    assert "| 37.5 ± 17.7 (2 seeds) |" in text
    assert "Not run: cifar10/vit-t, cifar100/vit-t, flowers/vit-t." in text


def test_a_small_version_is_found_by_what_its_schemes_do_and_has_the_tables_metrics(tmp_path: Path) -> None:
    folder_of_runs(tmp_path / "corrections", "shift 1", [0.5])  # the papers have λ = 10
    folder_of_runs(tmp_path / "corrections", "shift 10", [0.25])
    folder_of_runs(tmp_path / "corrections", "polar", [0.75])
    found = results_of("sc-table7", tmp_path)
    assert found["in small", "corrections, changed"] == {"shift": [25.0], "polar": [75.0]}
    assert found["in small", "corrections, minutes, changed"] == {"shift": [1.5], "polar": [1.5]}
    assert results_of("sc-table6", tmp_path)["in small", "corrections, changed"] == {"shift": [25.0]}


def test_a_run_that_did_not_finish_is_no_result(tmp_path: Path) -> None:
    folder_of_runs(tmp_path / "strengths", "shift 2", [0.5], status="diverged", error="at step 3")
    assert results_of("sc-table5", tmp_path)["in small", "strengths, changed"] == {}


def test_what_diverged_is_said_and_is_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "ci-vit-t-pets" / "runs"
    folder_of_runs(folder, "mimetic", [0.25])
    folder_of_runs(folder, "default", [0.5], status="diverged")
    (folder / "runs" / "00-default" / "seed-0").rename(folder / "runs" / "00-default" / "seed-7")
    found = results_of("ci-table2", tmp_path)
    assert found["ours", "Pets, ci-vit-t-pets"]["default"] == []
    text = CliRunner().invoke(app, ["reproduce", "ci-table2", "--results", "--out", str(tmp_path)]).stdout
    assert "| 1 diverged | 25 (1 seed)" in text
    row = PublishedRow(where="ci-table2", label="row", source="here", values={"default": 1.0})
    two = [outcome("default", 0, 0.5), replace(outcome("default", 1, 0.5), status="crashed")]
    (number,) = published_numbers(row, {"pretrain": two, "": [outcome("default", 0, 0.5)]})
    assert (number.ours, number.lost) == ((50.0,), ("crashed",))
    assert "50 (1 seed, 1 crashed)" in numbers_text([number])


def test_ours_says_what_was_changed_and_a_smoke_run_is_none(tmp_path: Path) -> None:
    for entry in ("ci-vit-t-pets", "ci-vit-t-flowers", "ci-vit-t-cifar100"):
        folder_of_runs(tmp_path / entry / "runs", "default", [0.5])
    Provenance(changes={"seeds": [0], "train": {"epochs": 1, "workers": 0}}).write(tmp_path / "ci-vit-t-pets")
    Provenance(changes={"train": {"workers": 0}}).write(tmp_path / "ci-vit-t-flowers")
    Provenance(smoke=True).write(tmp_path / "ci-vit-t-cifar100")
    ours = [label for of, label in results_of("ci-table2", tmp_path) if of == "ours"]
    assert ours == ["Flowers, ci-vit-t-flowers", "Pets, ci-vit-t-pets, changed: train.epochs = 1"]
    folder_of_runs(tmp_path / "fashion-mnist", "default", [0.5])
    (tmp_path / "fashion-mnist" / "comparison.json").write_text('{"fingerprint": "another"}')
    assert ("in small", "fashion-mnist, changed") in results_of("ci-table2", tmp_path)


def test_a_provenance_of_before_is_read_and_one_of_later_is_refused(tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text('{"smoke": true, "changes": {"seeds": [0]}}')
    assert read_provenance(tmp_path) == Provenance(True, {"seeds": [0]})
    Provenance().write(tmp_path)
    assert read_provenance(tmp_path) == Provenance()
    (tmp_path / "provenance.json").write_text('{"schema": 3}')
    with pytest.raises(WellcondError, match=r"provenance\.json' has schema 3, this wellcond reads 2: delete it"):
        read_provenance(tmp_path)


def test_steps_of_a_smoke_run_can_be_set_and_only_their_own_entry_is_shown(tmp_path: Path) -> None:
    command = ["reproduce", "sc-table3", "--only", "listops", "--smoke", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*command, "--set", "train.steps=1"])
    assert done.exit_code == 0, done.output
    assert {json.loads(path.read_text())["steps"] for path in tmp_path.rglob("run.json")} == {1}
    made = json.loads((tmp_path / "sc-nystromformer-listops" / "provenance.json").read_text())
    assert made == {"schema": 2, "smoke": True, "changes": {"train": {"steps": 1}}}
    shown = CliRunner().invoke(app, ["reproduce", "sc-table3", "--only", "text", "--results", "--out", str(tmp_path)])
    assert "| Text" in shown.stdout
    assert "| ListOps" not in shown.stdout


def test_what_is_generated_needs_no_data() -> None:
    for entry in published_recipes().values():
        given = {task.options.get("folder") for task in tasks_of(entry.recipe)}
        generated = {"lra/listops", "lra/pathfinder"}
        assert set(needed_folders(entry)) == given - generated, entry.name
    said = CliRunner().invoke(app, ["reproduce", "sc-table3", "--list"]).stdout
    assert "sc-nystromformer-listops (--only lra/listops)" in said
    assert "  in the folder of --data: nothing" in said


def test_the_analytic_tables_are_printed(tmp_path: Path) -> None:
    """One block of a ViT-B on 197 tokens: 6 N D d a head grows by 3 N d."""
    done = CliRunner().invoke(app, ["reproduce", "sc-table9", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    plain = 6 * 197 * 768 * 64 * 12
    assert f"{plain:,}" in done.stdout
    assert f"{plain + 3 * 197 * 64 * 12:,}" in done.stdout


def test_counting_draws_nothing() -> None:
    before = torch.get_rng_state()
    cost_of(load_recipe("digits"), task("digits"), runs=1)
    assert torch.equal(torch.get_rng_state(), before)


DROPPED = [f"model.{name}=0.0" for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")]  # each process has its own
LARGE = {
    "ci-table10": (
        "gpt2-1720m-a",
        "tinystories",
        ["model.n_layer=1", "task.length=32", "model.n_positions=32", *DROPPED],
    ),
    "ci-table13": ("vit-g", "imagenet", ["model.depth=1", "train.batch=12"]),
}


@pytest.mark.long
@pytest.mark.parametrize("id", LARGE)
def test_the_largest_models_are_sharded_from_end_to_end(id: str, tmp_path: Path) -> None:
    """In their full width, one block deep, over two processes: the loss of two steps is that of one process."""
    only, data, changes = LARGE[id]
    options = {"tokenizer": "openai-community/gpt2", "length": 32} if data == "tinystories" else {}
    write_fake_data(data, tmp_path / "data" / data, options)
    for folder in [folder for folder in (tmp_path / "data" / data).glob("*/n*") if int(folder.name[1:]) >= 24]:
        shutil.rmtree(folder)  # to test on all 1000 classes would take ten minutes
    tokenizer = [f"task.tokenizer={tmp_path / 'data' / data / 'tokenizer'}"] if options else []
    common = ["train.steps=2", "train.accumulate=1", "train.workers=0", "train.precision=no", "train.test_every=9"]
    common += ["train.log_every=1", "train.checkpoint_every=10", "augment.mixup=0.0", "augment.cutmix=0.0", "seeds=[0]"]
    common = [change for change in common if data == "imagenet" or "augment" not in change]
    common += ["train.batch=4"] if data == "tinystories" else []

    def losses(out: Path, before: list[str], more: list[str]) -> dict[str, list[float]]:
        command = [*before, "-m", "wellcond", "reproduce", id, "--only", only, "--data", str(tmp_path / "data")]
        sets = [word for change in (*changes, *tokenizer, *common, *more) for word in ("--set", change)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *command, "--out", str(out), *sets], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return {
            path.parts[-3]: [line["loss"] for line in map(json.loads, path.read_text().splitlines()) if "loss" in line]
            for path in sorted(out.rglob("metrics.jsonl"))
        }

    alone = losses(tmp_path / "one", [], [])
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    together = losses(tmp_path / "two", launcher, ["train.sharding=fsdp2"])
    assert {len(curve) for curve in alone.values()} == {2}
    assert alone.keys() == together.keys()
    for arm, curve in alone.items():
        assert curve == pytest.approx(together[arm], abs=1e-4), arm
