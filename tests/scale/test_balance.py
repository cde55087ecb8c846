"""`wc.balance_`: the same function, better conditioned factors, on every case; and κ_eq(J), which stays the same."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.cases import CASES
from wellcond import jacobian
from wellcond.errors import ArgumentError, WellcondError
from wellcond.scale.coordinates import full_maps

# Modules that compute in float32 inside a float64 model.
SINGLE = {"hf-modernbert", "hf-gpt-neo", "hf-gptj", "hf-qwen2.5-vl-vision", "hf-cohere2", "hf-bloom", "hf-gemma2"}
SINGLE |= {"hf-gpt-oss", "hf-olmo2", "hf-qwen3", "hf-qwen3.5", "hf-llama", "hf-mistral", "hf-phi3", "hf-qwen2"}
# Keys of padded windows are exactly zero there, where normalising has no derivative: the Jacobian is rounding × 1e12.
NO_DERIVATIVE = {"torchvision-swin-v2"}
# Norms lie between all factors.
NOTHING = {"timm-vit-qk-norm", "timm-attention-masked", "timm-eva02-separate"}


@torch.no_grad()
def outputs(model: nn.Module, batch: Any) -> list[Tensor]:
    model.eval()
    out = model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, tuple) else model(batch)
    found = out.to_tuple() if hasattr(out, "to_tuple") else out if isinstance(out, tuple) else (out,)
    return [x for x in found if isinstance(x, Tensor)]


def apart(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(a, b, strict=True))


# One of three in every run, all of them in the long one.
SHARE = [
    pytest.param(name, marks=[] if index % 3 == 0 or name in NOTHING else pytest.mark.long)
    for index, name in enumerate(CASES)
]


@pytest.mark.parametrize("name", SHARE)
def test_the_function_stays_and_the_factors_have_the_root_of_the_products_kappa(name: str) -> None:
    model, batch = CASES[name].model().double(), CASES[name].batch()
    layers = wc.attention_layers(model)
    layer = layers[len(layers) - 1]
    before = outputs(model, batch)
    kappa = None if layer.query is None else jacobian.spectrum(jacobian.head_of(layer, batch, 0)).equilibrated
    held = {key: value.clone() for key, value in model.state_dict().items()}
    numbers = wc.balance_(model, batch, group="scalar")  # as it stands first, then far out of balance
    stretch(layer, [r for r in numbers.heads if r.layer == layer.name])
    assert apart(outputs(model, batch), before) < (1e-5 if name in SINGLE else 1e-10)
    if kappa is not None and kappa.status == "ok" and name not in SINGLE | NO_DERIVATIVE:
        again = jacobian.spectrum(jacobian.head_of(layer, batch, 0)).equilibrated
        assert again.value == pytest.approx(kappa.value, rel=1e-6)  # type: ignore[union-attr]
    found = wc.balance_(model, batch)
    assert (not found.heads) == (name in NOTHING)
    assert apart(outputs(model, batch), before) < (1e-5 if name in SINGLE else 1e-10)
    for record in found.heads:
        if record.maps == "full":
            assert record.after == pytest.approx((math.sqrt(record.product),) * 2, rel=1e-6)
    for one in wc.attention_layers(model):
        for part, roles in {"qk": ("query", "key"), "vo": ("value", "output")}.items():
            mine = [r for r in found.heads if r.layer == one.name and r.part == part and r.maps == "full"]
            pair = [getattr(one, role) for role in roles]
            if mine and all(p.heads == len(mine) for p in pair):  # measured, head by head
                for projection in pair:
                    sigma = torch.linalg.svdvals(projection.read().double())
                    expected = [math.sqrt(r.product) for r in mine]
                    assert (sigma[:, 0] / sigma[:, -1]).tolist() == pytest.approx(expected, rel=1e-6)
    found.undo_()
    numbers.undo_()
    assert all(torch.equal(held[key], value) for key, value in model.state_dict().items() if key not in written(layer))


def written(layer: wc.AttentionLayer) -> set[str]:
    return {path for _, p in layer.projections() for path in (p.weight.path, p.bias)}  # type: ignore[misc]


@torch.no_grad()
def stretch(layer: wc.AttentionLayer, records: list[Any]) -> None:
    """Scale the factors of a layer against each other where that is allowed, by its views alone."""
    for part, roles, factor in (("qk", ("query", "key"), 37.0), ("vo", ("value", "output"), 0.003)):
        if not any(record.part == part for record in records):
            continue
        for role, c in zip(roles, (factor, 1 / factor), strict=True):
            projection = getattr(layer, role)
            projection.write_(projection.read() * c)
            bias = projection.read_bias()
            if bias is not None and projection.bias_layout is not None:
                stored = dict(layer.root.named_parameters())[projection.bias].detach()  # type: ignore[union-attr]
                projection.bias_layout.write_vector_(stored, bias * c)


def vit(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=3, **options)


@torch.no_grad()
def test_heads_of_kappa_1000() -> None:
    model, batch = vit().double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    for layer in wc.attention_layers(model):
        u, _, vt = torch.linalg.svd(layer.query.read(), full_matrices=False)  # type: ignore[union-attr]
        layer.query.write_(u * torch.logspace(0, -3, 8).double() @ vt)  # type: ignore[union-attr]
    found = wc.balance_(model, batch)
    assert found.change < 1e-12  # type: ignore[operator]
    assert max(max(r.after) for r in found.heads if r.part == "qk") < 100 < min(r.before[0] for r in found.heads[:3])


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_lower_precision(dtype: torch.dtype, bar: float) -> None:
    model, batch = vit().to(dtype), torch.randn(2, 3, 32, 32).to(dtype)
    before = outputs(model, batch)
    assert len(wc.balance_(model, batch).heads) == 12
    assert apart([x.double() for x in outputs(model, batch)], [x.double() for x in before]) < bar


def test_orthogonal_queries() -> None:
    model, batch = vit().double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    found = wc.balance_(model, batch, to="orthogonal query", part="qk")
    assert found.change < 1e-12  # type: ignore[operator]
    q = wc.attention_layers(model)[0].query.read()  # type: ignore[union-attr]
    assert torch.allclose(q.mT @ q, torch.eye(8).double().expand(3, 8, 8), atol=1e-12)
    with pytest.raises(ArgumentError, match="group='full'"):
        wc.balance_(model, to="orthogonal query", group="scalar")


def test_without_a_batch_only_known_classes_change() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(8, 8) for _ in range(4))
            self.heads = 2

    found = wc.balance_(Own())
    assert not found.heads
    assert "give a batch" in found.skipped[0][2]
    assert len(wc.balance_(vit()).heads) == 12
    normed = wc.balance_(vit(qk_norm=True))
    assert {r.part for r in normed.heads} <= {"vo"}


def test_zero_and_tied_weights_are_left_alone() -> None:
    model, batch = vit().double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    nn.init.zeros_(model.blocks[0].attn.proj.weight)
    found = wc.balance_(model, batch)
    assert [(layer, part) for layer, part, _ in found.skipped] == [("blocks.0.attn", "vo")]
    assert "lacks rank" in found.skipped[0][2]
    model = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, batch_first=True) for _ in range(2)))
    model[1].self_attn.in_proj_weight = model[0].self_attn.in_proj_weight
    found = wc.balance_(model, torch.randn(1, 4, 8))
    assert not found.heads
    assert all("tied" in reason for _, _, reason in found.skipped)


def test_a_conditioned_model_is_refused_whole() -> None:
    model = vit()
    wc.condition_(model, "shift", strength=1.0)
    held = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(WellcondError, match="condition then"):
        wc.balance_(model)
    assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())


def test_what_changes_the_outputs_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = vit().double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    held = {key: value.clone() for key, value in model.state_dict().items()}

    def wrong(*given: Any) -> Any:
        maps = full_maps(*given)
        assert not isinstance(maps, str)
        return replace(maps, first=2 * maps.first)

    monkeypatch.setattr("wellcond.scale.balance.full_maps", wrong)
    with pytest.raises(WellcondError, match="everything was put back"):
        wc.balance_(model, batch)
    assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(2, 5, 12, dtype=torch.float64, generator=generator)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["adamw", "amsgrad", "sgd"])
def test_moments_are_those_of_gradients_taken_in_the_new_coordinates(kind: str) -> None:
    """A rate of 0 leaves the weights where they are, so that both optimizers see the same function all along."""

    def made(model: nn.Module) -> torch.optim.Optimizer:
        if kind == "sgd":
            return torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
        return torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, amsgrad=kind == "amsgrad")

    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.0, batch_first=True).double()
    early, late = copy.deepcopy(model), model
    wc.balance_(early, group="scalar")
    first, second = made(early), made(late)
    trained(early, first, 7, seed=1)
    trained(late, second, 7, seed=1)
    found = wc.balance_(late, group="scalar", optimizer=second)
    for a, b in zip(early.parameters(), late.parameters(), strict=True):
        for name, value in first.state[a].items():
            torch.testing.assert_close(second.state[b][name], value, rtol=1e-9, atol=1e-15)
    found.undo_()
    with pytest.raises(ArgumentError, match="group='scalar'"):
        wc.balance_(late, optimizer=second)


def test_an_optimizer_of_another_kind_is_refused() -> None:
    model = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.0, batch_first=True).double()
    optimizer = torch.optim.Adadelta(model.parameters())
    trained(model, optimizer, 1, seed=0)
    with pytest.raises(ArgumentError, match="square_avg"):
        wc.balance_(model, group="scalar", optimizer=optimizer)


def test_attention_to_what_is_not_given_is_left_alone_without_a_batch() -> None:
    model = CASES["hf-bert-cross"].model().double()
    found = wc.balance_(model)
    assert any("cannot be tried alone" in reason for _, _, reason in found.skipped)
