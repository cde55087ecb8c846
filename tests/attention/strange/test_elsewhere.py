"""Standings without a batch, and every other door to a number: Monitor, `head_of`, `locate`, `verify`, `init_`."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.attention.strange import oracle
from tests.attention.strange.audit import layers_of
from tests.attention.strange.cases import CASES, Block
from tests.attention.strange.claims import attentions, match
from wellcond.errors import NoAttentionError, WellcondError

NAMED = [name for name, case in CASES.items() if case.named]
KEPT = [*NAMED, *(name for name, case in CASES.items() if case.calls), "bank at the root", "called twice", "two sites"]
MOST_PASSES = 5  # of a discovery by experiment


def structural(name: str) -> list[wc.AttentionLayer]:
    """The views that names and sizes give, if any."""
    try:
        return list(wc.attention_layers(CASES[name].model()))
    except NoAttentionError:
        return []


@pytest.mark.parametrize("name", CASES)
def test_names_and_sizes_are_a_guess(name: str) -> None:
    assert {layer.standing for layer in structural(name)} <= {"guessed"}


@pytest.mark.parametrize("name", CASES)
def test_head_of_a_guessed_layer_is_right_or_refused(name: str) -> None:
    case = CASES[name]
    model, batch = case.model(), case.batch()
    try:
        layers = wc.attention_layers(model)
    except NoAttentionError:
        return
    for layer in layers:
        for head in range(layer.num_heads):
            try:
                found = wc.jacobian.head_of(layer, batch, head)
            except WellcondError as error:
                assert len(f"{error}".split()) > 3  # noqa: PT017
                break
            matched = match(model, replace(layer, output=None), attentions(model))  # a guess, which no head needs
            told = oracle.told_by(model, batch, matched.attention)
            out = found.output()
            same = [
                t.out[:, matched.query[head]].reshape(out.shape) for t in told if t.out[:, 0].numel() == out.numel()
            ]
            assert any(torch.allclose(out, one, rtol=1e-9, atol=1e-9) for one in same), (layer.name, head)


def entropies(record: dict[str, object]) -> dict[str, list[float]]:
    return {layer["name"]: [head["entropy"] for head in layer["heads"]] for layer in record["layers"]}


@pytest.mark.parametrize("name", KEPT)
def test_monitor_follows_the_weights(name: str) -> None:
    """What the first look recorded is not what later looks measure."""
    case = CASES[name]
    model, batch = case.model(), case.batch()
    try:
        monitor = wc.Monitor(model, batch, every=1, tiers=("attention",), alarms=False)
    except NoAttentionError:
        return
    for _ in range(2):
        (record,) = monitor.step()
        layers = [layer for layer in layers_of(model, batch) if layer.standing == "verified"]
        for layer in layers:
            found = match(model, layer, attentions(model))
            got = entropies(record)[layer.name]
            if None in got or not case.distribution:
                assert got == [None] * len(got)
                continue
            calls = oracle.told_by(model, batch, found.attention)
            true = [[oracle.entropy(told, found.query[h]) for h in range(len(got))] for told in calls]
            assert any(got == pytest.approx(one, rel=1e-6) for one in true), (layer.name, got, true)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("name", CASES)
def test_how_often_the_model_runs(name: str) -> None:
    case = CASES[name]
    model, batch = case.model(), case.batch()
    runs = []
    model.register_forward_pre_hook(lambda *_: runs.append(1))
    layers_of(model, batch)
    assert len(runs) <= MOST_PASSES
    runs.clear()
    if name in KEPT:
        wc.diagnose(model, batch, jacobian=False, progress=False)
        assert len(runs) <= MOST_PASSES + 1


class Whole(Block):
    """Attention and an MLP, pre-norm."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__(attention)
        self.norm2 = nn.LayerNorm(12)
        self.fc1, self.fc2 = nn.Linear(12, 24), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x + self.fc2(self.fc1(self.norm2(x)).relu())


@pytest.mark.parametrize("name", NAMED)
def test_located_entropy(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model, batch = nn.Sequential(Whole(case.make()), Whole(case.make())).double().eval(), case.batch()
    try:
        placed = wc.locate(model, batch)
    except WellcondError as error:
        assert len(f"{error}".split()) > 3  # noqa: PT017
        return
    for spot in placed.layers:
        (attention,) = [a for a in attentions(model) if a.path == spot.layer]
        told = oracle.told_by(model, batch, attention)[0]
        true = sum(oracle.entropy(told, h) for h in range(told.p.shape[1])) / told.p.shape[1]
        assert math.isclose(spot.entropy_batch, true, rel_tol=1e-6), (spot.layer, spot.entropy_batch, true)


@pytest.mark.parametrize("name", NAMED)
def test_verify_of_a_guess(name: str) -> None:
    """A view from names that passes `verify` reads the true weights."""
    case = CASES[name]
    model = case.model()
    try:
        layers = wc.attention_layers(model)
    except NoAttentionError:
        return
    for layer in layers:
        if layer.verify(case.batch()):
            match(model, layer, attentions(model))


def test_plan_says_that_layers_are_guessed_once() -> None:
    model = CASES["cosine"].model()
    text = f"{wc.init_(copy.deepcopy(model), 'orthogonal')}"
    assert text.count("guessed") == 1
