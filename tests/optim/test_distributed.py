"""Muon in two processes, wrapped by DDP or sharded by FSDP2, trains as one process does on the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.training import vit
from tests.two_processes import check_two_processes_train_as_one


def start() -> nn.Module:
    return vit(torch.float64)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return wc.optim.Muon(model, lr=0.02, per_head=True, ns_dtype=torch.float64)


@pytest.mark.parametrize("mode", ["fsdp", pytest.param("ddp", marks=pytest.mark.long)])
def test_two_processes_train_as_one(mode: str, tmp_path: Path) -> None:
    check_two_processes_train_as_one(__name__, mode, tmp_path)
