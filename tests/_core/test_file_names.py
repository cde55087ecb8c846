"""File names that are too long, or that no file system stores: one line, before the work, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import wellcond as wc
from tests.laboratory import prepared, write
from wellcond._core.atomic import write_bytes
from wellcond.cli.main import app
from wellcond.errors import WellcondError
from wellcond.lab.figures.draw import draw_figures
from wellcond.lab.page.comparison_data import write_comparison_page
from wellcond.lab.recipe.recipe import load_recipe

NAMES = {"too long": "x" * 300, "two bytes a character": "é" * 130, "NUL": "a\0b", "half a character": "a\ud800b"}


def block() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, batch_first=True)


def tokens() -> torch.Tensor:
    return torch.randn(2, 5, 8)


USES: dict[str, Callable[[Path], object]] = {
    "save_weights": lambda path: wc.save_weights(block(), path.with_suffix(".safetensors")),
    "load_weights_": lambda path: wc.load_weights_(block(), path.with_suffix(".safetensors")),
    "init_to_files": lambda path: wc.init_to_files(block, "conditioned", path),
    "monitor": lambda path: wc.Monitor(block(), tokens(), folder=path),
    "page": lambda path: wc.diagnose(block(), tokens(), progress=False, jacobian=False).to_html(path),
    "picture": lambda path: wc.diagnose(block(), tokens(), progress=False, jacobian=False).plot(
        path.with_suffix(".png")
    ),
    "figures from": lambda path: draw_figures([path], path.parent / "out"),
    "figures to": lambda path: draw_figures([path.parent], path),
    "report": lambda path: write_comparison_page(path),
    "recipe": lambda path: load_recipe(path),
    "comparison": lambda path: prepared(write(path.parents[1]), path),
    "model": lambda path: wc.build_model(f"{path}.py:build"),
    "configuration": lambda path: wc.build_model(f"hf:{path}.json"),
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("use", USES)
def test_a_name_that_no_file_has(use: str, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(WellcondError) as caught:
        USES[use](folder / name)
    assert str(caught.value).isprintable()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", ["diagnose timm:vit_tiny_patch16_224 --html", "diagram -o"])
def test_the_command_refuses_before_it_builds_anything(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wc, "build_model", lambda *_, **__: pytest.fail("the work has begun"))
    monkeypatch.setattr(wc, "trainability", lambda *_, **__: pytest.fail("the work has begun"))
    said = CliRunner().invoke(app, [*command.split(), "x" * 300 + ".html"])
    assert said.exit_code == 2
    assert "has 305 bytes, a file 255 at most" in said.stderr
    assert len(said.stderr.strip().splitlines()) == 1


def test_the_longest_name_is_written(tmp_path: Path) -> None:
    """Though its temporary neighbour's would be longer by some bytes."""
    write_bytes(tmp_path / ("x" * 255), b"whole")
    wc.save_weights(block(), tmp_path / ("y" * 243 + ".safetensors"))
    assert sorted(len(path.name) for path in tmp_path.iterdir()) == [255, 255]
