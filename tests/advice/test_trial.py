"""A trial is ordinary training of a copy: held to a loop written out here, and to leaving no trace."""

from __future__ import annotations

import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from tests.advice.models import BUILD, data, equal_states, fresh
from wellcond._core.keyed_random import key
from wellcond.advice.candidates import Candidate
from wellcond.advice.own_batches import OwnBatches
from wellcond.advice.trial import TrialSettings, copied, make_optimizer, run_trial
from wellcond.errors import ArgumentError, BatchError, OptimizerError
from wellcond.inputs.objective import Objective


def settings_for(kind: str, optimizer="adamw", lr: float = 1e-3) -> TrialSettings:
    batches, loss = data(kind)
    return TrialSettings(Objective(loss), optimizer, lr, OwnBatches(batches))


@pytest.mark.parametrize("kind", BUILD)
def test_a_trial_is_the_training_that_one_would_write(kind):
    model, settings = fresh(kind), settings_for(kind)
    found = run_trial(model, Candidate("fan_in"), settings, seed=3, steps=10, marks=(0, 1, 10))
    batches, loss = data(kind)
    judging, training = batches[:3], batches[3:]  # a quarter of twelve judges
    own = wc.init_(copy.deepcopy(model), "fan_in", seed=3).root

    def loss_of(batch):
        return own(**batch).loss if loss is None else loss(own(batch[0]), batch[1])

    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3)
    order = torch.randperm(9, generator=(drawn := torch.Generator().manual_seed(key("order", 3)))).tolist()
    order += torch.randperm(9, generator=drawn).tolist()
    expected = {}
    for step in range(11):
        if step in (0, 1, 10):
            own.eval()
            with torch.no_grad():
                expected[step] = [float(loss_of(batch)) for batch in judging]
        if step < 10:
            own.train()
            optimizer.zero_grad()
            loss_of(training[order[step]]).backward()
            optimizer.step()
    assert found == expected


def test_warm_up_is_a_tenth_of_the_steps():
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    settings = settings_for("vit", lambda parameters: Watched(parameters, lr=0.5))
    run_trial(fresh("vit"), Candidate(), settings, seed=0, steps=40, marks=(40,))
    assert rates == pytest.approx([0.125, 0.25, 0.375] + [0.5] * 37)


def test_trials_of_a_seed_see_the_same_batches_and_the_same_dropout():
    seen: list[list[torch.Tensor]] = []

    def loss(output, target):
        seen[-1].append(target)
        return functional.cross_entropy(output, target)

    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.masks = fresh("vit"), []

        def forward(self, x):
            kept = functional.dropout(torch.ones(5), 0.5, self.training)
            masks.append(kept)
            return self.inner(x) * kept

    masks: list[torch.Tensor] = []
    batches, _ = data("vit")
    found = []
    for one in (Candidate(), Candidate("orthogonal")):
        seen.append([])
        masks.clear()
        run_trial(Dropping(), one, TrialSettings(Objective(loss), "sgd", 1e-3, OwnBatches(batches)), 7, 6, (0, 6))
        found.append(list(masks))
    assert len(seen[0]) == 3 + 6 + 3
    assert all(map(torch.equal, *seen))
    assert all(map(torch.equal, *found))
    assert any(not mask.all() for mask in found[0])


