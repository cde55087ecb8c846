"""Damaged files: whatever a reader meets is read, or refused in one line, and stays on the disk as it was.

A small comparison and a monitored training are made once. Each of their files is then damaged in every way of a list,
and read by everything that reads it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.laboratory import quiet
from wellcond.errors import WellcondError
from wellcond.lab.analysis.statistics import compare_outcomes as judge
from wellcond.lab.analysis.summary import table_text
from wellcond.lab.comparison import Experiment, prepare_comparison, run_all
from wellcond.lab.comparison_folder import reserve_folder
from wellcond.lab.figures.averages import over_seeds
from wellcond.lab.figures.draw import draw_figures
from wellcond.lab.figures.runs import read_run
from wellcond.lab.models import lab_model
from wellcond.lab.page.comparison_data import write_comparison_page
from wellcond.lab.recipe.recipe import parse_recipe
from wellcond.reproduce.results import results, results_text

RECIPE = """
task = "digits"
seeds = [0, 1]
model = {name = "vit", width = 8, depth = 1, heads = 2, patch = 4}
train = {steps = 4, batch = 8, log_every = 2, test_every = 2, checkpoint_every = 2}
monitor = {every = 2, heads = 1, examples = 2}
arms = {default = {}, conditioned = {init = "conditioned"}}
"""
DEEP = "[" * 900 + "]" * 900  # parsed by Python where its stack is not deep yet, and too deep for all that follows
WRONG = ("null", "true", "-1", "1.5", '"text"', "[]", "{}", "[[1]]", '{"a": {}}', '"\\ud800\\u001b"', "1e999", "NaN")
WRONG += ("9" * 400, "9" * 5000, DEEP, '"' + "x" * 400 + '"')


def whole_damages() -> dict[str, bytes]:
    """A file's content in place of its own."""
    texts = {"empty": "", "brace": "{", "closed": "}", "blank": " \n\n", "null": "null", "true": "true", "number": "3"}
    texts |= {"text": '"text"', "list": "[]", "object": "{}", "objects": "[{}]", "NaN": "NaN", "infinite": "-Infinity"}
    texts |= {"deep": DEEP, "deeper": "[" * 100_000, "objects in objects": '{"a":' * 950 + "1" + "}" * 950}
    texts |= {"two": "{}{}", "comment": "// {}", "huge": "9" * 5000, "surrogate": '"\\udc80"', "lines": "{}\n{}\n"}
    texts |= {"deep line": f'{{"schema": 1, "kind": "test", "step": 1, "accuracy": {DEEP}}}\n', "page": "<html></html>"}
    found = {name: text.encode() for name, text in texts.items()}
    found |= {"binary": bytes(range(256)), "zeros": bytes(64), "latin-1": '{"é": 1}'.encode("latin-1")}
    found |= {"utf-16": '{"a": 1}'.encode("utf-16"), "raw surrogate": b'{"a": "\xed\xa0\x80"}'}
    return found


def part_damages(content: bytes) -> dict[str, bytes]:
    """The content with a piece missing or in its way."""
    half = len(content) // 2
    found = {"half": content[:half], "second half": content[half:], "end cut": content[:-2], "doubled": content * 2}
    found |= {"hole": content[:half] + bytes(8) + content[half:], "marked": b"\xef\xbb\xbf" + content}
    return found | {"deep tail": content.rstrip().rstrip(b"}") + b', "extra": ' + DEEP.encode() + b"}\n"}


def key_damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    """A wrong value, or none, for every key of the document, or of the first line of each kind."""
    lines = content.decode().splitlines() if b"\n{" in content else [content.decode()]
    seen = set()
    for number, line in enumerate(lines):
        data = json.loads(line)
        if (kind := (data.get("kind"), data.get("tier"))) in seen:
            continue
        seen.add(kind)
        for key in data:
            for wrong in (*WRONG, None):
                parts = {name: json.dumps(value) for name, value in data.items()}
                parts |= {} if wrong is None else {key: wrong}
                kept = {name: part for name, part in parts.items() if wrong is not None or name != key}
                changed = "{" + ", ".join(f"{json.dumps(name)}: {part}" for name, part in kept.items()) + "}"
                shown = "missing" if wrong is None else wrong[:12]
                yield (
                    f"{kind} {key} = {shown}",
                    "\n".join([*lines[:number], changed, *lines[number + 1 :], ""]).encode(),
                )


