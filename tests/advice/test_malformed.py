"""Malformed data, losses, optimizers and models: `wc.recommend` gives one clear line each, and nothing has changed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

import wellcond as wc
from tests.advice.bad_batches import BATCHES
from tests.advice.bad_calls import Bad, later, pairs
from tests.advice.bad_losses import LOSSES
from tests.advice.bad_models import MODELS
from tests.advice.bad_optimizers import OPTIMIZERS, SETTINGS
from tests.advice.models import CountedTime, fresh
from wellcond.advice import probe as probing
from wellcond.errors import BatchError, StorageError, WellcondError
from wellcond.testing import same_bits

EVERY = [("batches", bad) for bad in BATCHES] + [("loss", bad) for bad in LOSSES]
EVERY += [("optimizer", bad) for bad in OPTIMIZERS] + [("model", bad) for bad in MODELS]
EVERY += [("setting", bad) for bad in SETTINGS]


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing.time, "perf_counter", CountedTime())
    monkeypatch.setattr(probing, "ENOUGH_STEPS", 6)
    monkeypatch.setattr(probing, "FEWEST_STEPS", 4)


def generators() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


class Kept:
    """What a model is made of, with gradients that somebody has accumulated."""

    def __init__(self, model: Any) -> None:
        self.model = model if isinstance(model, nn.Module) else nn.Identity()
        for index, module in enumerate(self.model.modules()):
            module.training = index % 3 != 0  # a mixture, so that a blanket train() or eval() shows
        for parameter in self.model.parameters():
            if not is_lazy(parameter) and parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        self.tensors, self.flags = self._tensors(), self._flags()

    def _tensors(self) -> dict[str, torch.Tensor]:
        found = {n: p for n, p in self.model.named_parameters() if not is_lazy(p)}
        found |= {f"{n}.grad": p.grad for n, p in found.items() if p.grad is not None}
        found |= dict(self.model.named_buffers())
        return {name: x.detach().clone() for name, x in found.items() if not x.is_meta}

    def _flags(self) -> list[Any]:
        found: list[Any] = [(n, m.training, len(m._forward_hooks)) for n, m in self.model.named_modules()]
        return found + [(n, p.requires_grad) for n, p in self.model.named_parameters()]

    def check(self) -> None:
        now = self._tensors()
        assert now.keys() == self.tensors.keys()
        assert all(same_bits(x, self.tensors[name]) for name, x in now.items())
        assert self._flags() == self.flags


@pytest.mark.parametrize(("kind", "bad"), [pytest.param(*row, id=f"{row[0]}: {row[1].name}") for row in EVERY])
def test_it_is_refused_in_one_line(tmp_path: Path, kind: str, bad: Bad) -> None:
    model, batches = bad.model(), bad.batches()
    kept, drawn = Kept(model), generators()
    options = {"seconds": 0.1, "schemes": ["fan_in"], "out": tmp_path / "probe"}
    options |= bad.options | bad.using(model)
    with pytest.raises(WellcondError) as caught:
        wc.recommend(model, batches, **options)
    message = str(caught.value)
    assert isinstance(caught.value, bad.error), repr(caught.value)
    assert any(word in message for word in bad.word.split("|")), message
    assert message.isprintable(), "one line"
    assert 25 < len(message) < 700
    kept.check()
    assert generators() == drawn
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_there_are_at_least_a_hundred() -> None:
    assert len(EVERY) >= 100
    assert len({(kind, bad.name) for kind, bad in EVERY}) == len(EVERY)


def test_a_batch_that_is_met_in_the_probe_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there was no time to look at all of them before."""
    monkeypatch.setattr("wellcond.advice.checks.SHARE", 0.0)
    x, y = pairs()[0]
    with pytest.raises(BatchError, match=r"^batch 4 of 6: VisionTransformer cannot be run on Tensor \(4, 1, 16, 16\)"):
        wc.recommend(fresh("vit"), later(4, (x[:, :1], y))(), loss=functional.cross_entropy, seconds=2, schemes=[])


def test_the_form_of_every_batch_is_looked_at_before_the_probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Which takes no time, unlike running them."""
    monkeypatch.setattr("wellcond.advice.checks.SHARE", 0.0)
    out, loss = tmp_path / "probe", functional.cross_entropy
    with pytest.raises(BatchError, match=r"^batch 6 of 6: a batch is a pair .* got a tuple of 1"):
        wc.recommend(fresh("vit"), later(6, (1,))(), loss=loss, seconds=0.1, schemes=[], out=out)
    assert not out.exists()


@pytest.mark.parametrize("what", ["file", "other"])
def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, what: str) -> None:
    out = tmp_path / "probe"
    if what == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine").write_text("mine")
    with pytest.raises(StorageError, match="probe"):
        wc.recommend(fresh("vit"), pairs(), loss=functional.cross_entropy, seconds=0.1, schemes=[], out=out)
    assert (out if what == "file" else out / "mine").read_text() == "mine"
    assert len(list(tmp_path.rglob("*"))) == (1 if what == "file" else 2)


def test_what_models_and_losses_write_into_their_arguments_stays_with_them() -> None:
    """Batches are the user's: a list of them is the same afterwards, and every trial begins with the same."""

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = fresh("vit")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.sub_(x.mean()).div_(10))

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, target.clamp_(max=3))

    batches, before = pairs(), pairs()
    wc.recommend(Writing(), batches, loss=loss, seconds=0.1, schemes=["fan_in"])
    assert all(
        torch.equal(a, b) for one, other in zip(batches, before, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_parameters_of_a_loss_are_given_no_gradients() -> None:
    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heat = nn.Parameter(torch.ones(()))

        def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(output * self.heat, target)

    loss = Tempered()
    wc.recommend(fresh("vit"), pairs(), loss=loss, seconds=0.1, schemes=["fan_in"])
    assert loss.heat.grad is None
