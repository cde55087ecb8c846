"""Muon on a sphere in two processes, wrapped by DDP or sharded by FSDP2, trains as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.training import vit
from tests.two_processes import check_two_processes_train_as_one

pytestmark = pytest.mark.long


def start() -> nn.Module:
    return vit(torch.float64)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return wc.optim.Muon(model, lr=0.02, per_head=True, sphere=1.0, ns_dtype=torch.float64)


@pytest.mark.parametrize("mode", ["fsdp", "ddp"])
def test_two_processes_train_as_one(mode: str, tmp_path: Path) -> None:
    check_two_processes_train_as_one(__name__, mode, tmp_path)
