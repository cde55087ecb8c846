"""The exact Jacobian of every head of real layers, against differentiating the real module."""

from __future__ import annotations

import pytest
import timm
import torch

import wellcond as wc
from tests.cases import CASES
from tests.jacobian_oracle import oracle_jacobian
from wellcond import jacobian

# Where the module has something between the heads and its output projection, the oracle sees more than the heads.
BEYOND = {
    "timm-vit-qk-norm": "a norm over all heads",
    "timm-attention-masked": "a norm over all heads",
    "timm-eva02-separate": "a norm over all heads",
    "timm-twins-svt": "windows are cut back to the grid",
    "torchvision-swin": "the output projection is a function",
    "torchvision-swin-v2": "the output projection is a function",
    "hf-qwen3.5": "a gate",
    "hf-gptj": "no replay",
    "hf-gpt-neo": "a query that sees nothing attends to hidden keys, whose logits the module replaces by a constant",
}
# Modules that compute in float32 inside a float64 model: two roundings of one number differ by its eps.
SINGLE = {"hf-bloom", "hf-cohere2", "hf-gemma2", "hf-gpt-oss", "hf-modernbert", "hf-olmo2", "hf-qwen2.5-vl-vision"}
SINGLE |= {"hf-qwen3"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in BEYOND])
def test_singular_values_are_those_of_the_real_module(name: str) -> None:
    model, batch = CASES[name].model().double(), CASES[name].batch()
    factor, gram = (1e-7, 1e-6) if name in SINGLE else (1e-10, 1e-7)
    for index, layer in enumerate(wc.attention_layers(model)):
        head = index % layer.num_heads
        blocks = oracle_jacobian(layer, model, batch, head)
        expected = torch.linalg.svdvals(torch.cat(list(blocks.values()), 1))
        ours = jacobian.head_of(layer, batch, head)
        _agree(jacobian.singular_values(ours), expected, factor)
        _agree(jacobian.singular_values(ours, method="gram"), expected, gram)
        _agree_equilibrated(jacobian.spectrum(ours), blocks, gram)
        if len({block.shape for block in blocks.values()}) == 1 and len(blocks) == 3:
            expected = torch.linalg.svdvals(torch.cat(list(blocks.values()), 0))
            _agree(jacobian.singular_values(ours, convention="vertical"), expected, factor)


def test_a_vit_with_query_key_norm() -> None:
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=24, num_heads=3, qk_norm=True
    ).double()
    batch = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    (layer,) = wc.attention_layers(model.eval())
    expected = torch.linalg.svdvals(torch.cat(list(oracle_jacobian(layer, model, batch, 2).values()), 1))
    ours = jacobian.head_of(layer, batch, 2)
    _agree(jacobian.singular_values(ours), expected, 1e-10)
    _agree(jacobian.singular_values(ours, method="gram"), expected, 1e-7)


def _agree_equilibrated(found: jacobian.ConditionNumber, blocks: dict[str, torch.Tensor], tolerance: float) -> None:
    """κ_eq and the norms of the blocks, by their definitions."""
    norms = {role: torch.linalg.matrix_norm(block, 2) for role, block in blocks.items()}
    assert dict(found.block_norms) == pytest.approx({role: float(norm) for role, norm in norms.items()}, rel=tolerance)
    equal = found.equilibrated
    assert equal is not None
    if equal.status == "ok":
        sigma = torch.linalg.svdvals(torch.cat([block / norms[role] for role, block in blocks.items()], 1))
        expected = sigma[0] / sigma[equal.structural_rank - 1]  # type: ignore[operator]
        assert equal.value == pytest.approx(float(expected), rel=tolerance * float(expected))


def _agree(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Equal but for zeros, of which the compressed matrix may have fewer."""
    common = min(len(found), len(expected))
    assert (found[:common] - expected[:common]).abs().max() <= tolerance * expected[0]
    assert not len(expected[common:]) or expected[common:].max() <= tolerance * expected[0]
