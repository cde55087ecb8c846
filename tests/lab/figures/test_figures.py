"""Figures from run folders: every number against numpy, damaged files, and labels that nobody should choose."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import nn

import wellcond as wc
from wellcond.diagnosis.records import HeadRecord, JacobianRecord, LayerRecord, Spectrum, WeightRecord
from wellcond.diagnosis.summaries import summarize, to_plain
from wellcond.errors import WellcondError
from wellcond.jacobian.result import Bound, ConditionNumber
from wellcond.lab.figures.averages import over_seeds
from wellcond.lab.figures.draw import draw_figures
from wellcond.lab.figures.runs import read_run

LAYERS, HEADS = 3, 2
STEPS = (0, 100, 200)
ROLES = ("query", "key", "value")
Numbers = np.ndarray[Any, np.dtype[np.float64]]


def kappa(value: float | None, status: str = "ok") -> ConditionNumber:
    return ConditionNumber(value, 1.0, None, None, None, None, "factor", status)


def layer(**parts: Any) -> LayerRecord:
    empty = {"stable_rank": None, "cosine": None, "weights": (), "heads": ()}
    return LayerRecord("blocks.0.attn", "softmax", (HEADS, HEADS, 4, 8), 5, **(empty | parts))


def spectrum(sigma: Sequence[float]) -> Spectrum:
    low, high = sigma
    return Spectrum(high / low if low else None, high, low)


def line(step: int, tier: str, layers: Sequence[LayerRecord], schema: int = 2) -> str:
    costs = {"elapsed": 1.5, "seconds": 0.1, "overhead": 0.02}
    plain = [asdict(one) for one in layers]
    record = {"schema": schema, "kind": "monitor", "step": step, "tier": tier, **costs}
    record |= {"quantities": to_plain(summarize(plain)), "layers": plain}
    return json.dumps(_as_written(record), allow_nan=False)


def first_schema(text: str) -> str:
    """A line as wellcond 0.1 wrote it: records alone, and other words for the three weights."""
    record = json.loads(text) | {"schema": 1}
    del record["kind"], record["quantities"]
    for weight in (weight for one in record["layers"] for weight in one["weights"]):
        own = [weight.pop(name) for name in ("effective", "trained", "scaled")]
        weight |= dict(zip(("raw", "stored", "effective"), own, strict=True))
    return json.dumps(record)


def _as_written(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _as_written(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_as_written(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def write(folder: Path, lines: Sequence[str], **about: Any) -> Path:
    folder.mkdir(parents=True)
    if about:
        (folder / "run.json").write_text(json.dumps({"schema": 2, **about}))
    (folder / "metrics.jsonl").write_text("".join(f"{text}\n" for text in lines))
    return folder


def entropy_line(step: int, *values: float | None) -> str:
    return line(step, "attention", [layer(heads=tuple(HeadRecord(i, v, None, None) for i, v in enumerate(values)))])


def jacobian_line(step: int, *conditions: ConditionNumber, bound: Bound | None = None) -> str:
    records = tuple(JacobianRecord(i, found, bound, None, 5, 5) for i, found in enumerate(conditions))
    return line(step, "jacobian", [layer(jacobian=records)])


def training(rng: np.random.Generator, conditioned: bool) -> tuple[list[str], dict[str, Numbers]]:
    """One run's lines, and the numbers that are in them, with the steps first."""
    sigma = np.sort(rng.uniform(0.1, 2.0, (len(STEPS), LAYERS, len(ROLES), HEADS, 2)), axis=-1)
    used = sigma + 10 * conditioned
    entropy, jacobian, invariant, vertical, bound = np.exp(rng.uniform(0, 9, (5, len(STEPS), LAYERS, HEADS)))
    lines = []
    for i, step in enumerate(STEPS):
        weights, heads, jacobians = [], [], []
        for j in range(LAYERS):
            rows = [
                WeightRecord(role, h, spectrum(used[i, j, r, h]), spectrum(sigma[i, j, r, h]) if conditioned else None)
                for r, role in enumerate(ROLES)
                for h in range(HEADS)
            ]
            rows += [WeightRecord(role, None, Spectrum(1e9, 1e9, 1.0)) for role in ROLES]  # fused: in no average
            rows += [WeightRecord("output", h, Spectrum(1e9, 1e9, 1.0)) for h in range(HEADS)]
            weights.append(layer(weights=tuple(rows)))
            heads.append(layer(heads=tuple(HeadRecord(h, entropy[i, j, h], 0.5, 1.0) for h in range(HEADS))))
            records = [
                JacobianRecord(
                    h,
                    replace(kappa(jacobian[i, j, h]), equilibrated=kappa(invariant[i, j, h])),
                    Bound(bound[i, j, h], 1.0, 1.0, 1.0, kappa(vertical[i, j, h]), True),
                    None,
                    5,
                    5,
                )
                for h in range(HEADS)
            ]
            jacobians.append(layer(jacobian=tuple(records)))
        lines += [line(step, "weights", weights), line(step, "attention", heads), line(step, "jacobian", jacobians)]
    numbers = {"entropy": entropy, "kappa_jacobian_vertical": vertical, "bound": bound}
    for kind in ("exact", "at_least"):
        numbers |= {f"kappa_jacobian_{kind}": jacobian, f"kappa_equilibrated_{kind}": invariant}
    for r, role in enumerate(ROLES):
        for weight, values in (("", used), *([("_trained", sigma)] if conditioned else [])):
            low, high = values[:, :, r, :, 0], values[:, :, r, :, 1]
            numbers |= {f"sigma_min_{role}{weight}": low, f"sigma_max_{role}{weight}": high}
            numbers[f"kappa_{role}{weight}"] = high / low
    return lines, numbers


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], dict[str, list[dict[str, Numbers]]]]:
    """Two labels, three seeds each."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    paths: list[Path] = []
    numbers: dict[str, list[dict[str, Numbers]]] = {"default": [], "shift 10": []}
    for label, found in numbers.items():
        for seed in range(3):
            lines, values = training(rng, conditioned=label == "shift 10")
            paths.append(write(folder / f"{label}-{seed}", lines, label=label, seed=seed))
            found.append(values)
    return paths, numbers


def refused(*runs: Path, output: Path | None = None) -> str:
    with pytest.raises(WellcondError) as caught:
        draw_figures(runs, output or runs[0].parent / "out")
    return str(caught.value)


def colours_in(path: Path) -> int:
    packed = (imread(path)[..., :3] * 255).astype(np.uint32) @ np.array([1, 256, 256**2], np.uint32)
    assert (packed == 256**3 - 1).mean() > 0.3  # a white background
    return len(np.unique(packed))


def test_numbers_and_pictures(compared: Any, tmp_path: Path) -> None:
    paths, numbers = compared
    written = draw_figures(paths, tmp_path / "made" / "here")
    assert [path.name for path in written] == ["figures.json", "weights.png", "jacobian.png", "entropy.png"]
    assert sorted(path.name for path in written[0].parent.iterdir()) == sorted(path.name for path in written)
    for path in written[1:]:
        assert colours_in(path) > 50
    found = json.loads(written[0].read_text())
    seen = set()
    for row in found["series"]:
        name = row["quantity"]
        assert row["role"] == next((role for role in ROLES if role in name), "")
        assert row["weight"] == (("trained" if name.endswith("_trained") else "effective") if row["role"] else "")
        known = [run[name] for run in numbers[row["label"]]]
        means = np.stack([values.reshape(len(STEPS), -1).mean(1) for values in known])
        assert row["steps"] == list(STEPS)
        assert row["seeds"] == [0, 1, 2]
        np.testing.assert_allclose(row["mean"], means.mean(0), rtol=1e-13)
        np.testing.assert_allclose(row["deviation"], means.std(0, ddof=1), rtol=1e-12)
        assert row["averaged"] == [3 * LAYERS * HEADS] * len(STEPS)
        assert (row["left_out"], row["reasons"]) == ([0] * len(STEPS), {})
        seen.add((row["label"], name))
    every = {(label, name) for label, runs in numbers.items() for name in runs[0]}
    assert seen == every
    assert len(found["series"]) == len(every)


def test_folders_of_the_first_schema_are_read(tmp_path: Path) -> None:
    lines, _ = training(np.random.default_rng(1), conditioned=True)
    new = write(tmp_path / "new", lines, label="x", seed=0)
    old = write(tmp_path / "old", [first_schema(text) for text in lines], label="x", seed=0)
    (old / "run.json").write_text('{"schema": 1, "label": "x", "seed": 0}')
    assert over_seeds([read_run(old)]) == over_seeds([read_run(new)])


def test_equal_records_give_equal_files(tmp_path: Path) -> None:
    run = write(tmp_path / "r", [entropy_line(step, 0.5, 0.7) for step in range(3)])
    first, second = (draw_figures([run], tmp_path / name, ("png", "svg", "pdf")) for name in ("a", "b"))
    assert [path.name for path in first] == ["figures.json", "entropy.png", "entropy.svg", "entropy.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_single_seed_has_no_band(tmp_path: Path) -> None:
    run = write(tmp_path / "alone", [entropy_line(0, 0.5, 1.0)])
    (series,) = over_seeds([read_run(run)])
    assert (series.label, series.seeds, series.mean, series.deviation) == ("alone", (None,), (0.75,), None)
    assert draw_figures([run], tmp_path / "out")[1].name == "entropy.png"


def test_steps_that_all_seeds_share(tmp_path: Path) -> None:
    first = write(tmp_path / "a", [entropy_line(step, 0.5) for step in (0, 10, 20)], label="x", seed=0)
    second = write(tmp_path / "b", [entropy_line(step, 1.0) for step in (10, 20, 30)], label="x", seed=1)
    (series,) = over_seeds([read_run(first), read_run(second)])
    assert series.steps == (10, 20)
    assert series.mean == (0.75, 0.75)
    third = write(tmp_path / "c", [entropy_line(5, 0.5)], label="x", seed=2)
    assert "share no step" in refused(first, third)


def test_a_quantity_that_one_seed_lacks_is_named(tmp_path: Path) -> None:
    both = [entropy_line(0, 0.5), jacobian_line(0, kappa(3.0))]
    runs = [write(tmp_path / "a", both, label="x", seed=0), write(tmp_path / "b", both[:1], label="x", seed=1)]
    written = draw_figures(runs, tmp_path / "out", ["svg"])
    assert [path.name for path in written] == ["figures.json", "jacobian.svg", "entropy.svg"]
    assert "x: κ(J) leaves out everything, since its seeds share no step" in written[1].read_text()


def test_a_step_recorded_again_after_a_crash_counts_once(tmp_path: Path) -> None:
    run = write(tmp_path / "r", [entropy_line(0, 0.1), entropy_line(10, 0.2), entropy_line(0, 0.3)])
    (series,) = over_seeds([read_run(run)])
    assert (series.steps, series.mean) == ((0, 10), (0.3, 0.2))


def test_nothing_unknown_is_averaged(tmp_path: Path) -> None:
    weights = [Spectrum(4.0, 8.0, 2.0), Spectrum(None, 3.0, 0.0), Spectrum(math.inf, 1.0, 1e-320)]
    rows = tuple(WeightRecord("query", i, each) for i, each in enumerate(weights))
    statuses = [kappa(10.0), kappa(30.0, "lower bound"), kappa(50.0, "unresolved")]
    statuses += [kappa(70.0, "rank deficient"), kappa(None, "largest only"), kappa(math.inf)]
    bounds = [Bound(None, 1.0, 1.0, None), Bound(5.0, 1.0, 1.0, 1.0, kappa(4.0, "rank deficient")), None]
    records = [JacobianRecord(i, kappa(1.0), bound, None, 5, 5) for i, bound in enumerate(bounds)]
    lines = [
        line(0, "weights", [layer(weights=rows)]),
        jacobian_line(0, *statuses),
        line(7, "jacobian", [layer(jacobian=tuple(records))]),
        entropy_line(0, 0.5, None, math.nan),
    ]
    run = write(tmp_path / "r", lines)
    found = {one.quantity: one for one in over_seeds([read_run(run)])}
    low, high, condition = (found[f"{name}_query"] for name in ("sigma_min", "sigma_max", "kappa"))
    assert (low.mean, high.mean, low.left_out) == ((pytest.approx(2 / 3),), (4.0,), (0,))
    assert (condition.mean, condition.averaged, condition.left_out) == ((4.0,), (1,), (2,))
    assert condition.reasons == {"rank deficient": 1, "not finite": 1}
    exact, at_least = found["kappa_jacobian_exact"], found["kappa_jacobian_at_least"]
    assert (exact.mean, exact.averaged, exact.left_out) == ((10.0, 1.0), (1, 3), (5, 0))
    assert sum(exact.reasons.values()) == 5
    assert (at_least.mean[0], at_least.averaged) == (pytest.approx(30.0), (3, 3))
    assert at_least.reasons == {"rank deficient": 1, "largest only": 1, "not finite": 1}
    assert (found["bound"].mean, found["bound"].reasons) == ((5.0,), {"unresolved": 1})
    vertical = found["kappa_jacobian_vertical"]
    assert (vertical.mean, vertical.reasons) == ((None,), {"rank deficient": 1})
    assert found["entropy"].mean == (0.5,)
    written = draw_figures([run], tmp_path / "out", ["svg"])
    assert "r: κ leaves out 1 rank deficient, 1 not finite" in written[1].read_text()
    assert "1 lower bound" in written[2].read_text()


def test_the_invariant_kappa_has_a_panel_with_its_statuses(tmp_path: Path) -> None:
    statuses = [kappa(10.0), kappa(30.0, "lower bound"), kappa(70.0, "rank deficient")]
    found = [replace(kappa(1e3), equilibrated=one) for one in statuses]
    run = write(tmp_path / "r", [jacobian_line(step, *found) for step in (0, 5)])
    rows = {one.quantity: one for one in over_seeds([read_run(run)])}
    exact, at_least = rows["kappa_equilibrated_exact"], rows["kappa_equilibrated_at_least"]
    assert (exact.mean, exact.reasons) == ((10.0, 10.0), {"lower bound": 2, "rank deficient": 2})
    assert (at_least.mean, at_least.reasons) == ((20.0, 20.0), {"rank deficient": 2})
    text = draw_figures([run], tmp_path / "out", ["svg"])[1].read_text()
    assert text.count('<g id="axes_') == 2
    assert "r: κ_eq(J) leaves out 2 lower bound, 2 rank deficient" in text
    assert "<!-- κ_eq(J) is at least -->" in text
    assert "<!-- κ(J) is at least -->" not in text  # all of these are exact
    old = write(tmp_path / "old", [jacobian_line(0, kappa(1e3))])  # of before it was measured
    text = draw_figures([old], tmp_path / "before", ["svg"])[1].read_text()
    assert text.count('<g id="axes_') == 1
    assert "κ_eq" not in text


def test_both_lines_are_of_the_same_heads_where_some_layers_are_conditioned(tmp_path: Path) -> None:
    plain, with_c = (
        WeightRecord("key", 0, spectrum((1, 2))),
        WeightRecord("key", 0, spectrum((11, 12)), spectrum((1, 4))),
    )
    run = write(tmp_path / "r", [line(0, "weights", [layer(weights=(plain,)), layer(weights=(with_c,))])])
    found = {one.quantity: one.mean for one in over_seeds([read_run(run)]) if one.quantity.startswith("sigma_max")}
    assert found == {"sigma_max_key_trained": (3.0,), "sigma_max_key": (7.0,)}


def test_numbers_near_the_largest_float(tmp_path: Path) -> None:
    bounds = [1e-320, 1.0, 1.7e308]
    runs = []
    for seed, factor in enumerate((1.0, 0.5)):
        lines = [jacobian_line(i, kappa(2.0), bound=Bound(b * factor, 1, 1, 1)) for i, b in enumerate(bounds)]
        runs.append(write(tmp_path / f"{seed}", lines, label="x", seed=seed))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = draw_figures(runs, tmp_path / "out")
    (row,) = [row for row in json.loads(written[0].read_text())["series"] if row["quantity"] == "bound"]
    assert row["mean"][1:] == pytest.approx([0.75, 0.75 * 1.7e308])
    assert row["deviation"][1:] == pytest.approx([0.5 / 2**0.5, 0.5 / 2**0.5 * 1.7e308])


@pytest.mark.parametrize("cut", ['{"schema": 2, "step"', '{"schema": 2, "note": "κ'.encode()[:-1], b"\0\0\0", "\n\n{"])
def test_a_last_line_that_was_cut_off_is_ignored(tmp_path: Path, cut: str | bytes) -> None:
    run = write(tmp_path / "r", [entropy_line(0, 0.5)])
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(cut if isinstance(cut, bytes) else cut.encode())
    assert [step for step, _ in read_run(run).records] == [0]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('{"schema": 2, "st', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("17", "holds a number in place of an object"),
        ('{"step": 3, "layers": []}', "no schema number"),
        ('{"schema": true, "step": 3, "layers": []}', "no schema number"),
        ('{"schema": 2, "layers": []}', "KeyError: 'step'"),
        ('{"schema": 2, "step": 1.5, "layers": []}', "not a whole number"),
        ('{"schema": 2, "step": 1, "layers": []}', "KeyError: 'quantities'"),
        ('{"schema": 2, "step": 1, "quantities": 3}', "not a monitor's record"),
        ('{"schema": 2, "step": 1, "quantities": {"entropy": 3}}', "the summary of entropy is 3"),
        ('{"schema": 2, "step": 1, "quantities": {"entropy": {"mean": 3}}}', "KeyError: 'count'"),
        ('{"schema": 2, "step": 1, "quantities": {"entropy": {"mean": "high", "count": 1}}}', "could not convert"),
        ('{"schema": 1, "step": 1, "layers": 3}', "not a monitor's record"),
        ('{"schema": 1, "step": 1, "layers": ["x"]}', "not a monitor's record"),
        ('{"schema": 1, "step": 1, "layers": [{"heads": [{"entropy": "high"}]}]}', "could not convert"),
        ('{"schema": 1, "step": 1, "layers": [{"heads": [{"entropy": 1' + "0" * 400 + "}]}]}", "too large a number"),
        ('{"schema": 1, "step": 1, "layers": [{"weights": [{"role": "query", "head": 0}]}]}', "KeyError: 'raw'"),
        (entropy_line(10, 0.5).replace('"schema": 2', '"schema": 3'), "upgrade wellcond"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, why: str) -> None:
    run = write(tmp_path / "r", [entropy_line(0, 0.5), bad, entropy_line(20, 0.5)])
    message = refused(run)
    assert f"'{run / 'metrics.jsonl'}', line 2 " in message
    assert why in message
    assert not (tmp_path / "out").exists()


def test_a_damaged_line_with_its_end_is_not_taken_for_a_cut_one(tmp_path: Path) -> None:
    run = write(tmp_path / "r", [entropy_line(0, 0.5)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n\n{\n")
    assert "line 4 is not JSON" in refused(run)


def test_a_newer_last_line_is_not_taken_for_a_cut_one(tmp_path: Path) -> None:
    run = write(tmp_path / "r", [entropy_line(0, 0.5), line(10, "attention", [], schema=3)])
    assert "line 2 has schema 3" in refused(run)


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ("{", "is not JSON"),
        ("[]", "no schema number"),
        ('{"schema": 3, "label": "x"}', "upgrade wellcond"),
        ('{"schema": 2, "label": 3}', "label must be text"),
        ('{"schema": 2, "label": "x", "seed": "0"}', "seed a whole number"),
    ],
)
def test_a_bad_description_is_refused(tmp_path: Path, about: str, why: str) -> None:
    run = write(tmp_path / "r", [entropy_line(0, 0.5)])
    (run / "run.json").write_text(about)
    message = refused(run)
    assert str(run / "run.json") in message
    assert why in message


def test_runs_that_cannot_be_drawn(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "metrics.jsonl" in refused(tmp_path / "empty")
    file = tmp_path / "file"
    file.write_text("")
    assert "not the folder of a run" in refused(file)
    cut = write(tmp_path / "cut", [])
    (cut / "metrics.jsonl").write_text('{"schema": 2')
    assert "no complete record" in refused(cut)
    assert "nothing to draw: no record" in refused(write(tmp_path / "void", [line(0, "weights", [layer()])]))
    run = write(tmp_path / "a" / "run", [entropy_line(0, 0.5)])
    linked = tmp_path / "linked"
    linked.symlink_to(run)
    message = refused(run, linked)  # one run that is read twice is no second sample
    assert str(run) in message
    assert str(linked) in message
    assert "'run' and seed None" in message
    assert "is a file" in refused(run, output=file)
    assert "cannot be written" in refused(run, output=file / "below")
    with pytest.raises(WellcondError, match="unknown format 'exe'"):
        draw_figures([run], tmp_path / "out", ["exe"])


def test_a_run_named_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path / "here", [entropy_line(0, 0.5)]))
    assert read_run(Path(".")).label == "here"


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(tmp_path / "r", [entropy_line(0, 0.5)])
    before = [path.read_bytes() for path in draw_figures([run], tmp_path / "out")]

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert "No space left" in refused(run)
    assert [(tmp_path / "out" / name).read_bytes() for name in ("figures.json", "entropy.png")] == before
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_matplotlib_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'wellcond[plot]'" in refused(write(tmp_path / "r", [entropy_line(0, 0.5)]))


HOSTILE = [
    "$\\frac{1}{$",
    "$$",
    "_hidden",
    "__",
    "",
    " ",
    "<script>alert(1)</script>",
    "--><script>x</script><!--",
    "]]>&amp;\"'",
    "two\nlines\ttab\0nul\x1b[31m",
    "long " * 500,
    "x" * 3000,
    "\\LaTeX{} %s {0} ^_^ #",
    "\ud800",
    "\u202eright to left",
]


def test_runs_of_one_label_go_by_their_folders(tmp_path: Path) -> None:
    """Two monitors without a label both have the model's class, and no seed."""
    torch.manual_seed(0)
    for name in ("default", "other/shift"):
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        with wc.Monitor(model, torch.randn(2, 4, 8), every=1, folder=tmp_path / name) as monitor:
            monitor.step()
    folders = [tmp_path / "default", tmp_path / "other" / "shift"]
    assert len({read_run(folder).label for folder in folders}) == 1
    assert labels_of(draw_figures(folders, tmp_path / "f")) == {"default", "shift"}
    write(tmp_path / "shift", [entropy_line(0, 0.5)], label=read_run(folders[0]).label)
    folders.append(tmp_path / "shift")
    more = labels_of(draw_figures(folders, tmp_path / "g"))
    assert more == {f"{tmp_path.name}/default", "other/shift", f"{tmp_path.name}/shift"}
    plain = [write(tmp_path / name / "run", [entropy_line(0, 0.5)]) for name in ("a", "b")]
    assert labels_of(draw_figures(plain, tmp_path / "h")) == {"a/run", "b/run"}


