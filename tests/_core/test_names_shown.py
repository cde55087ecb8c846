"""Names that nobody should choose, wherever they are printed, raised, warned of or written.

`add_module` takes any name. A terminal obeys `\\x1b]0;…`, turns a line around at `\\u202e`, and cannot be sent half
of a surrogate pair; a line break makes two lines of one, of which the second may say anything.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner

import wellcond as wc
from tests.laboratory import prepared, write
from wellcond._core.atomic import write_text
from wellcond._core.json_files import read_lines
from wellcond._core.json_safe import to_json
from wellcond.cli.app import echo
from wellcond.cli.main import app
from wellcond.cli.summaries import audit_summary, layers_data, plan_data, plan_summary
from wellcond.errors import AttentionWarning, WellcondError
from wellcond.init.applicability import applicability, matrix_text
from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.analysis.statistics import compare_outcomes
from wellcond.lab.analysis.summary import table_text
from wellcond.lab.engines.display import Display
from wellcond.lab.figures.draw import draw_figures

HOSTILE = {
    "title of the terminal": "a\x1b]0;pwned\x07b",
    "another line": "a\nFAIL everything",
    "return": "safe\rsorry",
    "turned around": "a\u202etxt",
    "half a character": "a\ud800b",
    "C1 control": "a\x9b2Jb",
    "line separator": "a\u2028b",
}
NAMES = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)


class Nameable(nn.Module):
    """Blocks under hostile names, as a user's own model may have them."""

    def __init__(self, name: str, depth: int = 2) -> None:
        super().__init__()
        self.names = [f"{name}{index}" for index in range(depth)]
        for each in self.names:
            self.add_module(each, nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, dropout=0.0))
        self.add_module(f"{name}-unknown", Unknown())

    def forward(self, tokens: Tensor) -> Tensor:
        for each in self.names:
            tokens = self.get_submodule(each)(tokens)
        return tokens


class Unknown(nn.Module):
    """Looks like attention, and is claimed by no adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(12, 7), nn.Linear(12, 5), nn.Linear(12, 3)


def model(name: str) -> Nameable:
    torch.manual_seed(0)
    return Nameable(name)


def tokens() -> Tensor:
    return torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(1))


def assert_shown(text: str, lines: bool = True) -> None:
    """Nothing but printable characters, and the line breaks of the layout; each line of it is one of ours."""
    assert (text.replace("\n", "") if lines else text).isprintable(), ascii(text)
    text.encode()  # can be printed at all
    assert "\nFAIL everything" not in text
    assert text


PRINTED: dict[str, Callable[[Nameable], object]] = {
    "layers": lambda m: wc.attention_layers(m),
    "plan": lambda m: wc.plan(m, "conditioned"),
    "init_": lambda m: wc.init_(m, "conditioned"),
    "init_, whole parameters": lambda m: wc.init_(m, "small_init"),
    "plan summary": lambda m: plan_summary(wc.init_(m, "small_init")),
    "skipped": lambda m: wc.plan(m, "mimetic", on_inapplicable="skip"),
    "audit": lambda m: wc.audit(m, "conditioned"),
    "audit summary": lambda m: audit_summary(wc.audit(m, "conditioned")),
    "diagnosis": lambda m: wc.diagnose(m, tokens(), progress=False),
    "concerns": lambda m: wc.diagnose(spoilt(m), tokens(), progress=False, jacobian=False).worst(),
    "locate": lambda m: wc.locate(m, tokens()),
    "check_propagation": lambda m: wc.check_propagation(m, tokens()),
    "condition_": lambda m: wc.condition_(m, "polar"),
    "guarantee": lambda m: wc.condition_(m, "polar").summary(),
    "without_layernorm": lambda m: wc.without_layernorm(m),
    "verify": lambda m: wc.attention_layers(m)[0].verify(tokens()),
    "matrix": lambda m: matrix_text({m.names[0]: applicability(m, ["conditioned", "mimetic"])}),
}


def spoilt(m: Nameable) -> Nameable:
    """With weights of no rank, so that every layer has a verdict."""
    with torch.no_grad():
        for each in m.names:
            m.get_submodule(each).self_attn.in_proj_weight.fill_(3.0)
    return m


@NAMES
@pytest.mark.parametrize("what", PRINTED)
def test_what_is_printed(name: str, what: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = PRINTED[what](model(name))
    assert_shown(str(found))
    assert_shown(repr(found))


def taken(m: Nameable) -> object:
    return wc.init_(m, lambda layer, draw: {"query": torch.zeros(1)})


RAISED: dict[str, Callable[[Nameable, Path], object]] = {
    "no such layer": lambda m, _: wc.init_(m, "conditioned", layers="nothing.*"),
    "layer by name": lambda m, _: wc.diagnose(m, tokens(), layers=m.names[0] + "?", progress=False),
    "wrong shape": lambda m, _: taken(m),
    "inapplicable": lambda m, _: wc.init_(m, "mimetic", layers=[m.names[0] + ".self_attn"], k=99),
    "not finite": lambda m, _: wc.condition_(not_finite(m), "polar"),
    "parametrised": lambda m, _: wc.init_(parametrised(m), "conditioned"),
    "weights of another": lambda m, folder: other_weights(m, folder),
    "conditioned twice": lambda m, _: (wc.condition_(m, "polar"), wc.condition_(m, "shift")),
    "scheme's name": lambda m, _: wc.init_(m, m.names[0]),
    "no attention": lambda m, _: wc.init_(m.get_submodule(f"{m.names[0]}.linear1"), "conditioned"),
    "model's name": lambda m, _: wc.build_model(f"hf:{m.names[0]}"),
    "file's name": lambda m, folder: wc.load_weights_(m, f"{folder}/{m.names[0]}.safetensors"),
    "folder's name": lambda m, folder: draw_figures([folder / m.names[0]], folder / "out"),
}


def not_finite(m: Nameable) -> Nameable:
    with torch.no_grad():
        m.get_submodule(m.names[1]).self_attn.in_proj_weight.fill_(float("nan"))
    return m


def parametrised(m: Nameable) -> Nameable:
    nn.utils.parametrizations.spectral_norm(m.get_submodule(m.names[1]).self_attn, "in_proj_weight")
    return m


def other_weights(m: Nameable, folder: Path) -> None:
    wc.save_weights(nn.Linear(2, 2), folder / "w.safetensors")
    wc.load_weights_(m, folder / "w.safetensors")


@NAMES
@pytest.mark.parametrize("what", RAISED)
def test_what_is_raised(name: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(WellcondError) as caught:
        RAISED[what](model(name), tmp_path)
    assert_shown(str(caught.value), lines=False)


@NAMES
def test_what_is_warned_of(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wc.condition_(model(name), "shift", strength=30.0)  # one-hot attention
        wc.condition_(model(name), "shift", strength=1e-3)  # no guarantee
        with wc.Monitor(spoilt(model(name)), tokens(), every=1) as monitor:
            monitor.step()
    ours = [each for each in caught if "wellcond" in str(each.message) or a_name(name) in str(each.message)]
    assert sum(isinstance(each.message, AttentionWarning) for each in caught) >= 1
    assert len(ours) >= 3
    for each in caught:
        assert_shown(str(each.message), lines=False)


def a_name(name: str) -> str:
    """How the name is shown."""
    return name.encode("unicode_escape").decode() if not name.isprintable() else name


@NAMES
def test_what_a_monitor_logs_and_keeps(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal holds the name itself, and `figures` draws it."""
    folder = tmp_path / "run"
    with wc.Monitor(model(name), tokens(), every=1, log=print, folder=folder, label=name, alarms=False) as monitor:
        monitor.step()
    assert_shown(capsys.readouterr().out)
    assert_shown((folder / "metrics.jsonl").read_text())
    assert_shown((folder / "run.json").read_text())
    lines = [line for _, line in read_lines(folder / "metrics.jsonl")]
    assert lines[0]["layers"][0]["name"] == f"{name}0.self_attn"
    assert json.loads((folder / "run.json").read_text())["label"] == name
    if name == HOSTILE["half a character"]:  # a picture takes a second
        draw_figures([folder], tmp_path / "figures")


