"""Controls: what a rotation or a change of sign keeps of a scheme's products, by numpy's SVD in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.cases import CASES
from wellcond.attention.view import AttentionLayer
from wellcond.errors import InapplicableError, SchemeError

SIGMAS = 5
EPS = float(torch.finfo(torch.float32).eps)  # weights are drawn and stored in float32

# A scheme, and the factors that a control of it changes.
SCHEMES: list[tuple[Any, set[str]]] = [
    ("mimetic", {"key", "output"}),
    ("centring", {"key", "output"}),
    ("conditioned", {"key", "value"}),  # it leaves W_O alone
    ("dct", {"key"}),
    ({"q": "orthogonal"}, {"query"}),
    ({"o": "orthogonal"}, {"output"}),
    ({"qk": "conditioned", "vo": "mimetic"}, {"key", "output"}),
]


def weights(model: nn.Module, scheme: Any, seed: int = 0, **options: Any) -> list[dict[str, Tensor]]:
    """Every layer's weights by role, float64, after a scheme is applied; what it leaves alone has fixed numbers."""
    generator = torch.Generator().manual_seed(1)
    for layer in wc.attention_layers(model):
        for _, projection in layer.projections():
            projection.write_(0.02 * torch.randn(projection.shape, generator=generator))
    layers = wc.init_(model, scheme, seed=seed, **options).layers
    return [{role: p.read().double() for role, p in layer.projections()} for layer in layers]


