"""What the README and the pages show is true: examples run, lists are complete."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Literal, get_origin

import pytest

import wellcond as wc
from tests import matrix
from tests.cases import CASES
from tests.preloaded import run
from wellcond.lab.recipe.recipe import load_recipe
from wellcond.lab.recipe.surface_grid import surface_grid
from wellcond.scale.calibration_targets import BETA, BRANCH, BY_DEPTH

ROOT = Path(__file__).parents[1]
SKIP = r"(?P<skip><!-- not run: [^\n]+ -->\n)?"
BLOCK = re.compile(SKIP + r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
OUTPUT = re.compile(r"\n\n```text\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
END = "\x1e"  # printed after each step
DRIVER = """
import json, runpy, sys
names = {"__name__": "__main__"}
for step in json.load(open("steps.json")):
    if isinstance(step, str):
        exec(compile(step, "example", "exec"), names)
    else:
        sys.argv = step
        try:
            runpy.run_module("wellcond", run_name="__main__")
        except SystemExit as stop:
            assert not stop.code, f"{step} ended with {stop.code}"
    print("\\x1e", flush=True)
"""


def steps(page: Path) -> Iterator[tuple[str | list[str], str]]:
    """Yield each example of a page, Python code or a command, with the output shown after it ("" for none)."""
    text = page.read_text()
    if page in NOTEBOOKS:
        cells = ("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
        yield from ((re.sub(r"^%.*", "", cell, flags=re.MULTILINE), "") for cell in cells)  # % is for the kernel
        return
    for block in BLOCK.finditer(text):
        if block["skip"]:
            continue
        if block["language"] == "python":
            output = OUTPUT.match(text, block.end())
            yield block["body"], output["body"] if output else ""
        elif block["language"] == "console":
            for command in re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]:
                line, _, shown = command.partition("\n")
                assert line.startswith("wellcond "), f"{page.name}: mark '{line}' with <!-- not run: reason -->"
                yield shlex.split(line, comments=True), shown


@pytest.mark.parametrize("page", [page for page in PAGES + NOTEBOOKS if list(steps(page))], ids=lambda page: page.stem)
def test_examples_run_and_print_what_they_show(page: Path, tmp_path: Path) -> None:
    examples = list(steps(page))
    (tmp_path / "steps.json").write_text(json.dumps([step for step, _ in examples]))
    ran = run(DRIVER, cwd=tmp_path, env={"COLUMNS": "200"})
    assert ran.returncode == 0, ran.stderr[-3000:]
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for (step, shown), printed in zip(examples, ran.stdout.split(f"{END}\n")[:-1], strict=True):
        if shown:
            assert doctest.OutputChecker().check_output(shown, printed, flags), f"{step}\nprinted\n{printed}"


def test_the_api_page_lists_every_public_name() -> None:
    listed = re.findall(r"^::: wellcond\.(?:.*\.)?(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(set(wc.__all__) - set(listed)) == []


@pytest.mark.parametrize("name", wc.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    """pytest runs the examples of docstrings, see pyproject.toml."""
    public = getattr(wc, name)
    if get_origin(public) is Literal:  # whose docstring is that of Literal
        assert f"wc.{name}" in "".join(step for step, _ in steps(ROOT / "docs" / "api.md") if isinstance(step, str))
    else:
        assert ">>>" in (public.__doc__ or "")


def test_the_api_page_lists_what_users_meet() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    modules = {"layers": "Unclaimed", "verify": "Verification", "keyed_random": "Draw", "registry": "register_scheme"}
    for module, name in (*modules.items(), ("scheme", "Target")):
        assert re.search(rf"^::: wellcond\.(\w+\.)?{module}\.{name}$", page, re.MULTILINE), name
    assert "members: [Law, " in page


def test_the_readme_lists_every_scheme() -> None:
    section = (ROOT / "README.md").read_text().partition("## Schemes")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| .* \| (.*) \|$", section, re.MULTILINE)
    names = re.findall(r"`(\w+)`", " ".join(cells))
    assert sorted(names) == matrix.shipped()


def test_the_matrix_page_has_every_scheme_and_model() -> None:
    page = (ROOT / "docs" / "matrix.md").read_text()
    assert matrix.header(matrix.shipped()) in page, "a scheme is new or gone: make matrix"
    rows = page.partition(":-:|\n")[2].partition("\n\n")[0].splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows] == list(CASES), "a model is new or gone: make matrix"


@pytest.mark.long
def test_the_matrix_page_is_current() -> None:
    assert (ROOT / "docs" / "matrix.md").read_text().strip() == matrix.matrix().strip(), "make matrix"


def test_the_citation_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_table_of_published_numbers_is_the_one_that_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    page = ROOT / "docs" / "published.md"
    assert importlib.import_module("results").published(page.read_text()) == page.read_text()


def test_the_findings_of_the_front_pages_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    findings = importlib.import_module("findings")
    for page in findings.PAGES:
        assert findings.filled(page.read_text()) == page.read_text()


def test_the_study_says_what_its_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words to the letter; numbers of a fitted surface to a cell of its plane, as processors round differently."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    study = importlib.import_module("study")
    page = "".join(path.read_text() for path in study.PAGES)
    made = study.written(page)
    number = r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?"
    assert re.sub(r"\s+", " ", re.sub(number, "#", page)) == re.sub(r"\s+", " ", re.sub(number, "#", made))
    wrong = []
    for ours, theirs in zip(page.splitlines(), made.splitlines(), strict=True):
        share = 0.3 if "best of the surface" in ours or ours.startswith("|") or "targets" in ours else 0.02
        for one, other in zip(*(map(float, re.findall(number, line)) for line in (ours, theirs)), strict=True):
            if abs(one - other) > 0.003 + share * abs(other):
                wrong.append((ours, theirs))
    assert wrong == []


def test_default_targets_are_those_that_the_study_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both rules of depth the one that cost less where a task was left out, and numbers that round what it chose."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    found = importlib.import_module("study").targets()
    assert found.mean_regret("constant") < found.mean_regret(BY_DEPTH)
    (default,) = (regret for name, regret in found.references.items() if name.startswith("default"))
    assert fmean(default[task][0] / found.noise[task] for task in found.layers) < found.mean_regret("constant")
    assert found.chosen("constant").beta == pytest.approx(BETA, rel=0.1)
    assert found.chosen("constant").factor == pytest.approx(BRANCH, rel=0.1)


def test_every_recipe_of_the_study_was_written_before_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was run is what was written down: arms, seeds, training and contrasts."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    study = importlib.import_module("study")
    kept = sorted(path.stem for path in study.KEPT.glob("*.json"))
    assert kept
    for name in kept:
        task = name.removesuffix(study.SURFACE)
        recipe = load_recipe(study.RECIPES / f"{task}.toml")
        with study.unpacked(name) as folder:
            made = load_recipe(folder / "recipe.toml")
        plain = recipe.model_copy(update={"tuning": None, "rates": made.rates})
        assert made == (plain if task == name else surface_grid(recipe)), name


def test_the_evidence_of_the_recommendation_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    evidence = importlib.import_module("evidence")
    page = (ROOT / "docs" / "recommend.md").read_text()
    assert evidence.written(page) == page
    kept = {path.stem for path in evidence.KEPT.glob("*.json")}
    assert kept >= {"digits", "fashion-mnist", "topics-text", "listops"}


def test_the_example_of_the_recommendation_shows_what_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    example = importlib.import_module("recommend_example")
    page = (ROOT / "docs" / "recommend.md").read_text()
    shown = example.BLOCK.search(page)[0].splitlines()
    assert shown[2].startswith(("Begin with ", "Keep your weights"))
    header = next(line for line in shown if line.startswith("candidate"))
    assert header.split() == ["candidate", "β", "g", "similar", "loss", "−", "yours", "outcome"]
    assert any(line.startswith("yours ") for line in shown)
