"""`init_to_files`: the same bits as `init_`, the model's own initialisation around them, and all or nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.preloaded import start
from wellcond.attention.storage import fetch
from wellcond.checkpoint.named_tensors import named_tensors
from wellcond.errors import CheckpointError, InapplicableError, SchemeError
from wellcond.init.compose import SchemeLike
from wellcond.testing import same_bits, state


def encoder(depth: int = 3) -> nn.Module:
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=3, n_embd=24, n_head=3, vocab_size=60, n_positions=16, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=2, vocab_size=60))


def vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=16, patch_size=8, embed_dim=24, depth=3, num_heads=3, num_classes=5)


MODELS = {
    "encoder": encoder,
    "transformer": lambda: nn.Transformer(12, 2, 2, 2, 20, batch_first=True),
    "gpt2": gpt2,
    "t5": t5,
    "vit": vit,
}


def written(build: Callable[[], nn.Module], scheme: SchemeLike, folder: Path, **options: object) -> nn.Module:
    wc.init_to_files(build, scheme, folder, **options)
    model = build()
    wc.load_weights_(model, folder)
    return model


def check_bits(build: Callable[[], nn.Module], scheme: SchemeLike, folder: Path) -> wc.Plan:
    """The files hold what `init_` writes."""
    usual = build()
    plan = wc.init_(usual, scheme, seed=5, on_inapplicable="skip")
    model = written(build, scheme, folder, seed=5, on_inapplicable="skip")
    for entry in plan.entries:
        mine = replace(entry.projection, root=model)
        assert same_bits(mine.read(), entry.projection.read()), (scheme, mine.weight.path)
    for path, _ in plan.parameters():
        assert same_bits(fetch(model, path), fetch(usual, path)), (scheme, path)
    return plan


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", ["conditioned", {"qk": "conditioned", "vo": "xavier"}])
def test_the_scheme_writes_the_bits_of_init_(tmp_path: Path, name: str, scheme: SchemeLike) -> None:
    assert check_bits(MODELS[name], scheme, tmp_path / "out").entries


def test_every_scheme_does(tmp_path: Path) -> None:
    whole = 0
    for info in wc.schemes():
        if "(required)" not in info.options.values():
            plan = check_bits(vit, info.name, tmp_path / info.name)
            whole += any(True for _ in plan.parameters())
    assert whole  # some set biases to zero
    plan = check_bits(gpt2, "tfixup", tmp_path / "embeddings")
    assert any(entry.role == "embedding" for entry in plan.entries)  # outside the blocks


@pytest.mark.parametrize("name", MODELS)
def test_the_rest_is_as_the_model_makes_it(tmp_path: Path, name: str) -> None:
    """Constants are equal, random tensors have the same root mean square to five standard errors."""
    model = written(MODELS[name], "keep", tmp_path / "out", seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        usual = MODELS[name]()
    drawn = 0
    for mine, theirs in zip(named_tensors(model), named_tensors(usual), strict=True):
        a, b = mine.tensor.double(), theirs.tensor.double()
        if b.unique().numel() == 1 or not theirs.tensor.is_floating_point():
            assert torch.equal(a, b), mine.name
        else:
            drawn += 1
            assert not torch.equal(a, b), mine.name
            rms = b.square().mean().sqrt()
            assert (a.square().mean().sqrt() - rms).abs() <= 5 * rms / b.numel() ** 0.5, mine.name
    assert drawn > 8


def test_no_two_blocks_get_the_same_numbers(tmp_path: Path) -> None:
    """nn.Transformer sets its blocks from the outside, so the key of a draw must tell the blocks apart."""
    model = written(MODELS["transformer"], "keep", tmp_path / "out")
    assert not torch.equal(model.encoder.layers[0].linear1.weight, model.encoder.layers[1].linear1.weight)


def test_from_pretrained_reads_it_back(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, GPT2LMHeadModel

    model = written(gpt2, "conditioned", tmp_path / "out", seed=3)
    for cls in (GPT2LMHeadModel, AutoModelForCausalLM):
        loaded, info = cls.from_pretrained(tmp_path / "out", output_loading_info=True)
        assert type(loaded) is GPT2LMHeadModel
        assert not any(info.values()), info
        a, b = state(model), state(loaded)
        assert a.keys() == b.keys()
        assert all(same_bits(a[name], b[name]) for name in a)


def test_layout_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    wc.init_to_files(gpt2, "conditioned", tmp_path / "out")
    shards = [f"model-0000{n}-of-00004.safetensors" for n in (1, 2, 3, 4)]  # three blocks and the rest
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", *shards, "model.safetensors.index.json"]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    model = gpt2()
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in model.parameters())
    assert set(index["weight_map"]) == {name for name, _ in model.named_parameters()}  # lm_head is tied
    assert index["weight_map"]["transformer.h.1.attn.c_attn.weight"] == shards[1]
    assert index["weight_map"]["transformer.wte.weight"] == shards[3]
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["out", "usual"]


def test_large_parts_outside_the_blocks_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellcond.init.shards.SIZE", 1)
    whole = written(gpt2, "keep", tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 3 + 3  # wte, wpe and ln_f, whose two stay together
    assert not whole.transformer.wte.weight.isnan().any()


def test_same_seed_same_files_whatever_the_layers(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    for name, seed, layers in [("a", 7, None), ("b", 7, None), ("c", 8, None), ("d", 7, "layers.0.*")]:
        wc.init_to_files(encoder, "conditioned", tmp_path / name, seed, layers=layers)
    assert torch.equal(torch.get_rng_state(), before)
    files = {name: [f.read_bytes() for f in sorted((tmp_path / name).glob("*.safetensors"))] for name in "abcd"}
    assert files["a"] == files["b"]
    assert all(x != y for x, y in zip(files["a"], files["c"], strict=True))
    assert [x == y for x, y in zip(files["a"], files["d"], strict=True)] == [True, False, False]
    models = [encoder() for _ in "ad"]
    for model, name in zip(models, "ad", strict=True):
        wc.load_weights_(model, tmp_path / name)
    assert torch.equal(models[0].layers[1].linear1.weight, models[1].layers[1].linear1.weight)


def test_one_block_in_memory_at_a_time(tmp_path: Path) -> None:
    models: list[nn.Module] = []
    seen: list[int] = []

    def build() -> nn.Module:
        models.append(encoder(5))
        return models[0]

    def scheme(layer: wc.AttentionLayer, draw: object) -> dict[str, torch.Tensor]:
        seen.append(sum(not p.is_meta for p in models[0].parameters()))
        return {}

    wc.init_to_files(build, scheme, tmp_path / "out")
    assert seen == [12] * 5  # the twelve tensors of one encoder layer
    assert all(p.is_meta for p in models[0].parameters())


def test_keeps_the_precision_of_the_model(tmp_path: Path) -> None:
    model = written(lambda: encoder().bfloat16(), "conditioned", tmp_path / "out", seed=2)
    usual = encoder().bfloat16()
    wc.init_(usual, "conditioned", seed=2)
    assert model.layers[0].linear1.weight.dtype == torch.bfloat16
    half = slice(24)
    assert torch.equal(model.layers[0].self_attn.in_proj_weight[half], usual.layers[0].self_attn.in_proj_weight[half])


@pytest.mark.parametrize("scheme", ["conditioned", "mimetic", "small_init", "trunc_normal"])
def test_same_bits_whatever_the_default_dtype(tmp_path: Path, scheme: str) -> None:
    plain = written(encoder, scheme, tmp_path / "plain", seed=5)
    torch.set_default_dtype(torch.float64)
    try:
        plan = check_bits(encoder, scheme, tmp_path / "out")
    finally:
        torch.set_default_dtype(torch.float32)
    for entry in plan.entries:  # the same draw, to the rounding of a float32
        wide = entry.projection.read()
        assert wide.dtype == torch.float64
        assert torch.allclose(wide.float(), replace(entry.projection, root=plain).read(), rtol=1e-6, atol=1e-7)


def test_plan_says_where(tmp_path: Path) -> None:
    plan = wc.init_to_files(encoder, "conditioned", tmp_path / "out")
    assert len(plan.entries) == 9
    assert str(plan).endswith(f"written to {tmp_path / 'out'}")
    assert "not applied" not in str(plan)


class With(nn.Module):
    """An encoder layer, and something beside it."""

    def __init__(self, beside: Callable[[nn.Module], object]) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
        beside(self)


class OwnWay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(std=0.02)


def fails() -> nn.Module:
    raise ZeroDivisionError("one")


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "parameter": (lambda: With(lambda m: setattr(m, "token", nn.Parameter(torch.zeros(3)))), "nothing sets 'token'"),
    "buffer": (lambda: With(lambda m: m.register_buffer("table", torch.arange(3))), "nothing sets 'table'"),
    "later": (lambda: With(lambda m: nn.init.zeros_(m.layer.linear2.weight)), "'layer.linear2' sets 'weight'"),
    "own": (OwnWay, "_init_weights"),
    "value": (lambda: With(lambda m: torch.ones(3).sum().item()), "meta device.*item"),
    "raises": (fails, "ZeroDivisionError: one"),
    "type": (lambda: "model", "got str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_what_it_cannot_make(tmp_path: Path, case: str) -> None:
    build, says = REFUSED[case]
    with pytest.raises(CheckpointError, match=says):
        wc.init_to_files(build, "conditioned", tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_what_the_constructor_puts_on_the_cpu_stays(tmp_path: Path) -> None:
    table = torch.arange(3.0).numpy()

    def build() -> nn.Module:
        return With(lambda m: m.register_buffer("table", torch.from_numpy(table)))

    assert written(build, "conditioned", tmp_path / "out").table.tolist() == [0, 1, 2]


def test_refuses_a_directory_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, says in [("full", "not empty"), ("file", "is a file"), ("no/where", "no directory"), ("w.pt", "pickle")]:
        with pytest.raises(CheckpointError, match=says):
            wc.init_to_files(encoder, "conditioned", tmp_path / name)
    assert os.listdir(tmp_path / "full") == ["thesis.tex"]
    wc.init_to_files(encoder, "conditioned", tmp_path / "empty")
    assert len(os.listdir(tmp_path / "empty")) == 4


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    def scheme(layer: wc.AttentionLayer, draw: object) -> dict[str, torch.Tensor]:
        if layer.name.startswith("layers.2"):
            assert any(f.endswith(".partial") for f in os.listdir(tmp_path))
            raise SchemeError("enough")
        return {}

    with pytest.raises(SchemeError, match="enough"):
        wc.init_to_files(encoder, scheme, tmp_path / "out")
    with pytest.raises(InapplicableError):
        wc.init_to_files(encoder, "impulse", tmp_path / "out")
    assert os.listdir(tmp_path) == []


KILLED = """
import sys, time
from pathlib import Path
import torch, wellcond as wc
from torch import nn

folder = Path(sys.argv[1])

def scheme(layer, draw):
    if layer.name.startswith("layers.2"):
        (folder / "half").touch()
        time.sleep(600)
    return {}

build = lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), 4)
wc.init_to_files(build, scheme, folder / "out")
"""


def test_a_killed_process_leaves_no_directory(tmp_path: Path) -> None:
    process = start(KILLED, str(tmp_path), cwd=tmp_path)
    deadline = time.monotonic() + 120
    try:
        while not (tmp_path / "half").exists():
            assert process.alive()
            assert time.monotonic() < deadline, "the process has not reached the third layer"
            time.sleep(0.02)
    finally:
        process.kill()
        ended = process.wait()
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    (partial,) = tmp_path.glob(".out.*.partial")
    assert len(list(partial.glob("*.safetensors"))) == 2  # it was in the middle
    wc.init_to_files(encoder, "conditioned", tmp_path / "out")  # and can be done again
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