def test_seeds_of_a_label_stay_together(tmp_path: Path) -> None:
    runs = [write(tmp_path / f"{seed}", [entropy_line(0, 0.5)], label="x", seed=seed) for seed in range(2)]
    assert labels_of(draw_figures(runs, tmp_path / "f")) == {"x"}
    again = write(tmp_path / "again", [entropy_line(0, 0.5)], label="x", seed=0)
    assert labels_of(draw_figures([*runs, again], tmp_path / "g")) == {"0", "1", "again"}


def labels_of(written: Sequence[Path]) -> set[str]:
    return {row["label"] for row in json.loads(written[0].read_text())["series"]}


@pytest.mark.parametrize("usetex", [False, True])
def test_hostile_labels_are_drawn_as_text(tmp_path: Path, usetex: bool) -> None:
    lines = [entropy_line(0, 0.5), entropy_line(1, 0.6), jacobian_line(0, kappa(3.0), kappa(9.0, "unresolved"))]
    runs = [write(tmp_path / f"{i}", lines, label=label, seed=0) for i, label in enumerate(HOSTILE)]
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings(), matplotlib.rc_context({"text.usetex": usetex, "svg.fonttype": "none"}):
        warnings.simplefilter("error")
        written = draw_figures(runs, tmp_path / "out", ["png", "svg"])
    assert dict(matplotlib.rcParams) == before
    labels = {row["label"] for row in json.loads(written[0].read_text())["series"]}
    assert labels == set(HOSTILE)
    for path in written[1:]:
        if path.suffix == ".png":
            assert colours_in(path) > 50
            assert max(imread(path).shape) < 3000  # nothing stretches the picture
        else:
            assert "<script" not in path.read_text()
            assert "_hidden" in path.read_text()


def test_many_labels_have_their_own_colours(tmp_path: Path) -> None:
    runs = [write(tmp_path / f"r{i}", [entropy_line(0, i / 25), entropy_line(1, i / 25)]) for i in range(25)]
    assert colours_in(draw_figures(runs, tmp_path / "out")[1]) > 100


def test_pyplot_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # its import fails
    assert draw_figures([write(tmp_path / "r", [entropy_line(0, 0.5)])], tmp_path / "out")
