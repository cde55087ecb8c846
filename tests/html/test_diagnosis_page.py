"""The HTML page of a diagnosis, opened in a browser: what it draws, what it lets users do, what it does not let in."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from torch import nn

import wellcond as wc
from tests.pages import drawn, opened
from wellcond._core.json_safe import to_json
from wellcond.diagnosis.readings import condition_reading
from wellcond.diagnosis.records import HeadRecord, JacobianRecord, LayerRecord, Spectrum, WeightRecord
from wellcond.errors import WellcondError
from wellcond.html.diagnosis_page import diagnosis_page
from wellcond.jacobian.result import Bound, ConditionNumber, SpectrumStatus

HOSTILE = "<script>alert(1)</script>\u2028\"'&amp;<img src=x onerror=alert(2)><b>bold</b>"
MODEL = "</title></script><script>alert(3)</script>"
VERDICT = "</script><img src=x onerror=alert(4)> lower the learning rate & use 'QK-norm'"
NOTE = "the keys are <i>quantised</i>"
STATUSES = (SpectrumStatus.OK, SpectrumStatus.UNRESOLVED, SpectrumStatus.LOWER_BOUND, SpectrumStatus.DEFICIENT)


def spectrum(*values: float) -> Spectrum:
    return Spectrum(values[0] / values[-1] if values[-1] else None, values[0], values[-1], values)


def weights(heads: int, groups: int, *, kept: bool = True) -> Iterator[WeightRecord]:
    for number, role in enumerate(("query", "key", "value", "output")):
        for head in range(groups if role in ("key", "value") else heads):
            own = spectrum(10.0 ** (number + 1), 2.0, 1 / (head + 1))
            bare = Spectrum(own.condition, own.sigma_max, own.sigma_min)
            gradient = 0.1 * (head + 1) if kept else None
            scaled = spectrum(5.0, 1.0) if role == "output" and groups == 4 else None
            yield WeightRecord(role, head, own if kept else bare, None, scaled, gradient)
        yield WeightRecord(role, None, spectrum(7.0, 3.5))


def jacobian(head: int, status: str) -> JacobianRecord:
    value = 10.0 ** (head + 3)
    condition = ConditionNumber(value, 4.0, 4.0 / value, 7, 8, 1e-14, "factor", status)
    if status == SpectrumStatus.LARGEST:
        condition = ConditionNumber(None, 4.0, None, None, None, None, "matrix-free", status)
    vertical = (
        ConditionNumber(5e5, 4.0, 8e-6, 8, 8, 1e-14, "factor", SpectrumStatus.OK)
        if status == SpectrumStatus.UNRESOLVED
        else None
    )
    bound = Bound(
        None if status == SpectrumStatus.DEFICIENT else 1e9,
        30.0,
        math.inf,
        None,
        vertical,
        None if vertical is None else False,
    )
    measured = (vertical or condition).value
    ratio = None if bound.value is None or measured is None else measured / bound.value
    return JacobianRecord(head, condition, bound, ratio, 5, 9, (4.0, 1.0, 0.0) if head == 0 else ())


def attention(head: int) -> HeadRecord:
    verdict, code = (VERDICT, "entropy collapse") if head == 3 else ("", "")
    return HeadRecord(head, 0.2 * (head + 1), 0.1 * (head + 1), math.nan if head == 1 else 5.0 * head, verdict, code)


def diagnosis() -> dict[str, Any]:
    """Three layers: two query heads to a key head and a hostile name; half as many heads; no softmax over tokens."""
    jacobians = tuple(jacobian(head, status) for head, status in enumerate(STATUSES))
    singular = (WeightRecord("query", 1, spectrum(3.0, 0.0)), *(w for w in weights(2, 2, kept=False) if w.head != 1))
    first = LayerRecord(
        HOSTILE, "softmax", (4, 2, 3, 12), 9, 2.5, 0.5, tuple(weights(4, 2)), tuple(map(attention, range(4))), jacobians
    )
    second = LayerRecord(
        "blocks.1", "softmax", (2, 2, 3, 12), 9, None, None, singular, (attention(0), attention(1)), note=NOTE
    )
    third = LayerRecord(
        "blocks.2",
        "xca",
        (4, 4, 3, 12),
        9,
        1.0,
        1.0,
        tuple(weights(4, 4)),
        tuple(HeadRecord(head, None, None, None) for head in range(4)),
        (jacobian(2, SpectrumStatus.LARGEST),),
        verdict="All tokens are alike.",
        code="rank collapse",
    )
    return {
        "schema": 2,
        "model": MODEL,
        "inputs": "2 sequences of 9 tokens",
        "settings": {"rows": 5, "patterns": ["<u>*</u>"]},
        "versions": {"wellcond": "0.1.0"},
        "layers": [asdict(layer) for layer in (first, second, third)],
        "skipped": [{"name": "pool<hr>", "cls": "Pool", "reason": "one learned query"}],
    }


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of `diagnosis()`, for the tests that leave the table as it is."""
    file = tmp_path_factory.mktemp("page") / "d.html"
    with opened(browser, diagnosis_page(diagnosis()), file) as page:
        page.set_viewport_size({"width": 1300, "height": 5000})  # a page that scrolled would move under a resting mouse
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        yield page


