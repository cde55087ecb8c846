"""`wc.control_` in two processes, under DDP and FSDP2: both act alike, as one process on the whole batch does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import wellcond as wc
from tests.control.test_control import sharp_vit as start
from tests.two_processes import check_two_processes_train_as_one

__all__ = ["start"]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer whose every second step is looked at, by each process with its half of the batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bands = {"beta": (1e-9, 0.05), "kappa": 3.0, "balance": 1.5}
    control = wc.control_(model, optimizer, **bands, every=2, examples=4 if dist.is_initialized() else 8, alarms=False)
    optimizer.register_step_post_hook(
        lambda *_: control.steps % 2 or acted(control)  # which runs behind the look
    )
    return optimizer


def acted(control: wc.Control) -> None:
    assert {record.part for record in control.log if record.acted} >= {"sharpness", "spectrum"}, control.log


@pytest.mark.long
@pytest.mark.parametrize("mode", ["fsdp", "ddp"])
def test_two_processes_act_as_one(mode: str, tmp_path: Path) -> None:
    check_two_processes_train_as_one(__name__, mode, tmp_path)
