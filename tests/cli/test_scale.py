"""`wellcond balance` and `wellcond calibrate`, by the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from typer.testing import CliRunner

import wellcond as wc
from wellcond.cli.main import app

OWN = """
import timm, torch
def model():
    built = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=3, num_classes=4)
    built.example_inputs = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return built
"""


def built() -> torch.nn.Module:
    sizes = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 4}
    return timm.create_model("vit_tiny_patch16_224", **sizes).eval()


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    wc.save_weights(built(), tmp_path / "in.safetensors")
    return f"{tmp_path}/own.py:model"


def run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_balanced_weights_are_the_same_function(model: str, tmp_path: Path) -> None:
    given, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    found = run("balance", model, "--weights", str(given), "--output", str(out))
    assert len(found["heads"]) == 12  # type: ignore[arg-type]
    x = torch.randn(2, 3, 32, 32)
    outputs = []
    for file in (given, out):
        wc.load_weights_(one := built(), file)
        outputs.append(one(x))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    assert given.read_bytes() != out.read_bytes()


def test_calibrated_weights_have_their_targets(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    found = run("calibrate", model, "--beta", "0.5", "--branch", "0.2", "-o", str(out))
    assert [row["branch"] for row in found["layers"]] == pytest.approx([0.2, 0.2], rel=1e-3)  # type: ignore[attr-defined]
    wc.load_weights_(one := built(), out)
    measured = wc.diagnose(one, torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), jacobian=False)
    assert measured.layers[1].branch == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["balance", "MODEL", "-o", "out.pt"], ".safetensors"),
        (["balance", "MODEL", "-o", "nowhere/out.safetensors"], "nowhere"),
        (["balance", "MODEL", "-o", "OUT", "--part", "kv"], "part"),
        (["calibrate", "MODEL", "-o", "OUT", "--branch", "much"], "1/sqrt"),
        (["calibrate", "MODEL", "-o", "OUT", "--beta", "-1"], "positive"),
    ],
)
def test_refusals(model: str, tmp_path: Path, arguments: list[str], words: str) -> None:
    out = tmp_path / "out.safetensors"
    given = [{"MODEL": model, "OUT": str(out)}.get(each, each) for each in arguments]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not out.exists()