def heat_map(page: Page, quantity: str) -> list[list[float | None]]:
    page.select_option("#quantity", label=quantity)
    z: list[list[float | None]] = drawn(page, "#map")[0]["z"]
    return z


def at_cell(page: Page, layer: int, head: int, *, layers: int = 3, heads: int = 4) -> tuple[float, float]:
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map .nsewdrag").bounding_box()
    assert box is not None
    return box["x"] + (head + 0.5) / heads * box["width"], box["y"] + (layer + 0.5) / layers * box["height"]


def column(page: Page, label: str) -> list[str]:
    """The texts of a column, in the order of the visible rows."""
    labels = page.locator("#columns th").all_inner_texts()
    cells: list[str] = page.evaluate(
        "(index) => [...document.querySelectorAll('#rows tr')].map((row) => row.children[index].innerText)",
        [text.strip() for text in labels].index(label),
    )
    return cells


def logs(*values: float | None) -> list[Any]:
    return [None if value is None else pytest.approx(math.log10(value)) for value in values]


def test_heat_maps_are_the_numbers(page: Page) -> None:
    assert heat_map(page, "κ(W_Q)") == [logs(10, 20, 30, 40), logs(10, None, None, None), logs(10, 20, 30, 40)]
    # Two query heads read each key head of the first layer.
    assert heat_map(page, "κ(W_K)")[0] == logs(100, 100, 200, 200)
    assert heat_map(page, "σ_min(W_V)")[0] == logs(1, 1, 1 / 2, 1 / 2)
    assert heat_map(page, "σ_min(W_Q)")[1] == logs(1, None, None, None)  # 0 has no logarithm
    assert heat_map(page, "κ(J)") == [logs(1e3, 1e4, 1e5, 1e6), [None] * 4, [None] * 4]
    assert heat_map(page, "measured ÷ bound")[0] == logs(1e-6, 5e-4, 1e-4, None)
    assert heat_map(page, "κ(J) stacked vertically")[0] == logs(None, 5e5, None, None)
    assert heat_map(page, "κ(W_O) scaled") == [[None] * 4, [None] * 4, logs(5, 5, 5, 5)]
    assert heat_map(page, "entropy") == [pytest.approx([0.2, 0.4, 0.6, 0.8]), [0.2, 0.4, None, None], [None] * 4]
    assert heat_map(page, "concentration Σ p²")[0] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert heat_map(page, "max |logit|")[0] == [0, None, 10, 15]  # NaN leaves a gap
    assert heat_map(page, "‖∇W_O‖")[0] == logs(0.1, 0.2, 0.3, 0.4)
    assert heat_map(page, "similarity of tokens") == [[0.5] * 4, [None] * 4, [1.0] * 4]  # of a layer, so of its heads
    options = page.locator("#quantity option").all_inner_texts()
    assert "κ(W_Q) scaled" not in options  # measured nowhere
    assert not [option for option in options if "trained" in option]


