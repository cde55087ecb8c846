"""Figures of a comparison's folder: every number against the run folders read by hand, bars, what is left out."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from typer.testing import CliRunner

import wellcond as wc
from tests.lab.figures.test_figures import HOSTILE, colours_in, entropy_line, refused
from tests.lab.figures.test_figures import write as write_monitor
from tests.laboratory import TINY, prepared, quiet
from tests.laboratory import write as write_recipe
from wellcond.cli.main import app
from wellcond.lab.comparison import run_all
from wellcond.lab.figures.compared_runs import read_comparison
from wellcond.lab.figures.draw import draw_figures
from wellcond.lab.figures.reaching import reaching, reaching_figure
from wellcond.lab.models import lab_model
from wellcond.lab.recipe.arms import arms_of
from wellcond.plots.figure_text import label_colours

PICTURES = ["weights", "jacobian", "entropy", "loss", "test", "reaching"]
NAMES = ("kappa", "sigma_min", "sigma_max")
HEADS = 2  # of all layers of the model that is trained
Json = dict[str, Any]


# ------------------------------------------------------------------------------------------------ a real comparison


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four arms, one of them a control, two seeds, on the laboratory."""
    folder = tmp_path_factory.mktemp("comparison")
    text = (
        TINY.replace("steps = 40", "steps = 20")
        .replace("_every = 20", "_every = 5")
        .replace("every = 20", "every = 10")
    )
    run_all(prepared(write_recipe(folder, text), folder / "tiny"), quiet)
    return folder / "tiny"


def recorded(folder: Path) -> dict[str, dict[int, list[Json]]]:
    """Lines by arm and seed."""
    found: dict[str, dict[int, list[Json]]] = {}
    for path in sorted(folder.glob("runs/*/*/run.json")):
        about = json.loads(path.read_text())
        lines = [json.loads(line) for line in path.with_name("metrics.jsonl").read_text().splitlines()]
        found.setdefault(about["arm"], {})[about["seed"]] = lines
    return found


def numbers(lines: Sequence[Json], quantity: str) -> dict[int, float]:
    """One run's values by step."""
    plain = {"loss": ("train", "loss"), "test": ("test", "accuracy")}
    if quantity in plain:
        kind, name = plain[quantity]
        return {line["step"]: line[name] for line in lines if line["kind"] == kind}
    return {line["step"]: line["quantities"][quantity]["mean"] for line in lines if line["kind"] == "monitor"}


def drawn(*folders: Path, out: Path) -> Json:
    """The numbers alone."""
    found: Json = json.loads(draw_figures(folders, out, formats=())[0].read_text())
    return found


def test_every_number_is_that_of_the_run_folders(trained: Path, tmp_path: Path) -> None:
    written = draw_figures([trained], tmp_path / "out")
    assert [path.name for path in written] == ["figures.json", *(f"{name}.png" for name in PICTURES)]
    for path in written[1:]:
        assert colours_in(path) > 30
    known, found = recorded(trained), json.loads(written[0].read_text())
    seen = set()
    for row in found["series"]:
        label, name, role = row["label"], row["quantity"], row["role"]
        runs = [numbers(lines, name) for lines in known[label].values()]
        assert row["seeds"] == [0, 1]
        assert row["steps"] == sorted(runs[0]) == sorted(runs[1])
        values = np.array([[run[step] for step in row["steps"]] for run in runs])
        np.testing.assert_allclose(row["mean"], values.mean(0), rtol=1e-14)
        # of two numbers a and b, sd = |a − b| / √2: what rounding leaves of it is eps × their size
        np.testing.assert_allclose(
            row["deviation"], abs(values[0] - values[1]) / 2**0.5, atol=1e-15 * abs(values).max()
        )
        heads = 1 if name in ("loss", "test") or not (role or name == "entropy") else HEADS
        assert row["averaged"] == [2 * heads] * len(row["steps"])
        assert (row["left_out"], row["reasons"]) == ([0] * len(row["steps"]), {})
        assert row["weight"] == ("" if not role else "trained" if name.endswith("_trained") else "effective")
        assert row["control_of"] == ("conditioned" if "scale only" in label else None)
        seen.add((label, name))
    kappas = {f"kappa_{own}_{kind}" for own in ("jacobian", "equilibrated") for kind in ("exact", "at_least")}
    plain = kappas | {"bound", "entropy", "loss", "test"}
    spectra = {f"{name}_{role}" for name in NAMES for role in ("query", "key", "value")}
    trained = {("shift 1", f"{name}_trained") for name in spectra}  # W beside W + C
    assert seen == {(label, one) for label in known for one in plain | spectra} | trained
    assert len(found["series"]) == len(seen)
    assert {len(row["steps"]) for row in found["series"] if row["role"] or row["quantity"] == "bound"} == {3}
    assert found["unfinished"] == []


