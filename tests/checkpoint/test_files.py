"""Weights in files: the round trip, atomic writing, and that a file that does not fit changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import wellcond as wc
from wellcond.errors import CheckpointError
from wellcond.testing import same_bits, state


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embed.weight
        self.register_buffer("scratch", torch.ones(2), persistent=False)


KEYS = ["embed.weight", "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "body.1.running_mean"]
KEYS += ["body.1.running_var", "body.1.num_batches_tracked", "head.bias"]


def model(seed: int) -> Tied:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Tied()


def same(first: nn.Module, second: nn.Module) -> bool:
    a, b = state(first), state(second)
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    wc.save_weights(model(0), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_round_trip(file: Path) -> None:
    with safe_open(file, framework="pt") as opened:
        assert sorted(opened.keys()) == sorted(KEYS)  # tied once, no scratch buffer
        assert opened.metadata() == {"format": "pt"}
    other = model(1)
    assert not same(other, model(0))
    wc.load_weights_(other, file)
    assert same(other, model(0))
    assert other.head.weight is other.embed.weight


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_names_are_canonical(tmp_path: Path, wrap: Callable[[nn.Module], nn.Module]) -> None:
    wc.save_weights(wrap(model(0)), tmp_path / "w.safetensors")
    assert sorted(load_file(tmp_path / "w.safetensors")) == sorted(KEYS)
    inner = model(1)
    wc.load_weights_(wrap(inner), tmp_path / "w.safetensors")
    assert same(inner, model(0))


def test_file_has_the_usual_mode_and_no_neighbours(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    wc.save_weights(model(0), tmp_path / "w.safetensors")
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["usual", "w.safetensors"]


def test_a_failed_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = file.read_bytes()

    def half(tensors: dict[str, Tensor], path: Path, metadata: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("wellcond.checkpoint.safetensors_files.save_file", half)
    with pytest.raises(CheckpointError, match="No space left"):
        wc.save_weights(model(1), file)
    assert file.read_bytes() == old
    assert os.listdir(file.parent) == [file.name]


def test_overlapping_tensors_are_saved(tmp_path: Path) -> None:
    pair = nn.Module()
    whole = torch.arange(6.0)
    pair.first, pair.second = nn.Parameter(whole[:4]), nn.Parameter(whole[2:])
    wc.save_weights(pair, tmp_path / "w.safetensors")
    assert load_file(tmp_path / "w.safetensors")["second"].tolist() == [2, 3, 4, 5]


def test_tensors_that_share_all_their_memory_are_one(tmp_path: Path) -> None:
    pair = nn.Module()
    pair.first = nn.Parameter(torch.arange(4.0))
    pair.second = nn.Parameter(pair.first.data)
    wc.save_weights(pair, tmp_path / "w.safetensors")
    assert list(load_file(tmp_path / "w.safetensors")) == ["first"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("w.pt", "pickle"),
        ("w.bin", "pickle"),
        ("w.txt", "safetensors"),
        ("no/w.safetensors", "no directory"),
        ("d.safetensors", "is a directory"),
    ],
)
def test_refuses_to_save(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "d.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=says):
        wc.save_weights(model(0), tmp_path / name)
    assert os.listdir(tmp_path) == ["d.safetensors"]


def test_refuses_to_save_what_has_no_numbers(tmp_path: Path) -> None:
    with torch.device("meta"):
        empty = Tied()
    with pytest.raises(CheckpointError, match="meta device"):
        wc.save_weights(empty, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="no shape yet"):
        wc.save_weights(nn.LazyLinear(3), tmp_path / "w.safetensors")
    assert os.listdir(tmp_path) == []


def test_loads_into_meta_and_other_precision(file: Path) -> None:
    with torch.device("meta"):
        empty = Tied()
    wc.load_weights_(empty, file)
    assert empty.head.weight is empty.embed.weight
    assert torch.equal(empty.embed.weight, model(0).embed.weight)
    assert empty.embed.weight.requires_grad
    half = model(1).bfloat16()
    wc.load_weights_(half, file)
    assert torch.equal(half.embed.weight, model(0).embed.weight.bfloat16())


def test_a_tied_tensor_may_have_either_name_or_both(file: Path) -> None:
    tensors = load_file(file)
    for names in [["head.weight"], ["head.weight", "embed.weight"]]:
        rest = {name: value for name, value in tensors.items() if name != "embed.weight"}
        save_file(rest | {name: tensors["embed.weight"].clone() for name in names}, file)
        other = model(1)
        wc.load_weights_(other, file)
        assert same(other, model(0))


def test_loads_what_transformers_saves(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=12, n_head=3, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0)
    saved, other = GPT2LMHeadModel(config), GPT2LMHeadModel(config)
    for size in ["1GB", "4KB"]:
        saved.save_pretrained(tmp_path / size, max_shard_size=size)
        wc.load_weights_(other, tmp_path / size)
        assert same(saved, other)
        nn.init.ones_(other.lm_head.weight)
    assert (tmp_path / "4KB" / "model.safetensors.index.json").is_file()


Damage = Callable[[dict[str, Tensor]], dict[str, Tensor]]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing": (lambda t: {k: v for k, v in t.items() if not k.startswith("body.1")}, "'body.1.weight', .* and 2 more"),
    "unexpected": (lambda t: t | {"body.9.weight": torch.zeros(2)}, "'body.9.weight' unexpected"),
    "shape": (lambda t: t | {"body.0.bias": torch.zeros(5)}, r"'body.0.bias' is \(5,\) in the file and \(4,\)"),
    "integers": (lambda t: t | {"body.0.bias": torch.zeros(4, dtype=torch.int32)}, "whole numbers"),
    "floats": (lambda t: t | {"body.1.num_batches_tracked": torch.zeros(())}, "floating-point in the file"),
    "untied": (lambda t: t | {"head.weight": torch.zeros(7, 4)}, "not tied"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_of_another_model_changes_nothing(file: Path, damage: str) -> None:
    change, says = DAMAGES[damage]
    save_file(change(load_file(file)), file)
    other = model(1)
    with pytest.raises(CheckpointError, match=says) as caught:
        wc.load_weights_(other, file)
    assert str(file) in str(caught.value)
    assert same(other, model(1))


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_file_changes_nothing(file: Path, length: int) -> None:
    file.write_bytes(file.read_bytes()[:length])
    other = model(1)
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        wc.load_weights_(other, file)
    assert same(other, model(1))


def index_of(directory: Path, weight_map: object) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_an_index_may_not_lead_out_of_its_directory(file: Path) -> None:
    for name in ["../w.safetensors", str(file), "sub/../../w.safetensors", "..\\w.safetensors", "", 3, "x.pt"]:
        folder = index_of(file.parent / "folder", dict.fromkeys(KEYS, name))
        other = model(1)
        with pytest.raises(CheckpointError, match="beside the index"):
            wc.load_weights_(other, folder)
        assert same(other, model(1))


def test_refuses_a_broken_directory(file: Path) -> None:
    folder = file.parent / "folder"
    folder.mkdir()
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match="has neither"):
        wc.load_weights_(model(1), folder)
    with pytest.raises(CheckpointError, match="which is not there"):
        wc.load_weights_(model(1), index_of(folder, dict.fromkeys(KEYS, "a.safetensors")))
    for wrong in [None, [], 3]:
        with pytest.raises(CheckpointError, match="not an index"):
            wc.load_weights_(model(1), index_of(folder, wrong))
    (folder / "model.safetensors.index.json").write_text("{")
    with pytest.raises(CheckpointError, match="not an index"):
        wc.load_weights_(model(1), folder)


def test_refuses_a_tensor_in_two_files(file: Path) -> None:
    folder = index_of(file.parent / "folder", {"head.bias": "a.safetensors", "embed.weight": "b.safetensors"})
    for name in "ab":
        (folder / f"{name}.safetensors").write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match="more than one file"):
        wc.load_weights_(model(1), folder)


@pytest.mark.parametrize(("name", "says"), [("none.safetensors", "no file"), ("w.pt", "pickle"), ("w.bin", "pickle")])
def test_refuses_to_load(tmp_path: Path, name: str, says: str) -> None:
    if "none" not in name:
        torch.save(model(0).state_dict(), tmp_path / name)
    with pytest.raises(CheckpointError, match=says):
        wc.load_weights_(model(1), tmp_path / name)
