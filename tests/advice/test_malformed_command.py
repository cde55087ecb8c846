"""`wellcond recommend` with malformed files and functions: exit code 2, one line on stderr, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.advice.models import CountedTime
from tests.preloaded import WELLCOND, run
from wellcond.advice import probe as probing
from wellcond.cli.main import app

OWN = """
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.nn import functional

X, Y = torch.zeros(2, 3, 16, 16), torch.tensor([0, 4])

def vit():
    return VisionTransformer(img_size=16, patch_size=4, embed_dim=24, depth=1, num_heads=3, num_classes=5)

def convnet():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 5))

def model():
    return vit()

def frozen():
    return vit().requires_grad_(False)

def data(batch, seed):
    return [(X, Y)] * 6

def loss(output, target):
    return functional.cross_entropy(output, target)
"""
# The last lines of the user's file, the options, and words of the refusal.
MISTAKES = {
    "no data": ("", [], "give one of --data, --images and --text"),
    "two kinds of data": ("", ["--data", "own.py:data", "--text", "a cat"], "not --data and --text"),
    "no file": ("", ["--data", "other.py:data"], "there is no file 'other.py'"),
    "a folder": ("", ["--data", "folder.py:data"], "there is no file 'folder.py'"),
    "no function named": ("", ["--data", "own.py"], "write path/to/file.py:function"),
    "a name that is none": ("", ["--data", "own.py:a-b"], "names no function"),
    "a name without a file": ("", ["--data", "cifar10"], "'cifar10' names no function"),
    "another function": ("", ["--data", "own.py:dat"], "'own.py' has no function 'dat'"),
    "a variable": ("rows = [1]", ["--data", "own.py:rows"], "has no function 'rows'"),
    "a syntax error": ("def f(:", ["--data", "own.py:f"], "'own.py' cannot be run: SyntaxError"),
    "a file that raises": ("1 / 0", ["--data", "own.py:data"], "'own.py' cannot be run: ZeroDivisionError"),
    "a file that exits": ("raise SystemExit(7)", ["--data", "own.py:data"], "cannot be run: SystemExit: 7"),
    "a file that imports what is not there": ("import nope_nope", ["--data", "own.py:data"], "ModuleNotFoundError"),
    "a file that is no text": ("\0", ["--data", "own.py:data"], "'own.py' cannot be run: "),
    "a function that raises": ("def f():\n    return {}['x\\ny']", ["--data", "own.py:f"], "own.py:f raised KeyError"),
    "a function that exits": ("def f():\n    exit()", ["--data", "own.py:f"], "own.py:f raised SystemExit"),
    "a function that wants more": ("def f(path):\n    pass", ["--data", "own.py:f"], "own.py:f raised TypeError"),
    "a function without a signature": ("f = dict.fromkeys", ["--data", "own.py:f"], "own.py:f raised "),
    "nothing": ("def f():\n    pass", ["--data", "own.py:f"], "own.py:f: batches are a list or a loader"),
    "a number": ("def f():\n    return 3", ["--data", "own.py:f"], "own.py:f: batches are a list"),
    "text": ("def f():\n    return 'train'", ["--data", "own.py:f"], "own.py:f: batches are several"),
    "no batch": ("def f():\n    return []", ["--data", "own.py:f"], "own.py:f: there is no batch"),
    "a generator of nothing": (
        "def f():\n    return\n    yield",
        ["--data", "own.py:f"],
        "own.py:f: there is no batch",
    ),
    "a generator that raises": ("def f():\n    yield X, Y\n    1 / 0", ["--data", "own.py:f"], "own.py:f: the batches"),
    "tensors": ("def f():\n    return [X] * 6", ["--data", "own.py:f"], "batch 1 of 6: a batch is a pair"),
    "triples": ("def f():\n    return [(X, X, Y)] * 6", ["--data", "own.py:f"], "got a tuple of 3"),
    "a later batch of nothing": ("def f():\n    return [(X, Y), None]", ["--data", "own.py:f"], "batch 2 of 2"),
    "other sizes": (
        "def f():\n    return [(X[:, :2], Y)]",
        ["--data", "own.py:f", "--loss", "own.py:loss"],
        "(2, 2, 16",
    ),
    "other classes": (
        "def f():\n    return [(X, Y + 1)]",
        ["--data", "own.py:f", "--loss", "own.py:loss"],
        "IndexError",
    ),
    "no numbers": ("def f():\n    return [(X / 0, Y)]", ["--data", "own.py:f", "--loss", "own.py:loss"], "is nan"),
    "no loss": ("", ["--data", "own.py:data"], "VisionTransformer gives Tensor (2, 5) of float32, without a loss"),
    "no loss's file": ("", ["--data", "own.py:data", "--loss", "my.py:loss"], "there is no file 'my.py'"),
    "no loss's function": ("", ["--data", "own.py:data", "--loss", "own.py:low"], "has no function 'low'"),
    "a page that is a folder": (
        "",
        ["--data", "own.py:data", "--loss", "own.py:loss", "--html", "."],
        "is a directory",
    ),
    "a loss by name": ("", ["--data", "own.py:data", "--loss", "mse"], "'mse' names no function"),
    "a loss that raises": (
        "def f(o, t):\n    1 / 0",
        ["--loss", "own.py:f"],
        "f(output, target) raised ZeroDivisionError",
    ),
    "a loss of one argument": ("def f(o):\n    pass", ["--loss", "own.py:f"], "f(output, target) raised TypeError"),
    "a loss of nothing": (
        "def f(o, t):\n    pass",
        ["--loss", "own.py:f"],
        "f(output, target) returns one number as a",
    ),
    "a loss of many": ("def f(o, t):\n    return o", ["--loss", "own.py:f"], "got Tensor (2, 5)"),
    "a loss without gradient": ("def f(o, t):\n    return o.detach().sum()", ["--loss", "own.py:f"], "has no gradient"),
    "a loss that is nan": ("def f(o, t):\n    return o.sum() * float('nan')", ["--loss", "own.py:f"], "is nan"),
    "an optimizer that is none": ("", ["--loss", "own.py:loss", "--optimizer", "adam"], "adamw, sgd, muon"),
    "a rate of nothing": ("", ["--loss", "own.py:loss", "--lr", "0"], "lr is a number above 0"),
    "a rate that is none": ("", ["--loss", "own.py:loss", "--lr", "nan"], "lr is a number above 0"),
    "negative seconds": ("", ["--loss", "own.py:loss", "--seconds", "-1"], "seconds is a number of at least 0"),
    "a scheme that is none": ("", ["--loss", "own.py:loss", "-s", "orthogonol"], "orthogonol"),
    "a page in no folder": ("", ["--loss", "own.py:loss", "--html", "no/page.html"], "no"),
    "weights of another kind": ("", ["--loss", "own.py:loss", "-o", "advised.pt"], "--output is a .safetensors file"),
    "weights in no folder": ("", ["--loss", "own.py:loss", "-o", "no/advised.safetensors"], "no"),
    "a folder that is a file": ("", ["--loss", "own.py:loss", "--out", "mine.txt"], "'mine.txt' is a file"),
    "a folder of something else": ("", ["--loss", "own.py:loss", "--out", "folder.py"], "'folder.py' is not empty"),
    "images without classes": ("", ["--images", "folder.py"], "has no classes: put the images of each class"),
    "images in no folder": ("", ["--images", "nowhere"], "'nowhere' has no classes"),
    "an image that is none": ("", ["--images", "damaged"], "1.png"),
    "more classes than outputs": ("", ["--images", "six"], "numbers for 6 classes or more"),
    "text for images": ("", ["--text", "the cat sat on the mat"], "VisionTransformer"),
    "no attention": ("def model():\n    return convnet()", ["--loss", "own.py:loss"], "no attention"),
    "a frozen model": ("def model():\n    return frozen()", ["--loss", "own.py:loss"], "no parameter of the model is"),
}
DATA = ("--data", "--images", "--text")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's files, in which the command runs, for which time passes by the look."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probing.time, "perf_counter", CountedTime())
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "folder.py" / "mine.txt").write_text("mine")
    for name, classes in (("damaged", 2), ("six", 6)):
        for label in range(classes):
            (tmp_path / name / f"class{label}").mkdir(parents=True)
            Image.new("RGB", (16, 16), (label, 9, 9)).save(tmp_path / name / f"class{label}" / "1.png")
    (tmp_path / "damaged" / "class1" / "1.png").write_bytes(b"no image")
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_refused_in_one_line(folder: Path, name: str) -> None:
    last, options, word = MISTAKES[name]
    (folder / "own.py").write_text(f"{OWN}\n{last}\n")
    (folder / "model.py").write_text(OWN)
    if "--loss" in options and not set(DATA) & set(options):
        options = [*options, "--data", "own.py:data"]
    own_model = "own.py:model" if "def model" in last else "model.py:model"
    before = files(folder)
    given = ["recommend", own_model, "--seconds", "0.1", "-s", "fan_in", *options]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert word in lines[0], lines[0]
    assert 30 < len(lines[0]) < 700
    assert not result.stdout
    assert files(folder) == before


def test_a_process_of_its_own_ends_so_too(folder: Path) -> None:
    """With the real streams, where warnings and tracebacks would be seen."""
    (folder / "own.py").write_text(f"{OWN}\ndef f(output, target):\n    return output\n")
    given = ["recommend", "own.py:model", "--data", "own.py:data", "--loss", "own.py:f", "--out", "probe"]
    ended = run(WELLCOND, *given, cwd=folder)
    assert ended.returncode == 2
    words = "error: batches of own.py:data: batch 1 of 6: f(output, target) returns one number as a tensor; got Tensor"
    assert ended.stderr.splitlines() == [f"{words} (2, 5) of float32 (own.py, line {len(OWN.splitlines()) + 2})"]
    assert not ended.stdout
    assert not (folder / "probe").exists()


def test_what_is_right_is_answered(folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    given = ["recommend", "own.py:model", "--data", "own.py:data", "--loss", "own.py:loss", "--seconds", "0"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == ["own.py:model on batches of own.py:data"]
