"""What the command line needs before it has work to do is imported without torch, which takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import wellcond

LIGHT = (
    "_core.argument_kinds",
    "_core.argument_types",
    "_core.atomic",
    "_core.checked",
    "_core.colours",
    "_core.file_names",
    "_core.json_files",
    "_core.json_safe",
    "_core.progress",
    "_core.result_table",
    "_core.safe_text",
    "_core.short_repr",
    "_core.stop_signals",
    "_core.terminal",
    "_core.text_tables",
    "_core.user_warnings",
    "attention.roles",
)
# A bare package in place of wellcond, whose own __init__ may import more.
SCRIPT = """
import importlib, sys, types
wellcond = sys.modules["wellcond"] = types.ModuleType("wellcond")
wellcond.__path__ = [sys.argv[1]]
for name in sys.argv[2:]:
    importlib.import_module(f"wellcond.{name}")
    for heavy in ("torch", "numpy"):
        assert heavy not in sys.modules, f"wellcond.{name} imports {heavy}"
"""


def test_modules_without_tensors_are_imported_without_torch() -> None:
    folder = str(Path(wellcond.__file__).parent)
    done = subprocess.run([sys.executable, "-c", SCRIPT, folder, *LIGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
