"""Models by name: what is built, that the network and the global generator are left alone, and every refusal."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import wellcond as wc
from wellcond.cli.main import app
from wellcond.errors import ModelNameError
from wellcond.inputs.models import build_fitting

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 12, "n_head": 3, "vocab_size": 20, "n_positions": 8}
QUIET = {"bos_token_id": 0, "eos_token_id": 0}

SOURCE = """
import sys
from torch import nn
from neighbour import WIDTH

def build():
    return nn.Linear(WIDTH, 2)

def text():
    return "a model"

def broken():
    width = WIDTH
    raise ValueError("no such width")

def leaves():
    sys.exit(3)

def needs(argument):
    return nn.Linear(1, 1)

constant = 3
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 5\n")
    (tmp_path / "mine.py").write_text(SOURCE)
    yield tmp_path / "mine.py"
    sys.modules.pop("neighbour", None)


def config_file(tmp_path: Path, **values: object) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2 | QUIET | values))
    return f"hf:{path}"


def test_timm_is_seeded_and_leaves_the_global_generator() -> None:
    before = torch.get_rng_state()
    first, again, other = (wc.build_model("timm:vit_tiny_patch16_224", seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.blocks[0].attn.qkv.weight, again.blocks[0].attn.qkv.weight)
    assert not torch.equal(first.blocks[0].attn.qkv.weight, other.blocks[0].attn.qkv.weight)


def test_on_meta() -> None:
    model = wc.build_model("hf:llama", device="meta")  # 6.6 billion parameters: it would not fit
    assert all(p.is_meta for p in model.parameters())


def test_hf_model_type_is_the_bare_model() -> None:
    assert type(wc.build_model("hf:bert", device="meta")).__name__ == "BertModel"


def test_hf_config_names_its_class(tmp_path: Path) -> None:
    model = wc.build_model(config_file(tmp_path, architectures=["GPT2LMHeadModel"], dtype="bfloat16"))
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert model.lm_head.weight.shape == (20, 12)
    assert model.lm_head.weight.dtype == torch.bfloat16


def test_hf_config_without_class(tmp_path: Path) -> None:
    assert type(wc.build_model(config_file(tmp_path))).__name__ == "GPT2Model"
    assert type(wc.build_model(f"hf:{tmp_path}")).__name__ == "GPT2Model"


def test_file(source: Path) -> None:
    model = wc.build_model(f"{source}:build", seed=4)
    assert isinstance(model, nn.Linear)
    assert model.in_features == 5
    assert torch.equal(model.weight, wc.build_model(f"{source}:build", seed=4).weight)
    assert str(source.parent) not in sys.path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet18", "timm:NAME"),
        ("keras:vit", "timm:NAME"),
        ("", "timm:NAME"),
        ("timm:vit_tiny_patch16_2244", "vit_tiny_patch16_224"),
        ("timm:", "no model ''"),
        ("timm:hf-hub:timm/vit_tiny_patch16_224", "no model"),
        ("hf:berd", "bert"),
        ("hf:nobody/no-such-model", "local cache"),
        ("hf:", "local cache"),
        ("hf:no/config.json", "no file"),
        ("no/file.py:build", "no file"),
        ("file.py", "file.py:function"),
    ],
)
def test_refuses_a_name(name: str, says: str) -> None:
    with pytest.raises(ModelNameError, match=says):
        wc.build_model(name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[1]", "model_type None"),
        ('{"n_layer": 2}', "model_type None"),
        ('{"model_type": "gpt22"}', "gpt2"),
        (json.dumps(GPT2 | QUIET | {"architectures": ["os"]}), "architecture 'os'"),
        (json.dumps(GPT2 | QUIET | {"architectures": ["AutoModel"]}), "architecture 'AutoModel'"),
        (json.dumps(GPT2 | QUIET | {"n_head": 5}), "cannot build"),
        (json.dumps(GPT2 | QUIET | {"n_embd": "wide"}), "hf|transformers"),
    ],
)
def test_refuses_a_configuration(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelNameError, match=says):
        wc.build_model(f"hf:{tmp_path / 'config.json'}")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("absent", "no function 'absent'"),
        ("constant", "no function 'constant'"),
        ("text", "returned a str"),
        ("broken", r"ValueError: no such width \(line 14\)"),
        ("leaves", "SystemExit: 3"),
        ("needs", "TypeError"),
        ("not a name", "names no function"),
    ],
)
def test_refuses_a_function(source: Path, function: str, says: str) -> None:
    with pytest.raises(ModelNameError, match=says):
        wc.build_model(f"{source}:{function}")


def test_refuses_a_file_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import no_such_module\n")
    with pytest.raises(ModelNameError, match=r"no_such_module.*line 1"):
        wc.build_model(f"{tmp_path / 'bad.py'}:build")


