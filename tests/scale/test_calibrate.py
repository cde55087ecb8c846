"""`wc.calibrate_`: β and g of every layer at their targets, measured by hooks that share nothing with it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
)

import wellcond as wc
from wellcond.errors import ArgumentError, BatchError, SchemeError, WellcondError
from wellcond.scale.measure_scales import measure_scales

VIT = {"img_size": 32, "depth": 3, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
IDS = {"vocab_size": 31, "max_position_embeddings": 32}
SIZES = IDS | {"hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 40, "num_attention_heads": 4}
BART = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
BART |= {"d_model": 24, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40} | IDS
SWIN = {"img_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (3, 6)}


def images() -> Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def ids() -> Tensor:
    return torch.randint(31, (4, 12), generator=torch.Generator().manual_seed(1))


def heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def fused(module: nn.Module, args: Any, kwargs: Any) -> Tensor:
    """Logits of timm's attention, without its bias."""
    x = args[0]
    q, k, _ = module.qkv(x).unflatten(-1, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return q @ k.mT * module.scale


def swin(module: nn.Module, args: Any, kwargs: Any) -> Tensor:
    logits = fused(module, args, kwargs) + module._get_rel_pos_bias()
    mask = args[1] if len(args) > 1 else kwargs.get("mask")
    if mask is None:
        return logits
    windows = logits.unflatten(0, (-1, len(mask))) + mask[:, None]
    return windows.flatten(0, 1)


def gpt2(module: nn.Module, args: Any, kwargs: Any) -> Tensor:
    q, k, _ = module.c_attn(args[0] if args else kwargs["hidden_states"]).split(24, -1)
    return causal(heads(q, 4) @ heads(k, 4).mT / math.sqrt(6))


def llama(module: nn.Module, args: Any, kwargs: Any) -> Tensor:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    x = kwargs["hidden_states"]
    q, k = heads(module.q_proj(x), 4), heads(module.k_proj(x), 2)
    q, k = apply_rotary_pos_emb(q, k, *kwargs["position_embeddings"])
    return causal(q @ k.repeat_interleave(2, 1).mT / math.sqrt(6))


def bert(module: nn.Module, args: Any, kwargs: Any) -> Tensor:
    x = args[0] if args else kwargs["hidden_states"]
    return heads(module.self.query(x), 4) @ heads(module.self.key(x), 4).mT / math.sqrt(6)


def bart(module: nn.Module, args: Any, kwargs: Any) -> Tensor:
    x = args[0] if args else kwargs["hidden_states"]
    memory = kwargs.get("key_value_states")
    logits = heads(module.q_proj(x), 3) @ heads(module.k_proj(x if memory is None else memory), 3).mT / math.sqrt(8)
    return causal(logits) if module.is_decoder and memory is None else logits


def causal(logits: Tensor) -> Tensor:
    n = logits.shape[-1]
    return logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)


def spread(logits: Tensor) -> Tensor:
    """β of every head, row by row."""
    found = []
    for row in logits.transpose(0, 1).flatten(1, 2).unbind(0):
        own = [r[r > -50] for r in row]
        found.append(torch.stack([r.std() / math.sqrt(2 * math.log(len(r))) for r in own if len(r) > 1]).mean())
    return torch.stack(found)


Maker = Callable[[], nn.Module]
MODELS: dict[str, tuple[Maker, Callable[[], Any], Callable[..., Tensor]]] = {
    "vit": (lambda: timm.create_model("vit_tiny_patch16_224", **VIT), images, fused),
    "deit": (lambda: timm.create_model("deit_tiny_distilled_patch16_224", **VIT), images, fused),
    "swin": (lambda: timm.create_model("swin_tiny_patch4_window7_224", **SWIN), images, swin),
    "gpt2": (lambda: GPT2Model(GPT2Config(vocab_size=31, n_positions=32, n_embd=24, n_layer=3, n_head=4)), ids, gpt2),
    "llama": (lambda: LlamaModel(LlamaConfig(**SIZES, num_key_value_heads=2)), ids, llama),
    "bert": (lambda: BertModel(BertConfig(**SIZES)), ids, bert),
    "bart": (lambda: BartModel(BartConfig(**BART)), ids, bart),
}