def test_the_page_opens_on_what_matters(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, diagnosis_page(diagnosis()), tmp_path / "d.html") as page:
        assert page.evaluate("document.querySelector('#quantity').selectedOptions[0].text") == "entropy"
        assert page.locator("main > *").evaluate_all("(parts) => parts.map((part) => part.id)")[:3] == [
            "verdicts",
            "through",
            "maps",
        ]
        layout = page.evaluate("document.querySelector('#overview').layout")
        assert [title["text"] for title in layout["annotations"]] == [
            "entropy",
            "concentration Σ p²",
            "similarity of tokens",
        ]
        assert [layout[axis]["range"] for axis in ("yaxis", "yaxis2", "yaxis3")] == [[0, 1]] * 3
        heads, medians, *_, similarity = drawn(page, "#overview")
        assert heads["y"] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.2, 0.4])
        assert heads["customdata"] == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1]]
        assert medians["y"] == [pytest.approx(0.5), pytest.approx(0.3), None]
        assert similarity["y"] == [0.5, None, 1.0]
        assert page.inner_text("#meaning").startswith("0: a query sees one key only")


def test_bounds_are_columns_on_demand(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, diagnosis_page(diagnosis()), tmp_path / "d.html") as page:
        shown = [text.strip() for text in page.locator("#columns th").all_inner_texts()]
        assert shown[:6] == ["layer", "head", "finding", "entropy", "concentration Σ p²", "similarity of tokens"]
        assert "κ(J)" in shown
        assert [text for text in shown if "bound" in text or "σ" in text or "vertical" in text] == []
        page.check("#all-columns")
        assert {"papers’ bound", "measured ÷ bound", "κ(J) stacked vertically", "σ_min(W_Q)"} <= {
            text.strip() for text in page.locator("#columns th").all_inner_texts()
        }
        page.click("#columns button:text-is('papers’ bound')")
        assert column(page, "papers’ bound")[:4] == ["1e+09"] * 4
        page.uncheck("#all-columns")  # what it is sorted by goes with it
        assert [text.strip() for text in page.locator("#columns th").all_inner_texts()] == shown
        assert column(page, "head")[:4] == ["0", "1", "2", "3"]


def colours(page: Page, quantity: str) -> tuple[float, float]:
    page.select_option("#quantity", label=quantity)
    trace = drawn(page, "#map")[0]
    return trace["zmin"], trace["zmax"]


