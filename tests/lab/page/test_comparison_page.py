"""The HTML page of a comparison, opened in a browser: what it draws, what it says where something is missing."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.pages import drawn, opened
from wellcond.errors import WellcondError
from wellcond.html.comparison_page import comparison_page
from wellcond.lab.page.comparison_data import comparison_data, write_comparison_page

HOSTILE = "<script>alert(1)</script>\"'\\ %{y} &amp; </script><img src=x onerror=alert(2)> 日本語 𝔘"
STEPS = 400
TESTS = range(50, STEPS + 1, 50)
RESULTS = {  # final accuracy by seed
    "default": (0.70, 0.72, 0.71),
    "conditioned": (0.80, 0.815, 0.811),
    "conditioned, scale only": (0.76, 0.75, 0.72),
    "shift 10": (0.69, 0.73, 0.71),
}
EXTREMES = (("beta", "max"), ("branch", "min"), ("branch", "max"), ("entropy", "min"))  # that are kept beside the means
DIAGRAM = {"depth": 6, "tokens": 16, "norm": "pre", "value_gain": 1.0, "mlp_gain": [1.0, 1.0], "cosine": 0.2}


def accuracy(step: int, final: float) -> float:
    return round(0.1 + (final - 0.1) * (1 - math.exp(-4 * step / STEPS)) / (1 - math.exp(-4)), 6)


def monitored(step: int, index: int, seed: int) -> dict[str, Any]:
    roles = ("query", "key", "value", "output")
    weights = {f"sigma_min_{role}": 0.01 * (1 + index + seed / 10) * (1 + step / STEPS) for role in roles}
    kappas = {f"kappa_{role}": 50.0 + 10 * index + seed for role in roles}
    kappa = 1e4 / (1 + index) ** 2 * (1 + seed / 5) * 2 ** (-step / 100)
    return {
        "beta": 0.1 * (1 + index),
        "branch": 0.02 * (1 + index),
        **weights,
        **kappas,
        "entropy": 0.9 - 0.1 * index - 0.2 * step / STEPS + seed / 100,
        "max_logit": 3.0,
        "kappa_equilibrated": kappa / 10,
        "kappa_jacobian": kappa,
    }


def monitor_line(step: int, values: dict[str, Any]) -> dict[str, Any]:
    found = {key: {"mean": value, "min": value, "max": value, "count": 1} for key, value in values.items()}
    return {"kind": "monitor", "step": step, "schema": 2, "quantities": found}


def write_run(
    folder: Path, arm: str, index: int, seed: int, final: float, status: str = "finished", **changes: Any
) -> None:
    path = folder / "runs" / f"{index:02d}-arm" / f"seed-{seed}"
    path.mkdir(parents=True)
    end = STEPS if status == "finished" else changes.pop("end", 120)
    described = {
        "schema": 2,
        "arm": arm,
        "control_of": arm.partition(", scale only")[0] if ", scale only" in arm else None,
        "seed": seed,
        "status": status,
        "error": "" if status == "finished" else f"the loss is nan at step {end}",
        "metric": "accuracy",
        "higher_is_better": True,
        "steps": STEPS,
        "start": {"beta": 0.3 * 3**index, "value_gain": 0.5 + 0.1 * index, "entropy": 0.9},
        **changes,
    }
    (path / "run.json").write_text(json.dumps(described))
    lines: list[dict[str, Any]] = [
        {"kind": "train", "step": step, "loss": (2.3 - final) * math.exp(-3 * step / STEPS) + 0.2 + seed / 100}
        for step in range(10, end + 1, 10)
    ]
    metric = described["metric"]
    lines += [{"kind": "test", "step": step, metric: accuracy(step, final)} for step in TESTS if step <= end]
    lines += [monitor_line(step, monitored(step, index, seed)) for step in range(0, end + 1, 100)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    timings = [{"kind": "train", "step": end, "seconds": 10.0 + index}]
    (path / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timings))


def write_about(folder: Path, **changes: Any) -> None:
    about = {
        "title": "A small ViT on handwritten digits",
        "command": "wellcond compare digits --out runs/digits",
        "versions": {"wellcond": "0.1.0", "torch": "2.9.0"},
        "machine": {"processor": "a processor", "cores": 8},
        "task": {
            "name": "digits",
            "description": "8 × 8 handwritten digits, 1,437 to learn from, 360 to be judged by.",
            "metric": "accuracy",
            "higher_is_better": True,
        },
        "model": "vit",
        "parameters": 203722,
        "baseline": "default",
        "diagram": None,
        **changes,
    }
    (folder / "comparison.json").write_text(json.dumps(about))
    (folder / "recipe.toml").write_text('task = "digits"\n\n[arms.default]\n\n[arms."shift 10"]\nstrength = 10.0\n')


def write_folder(folder: Path, results: dict[str, tuple[float, ...]] = RESULTS, **about: Any) -> Path:
    write_about(folder, **about)
    for index, (arm, finals) in enumerate(results.items()):
        for seed, final in enumerate(finals):
            write_run(folder, arm, index, seed, final)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms, a control and one whose seeds 1 and 2 did not finish; a monitor and a diagram."""
    folder = write_folder(tmp_path_factory.mktemp("comparison"), diagram=DIAGRAM)
    write_run(folder, "shift 100", 4, 0, 0.6)
    write_run(folder, "shift 100", 4, 1, 0.6, status="diverged", end=130)
    write_run(folder, "shift 100", 4, 2, 0.6, status="crashed", end=60, error="RuntimeError: <b>no memory</b>")
    return folder


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return comparison_page(comparison_data(folder))


