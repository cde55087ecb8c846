"""Options that change what a scheme draws: zeros, norms and pairs, each by an independent oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

import wellcond as wc
from tests.init.test_schemes import assert_std
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
