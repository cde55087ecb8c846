"""Weights in files of torch.save: read only when allowed, without running code, however deep they lie."""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.data import DataLoader

import wellcond as wc
from wellcond.errors import CheckpointError


def model(seed: int = 0, width: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return nn.TransformerEncoderLayer(width, 2, 12, batch_first=True)


class Trained(lightning.LightningModule):
    """A model in a training module, compiled as users compile it, with a loss that has weights of its own."""

    def __init__(self, trained: nn.Module) -> None:
        super().__init__()
        self.model = torch.compile(trained)
        self.criterion = nn.CrossEntropyLoss(weight=torch.ones(3))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return 0.0 * sum(p.sum() for p in self.model.parameters())  # type: ignore[return-value]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.0, weight_decay=0.0)


def by_lightning(trained: nn.Module, path: Path) -> None:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_steps=1, accelerator="cpu", enable_checkpointing=False, **quiet)
    trainer.fit(Trained(trained), DataLoader(torch.zeros(2, 1)))
    trainer.save_checkpoint(path)


def by_nanogpt(trained: nn.Module, path: Path) -> None:
    """As its train.py does, with torch.compile."""
    optimizer = torch.optim.AdamW(trained.parameters())
    sum(p.sum() for p in trained.parameters()).backward()  # type: ignore[union-attr]
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    checkpoint = {
        "model": torch.compile(trained).state_dict(),
        "optimizer": optimizer.state_dict(),
        "model_args": {"n_layer": 1},
        "iter_num": 1,
        "best_val_loss": torch.tensor(2.5),
        "config": {"dataset": "shakespeare"},
    }
    torch.save(checkpoint, path)


WRITERS: dict[str, Callable[[nn.Module, Path], None]] = {
    "state dictionary": lambda m, path: torch.save(m.state_dict(), path),
    "of torch 1.5": lambda m, path: torch.save(m.state_dict(), path, _use_new_zipfile_serialization=False),
    "DataParallel": lambda m, path: torch.save(nn.DataParallel(m).state_dict(), path),
    "compiled in DataParallel": lambda m, path: torch.save({"net": nn.DataParallel(compiled(m)).state_dict()}, path),
    "parts compiled": lambda m, path: torch.save(in_parts(m).state_dict(), path),
    "with its average": lambda m, path: torch.save({"state_dict": m.state_dict(), "state_dict_ema": other(m)}, path),
    "nanoGPT": by_nanogpt,
    "Lightning": by_lightning,
}


def compiled(trained: nn.Module) -> nn.Module:
    wrapped: nn.Module = torch.compile(trained)  # type: ignore[assignment]
    return wrapped


def in_parts(trained: nn.Module) -> nn.Module:
    """A copy whose parts are compiled, and checkpointed, one by one."""
    made = copy.deepcopy(trained)
    made.linear1 = compiled(checkpoint_wrapper(made.linear1))
    made.self_attn = compiled(made.self_attn)
    assert any(name.startswith("linear1._orig_mod.") for name in made.state_dict())
    return made


def other(trained: nn.Module) -> dict[str, torch.Tensor]:
    return {name: 0 * value for name, value in trained.state_dict().items()}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_file_is_read_if_that_is_allowed(writer: str, device: str, tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    WRITERS[writer](trained := model(1), path)
    with torch.device(device):
        fresh = model(2)
    with pytest.raises(CheckpointError, match="allow_pt=True"):
        wc.load_weights_(fresh, path)
    wc.load_weights_(fresh, path, allow_pt=True)
    expected = trained.state_dict()
    assert fresh.state_dict().keys() == expected.keys()
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_a_model_that_has_a_part_called_model(tmp_path: Path) -> None:
    """A prefix is taken off only where that gives the model's own names."""
    whole = nn.ModuleDict({"model": model(1)})
    torch.save(whole.state_dict(), tmp_path / "w.pt")
    fresh = nn.ModuleDict({"model": model(2)})
    wc.load_weights_(fresh, tmp_path / "w.pt", allow_pt=True)
    assert torch.equal(fresh["model"].linear1.weight, whole["model"].linear1.weight)


def test_safetensors_are_read_as_ever(tmp_path: Path) -> None:
    wc.save_weights(model(1), tmp_path / "w.safetensors")
    wc.load_weights_(fresh := model(2), tmp_path / "w.safetensors", allow_pt=True)
    assert torch.equal(fresh.linear1.weight, model(1).linear1.weight)


class Harmful:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_code_is_not_run(tmp_path: Path) -> None:
    torch.save({"state_dict": model().state_dict(), "more": Harmful(tmp_path / "mark")}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"weights_only=True\) reads \(it has (posix|nt)\.mkdir"):
        wc.load_weights_(model(), tmp_path / "w.pt", allow_pt=True)
    assert not (tmp_path / "mark").exists()


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a Namespace": (lambda p: torch.save({"model": {}, "args": argparse.Namespace(a=1)}, p), "has argparse.Namespace"),
    "a whole model": (lambda p: torch.save(model(), p), r"TransformerEncoderLayer"),
    "numbers": (lambda p: torch.save({"step": 3, "loss": 2.5}, p), "no state dictionary, but step, loss"),
    "a tensor": (lambda p: torch.save(torch.ones(3), p), "no state dictionary, but Tensor"),
    "another model": (lambda p: torch.save(nn.Linear(2, 2).state_dict(), p), "belongs to another model"),
    "another width": (lambda p: torch.save(model(width=4).state_dict(), p), "in the file and .* in the model"),
    "text": (lambda p: p.write_text("weights"), "is not a file of tensors"),
    "nothing": (lambda p: p.write_bytes(b""), "is not a file of tensors"),
    "a directory": (lambda p: p.mkdir(), "there is no file"),
    "no file": (lambda p: None, "there is no file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_one_line_and_changes_nothing(case: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    write, words = REFUSED[case]
    write(path)
    fresh = model(2)
    with pytest.raises(CheckpointError, match=words) as caught:
        wc.load_weights_(fresh, path, allow_pt=True)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), model(2).parameters(), strict=True))


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save(model().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(CheckpointError, match="is not a file of tensors"):
        wc.load_weights_(model(), path, allow_pt=True)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_the_mark_of_conditioned_weights_is_read(prefix: str, tmp_path: Path) -> None:
    conditioned = model()
    wc.condition_(conditioned, "shift", strength=2.0)
    wrapped = conditioned
    for name in reversed(prefix.split(".")[:-1]):
        inner, wrapped = wrapped, nn.Module()
        wrapped.add_module(name, inner)
    torch.save({"model": wrapped.state_dict(), "step": 3}, tmp_path / "w.pt")
    fresh = model(1)
    wc.load_weights_(fresh, tmp_path / "w.pt", allow_pt=True)
    with pytest.warns(UserWarning, match="nothing was added"):
        wc.condition_(fresh, "shift", strength=2.0)
    assert torch.equal(fresh.self_attn.in_proj_weight, conditioned.self_attn.in_proj_weight)
