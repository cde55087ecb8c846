"""Nothing of a model changes by being looked at: modes, generators, buffers, caches, hooks, gradients, parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.attention.strange.cases import CASES
from wellcond.errors import NoAttentionError
from wellcond.testing import same_bits

LOOKS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "attention_layers": wc.attention_layers,
    "diagnose": lambda model, batch: wc.diagnose(model, batch, progress=False),
}


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, gradients, buffers, and tensors that modules keep in plain attributes."""
    found = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    found |= {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, list):
                flat = [x for pair in value for x in (pair if isinstance(pair, tuple) else (pair,))]
                found |= {f"{path}.{name}.{i}": x for i, x in enumerate(flat) if isinstance(x, Tensor)}
    return found


def registries(model: nn.Module) -> dict[str, Any]:
    """Hooks, modes and plain attributes of each module, and its forward."""
    return {
        path: (
            module.training,
            [list(x) for x in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)],
            sorted(vars(module)),
            type(module),
            module.forward.__func__,
            [id(p) for p in module._parameters.values()],
            [p.requires_grad for p in module._parameters.values() if p is not None],
        )
        for path, module in model.named_modules()
    }


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", CASES)
def test_nothing_changes(name: str, look: str) -> None:
    case = CASES[name]
    model, batch = case.model(), case.batch()
    model.train()
    model.get_submodule("" if not hasattr(model, "0") else "1").eval()  # a mixture of modes
    copy.deepcopy(model)(*batch)
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 3 > 0)
        parameter.grad = torch.full_like(parameter, 0.5) if index % 3 == 1 else None
    list(model.modules())[-1].register_forward_hook(lambda *_: None)
    kept = {key: value.detach().clone() for key, value in tensors(model).items()}
    places = {key: value.data_ptr() for key, value in tensors(model).items()}
    versions = {key: p._version for key, p in model.named_parameters()}
    before, given = registries(model), [x.clone() for x in batch]
    torch.manual_seed(5)
    generator = torch.random.get_rng_state()
    with suppress(NoAttentionError):
        LOOKS[look](model, batch)
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert registries(model) == before
    after = tensors(model)
    assert after.keys() == kept.keys()
    changed = [key for key, value in after.items() if not same_bits(value.detach(), kept[key])]
    assert changed == []
    assert [key for key, value in after.items() if value.data_ptr() != places[key]] == []
    assert [key for key, p in model.named_parameters() if p._version != versions[key]] == []
    assert all(same_bits(x, y) for x, y in zip(batch, given, strict=True))
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_a_model_that_draws_random_numbers_in_evaluation() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = CASES["cosine"].model()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + 1e-3 * torch.randn_like(x))

    model = Noisy()
    before = torch.random.get_rng_state()
    layers = wc.attention_layers(model, CASES["cosine"].batch())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {layer.standing for layer in layers} == {"verified"}


def test_an_error_in_the_model_leaves_no_trace() -> None:
    case = CASES["rotary, halves"]
    model = case.model().train()

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("broken on purpose")

    model.append(Broken())
    before = registries(model)
    with pytest.raises(wc.errors.WellcondError, match="broken on purpose"):
        wc.attention_layers(model, case.batch())
    assert registries(model) == before