def test_the_bars_of_a_real_comparison_are_those_of_its_tests(trained: Path, tmp_path: Path) -> None:
    known, found = recorded(trained), drawn(trained, out=tmp_path / "out")["reaching"]
    assert [row["label"] for row in found] == ["default", "conditioned", "conditioned, scale only", "shift 1"]
    for row in found:
        first = {}
        for seed, lines in known[row["label"]].items():
            target = list(numbers(known["default"][seed], "test").values())[-1]
            there = [step for step, value in numbers(lines, "test").items() if value >= target]
            first[str(seed)] = there[0] if there else None
        assert row["steps_to_reach"] == first
        assert row["reached"] == sum(step is not None for step in first.values())
        median = np.median([math.inf if step is None else step for step in first.values()])
        assert row["median_steps"] == (median if math.isfinite(median) else None)
        assert (row["metric"], row["baseline"], row["last"], row["epoch"]) == ("accuracy", "default", 20, 1437 / 16)


def test_both_weights_are_recorded_w_and_what_the_layer_uses(trained: Path) -> None:
    """Of a fresh model by numpy: W + C for the shift, and W beside it; W alone for the others."""
    experiment = prepared(trained.parent / "tiny.toml", trained)
    known = recorded(trained)
    for arm in arms_of(experiment.recipe):
        recipe = experiment.recipe
        model = lab_model(recipe.model.name, recipe.model.options, experiment.task, seed=0)
        arm.initialise_(model, seed=0)
        before = smallest_of_queries(model)
        arm.condition_(model)
        first = next(line for line in known[arm.name][0] if line["kind"] == "monitor")["quantities"]
        found = first["sigma_min_query"]
        assert found["mean"] == pytest.approx(np.mean(smallest_of_queries(model)), rel=1e-5)  # kept in float32
        assert (found["min"], found["max"]) == pytest.approx(
            (min(smallest_of_queries(model)), max(smallest_of_queries(model))), rel=1e-5
        )
        assert ("sigma_min_query_trained" in first) == (arm.name == "shift 1")
        if arm.name == "shift 1":
            assert first["sigma_min_query_trained"]["mean"] == pytest.approx(np.mean(before), rel=1e-4)
            assert found["mean"] != pytest.approx(np.mean(before), rel=0.01)


def smallest_of_queries(model: Any) -> list[float]:
    heads = [head for layer in wc.attention_layers(model) for head in layer.query.read().detach().double().numpy()]
    return [float(np.linalg.svd(head, compute_uv=False)[-1]) for head in heads]


def test_a_runs_folder_stays_small(trained: Path) -> None:
    """Three looks at a small model; twenty of them are to stay below a megabyte."""
    for path in trained.glob("runs/*/*/metrics.jsonl"):
        lines = [line for line in path.read_text().splitlines() if '"monitor"' in line]
        assert 20 / len(lines) * sum(map(len, lines)) < 200_000