def test_nothing_of_the_users_changes():
    model = fresh("vit")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    functional.cross_entropy(model(data("vit")[0][0][0]), data("vit")[0][0][1]).backward()
    optimizer.step()
    model.blocks[0].eval()
    before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    grads = [p.grad.clone() for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    generators = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    settings = settings_for("vit", optimizer)
    run_trial(model, Candidate("mimetic"), settings, seed=0, steps=3, marks=(3,))
    assert equal_states(model, before)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    now = optimizer.state_dict()
    assert now["param_groups"] == state["param_groups"]
    assert all(torch.equal(now["state"][i]["exp_avg"], state["state"][i]["exp_avg"]) for i in state["state"])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == generators[:2]
    assert torch.equal(torch.get_rng_state(), generators[2])


def test_batches_of_a_loader_are_taken_without_moving_a_generator():
    drawn = torch.Generator().manual_seed(1)
    data_set = TensorDataset(torch.randn(40, 3), torch.arange(40))
    loader = DataLoader(data_set, batch_size=4, shuffle=True, generator=drawn)
    shuffled = DataLoader(data_set, batch_size=4, shuffle=True)
    states = drawn.get_state(), torch.get_rng_state()
    found = OwnBatches(loader)
    assert (len(found.judging), len(found.training)) == (2, 8)
    assert len(OwnBatches(shuffled).training) == 8
    assert torch.equal(drawn.get_state(), states[0])
    assert torch.equal(torch.get_rng_state(), states[1])
    seen = torch.cat([batch[1] for batch in found.judging + found.training])
    assert seen.sort().values.tolist() == list(range(40))


def test_an_order_of_batches_is_a_permutation_after_the_other():
    batches = OwnBatches([(torch.zeros(1), torch.tensor(i)) for i in range(8)])
    order = batches.order(4)
    first, second = ([int(next(order)[1]) for _ in range(6)] for _ in range(2))
    assert sorted(first) == sorted(second) == [2, 3, 4, 5, 6, 7]
    assert first != second


@pytest.mark.parametrize("kind", BUILD)
def test_the_users_optimizer_is_made_anew_with_its_settings(kind):
    model = fresh(kind)
    named = dict(model.named_parameters())
    thin = [p for p in named.values() if p.ndim < 2]
    wide = [p for p in named.values() if p.ndim >= 2]
    own = torch.optim.AdamW(
        [{"params": wide, "weight_decay": 0.3}, {"params": thin, "lr": 7e-3, "weight_decay": 0.0}], betas=(0.8, 0.95)
    )
    trial = copied(model)
    found = make_optimizer(own, 1.0, model, trial)
    copies = dict(trial.named_parameters())
    for group, old in zip(found.param_groups, own.param_groups, strict=True):
        names = [name for p in old["params"] for name, other in named.items() if other is p]
        assert all(p is copies[name] for p, name in zip(group["params"], names, strict=True))
        assert {k: v for k, v in group.items() if k != "params"} == {k: v for k, v in old.items() if k != "params"}


def test_muon_by_name_and_by_a_function_of_the_model():
    model = fresh("vit")
    trial = copied(model)
    assert isinstance(make_optimizer("muon", 1e-3, model, trial), wc.optim.Muon)
    found = make_optimizer(lambda model: wc.optim.Muon(model, lr=0.02, per_head=True), 1e-3, model, trial)
    assert found.param_groups[0]["lr"] == 0.02


def test_a_loss_that_leaves_the_numbers_ends_a_trial_as_infinite():
    settings = settings_for("vit", "sgd", lr=1e12)
    found = run_trial(fresh("vit"), Candidate(), settings, seed=0, steps=30, marks=(0, 5, 30))
    assert all(map(math.isinf, found[30]))


@pytest.mark.parametrize(
    ("optimizer", "error", "words"),
    [
        ("adam", ArgumentError, "adamw, sgd, muon"),
        (3, ArgumentError, "a function; got 3"),
        (torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1), OptimizerError, "not the model's"),
        (lambda parameters: None, OptimizerError, "returns a torch.optim.Optimizer; got a NoneType"),
        (lambda parameters: 1 / 0, OptimizerError, "raised"),
    ],
)
def test_what_is_no_optimizer_is_refused(optimizer, error, words):
    model = fresh("vit")
    with pytest.raises(error, match=words):
        make_optimizer(optimizer, 1e-3, model, copied(model))


@pytest.mark.parametrize("given", [[], torch.zeros(3), "ab", None, 5, {}.items()])
def test_what_is_no_batches_is_refused(given):
    with pytest.raises(BatchError):
        OwnBatches(given)
