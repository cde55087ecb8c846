"""All or nothing: a change that fails, by a refusal or in the middle, leaves the model and the handle as they were."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.training import optimizer_of, train, vit
from wellcond.conditioning.applied_method import AppliedMethod
from wellcond.conditioning.existing_handles import handles_around
from wellcond.conditioning.methods.polar import PolarRule
from wellcond.conditioning.methods.sigma_reparam import SigmaRule
from wellcond.conditioning.storage.folded_storage import Folded
from wellcond.conditioning.storage.folded_weight import FoldedWeight
from wellcond.conditioning.storage.live_parameter import live_owners
from wellcond.conditioning.storage.live_storage import Live
from wellcond.conditioning.storage.live_weight import LiveWeight
from wellcond.errors import ArgumentError, CheckpointError, OptimizerError, SchemeError, WeightError
from wellcond.testing import same_bits

pytestmark = pytest.mark.filterwarnings("ignore:attention starts one-hot", "ignore:Theorem 3.8 promises")

HOW: dict[str, dict[str, Any]] = {
    "folded": {"method": "shift", "strength": 1},
    "live": {"method": "shift", "strength": 1, "mode": "live"},
    "polar": {"method": "polar", "every": 2},
    "sigma": {"method": "sigma_reparam"},
    "rows": {"method": "weight_conditioning"},
}


class Boom(Exception):
    """What goes wrong in the middle."""


def everything(model: nn.Module, handle: wc.Conditioning | None = None) -> dict[str, Any]:
    """Numbers, classes, rules, hooks, marks and handles of a model."""
    found: dict[str, Any] = {name: value.detach().clone() for name, value in model.state_dict(keep_vars=True).items()}
    found |= {f"stored {name}": value.detach().clone() for name, value in model.named_parameters()}
    found |= {
        f"rule {path} {k}": v.clone() for path, _, _, live in live_owners(model) for k, v in live.rule.state().items()
    }
    found["handles"] = [id(each) for each in model.__dict__.get("_wellcond_handles", [])]
    found["around"] = sorted(id(each) for each in handles_around(model))
    for path, module in model.named_modules():
        found[f"class {path}"] = type(module)
        found[f"keys {path}"] = [*module._parameters, *sorted(key for key in module.__dict__ if "wellcond" in key)]
        found[f"hooks {path}"] = len(module._load_state_dict_pre_hooks), len(module._state_dict_hooks)
    found["told"] = {k: {n: str(v) for n, v in m.items()} for k, m in model.state_dict()._metadata.items()}
    if handle is not None:
        found |= {"text": str(handle), "active": handle.active, "strength": dict(handle.strength), "mode": handle.mode}
        if handle.active:
            found |= {f"entry {k}": v for k, v in handle.state_dict().get("entries", {}).items()}
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    assert a.keys() == b.keys()
    for key, value in a.items():
        assert same_bits(value, b[key]) if isinstance(value, Tensor) else value == b[key], key
    return True


def failing(monkeypatch: pytest.MonkeyPatch, where: type, name: str, after: int) -> None:
    """Have a method do its work, and fail after so many calls."""
    real, calls = getattr(where, name), [0]

    def broken(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        calls[0] += 1
        if calls[0] == after:
            raise Boom(name)
        return found

    monkeypatch.setattr(where, name, broken)


# Checks come before writes.


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"method": "shift", "strength": 1e308}, r"at most 8.39e\+06 in torch.float32"),
        ({"method": "shift", "strength": -1e9}, "at most"),
        ({"method": "shift", "strength": {"q": 1, "v": 1e30}}, "value' is at most"),
        ({"method": "shift", "strength": 1e308, "mode": "live"}, "at most"),
        ({"method": "polar", "strength": 1e300}, "at most"),
        ({"method": "polar", "strength": 1e-300}, "positive strength"),
    ],
)
def test_strengths_that_the_arithmetic_cannot_do(how: dict[str, Any], match: str) -> None:
    model = vit(torch.float32)
    before = everything(model)
    with pytest.raises(SchemeError, match=match):
        wc.condition_(model, **how)
    assert same(everything(model), before)
    handle = wc.condition_(model, how["method"], strength=1, mode=how.get("mode"))
    before = everything(model, handle)
    with pytest.raises(SchemeError, match=match):
        handle.strength_(how["strength"])
    with pytest.raises(ArgumentError):
        handle.strength_(math.nan)
    assert same(everything(model, handle), before)


def test_a_polar_strength_stays_positive() -> None:
    handle = wc.condition_(model := vit(), "polar")
    before = everything(model, handle)
    with pytest.raises(SchemeError, match="positive"):
        handle.strength_(-1)
    assert same(everything(model, handle), before)


def test_half_precision_is_not_folded() -> None:
    model = vit(torch.float32).bfloat16()
    handle = wc.condition_(model, "shift", strength=1)
    before = everything(model, handle)
    with pytest.raises(WeightError, match="rounds away"):
        handle.fold_()
    assert same(everything(model, handle), before)


# A failure in the middle is taken back.


@pytest.mark.parametrize(
    ("how", "where", "name", "after"),
    [
        ("folded", FoldedWeight, "add_", 1),
        ("folded", FoldedWeight, "add_", 2),
        ("folded", AppliedMethod, "mark_", 1),
        ("folded", wc.Conditioning, "summary", 1),
        ("live", LiveWeight, "keep", 2),
        ("live", wc.Conditioning, "summary", 1),
        ("polar", PolarRule, "_apply", 2),
        ("polar", Live, "enter_", 1),
        ("sigma", SigmaRule, "iterate_", 1),
        ("sigma", AppliedMethod, "mark_", 1),
        ("rows", Live, "enter_", 1),
    ],
)
def test_condition(how: str, where: type, name: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = vit()
    before = everything(model)
    with monkeypatch.context() as patch:
        failing(patch, where, name, after)
        if (where, name) == (SigmaRule, "iterate_"):
            failing(patch, SigmaRule, "start_", 2)
        with pytest.raises(Boom):
            wc.condition_(model, **HOW[how])
    assert same(everything(model), before)
    wc.condition_(model, **HOW[how]).remove_()
    assert all(same_bits(p, before[name]) for name, p in model.named_parameters())


def test_a_warning_that_is_an_error() -> None:
    model = vit()
    before = everything(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="promises nothing"):
            wc.condition_(model, "shift", strength=0.01)
    assert same(everything(model), before)


CHANGES: dict[str, Callable[[Any], object]] = {
    "remove_": lambda c: c.remove_(),
    "fold_": lambda c: c.fold_(),
    "unfold_": lambda c: c.unfold_(),
    "strength_": lambda c: c.strength_({"q": 2, "k": 2}),
    "load_state_dict": lambda c: c.load_state_dict(other_state(c)),
    "load_weights_": lambda c: c.load_weights_(plain_weights(), as_original=True),
    "load used": lambda c: c.load_weights_(c.other_used),
}


def other_state(handle: wc.Conditioning) -> dict[str, Any]:
    return handle.other  # type: ignore[attr-defined]


def plain_weights() -> dict[str, Tensor]:
    model = vit()
    wc.init_(model, "xavier", seed=3)
    return model.state_dict()


@pytest.mark.parametrize(
    ("how", "change", "where", "name", "after"),
    [
        ("folded", "remove_", FoldedWeight, "take_away_", 1),
        ("folded", "remove_", AppliedMethod, "leave_", 1),
        ("folded", "unfold_", FoldedWeight, "take_away_", 2),
        ("folded", "unfold_", Live, "enter_", 1),
        ("folded", "strength_", Folded, "leave_", 1),
        ("folded", "strength_", FoldedWeight, "add_", 2),
        ("folded", "strength_", AppliedMethod, "mark_", 1),
        ("folded", "load_state_dict", FoldedWeight, "restore", 1),
        ("folded", "load_weights_", FoldedWeight, "add_", 1),
        ("live", "fold_", Live, "leave_", 1),
        ("live", "fold_", FoldedWeight, "add_", 1),
        ("live", "remove_", Live, "leave_", 1),
        ("live", "strength_", Live, "enter_", 1),
        ("live", "load_state_dict", LiveWeight, "renew", 2),
        ("live", "load_weights_", LiveWeight, "loaded", 1),
        ("live", "load used", LiveWeight, "loaded", 1),
        ("polar", "fold_", Live, "leave_", 1),
        ("polar", "remove_", AppliedMethod, "leave_", 1),
        ("polar", "strength_", Live, "enter_", 1),
        ("polar", "load_state_dict", PolarRule, "load", 1),
        ("polar", "load_weights_", PolarRule, "loaded", 2),
        ("polar", "load used", PolarRule, "loaded", 2),
        ("sigma", "fold_", Live, "leave_", 1),
        ("sigma", "load_state_dict", SigmaRule, "load", 1),
        ("sigma", "load_weights_", SigmaRule, "loaded", 1),
        ("rows", "remove_", Live, "leave_", 1),
        ("rows", "load_weights_", LiveWeight, "loaded", 2),
    ],
)
def test_changes(how: str, change: str, where: type, name: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(seed: int) -> tuple[nn.Module, Any]:
        model = vit()
        wc.init_(model, "xavier", seed=seed)
        handle = wc.condition_(model, **HOW[how])
        optimizer = optimizer_of("adamw", model)
        handle.attach(optimizer)
        train(model, optimizer, 2)
        return model, handle

    model, handle = made(0)
    twin, handle_of_twin = made(0)
    source, other = made(1)
    handle.other, handle.other_used = other.state_dict(), source.state_dict()
    before = everything(model, handle)
    with monkeypatch.context() as patch:
        failing(patch, where, name, after)
        with pytest.raises(Boom):
            CHANGES[change](handle)
    assert same(everything(model, handle), before)
    # What follows is as if nothing had been tried.
    for each, of in ((model, handle), (twin, handle_of_twin)):
        optimizer = optimizer_of("adamw", each)
        of.attach(optimizer)
        train(each, optimizer, 2)
    assert all(same_bits(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))
    images = torch.zeros(1, 3, 16, 16, dtype=torch.float64)
    assert torch.equal(model(images), twin(images))


def test_a_state_of_another_model_changes_nothing() -> None:
    handle, small = (
        wc.condition_(vit(), "shift", strength=1),
        wc.condition_(nn.MultiheadAttention(8, 2), "shift", strength=1),
    )
    before = everything(handle.model, handle)
    bad = handle.state_dict()
    last = list(bad["entries"])[-1]
    bad["entries"][last] = bad["entries"][last][:3]
    for state in (small.state_dict(), bad):
        with pytest.raises(CheckpointError):
            handle.load_state_dict(state)
        assert same(everything(handle.model, handle), before)


def test_attach_that_is_refused_leaves_the_optimizer_alone() -> None:
    model = vit()
    handle = wc.condition_(model, "shift", strength=1)
    elsewhere = torch.optim.AdamW(vit().parameters())
    with pytest.raises(OptimizerError):
        handle.attach(elsewhere)
    assert "step" not in elsewhere.__dict__

    class Lamb(torch.optim.SGD):
        pass

    lamb = Lamb(model.parameters(), lr=0.1)
    with pytest.raises(OptimizerError, match="norm"):
        handle.attach(lamb)
    assert "step" not in lamb.__dict__
    assert not len(handle._applied.decay.attached)


def test_a_file_that_is_refused_at_its_last_tensor(tmp_path: Path) -> None:
    model = vit()
    handle = wc.condition_(model, "polar")
    wc.condition_(source := vit(), "polar")
    weights = {name: value.clone() for name, value in source.state_dict().items()}
    weights["blocks.1.attn.qkv.weight"][0, 0] = math.inf
    before = everything(model, handle)
    with pytest.raises(CheckpointError, match="not finite"):
        handle.load_weights_(weights)
    assert same(everything(model, handle), before)