def test_a_comparison_knows_its_epoch_and_an_older_folder_learns_it(trained: Path, tmp_path: Path) -> None:
    about = json.loads((trained / "comparison.json").read_text())
    assert about["epoch"] == 1437 / 16
    older = tmp_path / "older"
    shutil.copytree(trained, older)
    (older / "comparison.json").write_text(json.dumps({name: v for name, v in about.items() if name != "epoch"}))
    assert {row["epoch"] for row in drawn(older, out=tmp_path / "out")["series"]} == {None}
    prepared(trained.parent / "tiny.toml", older)  # the fingerprint is what it was, so the folder is taken
    again = json.loads((older / "comparison.json").read_text())
    assert (again["epoch"], again["fingerprint"]) == (about["epoch"], about["fingerprint"])


# ------------------------------------------------------------------------------------------------ written by hand


def write_one(folder: Path, number: int, seed: int, lines: Sequence[Json], **about: Any) -> Path:
    path = folder / "runs" / f"{number:02d}-x" / f"seed-{seed}"
    path.mkdir(parents=True)
    described = {"schema": 2, "arm": "default", "seed": seed, "status": "finished", "metric": "accuracy", "steps": 40}
    (path / "run.json").write_text(json.dumps(described | {"higher_is_better": True} | about))
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def results(*values: float, metric: str = "accuracy") -> list[Json]:
    return [{"kind": "test", "step": 10 * (i + 1), metric: value} for i, value in enumerate(values)]


def monitor(step: int, **values: Any) -> Json:
    """A line by the quantities' means; what is not finite is counted."""
    found = {key: {"mean": v, "min": v, "max": v, "count": 1} for key, v in values.items() if isinstance(v, float)}
    found |= {key: {"mean": None, "count": 0, "left_out": {v: 1}} for key, v in values.items() if isinstance(v, str)}
    return {"kind": "monitor", "step": step, "schema": 2, "quantities": found}


