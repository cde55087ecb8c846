"""What a terminal shows: nothing past its edge, no word broken, every default in the help, no bar left behind."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len

from tests.terminals import COMMANDS, in_terminal, screen, widest
from wellcond._core import terminal
from wellcond._core.progress import bar
from wellcond._core.text_tables import markdown, table
from wellcond.cli.main import app
from wellcond.reproduce.catalogue import items

MODEL = """
from torch import nn

class EncoderOfTheLongName(nn.Module):
    def __init__(self):
        super().__init__()
        layer = lambda: nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=True)
        self.representation_encoder = nn.ModuleDict({"layers_of_attention": nn.ModuleList([layer(), layer()])})
        self.example_inputs = None

    def forward(self, x):
        for layer in self.representation_encoder["layers_of_attention"]:
            x = layer(x)
        return x

def build():
    import torch
    torch.manual_seed(0)
    model = EncoderOfTheLongName()
    model.example_inputs = torch.randn(2, 6, 16)
    return model
"""
RECIPE = """
title = "short"
task = "digits"
seeds = [0, 1]
[model]
name = "vit"
width = 8
depth = 1
heads = 2
patch = 4
[train]
steps = 2
batch = 4
log_every = 1
[monitor]
every = 1
heads = 1
examples = 2
[arms.default]
[arms."conditioned, as the paper has it"]
init = "conditioned"
"""
COMPARE = ["compare", "short.toml", "--out", "runs"]
SHOWN = {
    "inspect": ["inspect", "m.py:build"],
    "schemes": ["schemes"],
    "schemes conditioned": ["schemes", "conditioned"],
    "schemes --for": ["schemes", "--for", "m.py:build"],
    "init": ["init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors"],
    "init --verbose": ["init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "-v"],
    "audit": ["audit", "m.py:build", "-w", "w.safetensors", "-s", "mimetic"],
    "audit --verbose": ["audit", "m.py:build", "-w", "w.safetensors", "-s", "mimetic", "-v"],
    "diagnose": ["diagnose", "m.py:build"],
    "diagram --model": ["diagram", "--model", "m.py:build", "-o", "d.png"],
    "recipes": ["recipes"],
    "reproduce --list": ["reproduce", "--list"],
    "reproduce ID --list": ["reproduce", "ci-table2", "--list"],
    "compare": COMPARE,
}
GROUP = typer.main.get_command(app)
HELP = {f"{name} --help": [name, "--help"] for name in sorted(GROUP.commands)}  # type: ignore[attr-defined]
HELP["--help"] = ["--help"]
WIDTHS = (80, 120, 200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("terminal")
    (made / "m.py").write_text(MODEL)
    (made / "short.toml").write_text(RECIPE)
    return made


@pytest.fixture(scope="module")
def piped(folder: Path) -> dict[str, str]:
    """What each command writes into a pipe that is said to have colours and columns. Makes the comparison's runs."""
    commands = json.dumps([[None, arguments] for arguments in SHOWN.values()])
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "150"}
    ran = subprocess.run(
        [sys.executable, "-c", COMMANDS, commands], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return {"stderr": ran.stderr} | dict(zip(SHOWN, ran.stdout.split("\x1e\n"), strict=False))


@pytest.fixture(scope="module")
def written(folder: Path, piped: dict[str, str]) -> dict[tuple[int, str], str]:
    """All that each command writes on a terminal, by its width; first a comparison whose runs are not made yet."""
    wanted = [(100, "watched", [*COMPARE[:-1], "watched"])]
    wanted += [(width, name, arguments) for width in WIDTHS for name, arguments in (SHOWN | HELP).items()]
    commands = json.dumps([[width, arguments] for width, _, arguments in wanted])
    parts = in_terminal(COMMANDS, commands, cwd=folder).split("\x1e\n")
    return {(width, name): part for (width, name, _), part in zip(wanted, parts, strict=False)}


@pytest.fixture(scope="module")
def on(written: dict[tuple[int, str], str]) -> Callable[[int], dict[str, str]]:
    """What is left of each command on the screen of a terminal of a width."""
    left = {where: "\n".join(screen(text)) for where, text in written.items()}
    return lambda wide: {name: text for (width, name), text in left.items() if width == wide}


@pytest.mark.parametrize("command", SHOWN)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_runs_past_the_edge_and_no_word_is_broken(
    command: str, width: int, on: Callable[[int], dict[str, str]], piped: dict[str, str]
) -> None:
    text = on(width)[command]
    assert widest(text) <= width, text
    if command == "reproduce --list":  # where a pipe gets shortened titles
        assert {word for each in items().values() for word in each.title.split()} <= set(text.split()), text
    else:
        assert set(text.split()) == set(piped[command].split()), text


@pytest.mark.parametrize(
    "command", ["inspect", "schemes --for", "init", "audit", "diagnose", "diagram --model", "recipes"]
)
def test_two_hundred_columns_have_room_for_what_a_pipe_gets(
    command: str, on: Callable[[int], dict[str, str]], piped: dict[str, str]
) -> None:
    assert widest(piped[command]) <= 200
    assert on(200)[command] == piped[command]


def test_a_wide_terminal_is_used(on: Callable[[int], dict[str, str]], piped: dict[str, str]) -> None:
    assert 120 < widest(on(200)["schemes conditioned"]) <= 200
    assert widest(piped["schemes conditioned"]) <= 120
    assert "Five vision transformers on ImageNet-1k: three initialisations" in on(200)["reproduce --list"]
    assert on(80)["compare"].count("\narm  ") > on(200)["compare"].count("\narm  ")  # parts below the first
    assert all(widest(on(200)[name]) == 200 for name in HELP)


def test_a_pipe_gets_whole_lines_whatever_columns_says(piped: dict[str, str]) -> None:
    """The fixture sets COLUMNS=150 and FORCE_COLOR."""
    assert "\x1b" not in "".join(piped.values())
    assert widest(piped["reproduce --list"]) == 106
    assert widest(piped["diagnose"]) > 80
    assert widest(piped["compare"].split("\n\n")[0]) <= 100


def words_of(parameter: Any) -> Iterator[str]:
    """What the source says of an option or argument: its names, its help, and its default."""
    yield from (parameter.opts if parameter.param_type_name == "option" else [])
    yield from (getattr(parameter, "help", None) or "").split()
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        yield from ["[default:", *f"({shown})]".split()]
    elif parameter.default not in (None, False, "") and not callable(parameter.default) and not parameter.required:
        yield from ["[default:", *f"{parameter.default}]".split()]


@pytest.mark.parametrize("name", [name for name in HELP if name != "--help"])
@pytest.mark.parametrize("width", [80, 200])
def test_help_has_every_option_word_for_word(name: str, width: int, on: Callable[[int], dict[str, str]]) -> None:
    text = on(width)[name]
    assert widest(text) <= width
    shown = iter(re.sub("[│╭╮╰╯─]", " ", text).split())
    command: Any = GROUP.commands[name.split()[0]]  # type: ignore[attr-defined]
    assert "[" not in "".join(getattr(parameter, "help", None) or "" for parameter in command.params)
    for parameter in sorted(command.params, key=lambda parameter: parameter.param_type_name):
        for word in words_of(parameter):
            assert word in shown, f"{parameter.name}: '{word}' is not in its place in\n{text}"  # moves on in `shown`


def test_the_list_of_commands_has_their_words(on: Callable[[int], dict[str, str]]) -> None:
    words = re.sub("[│╭╮╰╯─]", " ", on(80)["--help"]).split()
    for name, command in GROUP.commands.items():  # type: ignore[attr-defined]
        assert set(f"{name} {command.help}".split()) <= set(words)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "37")
    assert terminal.columns() is None
    monkeypatch.setattr(sys, "stdout", Tty())
    assert terminal.columns() == 37
    assert table(["a", "b"], [["1", "one word after another, many of them"]]).splitlines() == [
        "a  b",
        "1  one word after another, many of",
        "   them",
    ]


