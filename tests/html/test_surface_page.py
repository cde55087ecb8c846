"""The HTML page of a surface, opened in a browser: what it says first, what it draws, and what it does not let in."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

import wellcond as wc
from tests.lab.analysis.test_surface import SQRT2, grid, hill, runs
from tests.pages import drawn, opened
from wellcond.html.surface_page import sentences, surface_page
from wellcond.lab.analysis.surface import Surface
from wellcond.lab.analysis.surface_runs import surface_of
from wellcond.lab.figures.surface import surface_figure
from wellcond.lab.page.surface_data import surface_data

HOSTILE = "<script>alert(1)</script>\"'\\ %{y} &amp; </script><img src=x onerror=alert(2)> 日本語 𝔘"
DIAGRAM = {"depth": 96, "tokens": 32, "norm": "pre", "mlp_gain": [0.01, 0.01], "cosine": 0.2}
ARMS = {
    "default": (0.012, 0.035, 0.0),
    "one": (0.3, 0.4, 0.0),
    "its twin": (0.301, 0.4, 0.0),
    "far": (3.0, 0.4, 0.0),
    "better": (0.05, 0.2, 0.08),
    HOSTILE: (0.2, 1.0, 0.0),
    "nothing": (0.1, 0.0, 0.0),
}


@pytest.fixture(scope="module")
def found() -> Surface:
    return surface_of(grid(ARMS), runs(lambda b, g: hill(b, g or 0.1), ARMS))


@pytest.fixture(scope="module")
def data(found: Surface) -> dict[str, Any]:
    about = {"title": "A ViT", "command": "wellcond surface my.toml", "task": {"name": "digits"}, "diagram": DIAGRAM}
    return surface_data(found, about)


@pytest.fixture(scope="module")
def page(browser: Browser, data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(browser, surface_page(data), tmp_path_factory.mktemp("page") / "s.html") as page:
        yield page


def test_the_first_lines_say_where_training_went_best(page: Page, data: dict[str, Any]) -> None:
    words = page.locator("#words").inner_text()
    best = data["best"]
    assert f"Training went best from β {best['place'][0]:.2g} and g {best['place'][1]:.2g}" in words
    assert "how sharply attention looks (β)" in words
    assert re.search(r"own interval: better \(\+0\.0\d+\)\. Higher accuracy is better", words)
    assert words.startswith("The same model was trained 16 times over 3 seeds")


def test_the_picture_has_the_response_the_starts_the_arms_and_the_best(page: Page, data: dict[str, Any]) -> None:
    traces = drawn(page, "#surface")
    heat = traces[0]
    assert heat["type"] == "heatmap"
    assert np.nanmax(np.array(heat["z"], dtype=float)) == pytest.approx(data["best"]["value"], abs=0.01)
    grid = next(trace for trace in traces if trace.get("meta") == "grid")
    assert len(grid["x"]) == 16
    arms = {trace["name"]: trace for trace in traces if trace.get("meta") == "arm"}
    assert len(arms) == len(ARMS) - 1  # what adds nothing has no place on a logarithm
    assert arms["default"]["x"] == [pytest.approx(0.012)]
    star = next(trace for trace in traces if trace.get("meta") == "best")
    assert [star["x"][0], star["y"][0]] == data["best"]["place"]


def test_what_is_outside_the_grid_is_not_coloured(data: dict[str, Any]) -> None:
    shown = np.array(data["response"], dtype=float)
    for row, g in enumerate(data["y"]):
        for column, b in enumerate(data["x"]):
            inside = 0.01 <= b <= 0.64 and 0.03 <= g <= 2.0
            assert np.isnan(shown[row, column]) != inside
            assert (data["cells"][row][column] is None) != inside


def test_names_that_would_cover_each_other_share_a_label(page: Page) -> None:
    labels = json.loads(
        page.evaluate("JSON.stringify(document.querySelector('#surface').layout.annotations.map(({ text }) => text))")
    )
    assert "one and 1 more" in labels
    assert not any("its twin" in label for label in labels)


def test_predicted_phases_are_those_of_the_theory_at_the_gains_that_were_measured(data: dict[str, Any]) -> None:
    words = [phase["words"] for phase in data["phases"]]
    assert len(words) > 1, "one phase alone shows nothing"
    assert [phase["trainable"] for phase in data["phases"]].count(True) == 1
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in DIAGRAM.items()}
    compared = set()
    for row, column in itertools.product(range(2, 38, 5), repeat=2):
        cells = {data["cells"][row + i][column + j] for i in (-1, 0, 1) for j in (-1, 0, 1)}
        if None in cells or len(cells) > 1:
            continue  # at an edge, where cells of one diagram and another differ
        b, g = data["x"][column], data["y"][row]
        small = [(name, value, 1.001 * value, "log") for name, value in (("beta", SQRT2 * b), ("value_gain", g))]
        phase = int(wc.trainability(*small, resolution=2, **given).phase[0, 0])
        assert data["phases"][cells.pop()]["trainable"] == (phase == 0), (b, g)
        compared.add(phase)
    assert len(compared) > 1


@pytest.mark.parametrize(
    "options",
    [{}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 800}}],
    ids=["light", "dark", "phone"],
)
def test_it_fits_and_is_drawn_in_every_light(
    options: dict[str, Any], browser: Browser, data: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "s.html"
    file.write_text(surface_page(data), encoding="utf-8")
    page = browser.new_page(**options)
    page.goto(file.as_uri())
    expect(page.locator("#surface .main-svg").first).to_be_visible()
    expect(page.locator("#phases .main-svg").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.close()


def test_nothing_is_let_in(page: Page) -> None:
    assert page.locator("script[src], img[src=x]").count() == 0
    assert page.locator("td.name", has_text="<script>alert(1)</script>").count() == 1


def test_a_surface_without_a_place_on_the_diagram_says_so(found: Surface) -> None:
    data = surface_data(found, {"title": "A ViT"})
    assert data["cells"] is None
    assert "the theory does not cover this model" in surface_page(data)


def test_of_a_loss_less_is_better_in_words() -> None:
    lower = {"higher": False, "metric": "log perplexity", "grid": [0] * 9, "seeds": 1, "arms": []}
    lower["best"] = {"place": (0.1, 0.2), "value": 1.0, "first": (0.1, 0.1), "second": (0.2, 0.2), "edge": ""}
    assert "over 1 seed," in sentences(lower)[0]
    one = {"name": "a", "interval": (0.1, 0.2), "residual": 0.15}
    assert "Lower log perplexity is better." in sentences(lower | {"arms": [one]})[-1]


def test_the_figure_is_drawn_with_and_without_a_diagram(found: Surface, tmp_path: Path) -> None:
    figure = surface_figure(found, tmp_path / "s.png", {"diagram": DIAGRAM})
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "one and 1 more" in texts
    assert any(text.startswith("predicted: ") for text in texts)
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    assert found.plot(tmp_path / "plain.svg").axes


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    arms = {"default": (0.1, 0.1, 0.0), r"cost $\frac": (0.05, 0.3, 0.0)}
    surface_of(grid(arms), runs(arms=arms)).plot(tmp_path / "s.png")
    assert (tmp_path / "s.png").exists()


def test_beyond_the_diagram_phases_go_on_as_they_end(found: Surface) -> None:
    for gain in (0.3, 30.0, 5000.0):
        alike = replace(found, grid=tuple(replace(one, on_diagram=(0.1, gain)) for one in found.grid))
        words = [phase["words"] for phase in surface_data(alike, {"diagram": DIAGRAM})["phases"]]
        assert words == (["can be trained"] if gain == 0.3 else ["tokens become alike"])