def test_colours_have_a_meaning(page: Page) -> None:
    assert (
        colours(page, "entropy")
        == colours(page, "concentration Σ p²")
        == colours(page, "similarity of tokens")
        == (0, 1)
    )
    assert colours(page, "κ(W_Q)") == pytest.approx((0, 2))  # κ from 10 to 40
    assert colours(page, "κ(W_O)") == pytest.approx((0, math.log10(4e4)))  # wider where values are
    assert colours(page, "κ(J)") == pytest.approx((0, 6))
    assert colours(page, "σ_min(W_V)") == pytest.approx((-1, 1))
    assert colours(page, "max |logit|") == (0, 15)
    low, high = colours(page, "‖∇W_Q‖")  # 0.1 to 0.4
    assert high - low == pytest.approx(2)
    assert (low + high) / 2 == pytest.approx(math.log10(0.2))
    low, high = colours(page, "measured ÷ bound")  # 1 in the middle, where two colours meet
    assert (low, high) == pytest.approx((-6, 6))
    scale = [colour for _, colour in drawn(page, "#map")[0]["colorscale"]]
    page.select_option("#quantity", label="κ(J)")
    assert scale[len(scale) // 2] in ("#f7f7f7", "#2a2f38")
    assert scale != [colour for _, colour in drawn(page, "#map")[0]["colorscale"]]


def test_noise_is_one_colour_in_page_and_picture(browser: Browser, tmp_path: Path) -> None:
    """Gaussian weights of a real ViT: κ between 3.2 and 3.9, which is no difference."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=2)
    found = wc.diagnose(model, torch.randn(1, 3, 32, 32), jacobian=False)
    with opened(browser, found.to_html(), tmp_path / "d.html") as page:
        low, high = colours(page, "κ(W_Q)")
        values = [value for row in drawn(page, "#map")[0]["z"] for value in row]
        assert 0 < max(values) - min(values) < 0.1 * (high - low)
    images = {axes.get_title(): axes.images[0] for axes in found.plot().axes if axes.images}
    assert list(images)[:4] == ["β", "κ(W_Q W_Kᵀ)", "κ(W_V W_O)", "entropy"]
    assert images["κ(W_Q)"].get_clim() == pytest.approx((10**low, 10**high))
    assert images["entropy"].get_clim() == (0, 1)
    shown = images["κ(W_Q)"].get_array()
    assert shown.tolist() == [
        [w.effective.condition for w in layer.weights if w.role == "query" and w.head is not None]
        for layer in found.layers
    ]


def graded() -> dict[str, Any]:
    """The same with severities and remedies, in an order that is not theirs."""
    data: dict[str, Any] = json.loads(json.dumps(diagnosis()))
    first, _, third = data["layers"]
    for head, code, severity in ((0, "uniform", "note"), (1, "uniform", "note"), (3, "entropy collapse", "alarm")):
        first["heads"][head] |= {"code": code, "severity": severity, "verdict": f"{code} here"}
    first["heads"][3]["remedy"] = 'wc.condition_(model, "<b>qk_norm</b>")'
    third["heads"][2] |= {"code": "ill conditioned", "severity": "warning", "verdict": "κ is 1e9"}
    third |= {"severity": "warning"}
    return data


def test_verdicts_come_worst_first(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, diagnosis_page(graded()), tmp_path / "d.html") as page:
        tags = page.locator("#verdicts .tag").evaluate_all(
            "(tags) => tags.map((tag) => [tag.innerText, tag.className])"
        )
        assert tags == [
            ["entropy collapse", "tag alarm"],
            ["rank collapse", "tag warning"],
            ["ill conditioned", "tag warning"],
            ["uniform", "tag note"],
        ]
        assert 'wc.condition_(model, "<b>qk_norm</b>")' in page.inner_text("#verdicts")
        assert "2 heads of <script>" in page.inner_text("#verdicts")
        assert page.inner_text("#place").endswith("· head 3")  # the gravest
        assert page.locator("#judgement code").inner_text() == 'wc.condition_(model, "<b>qk_norm</b>")'
        page.click("#columns button:text-is('finding')")
        assert column(page, "finding")[:4] == ["entropy collapse", "ill conditioned", "uniform", "uniform"]
        painted = page.locator("#verdicts .tag").evaluate_all(
            "(tags) => tags.map((tag) => getComputedStyle(tag).color)"
        )
        assert painted[1] == painted[2]
        assert len(set(painted)) == 3
        marks = drawn(page, "#map")[2]
        assert len(set(marks["marker"]["color"])) == 3
        page.fill("#filter", "warning")
        assert column(page, "finding") == ["ill conditioned"]


def test_names_that_do_not_fit_lose_what_all_share(browser: Browser, tmp_path: Path) -> None:
    data = graded()
    for index, layer in enumerate(data["layers"]):
        layer["name"] = f"model.decoder.layers.{index}.self_attention"
    with opened(browser, diagnosis_page(data), tmp_path / "d.html") as page:
        page.locator("#map .yaxislayer-above text:text-is('layers.2')").wait_for()  # longer than there is room for
        for layer in data["layers"]:
            layer["name"] = layer["name"].removeprefix("model.decoder.")
    with opened(browser, diagnosis_page(data), tmp_path / "d.html") as page:
        page.locator("#map .yaxislayer-above text:text-is('layers.2.self_attention')").wait_for()
        page.set_viewport_size({"width": 390, "height": 844})
        page.locator("#map .yaxislayer-above text:text-is('layers.2')").wait_for()


def test_concerns_of_a_layer_are_shown_with_their_heads(browser: Browser, tmp_path: Path) -> None:
    data = graded()
    first, second, third = data["layers"]
    parts = ("layer", "heads", "code", "severity", "text", "remedy")
    flat = ("uniform", "note", "attends uniformly", "wc.init_(model)")
    first["concerns"] = [
        dict(zip(parts, (HOSTILE, [3], "entropy collapse", "alarm", "entropy 0.01", "fix()"), strict=True)),
        dict(zip(parts, (HOSTILE, [0, 1], *flat), strict=True)),
    ]
    second["concerns"] = [dict(zip(parts, ("blocks.1", [0], *flat), strict=True))]
    third["concerns"] = [
        dict(zip(parts, ("blocks.2", [2], "ill conditioned", "alarm", "κ is 1e9", "polar()"), strict=True)),
        dict(zip(parts, ("blocks.2", [], "rank collapse", "warning", "all alike", "skip()"), strict=True)),
    ]
    third["severity"] = "alarm"  # the gravest of all, its heads' too
    with opened(browser, diagnosis_page(data), tmp_path / "d.html") as page:
        tags = page.locator("#verdicts .tag").evaluate_all(
            "(tags) => tags.map((tag) => [tag.innerText, tag.className])"
        )
        assert tags == [
            ["entropy collapse", "tag alarm"],
            ["ill conditioned", "tag alarm"],
            ["rank collapse", "tag warning"],
            ["uniform", "tag note"],
        ]
        text = page.inner_text("#verdicts")
        assert "blocks.2, head 2\nκ is 1e9\npolar()" in text
        assert "3 heads of <script>" in text
        assert text.count("attends uniformly") == 1
        assert "heads 0, 1" in text
        assert page.locator("#layers .tag").get_attribute("class") == "tag warning"


@pytest.mark.parametrize("width", [390, 800, 1300])
def test_nothing_is_wider_than_the_screen(browser: Browser, tmp_path: Path, width: int) -> None:
    # The policy would not let the test wait for a condition.
    with opened(browser, diagnosis_page(graded()), tmp_path / "d.html", bypass_csp=True) as page:
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function(
            "document.querySelector('#overview .main-svg').getBoundingClientRect().width <= innerWidth"
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        domains = page.evaluate(
            "['xaxis', 'xaxis2'].map((name) => document.querySelector('#overview').layout[name].domain[0])"
        )
        assert (domains[0] == domains[1]) == (width < 960)  # one below another where there is no room beside
        page.select_option("#quantity", label="κ(J)")
        assert (drawn(page, "#map")[0]["colorbar"].get("orientation") == "h") == (width < 500)  # not beside a small map
        cells = page.locator("#map .nsewdrag").bounding_box()
        assert cells is not None
        assert cells["width"] > 0.4 * min(width, 900)


def test_something_is_to_be_seen(page: Page) -> None:
    page.mouse.click(*at_cell(page, 0, 0))
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        for plot in ("#map", "#spectrum"):
            image = Image.open(io.BytesIO(page.locator(plot).screenshot())).convert("RGB")
            colours = image.getcolors(maxcolors=image.width * image.height)
            assert len(colours or ()) > 50
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background))) > 384) == (scheme == "light")


def point_at(page: Page, layer: int, head: int, place: str) -> None:
    """Hover over a cell, and wait until the page has seen it: a click is where Plotly last looked, every 50 ms."""
    page.mouse.move(*at_cell(page, layer, head))
    expect(page.locator("#place")).to_have_text(place, use_inner_text=True)


def test_hovering_and_clicking_draw_spectra(page: Page) -> None:
    point_at(page, 0, 0, f"{HOSTILE} · head 0")
    page.wait_for_selector("#map .hoverlayer .hovertext")
    expected = {
        "W_Q": [10, 2, 1],
        "W_K": [100, 2, 1],
        "W_V": [1e3, 2, 1],
        "W_O": [1e4, 2, 1],
        "J (1 × 0)": [4, 1, None],
    }
    assert {trace["name"]: trace["y"] for trace in drawn(page, "#spectrum")} == expected

    point_at(page, 2, 3, "blocks.2 · head 3")
    page.mouse.click(*at_cell(page, 2, 3))
    page.mouse.move(0, 0)
    assert page.inner_text("#place") == "blocks.2 · head 3"
    last = {"W_Q": 0.25, "W_K": 0.25, "W_V": 0.25, "W_O": 0.25, "W_O scaled": 1}
    assert {trace["name"]: trace["y"][-1] for trace in drawn(page, "#spectrum")} == last

    point_at(page, 1, 0, "blocks.1 · head 0")
    page.mouse.click(*at_cell(page, 1, 0))
    expect(page.locator("#no-spectrum")).to_be_visible()
    assert page.is_hidden("#spectrum")
    page.mouse.click(*at_cell(page, 1, 3))  # a head that this layer does not have
    page.mouse.move(0, 0)
    assert page.inner_text("#place") == "blocks.1 · head 0"
    page.locator("#rows tr").first.click()
    assert page.inner_text("#place").startswith("<script>")
    assert len(drawn(page, "#spectrum")) == 5


def test_quick_choices_do_not_trip_plotly(page: Page) -> None:
    # It adjusts margins later; the heads with and without a spectrum, in turn, find it at that.
    page.evaluate(
        """async () => {
            const rows = document.querySelectorAll("#rows tr");
            for (let turn = 0; turn < 40; turn++) {
                rows[turn % 2 ? 4 : turn % 3].click();
                if (turn % 3 === 0) await new Promise((done) => setTimeout(done, turn % 20));
            }
        }"""
    )
    assert page.inner_text("#place") == "blocks.1 · head 0"


def test_gaps_say_why(page: Page) -> None:

    def hover(quantity: str, layer: int, head: int) -> str:
        page.select_option("#quantity", label=quantity)
        texts: list[list[str]] = drawn(page, "#map")[0]["hovertext"]
        return texts[layer][head]

    assert "κ(W_Q): rank deficient<br>σ_min = 0" in hover("κ(W_Q)", 1, 1)
    assert "this layer has 2 heads" in hover("κ(W_Q)", 1, 2)
    assert "not measured<br>the keys are &lt;i&gt;quantised&lt;/i&gt;" in hover("κ(W_K)", 1, 1)
    assert "(key/value head 1)" in hover("κ(W_K)", 0, 2)
    assert "no softmax over tokens" in hover("entropy", 2, 0)
    assert "max |logit|: nan" in hover("max |logit|", 0, 1)
    assert "κ(J): σ_max 4 (largest only)<br>5 of 9 query rows" in hover("κ(J)", 2, 2)
    assert "κ or the bound is unresolved" in hover("measured ÷ bound", 0, 3)


def test_statuses_are_visible(page: Page) -> None:
    kappas = column(page, "κ(J)")
    assert kappas[:4] == ["1e+03", "≥ 1e+04 (unresolved)", "≥ 1e+05 (lower bound)", "1e+06 (rank 7 of 8)"]
    assert kappas[4:] == ["–", "–", "–", "–", "σ_max 4 (largest only)", "–"]
    page.check("#all-columns")
    assert column(page, "measured ÷ bound")[:3] == ["1e-06", "0.0005", "≥ 0.0001"]
    page.uncheck("#all-columns")
    page.select_option("#quantity", label="κ(J)")
    assert drawn(page, "#map")[0]["text"][0] == ["1.0e3", "≥1.0e4", "≥1.0e5", "1.0e6↓"]
    page.select_option("#quantity", label="κ(W_Q)")
    gaps = drawn(page, "#map")[1]
    assert list(zip(gaps["x"], gaps["y"], gaps["text"], strict=True)) == [(1, 1, "↓")]


def test_table_sorts_and_filters(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, diagnosis_page(diagnosis()), tmp_path / "d.html") as page:
        assert len(column(page, "head")) == 10
        page.click("#columns button:text-is('κ(W_Q)')")
        assert column(page, "κ(W_Q)") == ["40", "40", "30", "30", "20", "20", "10", "10", "10", "rank deficient"]
        page.click("#columns button:text-is('κ(W_Q)')")
        assert column(page, "κ(W_Q)") == ["10", "10", "10", "20", "20", "30", "30", "40", "40", "rank deficient"]
        assert page.get_attribute("#columns th[aria-sort]", "aria-sort") == "ascending"
        page.click("#columns button:text-is('finding')")
        assert column(page, "finding") == ["entropy collapse"] + [""] * 9

        page.fill("#filter", "BLOCKS.1")
        assert column(page, "layer") == ["blocks.1"] * 2
        assert page.inner_text("#count") == "2 of 10 heads"
        page.fill("#filter", "<script> 'qk-norm'")
        assert column(page, "head") == ["3"]
        page.fill("#filter", "nowhere")
        assert column(page, "head") == []
        page.fill("#filter", "")
        assert len(column(page, "head")) == 10


def test_long_tables_are_shown_on_demand(browser: Browser, tmp_path: Path) -> None:
    data = diagnosis()
    wide = LayerRecord("wide", "softmax", (450, 1, 1, 1), 9, None, None, tuple(weights(1, 1)), ())
    data["layers"] = [asdict(wide)]
    with opened(browser, diagnosis_page(data), tmp_path / "d.html") as page:
        assert len(column(page, "head")) == 400
        page.click("#more")
        assert len(column(page, "head")) == 450
        assert page.is_hidden("#more")


def test_hostile_text_is_text(browser: Browser, tmp_path: Path) -> None:
    # Without the policy, which would stop a script that got through the escaping.
    with opened(browser, diagnosis_page(diagnosis()), tmp_path / "d.html", bypass_csp=True) as page:
        page.mouse.move(*at_cell(page, 0, 3))
        page.wait_for_selector("#map .hoverlayer .hovertext")
        for label in (".hoverlayer", ".yaxislayer-above"):
            assert "<script>" in (page.text_content(f"#map {label}") or "")
            assert "<b>bold</b>" in (page.text_content(f"#map {label}") or "")
        assert page.title() == f"{MODEL} · wellcond diagnosis"
        assert page.inner_text("h1") == MODEL
        assert VERDICT in column(page, "verdict")
        for place in ("#verdicts", "#layers", "#place", "#rows"):
            assert "<script>alert(1)</script>" in page.inner_text(place)
        assert VERDICT in page.inner_text("#verdicts")
        assert VERDICT in page.inner_text("#judgement")
        assert NOTE in page.inner_text("#layers")
        assert "pool<hr>" in page.inner_text("#skipped")
        assert '["<u>*</u>"]' in page.inner_text("footer")
        assert page.locator("script").count() == 3
        assert page.locator("img, i, u, b, hr, #map a").count() == 0


def test_policy_stops_what_would_slip_through(browser: Browser, tmp_path: Path) -> None:
    leaky = diagnosis_page(diagnosis()).replace(
        "2 sequences", "<img src=data:, onerror=alert(5)><script>alert(6)</script>"
    )
    complaints: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    (tmp_path / "d.html").write_text(leaky, encoding="utf-8")
    page.goto((tmp_path / "d.html").as_uri())
    assert drawn(page, "#map")
    page.close()
    assert len([text for text in complaints if "Content Security Policy" in text]) == 2


def test_nothing_measured(browser: Browser, tmp_path: Path) -> None:
    data = {**diagnosis(), "layers": [], "skipped": []}
    with opened(browser, diagnosis_page(data), tmp_path / "d.html") as page:
        assert page.is_hidden("#map")
        assert page.locator("#skipped").count() == 0
        assert "0 layers" in page.inner_text("#summary")
        assert "Nothing was found to be wrong." in page.inner_text("#verdicts")


def test_summary_verdicts_and_settings(page: Page) -> None:
    summary = page.locator("#summary li").all_inner_texts()
    assert summary == ["3 layers", "10 heads", "1 head with a verdict", "1 layer with a verdict", "1 layer skipped"]
    assert "rank collapse blocks.2\nAll tokens are alike." in page.inner_text("#verdicts")
    assert "one learned query" in page.inner_text("#skipped")
    assert "rows\n5" in page.inner_text("footer")


def test_json_holds_and_page_is_reproducible() -> None:
    page = diagnosis_page(diagnosis())
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert not set("<>&\u2028") & set(text)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert page == diagnosis_page(diagnosis())
    # What was written to a file and read again, tuples as lists, gives the same page.
    assert page == diagnosis_page(json.loads(json.dumps(diagnosis())))


@pytest.mark.parametrize("library", ["jinja2", "plotly.offline"])
def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(WellcondError, match=r"pip install 'wellcond\[report\]'"):
        diagnosis_page(diagnosis())


def test_the_page_of_a_real_diagnosis(browser: Browser, tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)})
    model.forward = lambda x: model[name](x)  # type: ignore[method-assign]
    found = wc.diagnose(model, torch.randn(2, 6, 12))
    assert found.layers[0].name == f"{name}.self_attn"
    with opened(browser, found.to_html(), tmp_path / "real.html") as page:
        entropy = [head.entropy for head in found.layers[0].heads]
        assert heat_map(page, "entropy")[0] == pytest.approx(entropy)
        kappas = [found.jacobian[f"{name}.self_attn"][head].condition.value for head in range(3)]
        assert heat_map(page, "κ(J)")[0] == logs(*kappas)
        assert name in page.inner_text("body")


WITHOUT_TORCH = """
import json, sys, types
package = types.ModuleType("wellcond")  # without what its __init__ imports
package.__path__ = [sys.argv[1]]
sys.modules["wellcond"] = package
from wellcond.html.comparison_page import comparison_page
from wellcond.html.diagnosis_page import diagnosis_page
from wellcond.html.recommendation_page import recommendation_page
page = diagnosis_page(json.loads(sys.stdin.read()))
assert "κ(W_Q)" in [one["label"] for one in json.loads(page.split('id="data">')[1].split("</script>")[0])["quantities"]]
print([name for name in sys.modules if name in ("torch", "numpy") or name.startswith("wellcond.lab")])
"""


def test_a_page_is_made_from_json_alone() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(Path(wc.__file__).parent)]
    given = to_json(diagnosis())
    said = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout.strip()) == (0, "[]"), said.stderr


def test_a_diagnosis_of_the_first_schema_has_the_same_page_and_a_newer_one_is_refused() -> None:
    new: dict[str, Any] = json.loads(to_json(diagnosis()))
    old: dict[str, Any] = json.loads(to_json(diagnosis())) | {"schema": 1}
    for weight in (weight for layer in old["layers"] for weight in layer["weights"]):
        own = [weight.pop(name) for name in ("effective", "trained", "scaled")]
        weight |= dict(zip(("raw", "stored", "effective"), own, strict=True))
    pages = [re.search(r'id="data">(.*?)</script>', diagnosis_page(data), re.DOTALL) for data in (old, new)]
    first, second = (found[1] for found in pages if found is not None)
    assert first == second
    with pytest.raises(WellcondError, match="schema 3, but this wellcond shows up to 2"):
        diagnosis_page(new | {"schema": 3})


@pytest.mark.parametrize("status", [*STATUSES, SpectrumStatus.LARGEST])
def test_a_condition_number_is_written_as_it_prints(status: str) -> None:
    value = None if status == SpectrumStatus.LARGEST else 3e13
    found = ConditionNumber(value, 4.0, 1e-16, 639, 640, 1e-13, "factor", status)
    reading = condition_reading(asdict(found))
    assert (reading.text, reading.value) == (str(found), value)
    assert reading.mark == ("↓" if status == "rank deficient" else found.sign)