WIDE = [["中文.0", "é\N{COMBINING ACUTE ACCENT}", "the words of a long sentence 中文 文字 in a cell of their own"]] * 2


def test_wide_characters_and_accents_are_measured_by_their_cells() -> None:
    for text in (table(["layer", "x", "the"], WIDE), markdown(["layer", "x", "the"], WIDE)):
        lines = [line for line in text.splitlines() if "the" in line]
        assert len(lines) == 3
        assert len({cell_len(line[: line.index("the")]) for line in lines}) == 1, text
    for width in range(30, 80):
        text = table(["layer", "x", "y"], WIDE, width=width)
        assert widest(text) <= width
        assert [line.split()[-1] for line in text.splitlines()].count("own") == len(WIDE)


@pytest.mark.parametrize("width", [1, 2, 7, 20])
def test_a_terminal_too_narrow_for_anything_loses_nothing(width: int) -> None:
    text = table(["layer", "class", "κ"], [["blocks.10.attention", "Attention", "1.2e+05"]], width=width)
    assert all(text.count(letter) == count for letter, count in {"κ": 1, "A": 1, "5": 1}.items())
    assert table(["layer", "class", "κ"], [], width=width)


@pytest.mark.parametrize("stream", [Tty, io.StringIO])
def test_a_bar_is_for_a_terminal_and_leaves_nothing(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("tqdm.std.time", lambda: next(seconds))
    monkeypatch.setattr(sys, "stderr", stream())
    sys.stderr.write("before\n")
    assert list(bar(range(9), "work")) == list(range(9))
    with bar(None, "more work", total=9) as steps:
        for _ in range(9):
            steps.update()
    sys.stderr.write("after\n")
    text = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert ("work: " in text) is (stream is Tty)
    assert screen(text) == ["before", "after", ""]


def test_a_bar_that_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.std.time", itertools.count().__next__)
    monkeypatch.setattr(sys, "stderr", Tty())
    assert list(bar(range(9), "work", shown=False)) == list(range(9))
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_comparison_leaves_a_line_for_each_run_in_a_log(piped: dict[str, str]) -> None:
    """Also where FORCE_COLOR has rich take the pipe for a terminal."""
    lines = piped["stderr"].splitlines()
    assert lines[0] == "4 runs in runs, 0 of them done already"
    assert [line.partition(":")[0] for line in lines[1:]] == [f"run {n} of 4" for n in (1, 2, 3, 4)]


def test_a_comparison_leaves_no_bar_on_the_screen(written: dict[tuple[int, str], str]) -> None:
    text = written[100, "watched"]
    assert "━" in text
    left = screen(text)
    assert not any("━" in line or "run " in line for line in left), "\n".join(left)
    assert left[0].startswith("arm  ")
    assert "written to watched/report.html" in left
    assert "━" not in written[80, "compare"]  # nothing was left to run


def test_every_bar_is_made_in_one_place() -> None:
    source = Path(terminal.__file__).parents[1]
    made: Any = [path.name for path in source.rglob("*.py") if re.search(r"\b(tqdm|Progress)\(", path.read_text())]
    assert made == ["progress.py"]
