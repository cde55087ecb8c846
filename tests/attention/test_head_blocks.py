"""`wc.head_blocks`: a block is one head and no other, as the real module shows when the block alone is changed."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3Model

import wellcond as wc
from tests.cases import CASES
from wellcond.attention.capture import run_model
from wellcond.attention.head_blocks import HeadBlocks
from wellcond.attention.paths import resolve, unwrap
from wellcond.attention.storage import split_path

# A norm over all heads, of queries and keys or before W_O, lets each head move the others.
NORMALISED_TOGETHER = {"timm-vit-qk-norm", "timm-attention-masked", "timm-eva02-separate", "hf-olmo2"}


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return dict(unwrap(model).named_parameters(remove_duplicate=False))


def heads_read(model: nn.Module, path: str, batch: object) -> Tensor | None:
    """What the module of an output projection is given, `(…, H·d)`, when it is first called."""
    seen: list[Tensor] = []
    hook = resolve(unwrap(model), path).register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))
    with torch.no_grad(), hook:
        run_model(model, batch)
    return seen[0] if seen else None


def moved_columns(before: Tensor, after: Tensor) -> set[int]:
    apart = (after - before).abs().flatten(0, -2).amax(0)
    return {int(i) for i in torch.nonzero(apart > 1e-9 * before.abs().max())}


# Attention without a softmax over tokens, and output projections that are not called as a module on joined heads.
ELSEWHERE = {
    *("torch-mha", "torch-mha-separate", "torch-encoder", "torch-decoder"),
    *("torchvision-vit", "torchvision-swin", "torchvision-swin-v2"),
    *("timm-maxvit-nchw", "timm-coatnet", "hf-nystromformer"),
}  # wc.optim.check_blocks, which needs neither, has them all in its tests


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.name not in ELSEWHERE], ids=lambda c: c.name)
def test_a_changed_block_moves_one_head_alone(case):
    model = case.model().double()
    blocks, batch, values = wc.head_blocks(model), case.batch(), parameters(model)
    layers = [layer for layer in wc.attention_layers(model) if layer.output is not None and layer.kind == "softmax"]
    layer = layers[0]
    owner = split_path(layer.output.weight.path)[0]
    before = heads_read(model, owner, batch)
    assert before is not None
    assert before.shape[-1] == layer.num_heads * layer.value.width
    generator, shown = torch.Generator().manual_seed(0), 0
    columns = {
        block.head: set(block.indices)
        for block in blocks[layer.output.weight.path]
        if block.role == "output" and block.layer == layer.name
    }
    assert sorted(columns) == list(range(layer.num_heads))
    for name, parts in blocks.items():
        for block in parts:
            if block.layer != layer.name or block.role not in ("key", "value", "query"):
                continue
            view = block.view(values[name].data)
            kept = view.clone()
            view += torch.randn(view.shape, generator=generator, dtype=view.dtype) * kept.std()
            moved = moved_columns(before, heads_read(model, owner, batch))
            view.copy_(kept)
            group = layer.num_heads // getattr(layer, block.role).heads
            own = set().union(*(columns[h] for h in range(block.head * group, (block.head + 1) * group)))
            assert moved <= own or case.name in NORMALISED_TOGETHER, (
                f"{name} {block.role} {block.head} moves columns of other heads"
            )
            assert moved & own, f"{name} {block.role} {block.head} moves nothing"
            shown += 1
    assert shown == sum(p.heads for _, p in layer.projections("query", "key", "value"))


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_blocks_cover_every_matrix_once(case):
    model = case.model()
    blocks, values = wc.head_blocks(model), parameters(model)
    kernels = {
        id(m.weight) for m in model.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d)) and max(m.kernel_size) > 1
    }
    large = {id(p) for p in model.parameters() if p.ndim > 4 or (p.ndim == 4 and p.shape[2:].numel() > 1)}
    expected = {id(p) for p in model.parameters() if p.numel() > max(p.shape, default=0)} - kernels - large
    assert {id(values[name]) for name in blocks} == expected
    for name, parts in blocks.items():
        count = torch.zeros(values[name].shape)
        for block in parts:
            block.view(count).add_(1)
        assert bool((count == 1).all()), name


def test_every_head_of_the_views_has_its_block():
    model = CASES["hf-llama"].model()
    blocks = wc.head_blocks(model)
    for layer in wc.attention_layers(model):
        for role, projection in layer.projections():
            weights = projection.read()
            mine = [b for b in blocks[projection.weight.path] if b.role == role and b.layer == layer.name]
            assert [b.head for b in mine] == list(range(projection.heads))
            for block in mine:
                view = block.view(projection.parameter().detach())
                assert torch.equal(view.T if block.axis == 0 else view, weights[block.head])


def deepseek() -> tuple[nn.Module, dict[str, Tensor]]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 10}
    widths = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
    experts = {
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    }
    torch.manual_seed(0)
    model = DeepseekV3Model(DeepseekV3Config(vocab_size=50, **sizes, **heads, **widths, **experts)).eval()
    return model, {"input_ids": torch.randint(0, 50, (2, 7))}


def test_latent_attention_is_cut_by_a_batch():
    model, batch = deepseek()
    blocks = wc.head_blocks(model, batch)
    latent = blocks["layers.0.self_attn.kv_b_proj.weight"]
    assert [(b.role, b.head) for b in latent[:4]] == [("key", 0), ("value", 0), ("key", 1), ("value", 1)]
    assert blocks.split_sizes("layers.0.self_attn.kv_b_proj.weight") == [8, 6] * 4
    assert len(blocks["layers.0.self_attn.kv_a_proj_with_mqa.weight"]) == 1  # no heads there
    assert len(blocks["layers.1.mlp.experts.gate_up_proj"]) == 1
    assert blocks["layers.1.mlp.experts.gate_up_proj"][0].view(model.layers[1].mlp.experts.gate_up_proj).shape[0] == 4


def read_back(text: str, name: str, stored: Tensor) -> list[Tensor]:
    """The blocks as somebody who has only the JSON would cut them."""
    found = []
    for block in json.loads(text)[name]:
        index = torch.arange(block["width"]) * block["step"] + block["start"]
        found.append(stored.index_select(block["axis"], index))
    return found


def test_json_says_where_the_blocks_are(tmp_path):
    model = CASES["hf-gpt-neox"].model()
    blocks, values = wc.head_blocks(model), parameters(model)
    text = blocks.to_json(tmp_path / "blocks.json")
    assert (tmp_path / "blocks.json").read_text() == text + "\n"
    name = next(name for name, parts in blocks.items() if len(parts) > 1)
    cut = read_back(text, name, values[name])
    assert all(torch.equal(a, b.view(values[name])) for a, b in zip(cut, blocks[name], strict=True))


def interpreted(to: str, entry: dict[str, object], weight: Tensor) -> tuple[Tensor, ...]:
    """Cut a weight as the optimizer that an export is for would."""
    if to == "deepspeed":
        return weight.view(entry["muon_num_heads"], -1, weight.shape[1]).unbind(0)
    if to == "dion":
        if "num_heads" in entry:
            return weight.view(entry["num_heads"], -1, weight.shape[1]).unbind(0)
        return weight.split(entry["split_sizes"], 0)
    sizes = entry["qkv_split_shapes"]
    groups = weight.view(-1, sum(sizes), weight.shape[1])
    return tuple(part for group in groups for part in group.split(sizes, 0))


@pytest.mark.parametrize("to", ["deepspeed", "dion", "megatron"])
@pytest.mark.parametrize("name", ["hf-llama", "hf-falcon", "hf-gpt-neox"])
def test_exports_cut_the_same_blocks(to, name):
    model = CASES[name].model()
    blocks, values = wc.head_blocks(model), parameters(model)
    exported = blocks.export(to)
    assert exported, "nothing was exported"
    for parameter, entry in exported.items():
        cut = interpreted(to, entry, values[parameter].detach())
        assert len(cut) == len(blocks[parameter])
        assert all(torch.equal(a, b.view(values[parameter])) for a, b in zip(cut, blocks[parameter], strict=True))


def test_heads_of_unequal_roles_are_split_by_their_sizes():
    """All queries, then all keys, then all values: no groups, as Megatron has them, but runs of rows."""
    blocks = wc.head_blocks(CASES["hf-phi3"].model())
    name = next(name for name in blocks if "qkv_proj" in name)
    assert name not in blocks.export("megatron")
    assert blocks.export("deepspeed")[name] == {"muon_num_heads": len(blocks[name])}


def test_output_projections_are_not_exported():
    model = CASES["timm-vit"].model()
    assert not any("proj" in name for name in wc.head_blocks(model).export("deepspeed"))


def test_errors_name_the_parameter_and_the_way_on():
    blocks = wc.head_blocks(nn.TransformerEncoderLayer(8, 2, 16))
    with pytest.raises(wc.errors.WeightError, match=r"linear1.weight.*block.view"):
        blocks.split_sizes("linear1.weight")
    with pytest.raises(wc.errors.ArgumentError, match="no matrix of the model"):
        blocks.split_sizes("linear3.weight")
    assert isinstance(blocks, HeadBlocks)


def test_shared_and_parametrised_weights_have_their_blocks():
    attention = nn.MultiheadAttention(8, 2)
    nn.utils.parametrizations.weight_norm(attention.out_proj)
    assert len(wc.head_blocks(attention)["in_proj_weight"]) == 6
    spectral = nn.MultiheadAttention(8, 2)
    nn.utils.parametrizations.spectral_norm(spectral, "in_proj_weight")
    assert len(wc.head_blocks(spectral)["parametrizations.in_proj_weight.original"]) == 6
