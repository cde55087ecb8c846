"""The oracle itself: the elements that a module declares as a head's move that head of that role and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.attention.strange.cases import CASES
from tests.attention.strange.claims import attentions, numbered
from tests.attention.strange.oracle import told_by


@pytest.mark.parametrize("name", CASES)
def test_declared_elements_make_the_heads(name: str) -> None:
    case = CASES[name]
    model, batch = case.model(), case.batch()
    found = attentions(model)
    assert found
    for attention in found:
        before = told_by(model, batch, attention)[0]
        for role in ("query", "key", "value"):
            elements = getattr(attention.truth, role)
            for head in range(len(elements)):
                changed = copy.deepcopy(model)
                with torch.no_grad():
                    for parameter, numbers in zip(changed.parameters(), numbered(model).values(), strict=True):
                        parameter.add_(torch.isin(numbers, elements[head]) * torch.randn_like(parameter))
                after = told_by(changed, batch, attention)[0]
                for other in ("query", "key", "value"):
                    moved = getattr(after, other[0]) != getattr(before, other[0])
                    heads = moved.transpose(0, 1).flatten(1).any(1).nonzero().flatten().tolist()
                    shared = torch.equal(getattr(attention.truth, other), elements)
                    assert heads == ([head] if shared else []), (attention.path, role, head, other)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.distribution])
def test_what_averages_is_a_distribution(name: str) -> None:
    case = CASES[name]
    model = case.model()
    for attention in attentions(model):
        for told in told_by(model, case.batch(), attention):
            total = told.p.sum(-1)
            assert (told.p >= 0).all()
            assert (total <= 1 + 1e-12).all()
            if "sink" not in name and "plus one" not in name:  # whose share is dropped
                torch.testing.assert_close(total, torch.ones_like(total))
