"""A tape records what a pass did, keeps what is overwritten, and leaves nothing behind in the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from wellcond.attention.recorded.tape import recording


def test_steps_carry_the_module_that_was_running() -> None:
    model, x = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU())), torch.ones(1, 2)
    with torch.no_grad(), recording(model) as tape:
        model(x)
    assert [(step.name, step.module) for step in tape.steps] == [("t", "0"), ("addmm", "0"), ("relu", "1.0")]


def test_fused_kernels_run_in_their_decomposed_form() -> None:
    x = torch.randn(1, 2, 3, 4)
    with torch.no_grad(), recording(nn.Identity()) as tape:
        nn.functional.scaled_dot_product_attention(x, x, x)
    assert [step.name for step in tape.steps if "bmm" in step.name] == ["bmm", "bmm"]


def test_factors_and_results_are_kept_as_they_were() -> None:
    class Overwrites(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            z = x @ y
            x.zero_()
            return z.add_(1)

    x, y = torch.randn(2, 2), torch.randn(2, 2)
    before = x.clone()
    with torch.no_grad(), recording(Overwrites()) as tape:
        Overwrites()(x, y)
    product = next(step for step in tape.steps if step.name == "mm")
    assert torch.equal(tape.value(x), before)
    assert torch.equal(tape.value(product.result), before @ y)
    assert tape.value(y) is y


def test_inputs_are_what_no_step_made() -> None:
    model, x = nn.Linear(2, 3), torch.ones(1, 2)
    with torch.no_grad(), recording(model) as tape:
        model(x)
    assert tape.inputs() == {id(x): x}


def test_elements_of_parameters_are_numbered_together() -> None:
    with recording(nn.Linear(2, 3)) as tape:
        pass
    assert tape.parameter(5)[:2] == ("weight", 0)
    assert tape.parameter(6)[:2] == ("bias", 6)


def test_hooks_are_removed_after_a_failure() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    model = nn.Sequential(Fails())
    with pytest.raises(ValueError, match="no"), recording(model):
        model(torch.ones(1))
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert hooks == [0, 0]