@NAMES
def test_what_is_written(name: str, tmp_path: Path) -> None:
    """JSON that any reader takes, pages and pictures: whole, for all that half a character has no UTF-8."""
    found = wc.diagnose(model(name), tokens(), progress=False, jacobian=False)
    assert_shown(found.to_json(tmp_path / "d.json"))
    assert json.loads((tmp_path / "d.json").read_text())["layers"][0]["name"] == f"{name}0.self_attn"
    found.to_html(tmp_path / "d.html")
    assert (tmp_path / "d.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    found.plot(tmp_path / "d.png")
    m = model(name)
    for data in (layers_data(wc.attention_layers(m)), plan_data(wc.plan(m, "conditioned"))):
        assert_shown(to_json(data))
    write_text(tmp_path / "t.txt", name)
    assert (tmp_path / "t.txt").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.html", "d.json", "d.png", "t.txt"]


@NAMES
def test_what_a_comparison_prints(name: str) -> None:
    def run(arm: str, seed: int, result: float) -> Outcome:
        return Outcome(arm, None, seed, "finished", "", "accuracy", True, 9, (), ((9, result),), (), 1.0, {})

    runs = [run("default", seed, 0.5 + seed / 10) for seed in range(3)]
    assert_shown(table_text(compare_outcomes([*runs, *(run(name, seed, 0.7) for seed in range(3))])))


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_comparison_shows_while_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = HOSTILE["title of the terminal"]
    experiment = prepared(write(tmp_path), tmp_path / "out", arms={name: {}})
    screen = Screen()
    for terminal in (True, False):
        with Display(experiment, console=Console(file=screen, force_terminal=terminal)) as display:
            display.said(name, 0, 3, 0.5)
            display.ended(name, 0)
    assert_shown(capsys.readouterr().err)
    assert "]0;pwned" in screen.getvalue()
    assert "\x1b]0;pwned" not in screen.getvalue()


@NAMES
def test_what_the_command_line_prints(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"written to {name}", err=True)
    assert "\x1b" not in capsys.readouterr().err
    said = CliRunner().invoke(app, ["inspect", f"{tmp_path}/{name}.py:build"])
    assert said.exit_code == 2
    assert_shown(said.stderr.strip(), lines=False)
    said = CliRunner().invoke(app, ["figures", f"{tmp_path}/{name}"])
    assert said.exit_code == 2
    assert_shown(said.stderr.strip())  # of half a character, Typer itself says so in a box
