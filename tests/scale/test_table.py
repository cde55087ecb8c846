"""The table of docs/scale.md is what its script prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # searches over scalings

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_what_the_script_prints() -> None:
    spec = importlib.util.spec_from_file_location("scale_table", DOCS / "scale_table.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    shown = (DOCS / "scale.md").read_text().split("<!-- scale table -->\n")[1].split("\n<!-- end -->")[0]
    assert shown.splitlines() == script.rows()
