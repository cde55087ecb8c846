"""The built site in a browser: examples are code, formulas are set, and nothing is asked of another host."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator

import griffe
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request

from tests.site import ROOT, built, served

PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
RESULTS = sorted(f"results/{path.stem}.html" for path in (ROOT / "docs" / "results").glob("*.json"))

# The text that a reader sees, without code and without what KaTeX keeps of the source for screen readers and copying.
PROSE = """() => {
  const copy = document.querySelector("article").cloneNode(true)
  copy.querySelectorAll("pre, code, .katex").forEach((element) => element.remove())
  return copy.textContent
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    own = tmp_path_factory.getbasetemp()
    with served(built(own if worker_id == "master" else own.parent)) as url:
        yield url


@pytest.fixture(scope="module")
def visitor(browser: Browser) -> Iterator[BrowserContext]:
    """Somebody whose browser keeps what all pages share: scripts, styles, fonts."""
    context = browser.new_context(viewport={"width": 1300, "height": 1000})
    yield context
    context.close()


@pytest.fixture
def page(visitor: BrowserContext, address: str) -> Iterator[Page]:
    """A page of the browser that must not complain and must not ask another host for anything."""
    happened: list[str] = []
    page = visitor.new_page()
    page.on("console", lambda message: happened.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: happened.append(f"error: {error}"))
    page.on("requestfailed", lambda request: None if left(request) else happened.append(f"failed: {request.url}"))
    page.on("request", lambda request: None if local(request.url, address) else happened.append(request.url))
    yield page
    page.wait_for_timeout(50)  # what is late still counts
    page.close()
    assert happened == []


def left(request: Request) -> bool:
    """The browser gave the request up because the page was left or closed, which no page can help."""
    return request.failure == "net::ERR_ABORTED"


def local(url: str, address: str) -> bool:
    return url.startswith((address, f"blob:{address}", "data:"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_formulas_and_examples_as_such(page: Page, address: str, name: str) -> None:
    page.goto(address if name == "index" else f"{address}{name}/")
    prose = page.evaluate(PROSE)
    assert re.findall(r"\\[a-zA-Z]+|\\[()\[\]]|\$|>>>|^:::.*", prose, re.MULTILINE) == []
    assert page.locator(".katex-error").count() == 0
    assert page.locator(".arithmatex").count() == page.locator(".arithmatex .katex-html").count()
    assert page.evaluate("() => [...document.querySelectorAll('pre')].filter((e) => !e.textContent.trim()).length") == 0
    wide = "(e) => e.scrollWidth > e.clientWidth"
    assert page.evaluate(f"() => [...document.querySelectorAll('.katex-display')].filter({wide}).length") == 0
    broken = "(e) => e.naturalWidth == 0"
    assert page.evaluate(f"() => [...document.querySelectorAll('article img')].filter({broken}).length") == 0


@pytest.mark.parametrize("name", RESULTS)
def test_the_page_of_a_comparison_opens(page: Page, address: str, name: str) -> None:
    page.goto(f"{address}{name}")
    page.locator(".js-plotly-plot").first.wait_for()


def test_formulas_of_pages_and_docstrings_are_set(page: Page, address: str) -> None:
    """Inline and displayed ones: a test of all pages would pass if none had any."""
    page.goto(f"{address}jacobian/")
    displayed = page.locator(".katex-display .katex-html")
    assert "=Mn⊗xn,Mn=sVTΛnK^Fn" in displayed.first.text_content().replace("\u200b", "")
    page.goto(f"{address}schemes/")
    assert page.locator("p .katex-html").count() > 10
    assert page.evaluate("() => [...document.fonts].some((f) => f.family == 'KaTeX_Main' && f.status == 'loaded')")


def examples() -> dict[str, list[str]]:
    """First lines of the examples of everything that the API page lists, by its path; read, not imported."""
    package = griffe.load("wellcond", search_paths=[ROOT / "src"])
    paths = re.findall(r"^::: wellcond\.(\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    found = {path: package[path] for path in paths}
    return {
        f"wellcond.{path}": [
            re.sub(r"\s*# doctest:.*", "", example.source.partition("\n")[0])
            for example in doctest.DocTestParser().get_examples(thing.docstring.value)
        ]
        for path, thing in found.items()
        if thing.docstring and not thing.is_module
    }


def test_examples_of_the_api_page_are_code(page: Page, address: str) -> None:
    page.goto(f"{address}api/")
    assert page.locator("article blockquote").count() == 0
    code = """(paths) => paths.map((path) => {
        const section = document.getElementById(path).closest(".doc-object")
        return [...section.querySelectorAll("pre code")].map((element) => element.textContent).join("\\n")
    })"""
    lines = examples()
    assert sum(map(len, lines.values())) > 100
    for path, shown in zip(lines, page.evaluate(code, list(lines)), strict=True):
        assert [line for line in lines[path] if f">>> {line}" not in shown] == [], path


def test_a_search_finds_a_function(page: Page, address: str) -> None:
    page.goto(f"{address}?q=check_propagation")
    page.locator("a.md-search-result__link[href*='#wellcond.check_propagation']").wait_for(state="attached")
