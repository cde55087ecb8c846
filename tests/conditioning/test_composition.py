"""Conditioning is composed: a method is one class, a class is abstract or final, process-wide hooks have a switch."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
from typing import final

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
import wellcond.conditioning
from wellcond.conditioning.method import METHODS, Correction, register_method
from wellcond.conditioning.storage.optimizer_hooks import unheard_steps
from wellcond.conditioning.storage.rule import StatelessRule
from wellcond.conditioning.target_weights import TargetHeads, TargetWeight


def classes() -> list[type]:
    names = [found.name for found in pkgutil.walk_packages(wellcond.conditioning.__path__, "wellcond.conditioning.")]
    members = [member for name in names for member in vars(importlib.import_module(name)).values()]
    ours = {m for m in members if inspect.isclass(m) and m.__module__.startswith("wellcond.conditioning")}
    return sorted(ours, key=lambda cls: cls.__qualname__)


def test_no_concrete_method_is_overridden() -> None:
    wrong = [
        f"{cls.__qualname__}.{name} overrides {base.__qualname__}"
        for cls in classes()
        for base in cls.__mro__[1:]
        if base.__module__.startswith("wellcond.conditioning")
        for name, member in vars(base).items()
        if inspect.isfunction(member) and not name.startswith("__") and name in vars(cls)
        if not getattr(member, "__isabstractmethod__", False)
    ]
    assert wrong == []


def test_a_class_that_is_derived_from_is_abstract() -> None:
    ours = [cls for cls in classes() if not issubclass(cls, nn.Module)]
    bases = {base for cls in ours for base in cls.__mro__[1:] if base in ours}
    assert [cls.__qualname__ for cls in ours if cls in bases and not inspect.isabstract(cls)] == []


def test_a_method_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class DoubleRule(StatelessRule):
        fixed_gradient = False

        def compute(self, weight: Tensor) -> Tensor:
            return 2 * weight

        def effective(self, weight: Tensor) -> Tensor:
            return 2 * weight

        def invert(self, effective: Tensor) -> Tensor:
            return effective / 2

    @final
    class Double(Correction):
        name = "double"
        citation = "nobody"

        def check_options(self) -> None:
            pass

        def check_numbers(self) -> None:
            pass

        def bounds(self, part: TargetHeads, largest: Tensor) -> None:
            pass

        def rule(self, weight: TargetWeight) -> DoubleRule:
            return DoubleRule()

    monkeypatch.setitem(METHODS, "double", Double)
    assert register_method(Double) is Double
    model = nn.MultiheadAttention(8, 2)
    before = model.in_proj_weight.detach().clone()
    handle = wc.condition_(model, "double")
    assert torch.equal(model.in_proj_weight, 2 * before)
    handle.fold_()
    assert torch.equal(model._parameters["in_proj_weight"], 2 * before)
    assert handle.summary().heads[0].effective == pytest.approx(handle.summary().heads[0].trained)
    handle.unfold_()
    handle.remove_()
    assert torch.equal(model.in_proj_weight, before)


def test_steps_that_are_not_heard() -> None:
    model = nn.MultiheadAttention(8, 2)
    handle = wc.condition_(model, "shift", strength=2.0, roles="v")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    handle.attach(optimizer)
    trained = [pair[1].clone() for pair in handle.trained_and_effective()]
    model.in_proj_weight.grad = torch.zeros_like(model.in_proj_weight)
    with unheard_steps():
        optimizer.step()  # decays W + C
    effective = [pair[2].clone() for pair in handle.trained_and_effective()]
    assert torch.allclose(effective[0], 0.95 * (trained[0] + 2 * torch.eye(8, 4)))
    optimizer.step()  # decays W
    effective, last = [pair[2] for pair in handle.trained_and_effective()], effective
    assert torch.allclose(effective[0] - 2 * torch.eye(8, 4), 0.95 * (last[0] - 2 * torch.eye(8, 4)), atol=1e-6)


def test_a_copy_of_a_folded_model_is_diagnosed() -> None:
    model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    wc.condition_(model, "shift", strength=4.0, roles="v")
    tokens = torch.randn(2, 5, 8)
    found, own = wc.diagnose(copy.deepcopy(model), tokens), wc.diagnose(model, tokens)
    assert len(found.layers) == len(own.layers) == 1
