"""Muon and control in the Trainers of transformers and of Lightning, by the lines that docs/optimizers.md names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import wellcond as wc

BANDS = {"beta": (1e-9, 1e-4), "every": 2, "alarms": False}


@pytest.mark.long
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


@pytest.mark.long
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
