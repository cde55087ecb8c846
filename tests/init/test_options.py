"""Options that change what a scheme draws: zeros, norms, products and their controls, each by an independent oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

import wellcond as wc
from tests.init.test_schemes import assert_std, value_output
from tests.malformed import make_llama, make_vit
from wellcond.errors import InapplicableError
from wellcond.testing import same_bits, state


def audits(model: nn.Module, scheme: str, **options: object) -> bool:
    return wc.audit(model, scheme, **options).passed


class Unprojected(nn.Module):
    """Attention whose heads are its output."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(12, 12) for _ in range(3))
        self.num_heads = 3


def test_kaiming_is_fan_in_with_the_gain_of_a_rectifier() -> None:
    one, other = make_vit(), make_vit()
    wc.init_(one, "kaiming", seed=0)
    wc.init_(other, "fan_in", gain=math.sqrt(2), seed=0)
    assert all(same_bits(value, state(other)[name]) for name, value in state(one).items())


def test_the_speedruns_setting() -> None:
    """As its code has it: U(±√3 std) with std = ½ D^−½ for Q, K, V and O, and an MLP that writes nothing."""
    model = make_vit(embed_dim=96)
    before = state(model)
    options = {"gain": 0.5, "distribution": "uniform", "mlp_output": "zero"}
    plan = wc.init_(model, "fan_in", seed=0, **options)
    bound = math.sqrt(3) * 0.5 * 96**-0.5
    for layer in plan.layers:
        for _, projection in layer.projections():
            assert projection.read().abs().max() <= bound
            assert_std([projection.read()], bound / math.sqrt(3), 1.8)
    for index, block in enumerate(model.blocks):
        assert not block.mlp.fc2.weight.any()
        assert same_bits(block.mlp.fc1.weight, before[f"blocks.{index}.mlp.fc1.weight"])
    assert audits(model, "fan_in", **options)


def biased(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model


def test_a_block_of_zero_output_is_the_identity() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 24)
    block = biased(Block(24, 3))
    assert not torch.equal(block(x), x)
    wc.init_(block, "zero_output", seed=0)
    assert torch.equal(block(x), x)
    block = biased(Block(24, 3))
    second = block.mlp.fc2.weight.clone()
    wc.init_(block, "zero_output", mlp=False, seed=0)
    assert torch.equal(block(x), x + block.mlp(block.norm2(x)))
    assert torch.equal(block.mlp.fc2.weight, second)


def test_zero_output_of_attention_without_a_block() -> None:
    torch.manual_seed(0)
    attention, x = biased(nn.MultiheadAttention(24, 3, batch_first=True)), torch.randn(2, 5, 24)
    wc.init_(attention, "zero_output", seed=0)
    assert not attention(x, x, x)[0].any()
    with pytest.raises(InapplicableError, match="without output"):
        wc.init_(Unprojected(), "zero_output")


def test_the_audit_of_zeros_is_exact() -> None:
    model = make_vit()
    wc.init_(model, "zero_output", seed=0)
    assert audits(model, "zero_output")
    with torch.no_grad():
        model.blocks[1].mlp.fc2.weight[3, 4] = 1e-30
    (failure,) = wc.audit(model, "zero_output").failures
    assert (failure.layer, failure.role) == ("blocks.1", "mlp_out.0")


def test_the_scale_of_zeros_is_zero() -> None:
    model = make_vit()
    plan = wc.init_(model, "scale_matched", of="zero_output", seed=0)
    check = {entry.role: entry.law for entry in plan.entries}
    assert check["output"] == "N(0, 0²) (scale of zero)"
    assert not any(layer.output.read().any() for layer in plan.layers)
    assert audits(model, "scale_matched", of="zero_output")


def norm(matrix: Tensor) -> float:
    return float(np.linalg.norm(matrix.double().numpy(), 2))


@pytest.mark.parametrize("draw", ["gaussian", "orthogonal"])
def test_spectral_norms_of_whole_projections_and_of_the_mlp(draw: str) -> None:
    model = make_llama(head_dim=8)  # reads 24, writes 4 · 8 queries and 2 · 8 keys and values
    options = {"draw": draw, "granularity": "projection", "mlp": True, "gain": 1.5}
    wc.init_(model, "spectral", seed=0, **options)
    attention, mlp = model.layers[0].self_attn, model.layers[0].mlp
    for linear in (
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.o_proj,
        mlp.gate_proj,
        mlp.down_proj,
    ):
        wanted = 1.5 * math.sqrt(linear.out_features / linear.in_features)
        assert norm(linear.weight.detach()) == pytest.approx(wanted, rel=1e-6)
    assert audits(model, "spectral", **options)
    assert not audits(model, "spectral", **options | {"gain": 1.501})