@pytest.mark.parametrize(("name", "extra"), [("timm", "timm"), ("transformers", "hf")])
def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelNameError, match=rf"pip install 'wellcond\[{extra}\]'"):
        wc.build_model(f"{extra}:vit_tiny_patch16_224")


def test_never_uses_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: calls.append(a) or (_ for _ in ()).throw(OSError()))
    monkeypatch.setattr(socket.socket, "connect", lambda *a: calls.append(a))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(ModelNameError):
        wc.build_model("hf:google-bert/bert-base-uncased-that-is-not-here")
    wc.build_model("timm:vit_tiny_patch16_224.augreg_in21k", device="meta")  # names pretrained weights; none are used
    assert calls == []
    assert "HF_HUB_OFFLINE" not in os.environ


# A function of one's own, in a comparison

OWN = """
import torch
from torch import nn
from timm.models.vision_transformer import VisionTransformer

SMALL = {"embed_dim": 8, "depth": 1, "num_heads": 2, "patch_size": 4}

def fits(num_classes, in_chans=3, *, img_size=32, patch_size=4):
    assert (num_classes, in_chans, img_size) == (10, 1, 8)
    own = {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size, "patch_size": patch_size}
    return VisionTransformer(**SMALL | own)

def alone():
    return VisionTransformer(num_classes=10, in_chans=1, img_size=8, **SMALL)

def thousand():
    return VisionTransformer(num_classes=1000, in_chans=1, img_size=8, **SMALL)

def colour():
    return VisionTransformer(num_classes=10, in_chans=3, img_size=8, **SMALL)

def swallows(**options):
    assert not options
    return alone()

class Gpt(nn.Module):
    def __init__(self, vocab_size, block_size):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, 8), nn.Embedding(block_size, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, vocab_size)

    def forward(self, idx, targets=None):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        x = self.tokens(idx) + self.positions.weight[: idx.shape[1]]
        return self.head(self.block(x, src_mask=mask, is_causal=True))
"""
RECIPE = """
title = "own"
task = {task}
seeds = [0]
monitor = false
[model]
name = "own.py:{function}"
{options}
[train]
steps = 2
batch = 4
[arms.default]
[arms.conditioned]
init = "conditioned"
"""
DIGITS, TEXT = '"digits"', '{ name = "topics-text", length = 24 }'


def compared(folder: Path, function: str, task: str = DIGITS, options: str = "") -> Result:
    """`wellcond compare`, of a recipe with two steps."""
    (folder / "own.py").write_text(OWN)
    (folder / "own.toml").write_text(RECIPE.format(function=function, task=task, options=options))
    with chdir(folder):
        return CliRunner().invoke(app, ["compare", "own.toml", "--out", "runs", "--json"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("function", "task", "options"),
    [
        ("fits", DIGITS, ""),
        ("fits", DIGITS, "patch_size = 2"),
        ("alone", DIGITS, ""),
        ("swallows", DIGITS, ""),
        ("Gpt", TEXT, ""),
    ],
)
def test_a_comparison_tells_a_function_of_ones_own_the_task(
    function: str, task: str, options: str, tmp_path: Path
) -> None:
    done = compared(tmp_path, function, task, options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [record["runs"]["finished"] for record in found["arms"]] == [1, 1]


@pytest.mark.parametrize(
    ("function", "words"),
    [("thousand", "it gives 1000 classes"), ("colour", "given inputs (2, 1, 8, 8) it fails with")],
)
def test_a_function_that_does_not_fit_is_told_what_to_take(function: str, words: str, tmp_path: Path) -> None:
    done = compared(tmp_path, function)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert (
        "the model does not fit the task 'digits', which has {'channels': 1, 'size': 8, 'classes': 10}" in done.stderr
    )
    assert words in done.stderr
    hint = f"give the function of own.py:{function} parameters of these names, and it is told them: "
    assert f"{hint}in_chans, img_size, num_classes\n" in done.stderr


def test_what_the_recipe_says_goes_first(tmp_path: Path) -> None:
    done = compared(tmp_path, "fits", options="num_classes = 5")
    assert done.exit_code == 2
    assert "AssertionError" in done.stderr


def test_a_model_is_told_nothing_unless_it_is_offered(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(ModelNameError, match="num_classes"):
        wc.build_model(f"{tmp_path}/own.py:fits")
    state = torch.get_rng_state()
    options = {"num_classes": 10, "in_chans": 1, "img_size": 8, "vocab_size": 5}
    assert build_fitting(f"{tmp_path}/own.py:fits", options).head.out_features == 10
    assert torch.equal(torch.get_rng_state(), state)