def write_folder(
    folder: Path, arms: Mapping[str, Sequence[Sequence[Json]]], epoch: float | None = None, **about: Any
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    known = {"baseline": "default"} | ({} if epoch is None else {"epoch": epoch})
    (folder / "comparison.json").write_text(json.dumps(known))
    for number, (arm, runs) in enumerate(arms.items()):
        for seed, lines in enumerate(runs):
            write_one(folder, number, seed, lines, arm=arm, **about)
    return folder


BY_HAND = {
    "default": [results(0.1, 0.2, 0.3, 0.4), results(0.1, 0.5, 0.3, 0.5), results(0.1, 0.2, 0.3, 0.6)],
    "faster": [results(0.4, 0.5, 0.6, 0.7), results(0.1, 0.2, 0.5, 0.1), results(0.1, 0.6, 0.7, 0.8)],
    "seldom": [results(0.1, 0.1, 0.4, 0.1), results(0.1, 0.1, 0.1, 0.1), results(0.1, 0.1, 0.1, 0.1)],
    "never": [results(0.0, 0.0, 0.0, 0.0)] * 3,
}


def test_bars_are_medians_dots_are_seeds_and_seeds_that_never_got_there_are_counted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c", BY_HAND, epoch=8.0)
    write_one(folder, 4, 0, results(0.1, 0.4, 0.5, 0.6), arm="matched", control_of="faster")
    write_one(folder, 4, 1, results(0.9), arm="matched", control_of="faster", status="diverged")
    rows = reaching(read_comparison(folder))
    first = {row["label"]: list(row["steps_to_reach"].values()) for row in rows}
    assert first == {
        "default": [40, 20, 40],
        "faster": [10, 30, 20],
        "seldom": [30, None, None],
        "never": [None, None, None],
        "matched": [20],
    }
    assert [row["median_steps"] for row in rows] == [40, 20, None, None, 20]
    colours = label_colours([row["label"] for row in rows])
    (axes,) = reaching_figure([rows], colours).axes
    bars = {round(bar.get_y() + bar.get_height() / 2): bar for bar in axes.patches}
    assert {place: bar.get_width() for place, bar in bars.items()} == {0: 5.0, 1: 2.5, 4: 2.5}  # 40 and 20 of 8 steps
    assert {place: bar.get_facecolor()[3] > 0 for place, bar in bars.items()} == {0: True, 1: True, 4: False}
    assert to_hex(bars[4].get_edgecolor()) == colours["matched"]
    dots: dict[int, list[float]] = {}
    for line in axes.lines:
        ((x,), (y,)) = line.get_data()
        dots.setdefault(round(y), []).append(x)
    assert dots == {0: [5.0, 2.5, 5.0], 1: [1.25, 3.75, 2.5], 2: [3.75], 4: [2.5]}
    beside = [text.get_text() for text in axes.texts if text.get_ha() == "left"]
    assert beside == ["5", "2.5", "1 of 3 seeds", "0 of 3 seeds", "2.5"]
    assert axes.get_xlabel() == "epoch of the first test as good as default's last accuracy"
    assert axes.get_xlim() == (0, 5)
    assert [row["steps_to_reach"] for row in drawn(folder, out=tmp_path / "out")["reaching"]] == [
        {str(seed): step for seed, step in enumerate(steps)} for steps in first.values()
    ]


def test_where_less_is_better_the_first_test_below_counts(tmp_path: Path) -> None:
    runs = {"default": [(9, 8, 7, 6)], "lower": [(9, 6, 7, 5)], "higher": [(9, 8, 7, 7)]}
    told = {name: [results(*run, metric="perplexity") for run in own] for name, own in runs.items()}
    folder = write_folder(tmp_path / "c", told, metric="perplexity", higher_is_better=False)
    found = drawn(folder, out=tmp_path / "out")["reaching"]
    assert [row["median_steps"] for row in found] == [40, 20, None]


def test_steps_are_epochs_where_the_length_of_one_is_known(tmp_path: Path) -> None:
    for epoch, unit in ((20.0, "epoch"), (None, "step"), (41.0, "step")):  # of 40 steps, 41 are no epoch
        folder = write_folder(tmp_path / f"{epoch}", BY_HAND, epoch=epoch)
        for path in draw_figures([folder], tmp_path / f"{epoch}" / "out", ["svg"])[1:]:
            words = [line for line in path.read_text().splitlines() if line.strip().startswith("<!--")]
            axis = f"<!-- {unit} -->" if path.stem == "test" else f"<!-- {unit} of the first test"
            assert any(line.strip().startswith(axis) for line in words), path
    ticks = [
        word.strip(" <!->")
        for word in (tmp_path / "20.0" / "out" / "test.svg").read_text().splitlines()
        if "<!--" in word
    ]
    assert {"1.0", "2.0"} <= set(ticks)
    assert "40" not in ticks


def test_runs_that_did_not_finish_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c", {"default": [[*results(0.2, 0.4), *losses(2.0, 1.0)]] * 2})
    for seed, status in ((2, "diverged"), (3, "running")):
        write_one(folder, 0, seed, [*results(0.9), *losses(9.0)], status=status)
    write_one(folder, 1, 0, losses(5.0), arm="lost", status="crashed")
    found = drawn(folder, out=tmp_path / "out")
    assert {row["label"] for row in found["series"]} == {"default"}
    (loss,) = [row for row in found["series"] if row["quantity"] == "loss"]
    assert (loss["seeds"], loss["steps"], loss["mean"], loss["deviation"]) == ([0, 1], [10, 20], [2.0, 1.0], [0.0, 0.0])
    assert found["unfinished"] == [
        {"label": "default", "seed": 2, "status": "diverged"},
        {"label": "default", "seed": 3, "status": "running"},
        {"label": "lost", "seed": 0, "status": "crashed"},
    ]
    assert [row["steps_to_reach"] for row in found["reaching"]] == [{"0": 20, "1": 20}, {}]
    for path in draw_figures([folder], tmp_path / "svg", ["svg"])[1:]:
        assert "default: 2 of 4 runs left out, not having finished: 1 diverged, 1 running" in path.read_text()
        assert "lost: 1 of 1 runs left out, not having finished: 1 crashed" in path.read_text()
    assert "no seed to compare" in (tmp_path / "svg" / "reaching.svg").read_text()


def losses(*values: float) -> list[Json]:
    return [{"kind": "train", "step": 10 * (i + 1), "loss": value} for i, value in enumerate(values)]


def test_values_that_are_not_there_are_gaps_and_counted(tmp_path: Path) -> None:
    first = [
        monitor(0, sigma_min_query=0.0, kappa_query="rank deficient", kappa_jacobian_exact=2.0),
        monitor(5, sigma_min_query="not finite", kappa_query="rank deficient", kappa_jacobian_exact="not finite"),
    ]
    second = [
        monitor(0, sigma_min_query=2.0, kappa_query="rank deficient", kappa_jacobian_exact=4.0),
        monitor(5, sigma_min_query=3.0, kappa_query="rank deficient", kappa_jacobian_exact=8.0),
    ]
    folder = write_folder(tmp_path / "c", {"default": [first, second]})
    found = {row["quantity"]: row for row in drawn(folder, out=tmp_path / "out")["series"]}
    assert found.keys() == {"sigma_min_query", "kappa_query", "kappa_jacobian_exact"}
    assert (found["sigma_min_query"]["mean"], found["sigma_min_query"]["reasons"]) == ([1.0, None], {"not finite": 1})
    exact = found["kappa_jacobian_exact"]
    assert (exact["mean"], exact["averaged"]) == ([3.0, None], [2, 1])
    # no weight had full rank
    assert (found["kappa_query"]["mean"], found["kappa_query"]["reasons"]) == ([None, None], {"rank deficient": 4})


def test_a_comparison_before_schema_2_is_drawn(tmp_path: Path) -> None:
    """It kept means alone, of the weights that the layers use."""
    old = [
        {"kind": "monitor", "step": 0, "sigma_min_key": 0.5, "entropy": 0.75, "entropy_min": 0.25, "max_logit": "nan"},
        {"kind": "monitor", "step": 5, "sigma_min_key": "inf", "entropy": 0.5},
    ]
    folder = write_folder(tmp_path / "c", {"default": [old]}, settings={"condition": "shift"})
    found = {row["quantity"]: row for row in drawn(folder, out=tmp_path / "out")["series"]}
    assert found.keys() == {"sigma_min_key", "entropy"}
    assert (found["entropy"]["mean"], found["sigma_min_key"]["mean"]) == ([0.75, 0.5], [0.5, None])
    assert (found["sigma_min_key"]["weight"], found["sigma_min_key"]["reasons"]) == ("effective", {"not finite": 1})


def test_a_newer_comparison_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c", {"default": [[monitor(0, entropy=0.5) | {"schema": 3}]]})
    assert "has schema 3, but this wellcond reads up to 2" in refused(folder)


# ------------------------------------------------------------------------------------------------ pictures


@pytest.mark.parametrize(("bound", "panels"), [(1e3, 1), (1e9, 2)])
def test_a_bound_far_above_has_a_panel_of_its_own(bound: float, panels: int, tmp_path: Path) -> None:
    runs = [[monitor(step, kappa_jacobian_exact=10.0 + seed, bound=bound) for step in (0, 5)] for seed in range(2)]
    text = draw_figures([write_folder(tmp_path / "c", {"default": runs})], tmp_path / "out", ["svg"])[1].read_text()
    assert text.count('<g id="axes_') == panels


def test_a_bound_without_end_does_not_flatten_the_rest_and_is_named(tmp_path: Path) -> None:
    runs = {"default": (50.0, 60.0), "one-hot": (1e171, 1e90)}
    lines = {
        name: [[monitor(i, kappa_jacobian_exact=20.0, bound=b) for i, b in enumerate(own)]]
        for name, own in runs.items()
    }
    text = draw_figures([write_folder(tmp_path / "c", lines)], tmp_path / "out", ["svg"])[1].read_text()
    assert "one-hot: bound (vertical convention) leaves the axis, up to 1e+171" in text
    assert "default: bound" not in text


def test_hostile_names_are_drawn_as_text(tmp_path: Path) -> None:
    lines = [*results(0.1, 0.5, metric="$x_{$"), *losses(2.0, 1.0), monitor(0, kappa_jacobian_exact=2.0, entropy=0.5)]
    folder = tmp_path / "$\\frac{c}{$"
    write_folder(folder, {name: [lines] for name in HOSTILE}, metric="$x_{$")
    (folder / "comparison.json").write_text(json.dumps({"baseline": HOSTILE[0]}))
    other = write_folder(tmp_path / "other", {"default": [lines]}, metric="$x_{$")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = draw_figures([folder, other], tmp_path / "out", ["png", "svg"])
    found = json.loads(written[0].read_text())
    assert [row["label"] for row in found["reaching"]] == [*HOSTILE, "default"]
    assert [path.stem for path in written[1::2]] == ["jacobian", "entropy", "loss", "test", "reaching"]
    for path in written[1::2]:
        assert colours_in(path) > 30
        assert "<script" not in path.with_suffix(".svg").read_text()


def test_equal_records_give_equal_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c", BY_HAND)
    first, second = (draw_figures([folder], tmp_path / name, ("png", "svg", "pdf")) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


# ------------------------------------------------------------------------------------------------ several folders


def test_monitors_and_comparisons_are_drawn_together(tmp_path: Path) -> None:
    by_hand = write_monitor(tmp_path / "own", [entropy_line(0, 0.5), entropy_line(30, 0.7)], label="mine", seed=0)
    lines = [monitor(0, entropy=0.9), monitor(40, entropy=0.8), *results(0.1, 0.2, 0.3, 0.4)]
    folder = write_folder(tmp_path / "c", {"default": [lines]}, epoch=10.0)
    found = drawn(by_hand, folder, out=tmp_path / "out")
    means = {(row["label"], row["quantity"]): (row["steps"], row["mean"]) for row in found["series"]}
    assert means["mine", "entropy"] == ([0, 30], [0.5, 0.7])
    assert means["default", "entropy"] == ([0, 40], [0.9, 0.8])
    names = [path.name for path in draw_figures([by_hand, folder], tmp_path / "out")]
    assert names == ["figures.json", "entropy.png", "test.png", "reaching.png"]


def test_each_comparison_has_its_own_bars(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "a" / "same", {"default": [results(0.1, 0.2)]})
    second = write_folder(tmp_path / "b" / "same", {"other": [results(0.5, 0.5)], "more": [results(0.1, 0.9)]})
    (second / "comparison.json").write_text(json.dumps({"baseline": "other"}))
    found = drawn(first, second, out=tmp_path / "out")["reaching"]
    assert [(row["label"], row["baseline"], row["median_steps"]) for row in found] == [
        ("default", "default", 20.0),
        ("other", "other", 10.0),
        ("more", "other", 20.0),
    ]
    figure = reaching_figure(
        [reaching(read_comparison(one)) for one in (first, second)], label_colours(["default", "other", "more"])
    )
    assert [len(axes.patches) for axes in figure.axes] == [1, 2]


def test_runs_that_cannot_be_drawn_together(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "a", {"default": [results(0.1)]})
    second = write_folder(tmp_path / "b", {"default": [results(0.1)]})
    assert f"'{first}' and '{second}' both have label 'default' and seed 0" in refused(first, second)
    assert "both have label 'default'" in refused(first, first)
    other = write_folder(tmp_path / "d", {"x": [results(3.0, metric="perplexity")]}, metric="perplexity")
    assert "measure different things (accuracy, more is better; perplexity" in refused(first, other)


# ------------------------------------------------------------------------------------------------ damaged, missing


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ("{", "is not JSON"),
        ("[]", "holds a list in place of an object"),
        ("[" * 100_000, "is not JSON"),
        ("[" * 60 + "]" * 60, "nested more than 50 deep"),
        ('{"baseline": 3}', "baseline is a str"),
        ('{"epoch": 0}', "epoch a number of steps"),
        ('{"epoch": "inf"}', "epoch a number of steps"),
        ('{"epoch": true}', "epoch a number of steps"),
    ],
)
def test_a_damaged_description_is_refused(tmp_path: Path, about: str, why: str) -> None:
    folder = write_folder(tmp_path / "c", {"default": [results(0.1)]})
    (folder / "comparison.json").write_text(about)
    message = refused(folder)
    assert str(folder / "comparison.json") in message
    assert why in message


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("run.json", "{", "is not JSON"),
        ("run.json", "[]", "holds a list"),
        ("run.json", '{"schema": 2, "arm": "a", "seed": "0"}', "seed is '0', not int"),
        ("run.json", '{"seed": 0}', "is damaged (there is no 'arm'"),
        ("metrics.jsonl", "{\n{}\n", "line 1 is not JSON"),
        ("metrics.jsonl", '{"kind": "train", "step": 1.5, "loss": 1}\n', "line 1, has no step"),
        ("metrics.jsonl", '{"kind": "train", "step": 1, "loss": "low"}\n', "could not convert"),
        ("metrics.jsonl", '{"kind": "test", "step": 1}\n', "there is no 'accuracy'"),
        ("metrics.jsonl", '{"kind": "monitor", "entropy": 1}\n', "line 1, has no step"),
        ("metrics.jsonl", '{"kind": "monitor", "step": 1, "entropy": "high"}\n', "could not convert"),
        ("metrics.jsonl", '{"kind": "monitor", "step": 1, "entropy": [1]}\n', "must be a string or a real number"),
    ],
)
def test_a_damaged_run_is_named_in_one_line(tmp_path: Path, name: str, text: str, why: str) -> None:
    folder = write_folder(tmp_path / "c", {"default": [results(0.1)]})
    run = folder / "runs" / "00-x" / "seed-0"
    (run / name).write_text(text)
    message = refused(folder)
    assert str(run) in message
    assert why in message
    said = CliRunner().invoke(app, ["figures", str(folder), "-o", str(tmp_path / "out")])
    assert said.exit_code == 2
    assert len(said.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_comparison_with_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    assert "has no run yet" in refused(write_folder(tmp_path / "empty", {}))
    begun = write_folder(tmp_path / "begun", {"default": [results(0.1)]}, status="running")
    assert "nothing to draw: no run has finished" in refused(begun)
    assert "nothing to draw: no record" in refused(write_folder(tmp_path / "void", {"default": [[]]}))


def test_without_the_baseline_there_are_curves_and_no_bars(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c", {"faster": [results(0.1, 0.2)]})
    assert [path.name for path in draw_figures([folder], tmp_path / "out")] == ["figures.json", "test.png"]
    write_one(folder, 1, 0, results(0.1), status="diverged")
    assert [path.name for path in draw_figures([folder], tmp_path / "out")] == ["figures.json", "test.png"]


def test_the_command_draws_a_comparison(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c", BY_HAND)
    said = CliRunner().invoke(app, ["figures", str(folder), "-o", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output
    assert f"wrote {tmp_path / 'out' / 'reaching.png'}" in said.output


WITHOUT_SCIPY = """
import sys
from pathlib import Path
sys.modules["scipy"] = None  # its import fails
from wellcond.errors import WellcondError
from wellcond.lab.figures.draw import draw_figures
print([path.name for path in draw_figures([Path(sys.argv[1])], Path(sys.argv[3]))])
try:
    draw_figures([Path(sys.argv[2])], Path(sys.argv[3]))
except WellcondError as error:
    print(error)
"""


def test_without_scipy_a_monitors_folder_is_drawn_and_a_comparison_says_what_to_install(tmp_path: Path) -> None:
    own = write_monitor(tmp_path / "own", [entropy_line(0, 0.5)])
    folder = write_folder(tmp_path / "c", BY_HAND)
    command = [sys.executable, "-c", WITHOUT_SCIPY, str(own), str(folder), str(tmp_path / "out")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    drew, refusal = said.stdout.splitlines()
    assert drew == "['figures.json', 'entropy.png']"
    assert "pip install 'wellcond[lab]'" in refusal
