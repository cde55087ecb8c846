"""Weights that are stored in odd ways: conditioned, or refused in one line before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from transformers import BertConfig, BertModel

import wellcond as wc
from wellcond.errors import WeightError
from wellcond.testing import same_bits, state

pytestmark = pytest.mark.filterwarnings(
    "ignore:attention starts one-hot", "ignore:Theorem 3.8 promises", "ignore::FutureWarning"
)
METHODS: list[dict[str, Any]] = [
    {"method": "shift", "strength": 1},
    {"method": "shift", "strength": 1, "mode": "live"},
    {"method": "shift"},
    {"method": "polar"},
    {"method": "sigma_reparam"},
    {"method": "weight_conditioning"},
]


def bert() -> Any:
    sizes = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertModel(BertConfig(**sizes, intermediate_size=24, max_position_embeddings=16)).eval()


def last(model: Any) -> nn.Module:
    """The projection that comes last, so that a loop which writes as it goes would have written the others."""
    return model.encoder.layer[1].attention.self.value


def as_buffer(model: Any) -> None:
    weight = last(model).weight.detach()
    del last(model).weight
    last(model).register_buffer("weight", weight)


def expanded(model: Any) -> None:
    last(model).weight = nn.Parameter(torch.randn(24, 1).expand(24, 24))


def sliding(model: Any) -> None:
    last(model).weight = nn.Parameter(torch.randn(100).as_strided((24, 24), (3, 1)))


def same_memory(model: Any) -> None:
    last(model).weight = nn.Parameter(model.encoder.layer[0].attention.self.value.weight.data)


def same_memory_elsewhere(model: Any) -> None:
    last(model).weight = nn.Parameter(model.encoder.layer[0].intermediate.dense.weight.data)


def overlapping(model: Any) -> None:
    memory = torch.randn(24 * 25)
    model.encoder.layer[1].attention.self.key.weight = nn.Parameter(memory[: 24 * 24].view(24, 24))
    last(model).weight = nn.Parameter(memory[24:].view(24, 24))


def float8(model: Any) -> None:
    last(model).weight = nn.Parameter(last(model).weight.detach().to(torch.float8_e4m3fn), requires_grad=False)


REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "old weight_norm": (lambda m: nn.utils.weight_norm(last(m)), "weight norm"),
    "weight_norm": (lambda m: parametrizations.weight_norm(last(m)), "parametrisation"),
    "old spectral_norm": (lambda m: nn.utils.spectral_norm(last(m)), "buffer|spectral norm"),
    "spectral_norm": (lambda m: parametrizations.spectral_norm(last(m)), "parametrisation"),
    "orthogonal": (lambda m: parametrizations.orthogonal(last(m)), "parametrisation"),
    "pruned": (lambda m: prune.l1_unstructured(last(m), "weight", 3), "computed from other"),
    "a buffer": (as_buffer, "is a buffer"),
    "expanded": (expanded, "share memory"),
    "sliding": (sliding, "share memory"),
    "same memory": (same_memory, "two tensors in the same memory"),
    "same memory elsewhere": (same_memory_elsewhere, "intermediate.dense.weight"),
    "overlapping": (overlapping, "two tensors in the same memory"),
    "float8": (float8, "float8"),
}


@pytest.mark.parametrize("how", METHODS, ids=str)
@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_written(case: str, how: dict[str, Any]) -> None:
    model = bert()
    make, match = REFUSED[case]
    make(model)
    before = state(model)
    with pytest.raises(WeightError, match=match) as said:
        wc.condition_(model, **how)
    assert "\n" not in str(said.value)
    assert "layer.1" in str(said.value)
    assert all(same_bits(value, before[key]) for key, value in state(model).items())
    assert not any("wellcond" in key for module in model.modules() for key in module.__dict__)
    if not case.startswith("same memory"):  # the layer whose memory it is
        assert wc.condition_(model, **how, layers="encoder.layer.0.*").active


def disjoint(model: Any) -> None:
    """Weights that are windows of one memory, as flattened parameters are."""
    memory = torch.randn(2 * 24 * 24)
    model.encoder.layer[1].attention.self.key.weight = nn.Parameter(memory[: 24 * 24].view(24, 24))
    last(model).weight = nn.Parameter(memory[24 * 24 :].view(24, 24))


def transposed(model: Any) -> None:
    last(model).weight = nn.Parameter(torch.randn(24, 24).T)


def frozen(model: Any) -> None:
    last(model).weight.requires_grad_(False)


@pytest.mark.parametrize("make", [disjoint, transposed, frozen])
@pytest.mark.parametrize("how", METHODS, ids=str)
def test_served(make: Callable[[Any], object], how: dict[str, Any]) -> None:
    model = bert()
    make(model)
    before, tokens = state(model), torch.arange(8)[None]
    handle = wc.condition_(model, **how)
    model(tokens).last_hidden_state.sum().backward()
    assert any(not same_bits(v, before[k]) for k, v in model.state_dict().items()) or how["method"] == "sigma_reparam"
    handle.remove_()
    assert all(same_bits(value, before[key]) for key, value in state(model).items())


def heads(weight: Tensor) -> Tensor:
    return weight.detach().view(3, 8, 24).mT


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("elsewhere", {}),  # a weight that a linear layer of the block uses too
        ("another layer", {"layers": "encoder.layer.1.*"}),
        ("another role", {"roles": "v"}),
    ],
)
def test_a_weight_that_is_tied_to_what_is_not_conditioned(place: str, how: dict[str, Any]) -> None:
    model = bert()
    first = model.encoder.layer[0]
    other = {
        "elsewhere": first.intermediate.dense,
        "another layer": first.attention.self.value,
        "another role": model.encoder.layer[1].attention.self.key,
    }[place]
    other.weight = last(model).weight
    before = state(model)
    with pytest.raises(WeightError, match=r"is tied to '.*', which is not conditioned.*mode='live'"):
        wc.condition_(model, "shift", strength=1, mode="folded", **how)
    assert all(same_bits(value, before[key]) for key, value in state(model).items())
    handle = wc.condition_(model, "shift", strength=1, **how)
    assert handle.mode == "live"
    shift = heads(last(model).weight) - heads(other.weight)
    assert torch.allclose(shift, torch.eye(24, 8).expand(3, 24, 8), atol=1e-6)
    with pytest.raises(WeightError, match="is tied to"):
        handle.fold_()
    assert handle.mode == "live"
    handle.remove_()
    assert all(same_bits(value, before[key]) for key, value in state(model).items())
