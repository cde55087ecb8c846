"""`wellcond recommend` on images, a text and functions of the user's own, and the evidence for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import wellcond as wc
from tests.advice.models import CountedTime
from wellcond.advice import probe as probing
from wellcond.cli.main import app

OWN = """
import torch
from torch import nn
from timm.models.vision_transformer import VisionTransformer

def model():
    return VisionTransformer(img_size=8, patch_size=2, in_chans=1, num_classes=3, embed_dim=24, depth=2, num_heads=3)

def batches(batch):
    drawn = torch.Generator().manual_seed(0)
    images = torch.randn(12, batch, 1, 8, 8, generator=drawn)
    return [(x, x[:, 0, :4].mean((1, 2)).mul(4).add(1.5).clamp(0, 2).long()) for x in images]

def loss(output, target):
    return nn.functional.cross_entropy(output, target)
"""


def ran(monkeypatch, *arguments: str):
    monkeypatch.setattr(probing.time, "perf_counter", CountedTime())
    return CliRunner().invoke(app, ["recommend", *arguments])


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Images of three digits, in a folder for each."""
    loaded = load_digits(n_class=3)
    for number, (image, label) in enumerate(zip(loaded.images[:60], loaded.target[:60], strict=True)):
        folder = tmp_path / "images" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype("uint8")).resize((32, 32)).convert("RGB").save(folder / f"{number}.png")
    return tmp_path / "images"


def test_own_functions_are_asked_and_what_is_advised_is_written(tmp_path, monkeypatch):
    own, weights, page = (tmp_path / name for name in ("my.py", "begin.safetensors", "why.html"))
    own.write_text(OWN)
    asked = [f"{own}:model", "--data", f"{own}:batches", "--loss", f"{own}:loss", "--batch", "4", "--lr", "2e-3"]
    asked += ["--seconds", "0.4", "-s", "fan_in", "--out", str(tmp_path / "trials")]
    found = ran(monkeypatch, *asked, "-o", str(weights), "--html", str(page))
    assert found.exit_code == 0, found.output
    assert f"written to {weights}" in found.stdout
    assert "<title>" in page.read_text()
    again = ran(monkeypatch, *asked, "--json")
    told = json.loads(again.stdout)
    assert told["summary"].split(".")[0] in " ".join(found.stdout.split())
    model = wc.build_model(f"{own}:model", seed=0)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    wc.load_weights_(model, weights)
    same = all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert same == (told["best"] == "yours")


def test_images_in_folders_are_classes(digits, monkeypatch):
    file = digits.parent / "vit.py"
    file.write_text(OWN.replace("img_size=8", "img_size=32").replace("in_chans=1", "in_chans=3"))
    found = ran(monkeypatch, f"{file}:model", "--images", str(digits), "--batch", "6", "--seconds", "0")
    assert found.exit_code == 0, found.output
    assert "on 60 images of 3 classes" in found.stderr
    assert "nothing is advised" in found.stdout


def test_a_text_is_predicted_token_by_token(tmp_path, monkeypatch):
    config = tmp_path / "config.json"
    sizes = {"n_layer": 1, "n_embd": 12, "n_head": 2, "n_positions": 16, "vocab_size": 300}
    config.write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}))
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog, and over the hen. " * 40)
    found = ran(monkeypatch, f"hf:{config}", "--text", str(text), "--batch", "2", "--seconds", "0", "-s", "fan_in")
    assert found.exit_code == 0, found.output
    assert "fan_in + calibrated" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a model"),
        (["timm:vit_tiny_patch16_224"], "give one of --data, --images and --text"),
        (["timm:vit_tiny_patch16_224", "--images", "a", "--text", "b"], "not --images and --text"),
        (["timm:vit_tiny_patch16_224", "--images", "nowhere"], "has no classes"),
        (["timm:vit_tiny_patch16_224", "--images", "a", "-o", "weights.pt"], ".safetensors"),
        (["nosuch", "--calibration"], "no recipe 'nosuch'"),
        (["shapes", "--calibration"], "no loss that a short training could judge by"),
    ],
)
def test_what_is_missing_is_said_in_a_line(arguments, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = ran(monkeypatch, *arguments)
    assert found.exit_code == 2
    assert words in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_evidence_is_gathered_and_printed(tmp_path, monkeypatch):
    sizes = ["model.width=12", "model.depth=1", "model.heads=2", "train.steps=4", "train.test_every=4"]
    settings = [part for size in sizes for part in ("--set", size)]
    found = ran(
        monkeypatch, "digits", "--calibration", "--seconds", "0.4", "-s", "fan_in", "--seeds", "1",
        "--out", str(tmp_path), *settings,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "lower probe loss" in found.stdout
    assert "recommended − yours" in found.stdout
    assert (tmp_path / "digits" / "evidence.json").exists()
