"""The HTML page of a recommendation, opened in a browser: what it says first, draws, and does not let in."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from playwright.sync_api import Browser, Page, expect
from torch import nn

import wellcond as wc
from tests.advice.models import CountedTime, broken, data, fresh
from tests.pages import drawn, opened
from wellcond._core.json_safe import plain
from wellcond.advice import probe as probing
from wellcond.advice.diagram import advice_diagram
from wellcond.advice.recommendation import Recommendation
from wellcond.errors import WellcondError
from wellcond.html.recommendation_page import recommendation_page

HOSTILE = "<script>alert(1)</script>\"'\\ %{y} &amp; </script><img src=x onerror=alert(2)><b>bold</b>"
ARROW = "document.querySelector('#diagram').layout.annotations.find(({ name }) => name === 'advice')"


def asked(
    model: nn.Module, batches: Any, loss: Any, seconds: float, schemes: list[str], lr: float = 3e-3
) -> Recommendation:
    """A recommendation whose probe counts looks at the clock, so that it is the same everywhere."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(probing.time, "perf_counter", CountedTime())
        return wc.recommend(model, batches, loss=loss, lr=lr, seconds=seconds, schemes=schemes)


@pytest.fixture(scope="module")
def mended() -> Recommendation:
    """A model with everything out of line, for which something is shown to be better."""
    found = asked(broken("gpt2", "qoe"), *data("gpt2"), seconds=1.0, schemes=["fan_in", "mimetic"])
    assert found.best.outcome == "advised"
    assert found.best.prediction is not None
    assert len([one for one in found.ranking if one.difference]) >= 2
    return found


@pytest.fixture(scope="module")
def kept() -> Recommendation:
    """A fresh ViT of timm at a learning rate of next to nothing, where every candidate ends where it begins."""
    found = asked(fresh("vit"), *data("vit"), seconds=1.0, schemes=["normal"], lr=1e-12)
    assert found.best is found.own
    assert found.probe.last is not None
    return found


@pytest.fixture(scope="module")
def uncovered() -> Recommendation:
    """A Swin, whose windows the theory does not cover, and too little time for intervals."""
    sizes = {"depths": (1, 1), "embed_dim": 12, "num_heads": (1, 2), "img_size": 16, "window_size": 2, "patch_size": 2}
    drawn = torch.Generator().manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = timm.models.swin_transformer.SwinTransformer(**sizes, num_classes=5)
    batches = [(torch.randn(4, 3, 16, 16, generator=drawn), torch.randint(5, (4,), generator=drawn)) for _ in range(8)]
    found = asked(model, batches, nn.functional.cross_entropy, seconds=0.3, schemes=["conditioned", "fan_in"])
    assert found.probe.last is None
    assert found.probe.rungs
    return found


@pytest.fixture(scope="module")
def text(mended: Recommendation) -> str:
    return mended.to_html()


@pytest.fixture(scope="module")
def page(browser: Browser, text: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(browser, text, tmp_path_factory.mktemp("page") / "r.html") as page:
        yield page


def by_name(page: Page, plot: str, meta: str) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in drawn(page, plot) if trace.get("meta") == meta}


def test_the_first_screen_says_what_to_do_and_why(page: Page, mended: Recommendation) -> None:
    assert page.inner_text("h1") == f"Begin with {mended.best.name}"
    said = page.inner_text("header .why")
    assert mended.summary.endswith(said[1:])
    findings = page.inner_text("#findings")
    assert all(finding.what in findings and finding.text in findings for finding in mended.state.findings)
    tops = [page.locator(place).bounding_box() or {} for place in ("#findings", "h1", "#code", "#state", "#diagram")]
    heights = [box["y"] for box in tops]
    assert heights[0] < heights[1] < heights[2]
    assert tops[-1]["y"] + tops[-1]["height"] < 1000
    assert page.text_content("#code") == mended.best.code
    tiles = page.locator(".tiles b").all_inner_texts()
    assert tiles[0] == str(len(mended.state.scales))
    low, high = mended.state.ranges()["beta"] or (0, 0)
    assert tiles[1].startswith(f"{low:.2g} – {high:.2g}")