@dataclass(frozen=True)
class Made:
    """Real folders, and what reads them: each reader returns text, or raises."""

    root: Path
    experiment: Experiment
    model: nn.Module

    @property
    def comparison(self) -> Path:
        return self.root / "runs" / "listops"

    @property
    def monitored(self) -> Path:
        return self.root / "monitored"

    def readers(self, path: Path) -> dict[str, Callable[[], object]]:
        if path.is_relative_to(self.monitored):
            return {
                "monitored": lambda: over_seeds([read_run(self.monitored)]),
                "figures": lambda: draw_figures([self.monitored], self.root / "figures"),
            }
        if path.name == "provenance.json":
            return {"results": self.results}
        return {
            "compare": self.resume,
            "results": self.results,
            "report": lambda: write_comparison_page(self.comparison, self.root / "page.html").read_text("utf-8"),
            "figures": lambda: draw_figures([self.comparison], self.root / "figures"),
        }

    def resume(self) -> str:
        """`wellcond compare` where all is done: claims the folder, finds nothing to train, prints the table."""
        reserve_folder(self.comparison, self.experiment.recipe, self.experiment.task, self.model)
        assert self.experiment.left() == [], "it would train a run again"
        return table_text(judge(self.experiment.outcomes(), "default"))

    def results(self) -> str:
        return results_text(results(self.root / "runs", "ci-table4"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("made")
    recipe = parse_recipe(RECIPE, "tiny")
    experiment = prepare_comparison(recipe, root / "runs" / "listops")
    run_all(experiment, quiet)
    model = lab_model(recipe.model.name, recipe.model.options, experiment.task, seed=0)
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    with wc.Monitor(block, torch.randn(2, 5, 8), every=1, folder=root / "monitored", alarms=False) as monitor:
        monitor.step()
        monitor.step()
    entry = root / "runs" / "ci-nystromformer-image"
    entry.mkdir()
    (entry / "provenance.json").write_text('{"schema": 2, "smoke": false, "changes": {"train": {"steps": 3}}}\n')
    return Made(root, experiment, model)


def damaged_files(made: Made) -> list[Path]:
    run = sorted(made.comparison.glob("runs/*/seed-0"))[0]
    found = [run / name for name in ("run.json", "metrics.jsonl", "timings.jsonl")]
    found += [made.comparison / "comparison.json", *made.root.glob("runs/*/provenance.json")]
    return [*found, made.monitored / "run.json", made.monitored / "metrics.jsonl"]


def contents(made: Made) -> dict[Path, bytes]:
    kept = (made.root / "runs", made.monitored)
    return {path: path.read_bytes() for folder in kept for path in sorted(folder.rglob("*")) if path.is_file()}


def check(made: Made, path: Path, damage: str, readers: tuple[str, ...] | None = None) -> None:
    """Every reader succeeds, or refuses in one line without a control character and changes no file."""
    for name, read in made.readers(path).items():
        if readers is not None and name not in readers:
            continue
        before = contents(made)
        try:
            read()
        except WellcondError as error:
            message = str(error)
            assert message.isprintable(), (name, path.name, damage, message)
            assert contents(made) == before, (name, path.name, damage)
        except Exception as error:
            raise AssertionError(f"{name} of {path.name}, {damage}: {type(error).__name__}: {error}") from error
        else:
            # A comparison that is continued says anew what it is; what was measured stays.
            after = {file: content for file, content in contents(made).items() if file.name != "comparison.json"}
            assert after == {file: content for file, content in before.items() if file.name != "comparison.json"}


def damage(made: Made, path: Path, content: bytes, name: str, readers: tuple[str, ...] | None = None) -> None:
    mark = made.comparison / "comparison.json"
    kept = {file: file.read_bytes() for file in (path, mark)}
    path.write_bytes(content)
    try:
        check(made, path, name, readers)
    finally:
        for file, own in kept.items():
            file.write_bytes(own)


def test_whole_folders_are_read(made: Made) -> None:
    run, *_, entry, monitored, _ = damaged_files(made)
    for path in (run, entry, monitored):
        for read in made.readers(path).values():
            assert read()


FILES = pytest.mark.parametrize("index", range(7))
QUICK = ("compare", "results", "monitored")  # a page and pictures take a second or two


@FILES
def test_a_file_that_is_another(made: Made, index: int) -> None:
    path = damaged_files(made)[index]
    for name, content in {**whole_damages(), **part_damages(path.read_bytes())}.items():
        refused = path.name in ("run.json", "comparison.json") and name in whole_damages()
        damage(made, path, content, name, None if refused else QUICK)


@FILES
def test_a_key_that_is_wrong(made: Made, index: int) -> None:
    path = damaged_files(made)[index]
    for name, content in [*key_damages(path.read_bytes())][::13]:
        damage(made, path, content, name, QUICK)


@pytest.mark.long
@FILES
def test_every_key_that_is_wrong(made: Made, index: int) -> None:
    path = damaged_files(made)[index]
    for number, (name, content) in enumerate(key_damages(path.read_bytes())):
        damage(made, path, content, name, QUICK if number % 7 else None)


@FILES
def test_what_is_no_file(made: Made, index: int, tmp_path: Path) -> None:
    """A folder in its place, a link to nowhere, a link to itself, nothing."""
    path = damaged_files(made)[index]
    kept = tmp_path / "kept"
    shutil.move(path, kept)
    places: list[Callable[[], object]] = [path.mkdir]
    if path.name not in ("run.json", "comparison.json") or path.is_relative_to(made.monitored):
        # Without these, a run has not begun and a folder is nobody's: another test's concern.
        places += [lambda: path.symlink_to(tmp_path / "nowhere"), lambda: path.symlink_to(path), lambda: None]
    try:
        for place in places:
            place()
            check(made, path, "no file", QUICK)
            if path.is_symlink():
                path.unlink()
            elif path.exists():
                path.rmdir()
    finally:
        shutil.move(kept, path)
