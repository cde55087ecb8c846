"""Muon on a spectral sphere and the orthogonality penalty, against singular values and arithmetic of the test's own."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import wellcond as wc
from tests.cases import CASES
from tests.training import HEADS, MODELS, WIDTH, batches, loss
from wellcond.errors import OptimizerError
from wellcond.optim.spectral_sphere import retract_

D = WIDTH // HEADS


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> nn.Module:
    for batch in batches(model, next(model.parameters()).dtype, steps):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_every_matrix_and_head_stays_on_its_sphere(kind: str, per_head: bool) -> None:
    """‖W‖₂ = c √(out/in), inputs and outputs told apart by the test: Conv1D stores (in, out), Linear (out, in)."""
    model = MODELS[kind](torch.float64)
    optimizer = wc.optim.Muon(model, lr=0.05, per_head=per_head, sphere=1.5)
    trained(model, optimizer, 4)
    named = dict(model.named_parameters())
    for one in optimizer.assignment.of("muon"):
        weight = named[one.name].detach()
        weight = weight if kind == "vit" else weight.T  # (out, in)
        parts = [weight]
        if per_head and ".attn." in one.name:
            parts = list(weight.split(D, dim=int("proj" in one.name and "attn.c_attn" not in one.name)))
            assert len(parts) == (HEADS if "proj" in one.name else 3 * HEADS)
        for part in parts:
            norm = float(torch.linalg.svdvals(part)[0])
            assert norm == pytest.approx(1.5 * math.sqrt(part.shape[0] / part.shape[1]), rel=1e-12), one.name


def test_the_first_step_is_muons_and_then_the_retraction() -> None:
    plain, sphere = (MODELS["vit"](torch.float64) for _ in range(2))
    trained(plain, wc.optim.Muon(plain, lr=0.05), 1)
    trained(sphere, wc.optim.Muon(sphere, lr=0.05, sphere=0.7), 1)
    expected = plain.blocks[0].mlp.fc1.weight.detach()
    expected = expected * 0.7 * math.sqrt(2) / torch.linalg.svdvals(expected)[0]
    assert torch.allclose(sphere.blocks[0].mlp.fc1.weight, expected, rtol=1e-12)
    assert torch.equal(sphere.head.weight, plain.head.weight)  # AdamW's


def test_a_copy_and_a_resumed_run_stay_on_the_sphere() -> None:
    model = MODELS["gpt2"](torch.float64)
    optimizer = wc.optim.Muon(model, lr=0.05, sphere=1.5)
    trained(model, optimizer, 2)
    (other, its) = copy.deepcopy((model, optimizer))
    again = MODELS["gpt2"](torch.float64)
    again.load_state_dict(model.state_dict())
    fresh = wc.optim.Muon(again, lr=0.05, sphere=1.5)
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, its_optimizer in ((model, optimizer), (other, its), (again, fresh)):
        trained(one, its_optimizer, 2)
    for a, b, c in zip(model.parameters(), other.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_zero_stays_zero_and_banks_are_matrix_by_matrix() -> None:
    bank = torch.randn(3, 4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bank[1] = 0
    retract_([bank], 2.0)
    assert torch.allclose(torch.linalg.svdvals(bank)[[0, 2], 0], torch.full((2,), 4 / 3, dtype=torch.float64))
    assert not bank[1].any()


def by_hand(model: nn.Module, roles: str, scale: float | None) -> torch.Tensor:
    """The penalty from views as numbers: every head of every layer, (D, d)."""
    names = {"q": "query", "k": "key", "v": "value", "o": "output"}
    terms = []
    for layer in wc.attention_layers(model):
        for role in roles:
            projection = getattr(layer, names[role])
            for head in projection.read():
                d = min(head.shape)
                gram = head.T @ head if head.shape[0] > head.shape[1] else head @ head.T
                square = float(head.square().sum()) / d if scale is None else scale**2
                terms.append(((gram / square - torch.eye(d, dtype=gram.dtype)) ** 2).sum() / d)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("name", ["timm-vit", "hf-llama", "hf-gpt2", "hf-gpt-neox", "torch-encoder", "timm-swin"])
def test_the_penalty_is_that_of_every_head(name: str, scale: float | None) -> None:
    model = CASES[name].model().double()
    for roles in ("qk", "vo"):
        penalty = wc.optim.OrthogonalityPenalty(model, roles, scale=scale)
        assert float(penalty().detach()) == pytest.approx(float(by_hand(model, roles, scale)), rel=1e-10)


def test_its_gradient_is_of_these_weights_alone_and_leads_to_orthogonal_heads() -> None:
    model = MODELS["vit"](torch.float64)
    penalty = wc.optim.OrthogonalityPenalty(model, "q")
    penalty().backward()
    grad = model.blocks[0].attn.qkv.weight.grad
    assert grad is not None
    assert grad[:WIDTH].any()
    assert not grad[WIDTH:].any()
    assert all(p.grad is None for name, p in model.named_parameters() if "qkv.weight" not in name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        penalty().backward()
        optimizer.step()
    for block in model.blocks:
        assert (torch.linalg.cond(block.attn.qkv.weight[:WIDTH].view(HEADS, D, WIDTH)) < 1.1).all()


def test_what_cannot_be_penalised_is_told() -> None:
    with pytest.raises(OptimizerError, match="letters q, k, v, o"):
        wc.optim.OrthogonalityPenalty(MODELS["vit"](torch.float32), "qx")
    with pytest.raises(OptimizerError, match="no heads of the roles 'qk'"):
        wc.optim.OrthogonalityPenalty(nn.Linear(3, 3))
    with pytest.raises(OptimizerError, match="above 0"):
        wc.optim.OrthogonalityPenalty(MODELS["vit"](torch.float32), scale=0.0)