def test_every_seed_and_interval_is_drawn(page: Page, mended: Recommendation) -> None:
    tested = {one.name: one.difference for one in mended.ranking if one.difference is not None}
    means, seeds = by_name(page, "#differences", "mean"), by_name(page, "#differences", "seeds")
    assert list(means) == list(tested)
    assert mended.probe.last is not None
    assert sum(len(trace["x"]) for trace in seeds.values()) == len(tested) * len(mended.probe.last.seeds)
    for name, found in tested.items():
        own = means[name]
        assert found.interval is not None
        assert seeds[name]["x"] == list(found.by_seed)
        assert own["x"] == [found.mean]
        ends = own["x"][0] - own["error_x"]["arrayminus"][0], own["x"][0] + own["error_x"]["array"][0]
        assert ends == pytest.approx(found.interval)
        assert (own["marker"]["color"] == own["marker"]["line"]["color"]) == found.better
    axis = page.evaluate("document.querySelector('#differences').layout.xaxis")
    assert axis["zeroline"]
    assert axis["range"][1] >= 0
    assert "← better" in axis["title"]["text"]


def test_the_arrow_goes_from_the_model_to_the_advice(page: Page, mended: Recommendation) -> None:
    arrow, own, best = page.evaluate(ARROW), mended.own.prediction, mended.best.prediction
    assert own is not None
    assert best is not None
    assert [10 ** arrow[end] for end in ("ax", "ay")] == pytest.approx([own.heat, own.value_gain])
    points = by_name(page, "#diagram", "finalist") | by_name(page, "#diagram", "rest")
    end = points[mended.best.name]  # at the edge, where what is advised is beyond the axes
    assert [10 ** arrow["x"], 10 ** arrow["y"]] == pytest.approx([end["x"][0], end["y"][0]])
    predicted = {one.name for one in mended.ranking if one.prediction is not None}
    assert set(points) == predicted
    assert best.verdict in points[mended.best.name]["hovertext"]
    start = page.evaluate(
        """() => {
            const { xaxis, yaxis } = document.querySelector('#diagram')._fullLayout;
            const box = document.querySelector('#diagram').getBoundingClientRect();
            return [box.left + xaxis._offset, box.top + yaxis._offset, xaxis._length, yaxis._length];
        }"""
    )
    head = page.locator("#diagram .annotation-arrow-g path").first.bounding_box()
    assert head is not None  # where the browser puts it, not only what it was told
    assert start[0] <= head["x"] <= start[0] + start[2]
    assert start[1] <= head["y"] <= start[1] + start[3]


def test_the_copy_button_copies(browser: Browser, text: str, mended: Recommendation, tmp_path: Path) -> None:
    allowed = ["clipboard-read", "clipboard-write"]
    with opened(browser, text, tmp_path / "r.html", permissions=allowed) as page:
        page.click("#copy")
        expect(page.locator("#copied")).to_have_text("copied")
        assert page.evaluate("navigator.clipboard.readText()") == mended.best.code


def test_without_a_clipboard_the_code_is_selected(
    browser: Browser, text: str, mended: Recommendation, tmp_path: Path
) -> None:
    with opened(browser, text, tmp_path / "r.html") as page:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        for possible, said in (("true", "copied"), ("false", "selected: copy it with Ctrl+C or ⌘C")):
            page.evaluate(f"getSelection().removeAllRanges(); document.execCommand = () => {possible}")
            page.click("#copy")
            expect(page.locator("#copied")).to_have_text(said)
            assert page.evaluate("getSelection().toString()").strip() == mended.best.code


