"""`.importlinter` keeps the doors between rooms: it holds, and a wrong import fails with a line that says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOWN = "Imports go down: a line that needs a room above belongs in that room"
PAGES = "Pages are made from JSON: what a page needs of torch or of the laboratory belongs in the JSON"
THEORY = "The theory knows numbers, not models: what reads a model belongs in placement"


def _lint(tree: Path) -> tuple[int, str]:
    """Run import-linter on the `src` of a tree; its exit code, and what it said without line breaks."""
    done = subprocess.run(
        [Path(sysconfig.get_path("scripts")) / "lint-imports", "--no-cache", "--config", ROOT / ".importlinter"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("rooms")
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return tree


def test_every_import_goes_through_a_door() -> None:
    code, said = _lint(ROOT)
    assert code == 0, said
    assert "Contracts: 3 kept, 0 broken." in said


@pytest.mark.parametrize(
    ("importer", "imported", "sentence"),
    [
        ("wellcond.plots.heatmaps", "wellcond.lab.versions_and_machine", DOWN),
        ("wellcond.html.diagnosis_page", "wellcond.lab.versions_and_machine", DOWN),
        ("wellcond.attention.view", "wellcond.init.laws", DOWN),
        ("wellcond.html.diagnosis_page", "torch", PAGES),
        ("wellcond.jacobian.papers_bound", "wellcond.diagnosis.records", DOWN),
        ("wellcond.propagation.exact_rows", "wellcond.attention.view", THEORY),
    ],
)
def test_a_wrong_import_fails_with_the_reason(copy: Path, importer: str, imported: str, sentence: str) -> None:
    path = (copy / "src").joinpath(*importer.split(".")).with_suffix(".py")
    before = path.read_text()
    path.write_text(f"{before}import {imported}\n")
    code, said = _lint(copy)
    path.write_text(before)
    assert code == 1
    kept, broken = said.split("Broken contracts", 1)
    assert f"{sentence} BROKEN" in kept
    line = before.count("\n") + 1
    assert f"is not allowed to import {imported if imported == 'torch' else imported.rpartition('.')[0]}" in broken
    assert f"- {importer} -> {imported} (l.{line})" in broken[broken.index(sentence) :]
