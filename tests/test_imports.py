"""What importing the library and listing things imports: not torch where it is not needed, never what few need."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import pickle
import subprocess
import sys

import pytest

import wellcond as wc
from wellcond.init.registry import registered_schemes
from wellcond.init.scheme_info import ENTRY_POINTS, list_schemes

HEAVY = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy", "triton")
OTHERS = ("matplotlib", "scipy", "pandas", "transformers", "timm", "torchvision", "sklearn", "plotly", "jinja2")
USED = "wc.attention_layers, wc.init_, wc.plan, wc.audit, wc.schemes, wc.condition_, wc.diagnose, wc.Monitor, wc.locate"
COMMANDS = ["--help", "--version", "schemes", "schemes cond*", "schemes --json", "recipes", "reproduce --list"]


def loaded(code: str) -> set[str]:
    """The modules that a process of its own has imported after some lines."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys; print(); print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code", ["import wellcond", "import wellcond as wc; dir(wc), wc.__all__, wc.__version__, wc.errors"]
)
def test_importing_the_library_does_not_import_torch(code: str) -> None:
    assert loaded(code).isdisjoint({"torch", "numpy", *HEAVY, *OTHERS})


def test_the_main_functions_import_torch_but_no_compiler_and_no_other_library() -> None:
    found = loaded(f"import wellcond as wc; {USED}; len(wc.schemes())")
    assert "torch" in found
    assert found.isdisjoint({*HEAVY, *OTHERS})


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_command_that_lists_does_not_import_torch(arguments: str) -> None:
    run = "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code"
    found = loaded(
        f"import sys; sys.argv = {['wellcond', *arguments.split()]}\nfrom wellcond.cli.main import main\n{run}"
    )
    assert found.isdisjoint({"torch", "numpy", *HEAVY, *OTHERS})


def test_no_command_imports_torch_before_it_runs() -> None:
    assert "torch" not in loaded("import wellcond.cli.main")


def test_the_schemes_read_from_source_are_those_that_are_registered() -> None:
    shipped = {name: cls for name, cls in registered_schemes().items() if cls.__module__.startswith("wellcond.")}
    read = {info.name: info for info in list_schemes()}
    assert len(read) >= 20
    assert read == {info.name: info for info in wc.schemes() if info.name in shipped}


def test_another_package_with_a_scheme_has_it_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("keep", "wellcond.init.schemes.keep:Keep", ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == ENTRY_POINTS else [])
    assert list_schemes() == wc.schemes()


def test_every_public_name_is_there_from_the_start_and_alone() -> None:
    code = "import os, torch, wellcond as wc\nfor name in wc.__all__:\n    pid = os.fork()\n    if not pid:\n"
    code += "        getattr(wc, name)\n        os._exit(0)\n    assert os.waitpid(pid, 0)[1] == 0, name\n"
    assert "torch" in loaded(code)


def test_star_import_brings_the_public_names() -> None:
    space: dict[str, object] = {}
    exec("from wellcond import *", space)
    assert {*space} - {"__builtins__"} == {*wc.__all__}


@pytest.mark.parametrize("name", ["init_", "Severity", "Diagnosis", "condition_", "SchemeInfo"])
def test_public_names_pickle_and_copy(name: str) -> None:
    thing = getattr(wc, name)
    assert pickle.loads(pickle.dumps(thing)) is thing
    assert copy.deepcopy(thing) is thing
