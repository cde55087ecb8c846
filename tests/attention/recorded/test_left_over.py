"""What a view leaves out is named: shared latents, gates beside queries, further products in the scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.attention.recorded.models import built
from tests.attention.recorded.test_hard_cases import Plain
from wellcond.attention.recorded.discover import discover


def test_a_latent_and_the_shared_part_of_the_keys_are_named() -> None:
    model, inputs = built("deepseek_v3")
    described = discover(model, inputs).described[0]
    prefix = "layers.0.self_attn."
    layer = described.layer
    assert layer.query is not None
    assert layer.key is not None
    assert layer.query.weight.path == f"{prefix}q_b_proj.weight"
    assert layer.key.weight.path == f"{prefix}kv_b_proj.weight"
    assert (layer.query.width, layer.key.width) == (12, 8)  # with and without the part that turns
    assert set(described.shared) == {f"{prefix}kv_a_proj_with_mqa.weight", f"{prefix}q_a_proj.weight"}
    assert described.left_over == ()


def test_a_gate_in_the_weight_of_the_queries_is_left_over() -> None:
    model, inputs = built("qwen3_next")
    described = discover(model, inputs).described[0]
    size = model.get_parameter("layers.1.self_attn.q_proj.weight").numel()
    words = f"'layers.1.self_attn.q_proj.weight': {size // 2:,} of {size:,} numbers are in no role"
    assert described.left_over == (words,)


def test_every_column_of_complex_rotations_is_explained() -> None:
    model, inputs = built("llama4")
    for described in discover(model, inputs).described:
        assert described.left_over == ()


def test_a_second_product_in_the_scores_is_named() -> None:
    model, inputs = built("lilt")
    for described in discover(model, inputs).described:
        assert described.left_over == ("its scores add another product of activations, of shape (8, 9, 9)",)


def test_values_that_make_the_scores_are_named() -> None:
    class Masked(Plain):
        def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (q @ k.mT + v.mean(-1)[..., None, :]).softmax(-1) @ v

    (described,) = discover(Masked(), torch.randn(2, 5, 12)).described
    assert described.left_over == ("its scores depend on its values too",)
    (described,) = discover(Plain(), torch.randn(2, 5, 12)).described
    assert described.left_over == ()


def test_values_of_other_heads_than_the_keys_are_refused() -> None:
    model, inputs = built("diffllama")
    found = discover(model, inputs)
    assert found.described == []
    assert {site.reason for site in found.undescribable} == {"it has 2 key heads and 1 value heads"}


def test_fused_weights_of_one_layer_leave_nothing() -> None:
    model = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    found = discover(model, (x, memory)).described
    assert [site.layer.name for site in found] == ["self_attn", "multihead_attn"]
    assert [site.layer.cross for site in found] == [False, True]
    assert [site.left_over for site in found] == [(), ()]
