"""Muon and control in the Trainers of transformers and of Lightning, by the lines that docs/optimizers.md names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import wellcond as wc
from tests.training import gpt2
from wellcond.errors import WellcondError
from wellcond.integrations.lightning import ControlCallback
from wellcond.integrations.transformers import ControlTrainerCallback
from wellcond.testing import same_bits

BANDS = {"beta": (1e-9, 1e-4), "every": 2, "alarms": False}


def test_the_trainer_of_transformers_takes_both(tmp_path: Path) -> None:
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 9, "n_positions": 4}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    optimizer = wc.optim.Muon(model, lr=0.02, per_head=True)
    control = wc.control_(model, optimizer, **BANDS)
    data = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 32
    options = {"max_steps": 4, "report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    arguments = TrainingArguments(str(tmp_path), logging_strategy="no", **options)
    Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None)).train()
    assert (control.steps, control.looks) == (4, 2)
    assert any(record.acted for record in control.log)


def test_lightning_takes_both(tmp_path: Path) -> None:
    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            optimizer = wc.optim.Muon(self, lr=0.02, per_head=True)
            self.control = wc.control_(self.net, optimizer, **BANDS)
            return optimizer

    model = Net()
    data = DataLoader(TensorDataset(torch.randn(32, 5, 8)), batch_size=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    LightningTrainer(max_steps=4, accelerator="cpu", default_root_dir=tmp_path, **quiet).fit(model, data)
    assert (model.control.steps, model.control.looks) == (4, 2)
    assert any(record.acted for record in model.control.log)


KEPT = {"beta": (1e-9, 0.01), "every": 2, "updates": True, "alarms": False}


def trained_by_trainer(folder: Path, steps: int, resume: bool = False) -> tuple[nn.Module, wc.Control]:
    generator = torch.Generator().manual_seed(0)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(31, (60, 12), generator=generator)]
    options = {"max_steps": steps, "save_steps": 5, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    options |= {
        "logging_strategy": "no",
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 6,
        "lr_scheduler_type": "constant",
    }
    model, callback = gpt2(torch.float32), ControlTrainerCallback(**KEPT)
    trainer = Trainer(model, TrainingArguments(str(folder), **options), train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=resume)
    assert callback.control is not None
    return model, callback.control


def check_went_on(resumed: tuple[nn.Module, wc.Control], straight: tuple[nn.Module, wc.Control]) -> None:
    """The same weights, counts and memory of earlier updates, and actions after the checkpoint alike."""
    ours, theirs = resumed[1].state_dict(), straight[1].state_dict()
    tensors = [(resumed[0].state_dict(), straight[0].state_dict())]
    tensors += [(ours["updates"]["weights"], theirs["updates"]["weights"])]
    assert all(a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a) for a, b in tensors)
    assert (ours["steps"], ours["looks"]) == (theirs["steps"], theirs["looks"]) == (10, 5)
    assert ours["updates"]["entropies"] == theirs["updates"]["entropies"]
    later = [record for record in straight[1].log if record.step > 5]
    assert list(resumed[1].log) == later
    assert any(record.acted for record in later)


def test_the_trainer_keeps_a_controls_state_in_its_checkpoints(tmp_path: Path) -> None:
    straight = trained_by_trainer(tmp_path / "straight", 10)
    trained_by_trainer(tmp_path / "cut", 5)
    assert (tmp_path / "cut" / "checkpoint-5" / "wellcond-control.safetensors").is_file()
    check_went_on(trained_by_trainer(tmp_path / "cut", 10, resume=True), straight)


class Reader(LightningModule):
    """GPT-2 as Lightning trains it: `training_step` calls the network inside."""

    def __init__(self) -> None:
        super().__init__()
        self.net = gpt2(torch.float32)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self.net(batch[0], labels=batch[0]).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def trained_by_lightning(folder: Path, epochs: int, resume: Path | None = None) -> tuple[nn.Module, wc.Control]:
    tokens = torch.randint(31, (30, 12), generator=torch.Generator().manual_seed(0))  # an epoch is five steps
    model = Reader()
    callback = ControlCallback(model.net, **KEPT)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = LightningTrainer(
        max_epochs=epochs, accelerator="cpu", default_root_dir=folder, callbacks=[callback], **quiet
    )
    trainer.fit(model, DataLoader(TensorDataset(tokens), batch_size=6), ckpt_path=resume, weights_only=True)
    trainer.save_checkpoint(folder / "last.ckpt")
    assert callback.control is not None
    return model, callback.control


def test_lightning_keeps_a_controls_state_in_its_checkpoints(tmp_path: Path) -> None:
    straight = trained_by_lightning(tmp_path / "straight", 2)
    trained_by_lightning(tmp_path / "cut", 1)
    check_went_on(trained_by_lightning(tmp_path / "cut", 2, tmp_path / "cut" / "last.ckpt"), straight)


def test_accelerate_keeps_a_controls_state(tmp_path: Path) -> None:
    def controlled() -> tuple[Accelerator, wc.Control]:
        accelerator = Accelerator(cpu=True)
        model = gpt2(torch.float32)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        control = wc.control_(model, optimizer, **KEPT)
        accelerator.register_for_checkpointing(control)
        ids = torch.randint(31, (4, 12), generator=torch.Generator().manual_seed(0))
        for _ in range(3):
            accelerator.backward(model(ids, labels=ids).loss)
            optimizer.step()
        return accelerator, control

    accelerator, control = controlled()
    accelerator.save_state(str(tmp_path))
    again, other = controlled()
    other.load_state_dict({"steps": 0, "looks": 0})
    again.load_state(str(tmp_path))
    ours, theirs = other.state_dict(), control.state_dict()
    assert (ours["steps"], ours["looks"]) == (theirs["steps"], theirs["looks"]) == (3, 1)
    assert all(same_bits(ours["updates"]["weights"][k], v) for k, v in theirs["updates"]["weights"].items())


def test_wrong_words_and_networks_are_told() -> None:
    for callback in (ControlTrainerCallback, ControlCallback):
        with pytest.raises(WellcondError, match="no keyword 'evry'; did you mean every"):
            callback(evry=3)
    other = ControlCallback(gpt2(torch.float32), **KEPT)
    trainer = LightningTrainer(
        max_steps=1, accelerator="cpu", logger=False, callbacks=[other], enable_checkpointing=False
    )
    with pytest.raises(WellcondError, match="to be controlled"):
        trainer.fit(Reader(), DataLoader(TensorDataset(torch.zeros(6, 12, dtype=torch.long)), batch_size=6))