def made(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    build, batch, _ = MODELS[name]
    return build().eval(), batch()


@pytest.mark.parametrize("name", list(MODELS))
def test_every_layer_is_within_two_percent_of_its_targets(name: str) -> None:
    model, batch = made(name)
    found = wc.calibrate_(model, batch, beta=0.4, branch=0.3)
    assert not found.skipped
    logits_of = MODELS[name][2]
    layers = wc.attention_layers(model)
    betas: dict[str, Tensor] = {}
    hooks = [
        layer.module.register_forward_pre_hook(
            lambda module, args, kwargs, name=layer.name: betas.update({name: spread(logits_of(module, args, kwargs))}),
            with_kwargs=True,
        )
        for layer in layers
    ]
    with torch.no_grad():
        model(batch)
    for hook in hooks:
        hook.remove()
    assert len(betas) == len(layers)
    for layer in layers:
        assert betas[layer.name].tolist() == pytest.approx([0.4] * layer.num_heads, rel=0.02), layer.name
    for name_, gain in gains(model, batch, name).items():
        assert gain == pytest.approx(0.3, rel=0.02), name_


def gains(model: nn.Module, batch: Any, name: str) -> dict[str, float]:
    """g of layers whose stream and branch plain hooks reach: the block's input, the projection's output."""
    pairs = {
        "vit": [(f"blocks.{i}", f"blocks.{i}.attn.proj") for i in range(3)],
        "deit": [(f"blocks.{i}", f"blocks.{i}.attn.proj") for i in range(3)],
        "gpt2": [(f"h.{i}", f"h.{i}.attn.c_proj") for i in range(3)],
        "llama": [(f"layers.{i}", f"layers.{i}.self_attn.o_proj") for i in range(3)],
        "bert": [(f"encoder.layer.{i}", f"encoder.layer.{i}.attention.output.dense") for i in range(3)],
        "bart": [(f"encoder.layers.{i}", f"encoder.layers.{i}.self_attn.out_proj") for i in range(2)],
        "swin": [(f"layers.{i}.blocks.{j}", f"layers.{i}.blocks.{j}.attn.proj") for i in range(2) for j in range(2)],
    }[name]
    kept: dict[str, float] = {}

    def hook(path: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            x = out if "proj" in path or "dense" in path else next(iter((*args, *kwargs.values())))
            kept.setdefault(path, float(x.double().square().mean().sqrt()))

        return keep

    handles = [
        model.get_submodule(path).register_forward_hook(hook(path), with_kwargs=True) for pair in pairs for path in pair
    ]
    with torch.no_grad():
        model(batch)
    for handle in handles:
        handle.remove()
    return {block: kept[branch] / kept[block] for block, branch in pairs}


def test_a_qk_norm_is_calibrated_by_its_gain() -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **VIT, qk_norm=True).eval()
    weights = {name: p.clone() for name, p in model.named_parameters()}
    found = wc.calibrate_(model, images(), beta=0.7, branch=None)
    assert not found.skipped
    for scale in measure_scales(model, images()).values():
        assert sum(scale.beta) / 3 == pytest.approx(0.7, rel=0.02)  # type: ignore[arg-type]
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, weights[name])}
    assert changed == {f"blocks.{i}.attn.{k}_norm.weight" for i in range(3) for k in "qk"}


def test_targets_by_layer_and_head() -> None:
    model, batch = made("vit")
    names = [layer.name for layer in wc.attention_layers(model)]
    found = wc.calibrate_(model, batch, beta={names[1]: [0.1, 0.2, 0.3]}, branch=[0.5, 0.25, 0.125])
    assert found.after[names[1]].beta == pytest.approx((0.1, 0.2, 0.3), rel=2e-3)
    assert [found.after[name].branch for name in names] == pytest.approx([0.5, 0.25, 0.125], rel=1e-3)
    assert found.before[names[0]].beta == pytest.approx(found.after[names[0]].beta)


@pytest.mark.parametrize("targets", [{}, {"beta": 0.3, "branch": 0.2}], ids=["default", "given"])
def test_a_calibrated_scheme_is_the_scheme_then_the_calibration(targets: dict[str, float]) -> None:
    model, batch = made("vit")
    other = copy.deepcopy(model)
    wc.init_(model, "calibrated", batch=batch, base="orthogonal", seed=3, **targets)
    wc.init_(other, "orthogonal", seed=3)
    wc.calibrate_(other, batch, **targets)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    with pytest.raises(SchemeError, match="diagnose"):
        wc.audit(model, "calibrated", batch=batch)
    with pytest.raises(SchemeError, match="on its own"):
        wc.init_(model, {"qk": ("calibrated", {"batch": batch})})