def test_orthogonal_spectral_heads_have_one_singular_value() -> None:
    model = make_vit()
    layer = wc.init_(model, "spectral", draw="orthogonal", seed=0).layers[0]
    for role, wanted in (("query", math.sqrt(8 / 24)), ("output", 1.0)):
        for head in getattr(layer, role).read():
            np.testing.assert_allclose(np.linalg.svd(head.double().numpy(), compute_uv=False), wanted, rtol=1e-6)


def test_symmetric_with_a_sign() -> None:
    model = make_vit()
    layer = wc.init_(model, "symmetric", sign=-1, distribution="normal", seed=0).layers[0]
    assert torch.equal(layer.key.read(), -layer.query.read())
    assert audits(model, "symmetric", sign=-1, distribution="normal")
    assert not audits(model, "symmetric", distribution="normal")


@pytest.mark.parametrize("change", ["one entry", "twice the key"])
def test_the_audit_of_symmetry(change: str) -> None:
    model = make_vit()
    layer = wc.init_(model, "symmetric", seed=0).layers[1]
    key = layer.key.read()
    if change == "one entry":
        key[2, 5, 1] *= 1.01
    else:
        key[2] *= 2
    layer.key.write_(key)
    failures = wc.audit(model, "symmetric").failures
    assert {(f.layer, f.role, f.head) for f in failures} == {("blocks.1.attn", "key", 2)}


def test_skipless_as_a_rotation() -> None:
    model = make_vit()
    plan = wc.init_(model, "skipless", structure="rotation", seed=0)
    for layer in plan.layers:
        rotation = value_output(layer).numpy() / 9
        assert np.abs(rotation @ rotation.T - np.eye(24)).max() < 1e-6
        assert abs(np.trace(rotation)) < 6  # of variance 1, whatever the size
    assert audits(model, "skipless", structure="rotation")
    assert not audits(model, "skipless")


@pytest.mark.parametrize("sizes", [{}, {"head_dim": 16}], ids=["narrow", "wide"])
@pytest.mark.parametrize("structure", ["identity", "rotation"])
def test_centring_of_grouped_heads_and_its_controls(sizes: dict[str, int], structure: str) -> None:
    """Two value heads for four query heads: γ on 2·6 of 24 dimensions, or, of width 16, on all."""
    model = make_llama(**sizes)
    wc.init_(model, "centring", gamma=0.3, structure=structure, seed=0)
    assert audits(model, "centring", gamma=0.3, structure=structure)
    layer = wc.attention_layers(model)[0]
    product = value_output(layer)
    rank = min(24, 2 * layer.head_dim)
    sigma = np.linalg.svd(product.numpy(), compute_uv=False)
    np.testing.assert_allclose(sigma, [0.3] * rank + [0.0] * (24 - rank), atol=1e-6)
    trace = float(product.trace()) / 0.3
    assert trace == pytest.approx(-rank, rel=1e-6) if structure == "identity" else abs(trace) < 6  # of variance ≤ 1
    wc.init_(model, "centring", gamma=0.3, structure=structure, sign=1, seed=0)
    assert torch.equal(value_output(layer), -product)


def test_centring_in_a_real_module_with_shared_heads() -> None:
    """With queries of zero, a causal head averages what came before: the module returns −γ times that average."""
    model = make_llama(head_dim=16).double()
    wc.init_(model, "centring", gamma=0.3, seed=0)
    attention = model.layers[0].self_attn
    with torch.no_grad():
        attention.q_proj.weight.zero_()
    torch.manual_seed(0)
    x = torch.randn(1, 7, 24, dtype=torch.float64)
    got = attention(x, position_embeddings=model.rotary_emb(x, torch.arange(7)[None]), attention_mask=None)[0]
    average = x.cumsum(1) / torch.arange(1, 8)[:, None]
    torch.testing.assert_close(got, -0.3 * average, rtol=0, atol=1e-6)  # the weights are of float32


def test_controls_of_centring_keep_its_values() -> None:
    default, rotated = make_vit(), make_vit()
    one = wc.init_(default, "centring", seed=0).layers[0]
    other = wc.init_(rotated, "centring", structure="rotation", seed=0).layers[0]
    assert all(same_bits(getattr(one, role).read(), getattr(other, role).read()) for role in ("query", "key", "value"))
    rotation = value_output(other).numpy() / 0.5
    assert np.abs(rotation @ rotation.T - np.eye(24)).max() < 1e-6
    assert abs(np.trace(rotation)) < 6
    assert audits(rotated, "centring", structure="rotation")
    assert not audits(rotated, "centring")
