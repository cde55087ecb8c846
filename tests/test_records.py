"""What public functions return can be put into sets, compared, copied and pickled."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import wellcond as wc


@pytest.fixture(scope="module")
def results() -> list[Any]:
    """One of each result, from a small model."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    )
    batch = torch.randn(2, 6, 16)
    plan = wc.init_(model, "conditioned", seed=0)
    layers = wc.attention_layers(model)
    head = wc.jacobian.softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4))
    audit = wc.audit(model, "conditioned")
    scaled = [wc.balance_(model, batch), wc.calibrate_(model, batch)]
    advice = wc.recommend(model, [(batch, batch)] * 4, loss=nn.functional.mse_loss, schemes=["normal"], seconds=0)
    handle = wc.condition_(model, "polar")
    return [
        plan,
        plan.entries,
        layers[0],
        audit,
        wc.schemes("mimetic")[0],
        *scaled,
        advice,
        handle.summary(),
        handle.cost(),
        wc.diagnose(model, batch),
        wc.jacobian.spectrum(head),
        wc.jacobian.bound(head),
        wc.jacobian.estimate(head),
        head,
        wc.propagate(4, 32, 1.0),
        wc.trainability(("beta", 0.5, 2), ("residual_attention", 0.5, 1), depth=2, tokens=16, resolution=2),
        wc.locate(model, batch),
        wc.check_propagation(model, batch),
        wc.Thresholds(),
        *wc.head_blocks(model).values(),
        wc.ControlRecord(20, "sharpness", "attn", 0, "β", 1.7, 0.8),
    ]


def records(value: Any, seen: set[int]) -> Iterator[Any]:
    """A result and every record inside."""
    if id(value) in seen or isinstance(value, nn.Module):
        return
    seen.add(id(value))
    if dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from records(getattr(value, field.name), seen)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from records(each, seen)


def test_results_hash_and_compare(results: list[Any]) -> None:
    found = [record for result in results for record in records(result, set())]
    kinds = {type(record) for record in found}
    public = {c for n in wc.__all__ if dataclasses.is_dataclass(c := getattr(wc, n)) and isinstance(c, type)}
    assert public - kinds == set(), "a result without an example here"
    for record in found:
        assert isinstance(hash(record), int)
        assert (record == record) is True
        assert (record == object()) is False
        assert {record: 1}[record] == 1


def test_equal_numbers_are_equal_records(results: list[Any]) -> None:
    for record in (record for result in results for record in records(result, set())):
        if type(record).__eq__ is object.__eq__ or not type(record).__module__.startswith("wellcond.diagnosis"):
            continue
        again = pickle.loads(pickle.dumps(record))
        if not any(isinstance(v, float) and math.isnan(v) for v in vars(record).values()):
            assert again == record
            assert hash(again) == hash(record)


def test_no_public_class_compares_to_a_tensor(results: list[Any]) -> None:
    for result in results:
        for record in records(result, set()):
            other = copy.copy(record)
            assert isinstance(record == other, bool)