@pytest.fixture(scope="module")
def page(browser: Browser, text: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of `folder`, for the tests that leave it as it was."""
    with opened(browser, text, tmp_path_factory.mktemp("page") / "c.html") as page:
        yield page


def by_name(page: Page, plot: str, meta: str) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in drawn(page, plot) if trace.get("meta") == meta}


def row(page: Page, arm: str, table: str = "#results") -> list[str]:
    cells: list[list[str]] = page.evaluate(
        f"[...document.querySelectorAll('{table} tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    (found,) = [own for own in cells if own[0].split("\n")[0] == arm]
    return found


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_curves_are_the_numbers(page: Page) -> None:
    means, bands = by_name(page, "#test", "mean"), by_name(page, "#test", "band")
    assert list(means) == [*RESULTS, "shift 100"]
    for arm, finals in RESULTS.items():
        runs = [[accuracy(step, final) for step in TESTS] for final in finals]
        assert means[arm]["x"] == list(TESTS)
        assert means[arm]["y"] == pytest.approx([mean(list(column)) for column in zip(*runs, strict=True)])
        highest = [max(column) for column in zip(*runs, strict=True)]
        lowest = [min(column) for column in zip(*runs, strict=True)]
        assert bands[arm]["y"] == [*highest, *reversed(lowest), None]
    assert "shift 100" not in bands  # one finished seed has no range
    losses = by_name(page, "#train", "mean")["conditioned"]
    expected = [mean([(2.3 - f) * math.exp(-30 / STEPS) + 0.2 + s / 100 for s, f in enumerate(RESULTS["conditioned"])])]
    assert losses["y"][:1] == pytest.approx(expected)
    assert means["conditioned, scale only"]["line"]["dash"] == "dash"
    assert len({trace["line"]["color"] for trace in means.values()}) == 5

    single = by_name(page, "#train", "single")
    assert list(single) == ["shift 100, seed 1, diverged", "shift 100, seed 2, crashed"]
    assert single["shift 100, seed 1, diverged"]["x"][-1] == 130
    assert single["shift 100, seed 1, diverged"]["marker"]["symbol"][-2:] == ["circle", "x"]


def test_monitored_quantities_are_drawn(page: Page) -> None:
    titles = page.locator("#inside h3").all_inner_texts()[:5]
    assert [title.split(" ")[0] for title in titles] == ["sharpness", "branch", "entropy", "κ_eq(J),", "κ(J),"]
    kappa = by_name(page, "#first-4", "mean")["shift 10"]
    expected = [mean([monitored(step, 3, seed)["kappa_jacobian"] for seed in range(3)]) for step in kappa["x"]]
    assert kappa["x"] == [0, 100, 200, 300, 400]
    assert kappa["y"] == pytest.approx(expected)
    invariant = by_name(page, "#first-3", "mean")["shift 10"]
    assert invariant["y"] == pytest.approx([value / 10 for value in expected])
    axes = [page.evaluate(f"document.querySelector('#first-{index}').layout.yaxis.type") for index in range(5)]
    assert axes == ["log", "log", "linear", "log", "log"]
    page.select_option("#sigma-chosen", label="σ_min(W_V)")
    expected = [mean([monitored(step, 0, seed)["sigma_min_value"] for seed in range(3)]) for step in kappa["x"]]
    assert by_name(page, "#sigma", "mean")["default"]["y"] == pytest.approx(expected)
    page.select_option("#rest-chosen", label="largest attention logit")
    assert by_name(page, "#rest", "mean")["default"]["y"] == [3.0] * 5


def test_what_no_change_of_coordinates_moves_comes_before_kappa(page: Page) -> None:
    headers = page.locator("#courses th")
    assert headers.all_inner_texts() == ["arm, start → end", "β", "g", "entropy", "κ_eq(J)", "κ(J)"]
    assert headers.nth(1).get_attribute("title") == "sharpness β"
    found = row(page, "conditioned", "#courses")
    assert found[1:] == ["0.2 → 0.2", "0.04 → 0.04", "0.81 → 0.61", "300 → 18.8", "3e3 → 188"]
    scrolled = "[...document.querySelectorAll('.scroll')].map((box) => box.scrollWidth - box.clientWidth)"
    assert max(page.evaluate(scrolled)) == 0  # all columns are in sight


def test_differences_and_steps(page: Page, folder: Path) -> None:
    found = by_name(page, "#differences", "mean")
    assert list(found) == ["conditioned", "conditioned, scale only", "shift 10", "shift 100"]
    differences = [b - a for a, b in zip(RESULTS["default"], RESULTS["conditioned"], strict=True)]
    sd = math.sqrt(sum((d - mean(differences)) ** 2 for d in differences) / 2)
    half = 4.302652729911275 * sd / math.sqrt(3)  # the 97.5 % point of Student's t with two degrees of freedom
    own = found["conditioned"]
    assert own["x"] == pytest.approx([mean(differences)])
    assert [own["error_x"][side][0] for side in ("array", "arrayminus")] == pytest.approx([half, half])
    assert by_name(page, "#differences", "seeds")["conditioned"]["x"] == pytest.approx(differences)
    filled = {name: trace["marker"]["color"] == trace["marker"]["line"]["color"] for name, trace in found.items()}
    assert filled == {**dict.fromkeys(found, False), "conditioned": True}  # those whose interval leaves out 0
    assert "error_x" not in found["shift 100"]

    def first(finals: tuple[float, ...]) -> list[int | None]:
        aims = zip(finals, RESULTS["default"], strict=False)
        return [next((step for step in TESTS if accuracy(step, final) >= aim), None) for final, aim in aims]

    steps = by_name(page, "#reaching", "median")
    for arm in ("default", "conditioned"):
        assert steps[arm]["x"] == [sorted(filter(None, first(RESULTS[arm])))[1]]
    assert "not reached (0 of 1 seeds)" in page.inner_text("#reaching")


def test_table_and_words(page: Page) -> None:
    own = row(page, "conditioned")
    assert own[2] == "0.8087 ± 0.0078"
    assert own[3].startswith("+0.0987\n[")
    assert own[4:6] == ["better", "200\n3 of 3 seeds"]
    assert own[6:] == ["1.10 ×", "none"]
    assert row(page, "conditioned, scale only")[0].endswith("scale control of conditioned")
    assert page.locator("#controls .tag").first.inner_text() == "beyond scale, no control of its spectrum"
    assert row(page, "shift 100")[7] == "1 diverged, 1 crashed"
    assert row(page, "default")[3] == "–"
    dots = page.locator("#results tbody tr").nth(1).locator("circle title").all_text_contents()
    assert dots == ["seed 0: 0.8", "seed 1: 0.815", "seed 2: 0.811"]
    assert "conditioned is better than default" in page.inner_text("#words")
    summary = page.locator("#summary li").all_inner_texts()
    assert summary == [
        "digits",
        "vit, 203,722 parameters",
        "5 arms",
        "3 seeds",
        "400 steps",
        "2 runs did not finish",
    ]
    lost = page.inner_text("#unfinished")
    assert "the loss is nan at step 130" in lost
    assert "RuntimeError: <b>no memory</b>" in lost
    assert "wellcond compare digits --out runs/digits" in page.inner_text("#again")
    assert "strength = 10.0" in page.inner_text("#recipe")
    assert "a processor" in page.inner_text("footer")


def test_controls_have_their_tests_and_the_gain_its_cause(browser: Browser, tmp_path: Path) -> None:
    controls = {"scale only": "scale", "rotated": "rotation", "sign flipped": "sign"}
    results = {"default": (0.70, 0.72, 0.71), "mimetic": (0.80, 0.815, 0.811)}
    own = {"scale only": (0.76, 0.775, 0.77), "rotated": (0.79, 0.82, 0.81), "sign flipped": (0.81, 0.83, 0.824)}
    write_folder(tmp_path, results)
    for index, (suffix, finals) in enumerate(own.items(), start=2):
        for seed, final in enumerate(finals):
            control = {"control_of": "mimetic", "control": controls[suffix]}
            write_run(tmp_path, f"mimetic, {suffix}", index, seed, final, **control)
    with opened(browser, comparison_page(comparison_data(tmp_path)), tmp_path / "c.html") as page:
        assert row(page, "mimetic, rotated")[0].endswith("rotation control of mimetic")
        rows = page.locator("#controls tbody tr")
        assert rows.count() == 3
        first, second, third = (rows.nth(i).locator("td").all_inner_texts() for i in range(3))
        assert first[:3] == ["mimetic", "explained by spectrum", "mimetic, scale only"]
        assert first[3].startswith("+0.0403\n[")
        assert first[5] == "better"
        assert [second[0], second[-1]] == ["mimetic, rotated", "no difference shown"]
        assert [third[0], third[-1]] == ["mimetic, sign flipped", "worse"]
        title = rows.nth(0).locator("td").nth(1).locator(".tag").get_attribute("title") or ""
        assert "no difference to its control mimetic, rotated is shown with 3 seeds" in title
        assert title in page.inner_text("#words")


def test_diagram_has_the_starts(page: Page) -> None:
    heat, *_ = drawn(page, "#diagram")
    assert len(heat["z"]) == len(heat["y"])
    starts = by_name(page, "#diagram", "start")
    assert list(starts) == [*RESULTS, "shift 100"]
    assert (starts["conditioned"]["x"], starts["conditioned"]["y"]) == (pytest.approx([0.9]), pytest.approx([0.6]))
    cells = page.locator("#starts tbody tr").nth(0).locator("td").all_inner_texts()
    assert cells == ["default", "0.3", "0.5", "trainable"]
    assert "entropy collapse" in page.locator("#starts tbody tr").nth(4).inner_text()
    assert "can be trained" in (page.text_content("#diagram") or "")


def test_keys_hide_an_arm_everywhere(page: Page) -> None:
    page.click(".key:has-text('shift 10') >> nth=0")
    for plot, meta in (("#test", "mean"), ("#differences", "mean"), ("#reaching", "median"), ("#diagram", "start")):
        assert "shift 10" not in by_name(page, plot, meta)
        assert "conditioned" in by_name(page, plot, meta)
    page.click(".key[aria-pressed=false]")
    assert list(by_name(page, "#test", "mean")) == [*RESULTS, "shift 100"]


def test_phone_dark_and_paper(browser: Browser, text: str, tmp_path: Path) -> None:
    with opened(browser, text, tmp_path / "c.html", color_scheme="dark") as page:
        axis = "document.querySelector('#test').layout.font.color"
        background = "getComputedStyle(document.body).backgroundColor"
        darkness = page.evaluate(axis), page.evaluate(background)
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        wide = "[...document.querySelectorAll('.plot .main-svg')].map((plot) => plot.getBoundingClientRect().right)"
        assert max(page.evaluate(wide)) <= 390
        page.evaluate(
            """() => {
                const { react } = Plotly;
                window.drawn = [];
                Plotly.react = (id, traces, layout, config) => {
                    window.drawn.push([layout.width, layout.font.color]);
                    return react(id, traces, layout, config);
                };
            }"""
        )
        assert page.pdf().startswith(b"%PDF")
        sizes = page.evaluate("window.drawn")
        plots = page.locator(".plot").count()
        assert sizes[:plots] == [[660, "#1c2330"]] * plots  # paper is light and has a width of its own
        assert sizes[plots:] == [[None, darkness[0]]] * plots  # and then all is as it was
        page.set_viewport_size({"width": 720, "height": 1000})
        page.emulate_media(media="print")
        assert page.evaluate(background) == "rgb(255, 255, 255)"
        assert page.evaluate("document.documentElement.scrollWidth") <= 720


def test_hostile_text_is_text(browser: Browser, tmp_path: Path) -> None:
    results = {"default": (0.5, 0.6), HOSTILE: (0.6, 0.7), f"{HOSTILE}, scale only": (0.4, 0.5)}
    write_folder(tmp_path, results, title=HOSTILE, command=HOSTILE, model=HOSTILE, versions={HOSTILE: HOSTILE})
    (tmp_path / "recipe.toml").write_text(HOSTILE)
    write_run(tmp_path, HOSTILE, 5, 7, 0.5, status="crashed", error=HOSTILE)
    # Without the policy, which would stop a script that got through the escaping.
    with opened(browser, comparison_page(comparison_data(tmp_path)), tmp_path / "c.html", bypass_csp=True) as page:
        assert page.title() == f"{HOSTILE} · wellcond comparison"
        assert page.inner_text("h1") == HOSTILE
        for place in ("#keys", "#results", "#words", "#unfinished", "#again", "#recipe", "footer", "#summary"):
            assert HOSTILE in page.inner_text(place), place
        start, end = HOSTILE[:12], HOSTILE[-6:]
        assert start in (page.text_content("#differences .yaxislayer-above") or "")
        box = page.locator("#test .nsewdrag").bounding_box()
        assert box is not None
        page.locator("#test").scroll_into_view_if_needed()
        page.locator("#test .nsewdrag").hover(position={"x": box["width"] / 2, "y": box["height"] / 2}, force=True)
        page.wait_for_selector("#test .hoverlayer .legend")
        hovered = page.text_content("#test .hoverlayer") or ""
        assert start in hovered
        assert end in hovered
        assert page.locator("script").count() == 3
        assert page.locator("img, b").count() == 0


def write_nothing_more(folder: Path) -> None:
    """No monitor, no start, no recipe, one seed, and a metric of which less is better."""
    write_about(folder, diagram=None, machine={}, command="")
    (folder / "recipe.toml").unlink()
    for index, arm in enumerate(("default", "mimetic")):
        write_run(folder, arm, index, 0, 0.5 + index / 10, start={}, metric="perplexity", higher_is_better=False)
        metrics = folder / "runs" / f"{index:02d}-arm" / "seed-0" / "metrics.jsonl"
        lines = [line for line in metrics.read_text().splitlines() if '"monitor"' not in line]
        metrics.write_text("\n".join(lines) + "\n")


def test_what_is_missing_leaves_a_sentence(browser: Browser, tmp_path: Path) -> None:
    write_nothing_more(tmp_path)
    with opened(browser, comparison_page(comparison_data(tmp_path)), tmp_path / "c.html") as page:
        assert "There is one seed" in page.inner_text("#words")
        assert "Nothing was monitored" in page.inner_text("#inside")
        assert "has no place on a trainability diagram" in page.inner_text("#trainability")
        assert "The command was not recorded." in page.inner_text("#again")
        assert "The recipe was not kept." in page.inner_text("#again")
        assert "not recorded" in page.inner_text("footer")
        assert "lower is better" in page.inner_text("#results h2")
        assert "← better" in (page.text_content("#differences") or "")
        assert row(page, "mimetic")[3] == "+0.1\nno interval"
        assert page.locator("#courses").count() == 0
        assert list(by_name(page, "#test", "mean")) == ["default", "mimetic"]
        assert by_name(page, "#test", "band") == {}


def test_all_diverged(browser: Browser, tmp_path: Path) -> None:
    write_about(tmp_path, diagram={"depth": 2, "tokens": 16, "no such": 1})
    for index, arm in enumerate(("default", "mimetic")):
        write_run(tmp_path, arm, index, 0, 0.5, status="diverged", end=100)
        write_run(tmp_path, arm, index, 1, 0.5, status="running", end=0)
    metrics = tmp_path / "runs" / "00-arm" / "seed-0" / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write('{"kind": "train", "step": 110, "loss": "nan"}\n{"kind": "test", "step": 100, "accuracy": "inf"}\n')
    with opened(browser, comparison_page(comparison_data(tmp_path)), tmp_path / "c.html") as page:
        assert "there are no differences" in page.inner_text("#no-differences")
        assert "nothing to reach" in page.inner_text("#no-reaching")
        assert "could not be computed: 'no such' is no parameter" in page.inner_text("#trainability")
        assert by_name(page, "#test", "mean") == {}
        assert by_name(page, "#train", "single")["default, seed 0, diverged"]["y"][-1] is None
        assert row(page, "default")[2] == "–"
        assert row(page, "default")[7] == "1 diverged, 1 interrupted"
        assert page.locator("#unfinished li").count() == 4
        page.evaluate("document.querySelectorAll('.key').forEach((key) => key.click())")
        assert drawn(page, "#train") == []  # all are hidden, and nothing breaks


def test_a_comparison_before_schema_2_has_the_same_page(tmp_path: Path) -> None:
    """It kept the same numbers by name, without their summaries."""
    write_folder(tmp_path)
    new = comparison_data(tmp_path)
    for path in tmp_path.glob("runs/*/*/metrics.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            found = line.pop("quantities", {})
            line.pop("schema", None)
            for key, one in found.items():
                line[key] = one["mean"]
                line |= {f"{key}_{end}": one[end] for name, end in EXTREMES if name == key}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert comparison_data(tmp_path) == new


def test_a_quantity_that_old_records_lack_has_no_column_and_no_panel(tmp_path: Path) -> None:
    write_folder(tmp_path)
    for path in tmp_path.glob("runs/*/*/metrics.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for name in ("beta", "branch", "kappa_equilibrated"):
            for line in lines:
                line.get("quantities", {}).pop(name, None)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = comparison_data(tmp_path)
    assert [label for label, _ in data["headlines"].values()] == ["entropy", "κ(J)"]
    assert data["rows"][1]["courses"] == ["0.81 → 0.61", "3e3 → 188"]
    first = [curve["name"] for curve in data["figures"]["monitored"] if curve["group"] == "first"]
    assert first == ["entropy", "kappa_jacobian"]


def test_page_is_reproducible_and_written_whole(folder: Path, text: str, tmp_path: Path) -> None:
    (held,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    json.loads(held, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert write_comparison_page(folder) == folder / "report.html"
    assert (folder / "report.html").read_text(encoding="utf-8") == text
    assert write_comparison_page(folder, tmp_path / "other.html") == tmp_path / "other.html"
    assert [path.name for path in tmp_path.iterdir()] == ["other.html"]
    assert str(folder) not in text


def test_errors_say_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WellcondError, match=r"comparison.json' cannot be read .*--out folder"):
        comparison_page(comparison_data(tmp_path))
    write_about(tmp_path)
    with pytest.raises(WellcondError, match="holds no runs"):
        comparison_page(comparison_data(tmp_path))
    write_run(tmp_path, "default", 0, 0, 0.5)
    for library in ("jinja2", "plotly.offline"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, library, None)
            with pytest.raises(WellcondError, match=r"pip install 'wellcond\[report\]'"):
                comparison_page(comparison_data(tmp_path))


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    write_about(tmp_path)
    write_run(tmp_path, "default", 0, 0, 0.5)
    metrics = tmp_path / "runs" / "00-arm" / "seed-0" / "metrics.jsonl"
    metrics.write_text("".join(f'{{"kind": "train", "step": {s}, "loss": {s}.0}}\n' for s in range(1, 4001)))
    (held,) = re.findall(r'id="data">(.*?)</script>', comparison_page(comparison_data(tmp_path)), re.DOTALL)
    (band,) = json.loads(held)["curves"]["train"]["bands"]
    assert len(band["x"]) == 400
    assert (band["x"][0], band["mean"][0], band["x"][-1]) == (10, 5.5, 4000)