def test_it_is_undone_and_put_back_when_it_fails() -> None:
    model, batch = made("gpt2")
    held = {key: value.clone() for key, value in model.state_dict().items()}
    wc.calibrate_(model, batch).undo_()
    assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())
    for wrong in (torch.randn(2, 3), "text"):
        with pytest.raises(BatchError):
            wc.calibrate_(model, wrong)
        with pytest.raises(BatchError):
            wc.init_(model, "calibrated", batch=wrong, base="conditioned")
        assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())


def test_a_view_that_does_not_rebuild_its_module_is_refused_whole() -> None:
    model, batch = made("vit")
    model.blocks[1].attn.qkv.register_forward_hook(lambda module, args, out: out + 1)
    held = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(WellcondError, match="its sharpness is not known"):
        wc.calibrate_(model, batch)
    assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}])
def test_half_precision(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **VIT, **options).eval().bfloat16()
    assert not wc.calibrate_(model, images().bfloat16(), beta=0.4, branch=0.3).skipped
    for scale in measure_scales(model.float(), images()).values():  # the same weights
        assert sum(scale.beta) / 3 == pytest.approx(0.4, rel=0.02)  # type: ignore[arg-type]
        assert scale.branch == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": -1.0}, "positive"),
        ({"beta": [0.3]}, "3 layers"),
        ({"beta": {"nowhere": 0.3}}, "nowhere"),
        ({"beta": {"blocks.0.attn": [0.3, 0.3]}}, "3 heads"),
        ({"branch": "1/L"}, "1/sqrt"),
        ({"branch": 0.0}, "positive"),
    ],
)
def test_wrong_targets(options: dict[str, Any], words: str) -> None:
    model, batch = made("vit")
    with pytest.raises(ArgumentError, match=words):
        wc.calibrate_(model, batch, **options)


def test_an_output_projection_of_two_layers_is_left_alone() -> None:
    model, batch = made("vit")
    model.blocks[1].attn.proj.weight = model.blocks[0].attn.proj.weight
    held = model.blocks[0].attn.proj.weight.detach().clone()
    found = wc.calibrate_(model, batch, beta=None, branch=0.3)
    assert [name for name, _, reason in found.skipped if "shared" in reason] == ["blocks.0.attn", "blocks.1.attn"]
    assert torch.equal(model.blocks[0].attn.proj.weight, held)


def test_what_has_no_meaning_is_said() -> None:
    torch.manual_seed(0)
    xcit = timm.create_model("xcit_nano_12_p16_224", img_size=32, depth=1, embed_dim=24, num_heads=3, cls_attn_layers=1)
    found = wc.calibrate_(xcit.eval(), images())
    assert ("blocks.0.attn", "beta") in {(name, what) for name, what, _ in found.skipped}
    sizes = {"img_size": 32, "window_size": 4, "embed_dim": 24, "depths": (1,), "num_heads": (3,)}
    post_norm = timm.create_model("swinv2_tiny_window8_256", **sizes)
    (left,) = wc.calibrate_(post_norm.eval(), images(), beta=None).skipped
    assert left[:2] == ("layers.0.blocks.0.attn", "branch")
    assert "norm" in left[2]


def test_a_branch_that_layer_scale_makes_small_is_left_alone_with_the_reason() -> None:
    """A gain of 0.06 would ask for W_O times a million; a LayerScale of 0.1 is met by W_O as any other number."""
    torch.manual_seed(0)
    model = timm.create_model("deit3_small_patch16_224", depth=2)
    before = [block.attn.proj.weight.clone() for block in model.blocks]
    batch = torch.randn(2, 3, 224, 224)
    found = wc.calibrate_(model, batch)
    assert [left[:2] for left in found.skipped] == [(f"blocks.{i}.attn", "branch") for i in (0, 1)]
    assert "LayerScale" in found.skipped[0][2]
    assert "branch=None" in found.skipped[0][2]
    assert all(torch.equal(block.attn.proj.weight, w) for block, w in zip(model.blocks, before, strict=True))
    assert [beta for scale in found.after.values() for beta in scale.beta] == pytest.approx([0.35] * 12, rel=0.02)
    with torch.no_grad():
        for block in model.blocks:
            block.ls1.gamma.fill_(0.1)
    again = wc.calibrate_(model, batch)
    assert not again.skipped
    assert [scale.branch for scale in again.after.values()] == pytest.approx([0.06] * 2, rel=0.02)