def products(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    """W_Q W_Kᵀ and W_V W_O of every query head, and their sums over the heads."""
    found = {}
    for name, one, other in (("qk", "query", "key"), ("vo", "value", "output")):
        heads = max(len(layer[one]), len(layer[other]))
        left, right = (layer[role].repeat_interleave(heads // len(layer[role]), 0) for role in (one, other))
        found[name] = left @ right.mT
        found[f"sum of {name}"] = found[name].sum(0)
    return found


def same_spectrum(ours: Tensor, theirs: Tensor) -> None:
    """Singular values to the rounding of the factors: that of each entry, √D of which meet in a column."""
    a, b = (np.linalg.svd(each.numpy(), compute_uv=False) for each in (ours, theirs))
    np.testing.assert_allclose(a, b, atol=4 * EPS * math.sqrt(max(ours.shape[-2:])) * b.max())


@pytest.mark.parametrize(("scheme", "changed"), SCHEMES, ids=[str(scheme) for scheme, _ in SCHEMES])
def test_a_rotation_keeps_every_spectrum_and_nothing_of_one_side(scheme: Any, changed: set[str]) -> None:
    model = CASES["timm-vit"].model()
    for own, rotated in zip(weights(model, scheme), weights(model, "rotated", of=scheme), strict=True):
        for role, weight in own.items():
            if role not in changed:
                assert torch.equal(rotated[role], weight), role
                continue
            assert not torch.allclose(rotated[role], weight, atol=0.1 * float(weight.abs().max()))
            same_spectrum(rotated[role], weight)
            same_spectrum(rotated[role].transpose(0, 1).flatten(1), weight.transpose(0, 1).flatten(1))
        theirs = products(rotated)
        for name, product in products(own).items():
            same_spectrum(theirs[name], product)


@pytest.mark.parametrize("scheme", ["mimetic", "centring"])
def test_a_rotation_takes_the_trace_away(scheme: str) -> None:
    """For a Haar R, tr(P R) has mean 0 and variance ‖P‖² ÷ D."""
    model = CASES["timm-vit"].model()
    scores = []
    for seed in range(20):
        for own, rotated in zip(weights(model, scheme, seed), weights(model, "rotated", seed, of=scheme), strict=True):
            before, after = (products(each)["sum of vo"] for each in (own, rotated))
            spread = float(before.norm()) / math.sqrt(len(before))
            assert float(before.trace()) < -SIGMAS * spread
            scores.append(float(after.trace()) / spread)
    assert abs(np.mean(scores)) < SIGMAS / math.sqrt(len(scores))
    assert np.std(scores) == pytest.approx(1, abs=SIGMAS / math.sqrt(2 * len(scores)))


def test_a_rotation_is_one_of_a_layer_a_seed_and_a_product() -> None:
    model = CASES["timm-vit"].model()

    def rotations(seed: int, **chosen: Any) -> list[Tensor]:
        plan = wc.init_(model, "rotated", of={"k": "dct", "o": "orthogonal"}, seed=seed, **chosen)
        straight = {layer.name: layer.key.read().double() for layer in plan.layers if layer.key is not None}
        wc.init_(model, "dct", layers=[*straight])
        whole = {layer.name: _whole(layer) for layer in plan.layers}
        return [weight.transpose(0, 1).flatten(1) @ whole[name].mT for name, weight in straight.items()]

    first, second = rotations(0)[:2]
    for rotation in (first, second):  # the DCT matrix is orthogonal, so this is R
        assert torch.allclose(rotation @ rotation.mT, torch.eye(len(rotation), dtype=torch.float64), atol=1e-5)
    assert not torch.allclose(first, second, atol=0.1)
    assert not torch.allclose(first, rotations(1)[0], atol=0.1)
    name = wc.attention_layers(model)[1].name
    assert torch.equal(rotations(0, layers=name)[0], second)  # whichever layers are asked for


def _whole(layer: AttentionLayer) -> Tensor:
    assert layer.key is not None
    return layer.key.read().double().transpose(0, 1).flatten(1)


@pytest.mark.parametrize(("scheme", "changed"), SCHEMES, ids=[str(scheme) for scheme, _ in SCHEMES])
def test_a_change_of_sign_changes_nothing_else(scheme: Any, changed: set[str]) -> None:
    model = CASES["timm-vit"].model()
    for own, flipped in zip(weights(model, scheme), weights(model, "flipped", of=scheme), strict=True):
        for role, weight in own.items():
            assert torch.equal(flipped[role], -weight if role in changed else weight), role


@pytest.mark.parametrize("control", ["rotated", "flipped"])
def test_grouped_heads_and_other_widths_keep_their_products(control: str) -> None:
    for name in ("hf-llama", "torch-decoder"):
        model = CASES[name].model()
        for own, other in zip(weights(model, "conditioned"), weights(model, control, of="conditioned"), strict=True):
            for product, product_of in products(own).items():
                same_spectrum(products(other)[product], product_of)


def test_what_a_scheme_sets_elsewhere_is_the_scheme_s() -> None:
    model = CASES["timm-vit"].model()
    written = {}
    for scheme, options in (("small_init", {}), ("rotated", {"of": "small_init"}), ("flipped", {"of": "small_init"})):
        plan = wc.init_(model, scheme, seed=0, **options)
        written[scheme] = [e.projection.read() for e in plan.entries if e.role.startswith("mlp")]
    for control in ("rotated", "flipped"):
        assert all(torch.equal(a, b) for a, b in zip(written["small_init"], written[control], strict=True))
    assert written["small_init"]


@pytest.mark.parametrize(("scheme", "std"), [("centring", lambda width: 0.5 / math.sqrt(width)), ("mimetic", None)])
def test_the_scale_of_the_output_is_matched_too(scheme: str, std: Any) -> None:
    """Of all roles that the scheme sets; the product of mimetic's V and O has half its energy in −β I."""
    model = CASES["timm-vit"].model()
    own, matched = weights(model, scheme), weights(model, "scale_matched", of=scheme)
    for before, after in zip(own, matched, strict=True):
        for role, weight in after.items():
            entries, width = weight.numel(), weight.shape[1]
            expected = float(before[role].square().mean().sqrt())
            if std is not None and role == "output":
                assert expected == pytest.approx(std(width), rel=4 * EPS)
            # The scale of a product's factors is that of one other draw: a spread of 1/D beside that of the Gaussian.
            spread = math.sqrt(1 / (2 * entries)) + (1 / width if scheme == "mimetic" else 0)
            assert float(weight.square().mean().sqrt()) == pytest.approx(expected, rel=SIGMAS * spread)


@pytest.mark.parametrize("scheme", [scheme for scheme, _ in SCHEMES], ids=[str(scheme) for scheme, _ in SCHEMES])
@pytest.mark.parametrize("control", ["rotated", "flipped"])
def test_the_audit_of_a_control_can_fail(control: str, scheme: Any) -> None:
    model = CASES["timm-vit"].model()
    plan = wc.init_(model, control, of=scheme, seed=0)
    assert wc.audit(model, control, of=scheme).passed
    for role in {entry.role for entry in plan.entries}:
        projection = next(entry.projection for entry in plan.entries if entry.role == role)
        good = projection.read()
        projection.write_(3 * good)
        assert not wc.audit(model, control, of=scheme).passed, role
        projection.write_(good)
    if control == "flipped" and scheme in ("centring", "mimetic", "dct"):
        assert not wc.audit(model, scheme).passed


class Tied(nn.Module):
    """Attention whose queries and keys are one matrix, as in the Reformer."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.q = self.k = nn.Linear(8, 8)
        self.v, self.proj = nn.Linear(8, 8), nn.Linear(8, 8)


def test_what_has_no_control_is_refused() -> None:
    model = nn.MultiheadAttention(8, 2)
    for control in ("rotated", "flipped"):
        with pytest.raises(SchemeError, match=f"'{control}' needs a scheme with a known law; a function has none"):
            wc.plan(model, control, of=lambda layer, draw: {})
        with pytest.raises(SchemeError, match=f"'{control}' needs a scheme that draws weights; 'keep' draws none"):
            wc.plan(model, control, of="keep")
        with pytest.raises(InapplicableError, match="key and query are one matrix"):
            wc.plan(Tied(), control)