def test_every_candidate_is_in_the_table(page: Page, mended: Recommendation) -> None:
    assert not page.locator("#candidates table").is_visible()  # the first screen stays one screen
    rows: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('#candidates tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    assert len(rows) == len(mended.ranking)
    for cells, one in zip(rows, mended.ranking, strict=True):
        assert cells[0] == one.name + one.candidate.citation
        assert (cells[1], cells[-1]) == (one.outcome, one.reason)
        assert bool(cells[2]) == (one.loss is not None)
    best = mended.best.difference
    assert best is not None
    assert best.interval is not None
    assert rows[0][3] == f"{best.mean:+.2g}[{best.interval[0]:+.2g}, {best.interval[1]:+.2g}]"
    assert rows[0][4] == f"{best.p_holm:.2g}"
    said = page.text_content("#measured") or ""
    last = mended.probe.last
    assert last is not None
    assert f"{len(last.losses)} candidates × {len(last.seeds)} seeds × {last.steps} steps" in said
    assert "adamw, learning rate 0.003" in said


def test_light_dark_and_phone(browser: Browser, text: str, tmp_path: Path) -> None:
    with opened(browser, text, tmp_path / "r.html", bypass_csp=True) as page:  # the policy would not let it wait
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        for scheme, width in itertools.product(("light", "dark"), (1300, 390)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 844})
            ends = "[...document.querySelectorAll('.plot .main-svg')].map((one) => one.getBoundingClientRect().right)"
            page.wait_for_function(f"Math.max(...{ends}) <= innerWidth")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            ink = page.evaluate("document.querySelector('#differences').layout.font.color")
            assert (sum(map(int, re.findall(r"\d+", background))) > 384) == (scheme == "light")
            assert (sum(int(ink[at : at + 2], 16) for at in (1, 3, 5)) < 384) == (scheme == "light")


def test_kept_weights_have_no_code_and_no_arrow(browser: Browser, kept: Recommendation, tmp_path: Path) -> None:
    written = tmp_path / "written.html"
    said = kept.to_html(written)
    assert written.read_text(encoding="utf-8") == said
    assert [path.name for path in tmp_path.iterdir()] == ["written.html"]
    with opened(browser, said, tmp_path / "r.html") as page:
        assert page.inner_text("h1") == "Keep your weights"
        assert page.locator("#do, #findings, #copy").count() == 0
        assert page.evaluate(ARROW) is None
        assert kept.own.name in by_name(page, "#diagram", "finalist")
        assert not any(
            trace["marker"]["color"] == trace["marker"]["line"]["color"]
            for trace in by_name(page, "#differences", "mean").values()
        )


def test_predictions_alone_are_a_diagram_and_a_table(browser: Browser, tmp_path: Path) -> None:
    found = asked(fresh("vit"), *data("vit"), seconds=0, schemes=["fan_in", "conditioned"])
    with opened(browser, found.to_html(), tmp_path / "r.html") as page:
        assert page.inner_text("h1") == found.summary
        assert page.locator("#differences, #losses, #do").count() == 0
        assert page.locator("#candidates table").is_visible()
        assert page.locator("#candidates th").all_inner_texts()[2] == "β"  # no columns of what was not measured
        assert set(by_name(page, "#diagram", "rest")) == {one.name for one in found.ranking} - {"yours"}


def test_where_the_theory_does_not_reach_losses_stand_alone(
    browser: Browser, uncovered: Recommendation, tmp_path: Path
) -> None:
    with opened(browser, uncovered.to_html(), tmp_path / "r.html") as page:
        assert page.inner_text("h1") == "Nothing is advised"
        assert uncovered.probe.note == page.inner_text("#note")
        assert uncovered.unpredicted in page.inner_text("#no-diagram")
        assert page.locator("#diagram, #differences").count() == 0
        rung, means = uncovered.probe.rungs[-1], by_name(page, "#losses", "mean")
        assert {name: trace["x"] for name, trace in means.items()} == {
            name: pytest.approx([rung.mean(name)]) for name in rung.losses
        }
        assert [trace["x"][0] for trace in means.values()] == sorted(rung.mean(name) for name in rung.losses)


def page_data(found: Recommendation) -> dict[str, Any]:
    diagram, reason = advice_diagram(found._stack, found.ranking)
    return found.to_dict() | {"diagram": diagram, "no_diagram": found.unpredicted or reason}


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of JSON with every text changed, keys of objects too."""
    if isinstance(value, dict):
        return {change(key) if isinstance(key, str) else key: mapped(one, change) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(one, change) for one in value]
    return change(value) if isinstance(value, str) else value


def test_hostile_text_is_text(browser: Browser, mended: Recommendation, tmp_path: Path) -> None:
    given = page_data(mended)
    every = {one["name"] for one in given["ranking"]} | {one["reason"] for one in given["ranking"]}
    every |= {one["citation"] for one in given["ranking"] if one["citation"]}
    every |= {given["model"], given["code"], given["settings"]["loss"], *given["findings"][0].values()}
    hostile = mapped(given, lambda text: f"{text} {HOSTILE}" if text in every else text)
    hostile["summary"] = hostile["probe"]["note"] = HOSTILE
    # Without the policy, which would stop a script that got through the escaping.
    with opened(browser, recommendation_page(hostile), tmp_path / "r.html", bypass_csp=True) as page:
        assert page.title() == f"{mended.model} {HOSTILE} · wellcond recommendation"
        assert page.inner_text("h1") == HOSTILE
        assert page.text_content("#code") == f"{mended.best.code} {HOSTILE}"
        for place in ("header", "#findings", "#candidates tbody", "#measured", "#place .keys"):
            assert HOSTILE in (page.text_content(place) or ""), place
        assert "<b>bold</b>" in (page.text_content("#differences .yaxislayer-above") or "")
        box = page.locator("#diagram .nsewdrag").bounding_box()
        arrow = page.evaluate(ARROW)
        assert box is not None
        (left, right), (low, high) = page.evaluate(
            "['xaxis', 'yaxis'].map((name) => document.querySelector('#diagram').layout[name].range)"
        )
        across, up = (arrow["x"] - left) / (right - left), (arrow["y"] - low) / (high - low)
        page.mouse.move(box["x"] + across * box["width"], box["y"] + (1 - up) * box["height"])
        page.wait_for_selector("#diagram .hoverlayer .hovertext")
        assert "<b>bold</b>" in (page.text_content("#diagram .hoverlayer") or "")
        assert page.locator("script").count() == 3
        assert page.locator("img, u, b b").count() == 0


def test_what_diverged_is_said_in_words(browser: Browser, mended: Recommendation, tmp_path: Path) -> None:
    given = page_data(mended)
    first, second, *_ = (one for one in given["ranking"] if one["difference"])
    seeds = len(first["difference"]["by_seed"])
    first["difference"] |= {"by_seed": [-math.inf] * seeds, "mean": -math.inf, "interval": None}
    second["difference"] |= {"by_seed": [math.nan, *second["difference"]["by_seed"][1:]], "mean": math.nan}
    second["difference"]["interval"] = None
    text = recommendation_page(given)
    (held,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    json.loads(held, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    with opened(browser, text, tmp_path / "r.html") as page:
        said = page.inner_text("#evidence")
        assert f"{first['name']}: yours diverged in {seeds} of {seeds} seeds." in said
        assert f"{second['name']}: it diverged in 1 of {seeds} seeds." in said
        assert by_name(page, "#differences", "seeds")[first["name"]]["x"] == []


def test_what_could_not_be_measured_says_why(mended: Recommendation) -> None:
    given = page_data(mended)
    given["state"] |= {"layers": {}, "ranges": {"beta": None, "branch": None}, "entry": None}
    given["state"]["unknown"] = "its logits are <b>hidden</b>"
    text = recommendation_page(given)
    assert "its logits are &lt;b&gt;hidden&lt;/b&gt;" in text
    assert text.count("not known, see below") == 2
    assert "no block was given one" in text


def test_the_same_advice_gives_the_same_page_from_a_file_too(mended: Recommendation, text: str) -> None:
    given = page_data(mended)
    assert recommendation_page(given) == text
    assert recommendation_page(json.loads(json.dumps(plain(given)))) == text


@pytest.mark.parametrize("library", ["jinja2", "plotly.offline"])
def test_missing_library_is_named(kept: Recommendation, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(WellcondError, match=r"pip install 'wellcond\[report\]'"):
        kept.to_html()
