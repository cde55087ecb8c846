"""Where a model stands: weights against dense algebra, measurements against other code, predictions against both.

Seeded. Tolerances are rounding, standard errors, or the accuracy that the theory is documented to have.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wellcond as wc
from tests.cases import CASES
from wellcond._core.json_safe import to_json
from wellcond.errors import WellcondError
from wellcond.placement.check import PropagationCheck, check_propagation
from wellcond.placement.locate import locate
from wellcond.placement.placed_blocks import place_blocks
from wellcond.placement.result import LayerPlacement
from wellcond.propagation.activation_kernels import gated, kernel

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")


def equicorrelated(batch: int, tokens: int, width: int, cosine: float, seed: int) -> Tensor:
    """LayerNormed tokens of this mean cosine."""
    draw = torch.Generator().manual_seed(1000 + seed)  # no numbers that a model of that seed has
    common, own = (torch.randn(batch, n, width, generator=draw) for n in (1, tokens))
    return functional.layer_norm(math.sqrt(cosine) * common + math.sqrt(1 - cosine) * own, (width,))


def vit_blocks(depth: int, seed: int, width: int = 768, heads: int = 12, **options: Any) -> nn.Sequential:
    """timm's blocks with every matrix N(0, .02²)."""
    from timm.models.vision_transformer import Block

    torch.manual_seed(seed)
    model = nn.Sequential(*(Block(width, heads, qkv_bias=True, **options) for _ in range(depth)))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    return model


def shifted(strength: float, mode: str) -> Callable[[nn.Module, int], Any]:
    return lambda model, seed: wc.condition_(model, "shift", strength=strength, mode=mode)


INITS: dict[str, Callable[[nn.Module, int], Any]] = {
    "default": lambda model, seed: None,
    "conditioned": lambda model, seed: wc.init_(model, "conditioned", seed=seed),
    "mimetic": lambda model, seed: wc.init_(model, "mimetic", seed=seed),
    "W + I": shifted(1.0, "folded"),
    "W + 2 I": shifted(2.0, "live"),
    "W + 10 I": shifted(10.0, "folded"),
}


def average(spots: list[LayerPlacement], name: str) -> float:
    return sum(getattr(spot, name) for spot in spots) / len(spots)


# ------------------------------------------------------------------------------------ from weights, on random tokens


BRIEF = [("conditioned", 0.7), ("W + I", 0.2)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # one-hot attention is what these shifts are about
@pytest.mark.parametrize(
    ("init", "cosine"),
    [
        pytest.param(init, cosine, marks=[] if (init, cosine) in BRIEF else pytest.mark.long)
        for init in INITS
        for cosine in (0.2, 0.7)
    ],
)
def test_weights_alone_give_the_attention_of_a_vit_base_block(init: str, cosine: float) -> None:
    # What a sequence has in common is one draw, of which all heads with an identity see the same 64 coordinates: these
    # scatter from sequence to sequence, not from head to head, so that it takes many draws to know how much.
    spots, draws = [], 16 if init.startswith("W") else 4
    for seed in range(draws):
        model = vit_blocks(1, seed)
        INITS[init](model, seed)
        spots += locate(model, equicorrelated(3, 197, 768, cosine, seed)).layers
    assert average(spots, "beta_batch") == pytest.approx(average(spots, "beta_weights"), rel=0.06)
    assert average(spots, "shift_batch") == pytest.approx(average(spots, "shift_weights"), rel=0.06, abs=0.05)
    for name in ("entropy", "participation"):
        scatter = torch.tensor([getattr(spot, f"{name}_batch") for spot in spots]).std() / math.sqrt(draws)
        gap = average(spots, f"{name}_batch") - average(spots, f"{name}_predicted")
        assert abs(gap) < 0.01 + 2 * scatter, f"{name}: standard error {scatter:.4f}"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("cosine", [0.2, 0.7])
@pytest.mark.parametrize("init", list(INITS))
def test_weights_alone_give_the_cosine_through_twelve_vit_base_blocks(init: str, cosine: float) -> None:
    errors = []
    for seed in range(3):
        model = vit_blocks(12, seed)
        INITS[init](model, seed)
        errors.append(cosine_errors(check_propagation(model, equicorrelated(2, 197, 768, cosine, seed))))
    each = torch.tensor(errors)
    noise = each.std(0).mean() / math.sqrt(3)  # a network scatters by 0.02 to 0.04
    assert each.mean(0).abs().mean() < 0.03 + 2 * noise, f"standard error {noise:.3f}"


def cosine_errors(check: PropagationCheck) -> list[float]:
    (stretch,) = check.stretches
    return [p - m for p, m in zip(stretch.predicted.cosine, stretch.measured.cosine, strict=True)]


@pytest.mark.parametrize("init", ["default", "conditioned"])
def test_weights_alone_give_the_cosine_through_eight_small_blocks(init: str) -> None:
    errors = []
    for seed in range(4):
        model = vit_blocks(8, seed, 384, 6)
        INITS[init](model, seed)
        errors.append(cosine_errors(check_propagation(model, equicorrelated(2, 64, 384, 0.2, seed))))
    each = torch.tensor(errors)
    bound = 0.03 + 2 * each.std(0).mean() / 2  # two standard errors of the mean of four networks
    assert each.mean(0).abs().mean() < bound


def test_a_trace_of_the_value_output_product_is_needed_for_mimetic() -> None:
    model = vit_blocks(2, 0, 384, 6)
    wc.init_(model, "mimetic", seed=0)
    spot = locate(model, equicorrelated(2, 64, 384, 0.2, 0)).layers[0]
    assert spot.value_gain[2] == pytest.approx(-0.4, abs=0.02)  # W_V W_O = 0.4 Z − 0.4 I; tr Z ÷ D ~ 0.4/√D


# ---------------------------------------------------------------------------------------- weights, by dense algebra


@torch.no_grad()
def move(model: nn.Module, seed: int) -> nn.Module:
    """Gains away from 1 and biases from 0."""
    torch.manual_seed(2000 + seed)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def test_numbers_of_a_llama_block_are_those_of_dense_matrices() -> None:
    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 80}
    config = transformers.LlamaConfig(vocab_size=50, num_hidden_layers=1, **sizes)
    model = move(transformers.LlamaModel(config), 0).double()
    spot = locate(model, {"input_ids": torch.randint(0, 50, (2, 9))}).layers[0]
    block = model.layers[0]
    g, m = block.input_layernorm.weight.diag(), block.post_attention_layernorm.weight.diag()
    q, k, v = (g @ getattr(block.self_attn, f"{name}_proj").weight.T for name in "qkv")
    o = block.self_attn.o_proj.weight.T
    pairs = [(slice(8 * h, 8 * h + 8), slice(8 * (h // 3), 8 * (h // 3) + 8)) for h in range(6)]  # 3 heads share a key
    logits = [q[:, mine] @ k[:, shared].T / math.sqrt(8) for mine, shared in pairs]
    products = [v[:, shared] @ o[mine] for mine, shared in pairs]
    assert spot.beta_weights == pytest.approx(rms([m.norm() for m in logits]) / math.sqrt(math.log(spot.tokens)))
    assert spot.self_bias_weights == pytest.approx(float(sum(m.trace() for m in logits)) / 6)
    dims = [float(m.norm() ** 4 / (m @ m.T).norm() ** 2) for m in logits]
    assert spot.head_dim_effective == pytest.approx(6 / sum(1 / d for d in dims))
    whole = sum(products)
    assert spot.value_gain == pytest.approx(
        (float(sum(p.norm() ** 2 for p in products)) / 48, float(whole.norm() ** 2) / 48, float(whole.trace()) / 48)
    )
    gate, up, down = (getattr(block.mlp, f"{name}_proj").weight for name in ("gate", "up", "down"))
    assert spot.mlp_gain == pytest.approx((float((m @ gate.T).norm() ** 2) / 80, float(down.norm() ** 2) / 48))
    assert spot.gate_gain == pytest.approx(float((m @ up.T).norm() ** 2) / 80)


def rms(numbers: list[Tensor]) -> float:
    return math.sqrt(sum(float(n.detach()) ** 2 for n in numbers) / len(numbers))


@torch.no_grad()
def test_layer_scale_and_biases_are_folded_in() -> None:
    model = move(vit_blocks(1, 0, 24, 3, init_values=0.5), 1).double()
    spot = locate(model, torch.randn(2, 7, 24, dtype=torch.float64)).layers[0]
    block = model[0]
    g, b, first, second = block.norm1.weight.diag(), block.norm1.bias, block.ls1.gamma, block.ls2.gamma
    q, k, v = (block.attn.qkv.weight.T[:, 24 * i : 24 * i + 24] for i in range(3))
    bias_q, _, bias_v = block.attn.qkv.bias.view(3, 24)
    product = g @ v @ block.attn.proj.weight.T @ first.diag()
    added = ((b @ v + bias_v) @ block.attn.proj.weight.T + block.attn.proj.bias) * first
    assert spot.value_gain[1:] == pytest.approx((float(product.norm() ** 2) / 24, float(product.trace()) / 24))
    hidden = block.norm2.bias @ block.mlp.fc1.weight.T + block.mlp.fc1.bias
    out = block.mlp.fc2.bias * second
    # The gain is asked of the norm, whose ε = 1e-6 shows.
    assert spot.bias == pytest.approx([float(x.square().mean()) for x in (added, hidden, out)])
    assert spot.mlp_gain[1] == pytest.approx(float((second.diag() @ block.mlp.fc2.weight).norm() ** 2) / 24)
    heads = [slice(8 * h, 8 * h + 8) for h in range(3)]
    heat = [(g @ q[:, h] @ k[:, h].T @ g).norm() ** 2 + (g @ k[:, h] @ (b @ q + bias_q)[h]).norm() ** 2 for h in heads]
    assert spot.beta_weights == pytest.approx(math.sqrt(float(sum(heat)) / 3 / 8 / math.log(7)), rel=1e-5)


def test_the_variance_of_logits_with_gains_and_biases_is_that_of_random_tokens() -> None:
    ratios = []
    for seed in range(24):
        model = move(vit_blocks(1, seed, 64, 2), seed)
        ratios.append(1 + (locate(model, equicorrelated(4, 64, 64, 0.3, seed)).layers[0].discrepancy or 0.0))
    each = torch.tensor(ratios).square()
    # LayerNorm takes one direction of 64 away.
    assert abs(float(each.mean()) - 1) < 4 * float(each.std()) / math.sqrt(24) + 2 / 64


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_live_and_folded_corrections_read_the_same() -> None:
    spots = []
    for mode in ("live", "folded"):
        model = vit_blocks(1, 0, 48, 3)
        handle = wc.condition_(model, "shift", strength=2.0, mode=mode)
        spots.append(locate(model, equicorrelated(1, 9, 48, 0.2, 0)).layers[0])
        assert handle.active
    assert spots[0].self_bias_weights == pytest.approx(spots[1].self_bias_weights)
    # 16 ones of λ² = 4 and of W's own noise, ÷ √16
    assert spots[0].self_bias_weights == pytest.approx(16 * 4 / 4, rel=0.05)


# ------------------------------------------------------------------------------------------------- wiring


class Scaled(nn.Module):
    """α x + f(LN(x)) twice: neither torch nor timm."""

    def __init__(self, parallel: bool = False) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(24), nn.LayerNorm(24)
        self.attn = nn.MultiheadAttention(24, 3, batch_first=True)
        self.up, self.down = nn.Linear(24, 40), nn.Linear(40, 24)
        self.parallel = parallel

    def forward(self, x: Tensor) -> Tensor:
        normed = self.before(x)
        y = 0.7 * x + self.attn(normed, normed, normed)[0]
        out: Tensor = self.down(functional.silu(self.up(self.between(x if self.parallel else y))))
        return y + out if self.parallel else 1.3 * y + out


def test_skips_and_activations_are_found_without_names() -> None:
    torch.manual_seed(0)
    (one,), skipped = place_blocks(Scaled(), torch.randn(2, 6, 24))
    assert (one.wiring.norm, skipped) == ("pre", {})
    assert one.wiring.attention.skip == pytest.approx(0.7, abs=1e-5)
    assert one.wiring.mlp.skip == pytest.approx(1.3, abs=1e-5)
    half = torch.tensor(0.5, dtype=torch.float64)
    assert one.activation.kernel.value(half, half / 2) == kernel(functional.silu).value(half, half / 2)


def test_parallel_branches_are_refused_with_the_reason() -> None:
    with pytest.raises(WellcondError, match="side by side"):
        locate(Scaled(parallel=True), torch.randn(2, 6, 24))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_encoders_are_mapped_with_padding(first: bool, batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=batch_first, norm_first=first)
    model = nn.TransformerEncoder(layer, 2).train()
    x, hidden = torch.randn(3, 20, 48), torch.zeros(3, 20, dtype=torch.bool)
    hidden[1, 12:] = True
    spot = locate(model, {"src": x if batch_first else x.transpose(0, 1), "src_key_padding_mask": hidden})
    assert [one.norm for one in spot.layers] == ["pre" if first else "post"] * 2
    assert spot.layers[0].tokens == pytest.approx((40 * 20 + 12 * 12) / 52)
    kept = [x[0], x[1, :12], x[2]]
    overlaps = [(rows.sum(0).square().sum() - rows.square().sum()) / (len(rows) * (len(rows) - 1)) for rows in kept]
    sizes = [rows.square().sum(1).mean() for rows in kept]
    assert spot.layers[0].cosine == pytest.approx(float(sum(overlaps) / sum(sizes)), abs=1e-6)


def test_norm_gains_of_post_norm_blocks_scale_the_skip() -> None:
    torch.manual_seed(0)
    blocks = [nn.TransformerEncoderLayer(256, 4, 512, batch_first=True) for _ in range(4)]
    for block in blocks:
        for norm in (block.norm1, block.norm2):
            nn.init.uniform_(norm.weight, 1.0, 2.0)
            nn.init.normal_(norm.bias, std=0.7)
    check = check_propagation(nn.Sequential(*blocks), equicorrelated(4, 32, 256, 0.2, 0))
    # One network: a cosine of D = 256 scatters by 1/√D from layer to layer.
    assert check.errors["cosine"] < 2 / 16
    # 1 − H ÷ log T goes like 1 − cosine: about 0.1 here, off by as much as the cosine is.
    assert check.errors["entropy"] < 0.02


REASONS = {
    "no MLP beside it": "torch-mha torch-mha-separate timm-attention-masked timm-vit-parallel-scaling hf-gpt-oss",
    "more than one attention layer": "torch-decoder timm-vit-parallel hf-bert-cross hf-gpt2-cross",
    "windows": "torchvision-swin torchvision-maxvit timm-swin timm-swin-v2 timm-davit timm-davit-v2 timm-maxvit-rw "
    "timm-maxvit-tf timm-maxvit-nchw timm-coatnet",
    "not simply added": "torchvision-swin-v2 hf-gemma2 hf-olmo2",
    "before the output projection": "timm-vit-qk-norm timm-twins-svt hf-qwen3.5",
    "not softmax attention": "timm-cait timm-xcit hf-nystromformer",
    "more than an activation": "timm-eva02-separate timm-pvt-v2 timm-pvt-v2-linear",
    "side by side": "hf-gpt-neox hf-gptj hf-falcon hf-falcon-alibi hf-cohere2",
}
REFUSED = {name: reason for reason, names in REASONS.items() for name in names.split()}


@pytest.mark.parametrize("name", list(CASES))
def test_every_model_is_mapped_or_refused_with_a_reason(name: str) -> None:
    case = CASES[name]
    model, batch, names = case.model().double(), case.batch(), {layer for layer, _ in case.layers}
    if name in REFUSED:
        with pytest.raises(WellcondError, match=REFUSED[name]):
            locate(model, batch)
        return
    spot = locate(model, batch)
    assert {one.layer for one in spot.layers} | set(spot.skipped) >= names
    assert all(math.isfinite(x) for one in spot.layers for x in (one.entropy_predicted, one.entropy_batch, one.size))
    assert all(spot.skipped.values())


# ------------------------------------------------------------------------- measurements, against transformers' own


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_measurements_are_those_of_the_models_own_attention(kind: str) -> None:
    torch.manual_seed(0)
    mask = torch.ones(2, 12, dtype=torch.long)
    if kind == "bert":
        sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 2}
        config = transformers.BertConfig(vocab_size=40, attn_implementation="eager", **sizes)
        model = move(transformers.BertModel(config), 0).double().eval()
        mask[1, 7:] = 0
    else:
        sizes = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 16}
        config = transformers.GPT2Config(vocab_size=40, attn_implementation="eager", **sizes)
        model = move(transformers.GPT2Model(config), 0).double().eval()
    batch = {"input_ids": torch.randint(0, 40, (2, 12)), "attention_mask": mask}
    spot = locate(model, batch)
    with torch.no_grad():
        attentions = model(**batch, output_attentions=True).attentions
    for one, attention in zip(spot.layers, attentions, strict=True):
        columns, spreads, shifts, entropies, squares, own = [], [], [], [], [], []
        for b in range(2):
            for t in range(int(mask[b].sum())):
                seen = t + 1 if kind == "gpt2" else int(mask[b].sum())
                for head in attention[b, :, t, :seen] if seen > 1 else []:
                    # Logits are the logarithms but for a constant of the row, which neither variance nor shift sees.
                    others = torch.cat([head[:t], head[t + 1 :]]).log()
                    columns.append(seen)
                    shifts.append(head[t].log() - others.mean())
                    entropies.append(-(head * head.log()).sum() / math.log(seen))
                    squares.append(head.square().sum())
                    own.append(head[t])
                    if seen > 2:
                        spreads.append(others.var())
        found = [float(torch.stack(x).mean()) for x in (shifts, entropies, squares, own)]
        assert [one.shift_batch, one.entropy_batch, one.participation_batch, one.own_batch] == pytest.approx(found)
        assert one.tokens == pytest.approx(sum(columns) / len(columns))
        read = map_of(model, batch, one.layer).batch.read
        scale = read.size * (read.size - read.overlap) * math.log(one.tokens)
        assert one.beta_batch == pytest.approx(math.sqrt(float(torch.stack(spreads).mean()) / scale))


def map_of(model: nn.Module, batch: Any, layer: str) -> Any:
    return next(one for one in place_blocks(model, batch)[0] if one.layer.name == layer)


REAL: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "timm vit_tiny": lambda: (timm.create_model("vit_tiny_patch16_224", depth=4), torch.randn(2, 3, 224, 224)),
    "hf bert": lambda: (
        transformers.BertModel(
            transformers.BertConfig(hidden_size=256, num_attention_heads=4, intermediate_size=512, num_hidden_layers=4)
        ),
        {"input_ids": torch.randint(0, 30000, (4, 64)), "attention_mask": padding(4, 64)},
    ),
    "hf gpt2": lambda: (
        transformers.GPT2Model(transformers.GPT2Config(n_embd=256, n_head=4, n_layer=4)),
        {"input_ids": torch.randint(0, 50000, (4, 64))},
    ),
    "hf llama": lambda: (
        transformers.LlamaModel(
            transformers.LlamaConfig(
                hidden_size=256,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=512,
                num_hidden_layers=4,
            )
        ),
        {"input_ids": torch.randint(0, 30000, (4, 64))},
    ),
    "torch encoder": lambda: (
        redrawn(nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 4)),
        equicorrelated(4, 64, 256, 0.2, 0),
    ),
}


def redrawn(encoder: nn.Module) -> nn.Module:
    """nn.TransformerEncoder copies one layer; independent ones are what the theory is about."""
    for parameter in encoder.parameters():
        if parameter.ndim == 2:
            nn.init.xavier_uniform_(parameter)
    return encoder


def padding(batch: int, length: int) -> Tensor:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    return mask


@pytest.mark.parametrize("name", list(REAL))
def test_predictions_hold_for_real_models_at_their_own_initialisation(name: str) -> None:
    torch.manual_seed(0)
    model, batch = REAL[name]()
    check = check_propagation(model, batch)
    assert not check.skipped
    # One network of D = 192 or 256: cosines scatter by about 1/√D, 0.06; entropies are nearly exact.
    assert check.errors["cosine"] < 0.08
    assert check.errors["entropy"] < 0.01
    assert check.errors["participation"] < 0.01


def test_copies_of_one_layer_are_pointed_out() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 2)
    assert any("equal weights" in note for note in check_propagation(model, torch.randn(2, 6, 32)).notes)


def test_a_gap_is_reported_on_a_photograph() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    photo = torch.tensor(datasets.load_sample_image("china.jpg")).permute(2, 0, 1)[None] / 255
    pixels = functional.interpolate(photo, (224, 224), mode="bilinear", antialias=True) * 2 - 1
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", depth=4)
    spot = locate(model, pixels)
    worst = max(spot.layers, key=lambda one: abs(math.log(1 + (one.discrepancy or 0.0))))
    assert abs(worst.discrepancy or 0.0) > 0.2
    (note,) = (note for note in spot.notes if "isotropic" in note)
    assert f"In {worst.layer} measured β is {1 + (worst.discrepancy or 0.0):.2g} × what weights say" in note


def test_where_weights_do_not_set_the_temperature_the_batch_does() -> None:
    torch.manual_seed(0)
    model, batch = vit_blocks(2, 0, 96, 3, qk_norm=True), equicorrelated(4, 32, 96, 0.2, 0)
    spot = locate(model, batch)
    assert spot.layers[0].beta_weights is None
    assert spot.layers[0].discrepancy is None
    assert spot.layers[0].entropy_predicted == pytest.approx(spot.layers[0].entropy_batch, abs=0.02)
    assert any("normalised" in note for note in spot.notes)
    assert check_propagation(model, batch).errors["entropy"] < 0.02


# ------------------------------------------------------------------------------------------------- gated kernel


def test_a_gated_kernel_is_the_mean_over_gaussians() -> None:
    torch.manual_seed(0)
    q, p, ratio = 0.8, 0.3, 1.7
    root = torch.linalg.cholesky(torch.tensor([[q, p], [p, q]], dtype=torch.float64))
    gate, up = (torch.randn(400_000, 2, dtype=torch.float64) @ root.T for _ in range(2))
    values = (functional.silu(gate) * math.sqrt(ratio) * up).prod(1)
    found = gated(kernel(functional.silu), ratio)
    at = torch.tensor(q, dtype=torch.float64), torch.tensor(p, dtype=torch.float64)
    assert abs(float(values.mean() - found.value(*at))) < 4 * float(values.std()) / math.sqrt(len(values))
    step = 1e-5
    slope = (found.value(at[0], at[1] + step) - found.value(at[0], at[1] - step)) / (2 * step)
    assert float(found.slope(*at)) == pytest.approx(
        float(slope), rel=1e-7
    )  # Price's theorem; differences are off by h²


# ------------------------------------------------------------------------------------------------- results


def test_the_model_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", depth=2, drop_rate=0.1, attn_drop_rate=0.1).train()
    model.blocks[0].eval()
    batch = torch.randn(1, 3, 224, 224)
    model(batch).sum().backward()
    weights = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    state = torch.get_rng_state()
    fast = torch.backends.mha.get_fastpath_enabled()
    locate(model, batch)
    check_propagation(model, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_results_read_well(tmp_path: Any) -> None:
    from dataclasses import asdict

    model, batch = vit_blocks(3, 0, 96, 3), equicorrelated(2, 16, 96, 0.2, 0)
    spot, check = locate(model, batch), check_propagation(model, batch)
    for text in (str(spot), str(check)):
        assert max(map(len, text.splitlines())) <= 100
    assert len(spot.records()) == 3 * 5
    assert {record["quantity"] for record in check.records()} == {"cosine", "entropy", "participation", "own"}
    assert [record["block"] for record in check.records()[::4]] == [0, 1, 2]
    assert json.loads(to_json(asdict(spot)))["layers"][0]["layer"] == "0.attn"
    figure = check.plot(tmp_path / "check.png")
    assert (tmp_path / "check.png").stat().st_size > 0
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 2]


def test_the_prediction_starts_anew_behind_other_layers() -> None:
    torch.manual_seed(0)
    first, second = vit_blocks(1, 0, 48, 3), vit_blocks(1, 1, 48, 3)
    model = nn.Sequential(first[0], nn.Linear(48, 48), second[0])
    check = check_propagation(model, torch.randn(2, 8, 48))
    assert [stretch.layers for stretch in check.stretches] == [("0.attn",), ("2.attn",)]
    assert check.stretches[1].predicted.cosine[0] == pytest.approx(check.stretches[1].measured.cosine[0])
    assert any("anew" in note for note in check.notes)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (torch.randn(2, 1, 24), "no token sees itself and another"),
        (torch.full((2, 5, 24), math.nan), "not finite"),
        (torch.zeros(2, 5, 24), "all zero"),
    ],
)
def test_batches_that_say_nothing_are_refused(batch: Tensor, reason: str) -> None:
    with pytest.raises(WellcondError, match=reason):
        locate(vit_blocks(1, 0, 24, 3), batch)


def test_half_precision_is_measured_in_single() -> None:
    model, batch = vit_blocks(1, 0, 96, 3), equicorrelated(2, 16, 96, 0.2, 0)
    exact = locate(model, batch).layers[0]
    half = locate(model.bfloat16(), batch.bfloat16()).layers[0]
    # bfloat16 has 8 bits: weights and tokens are off by 2⁻⁹ each.
    assert half.beta_batch == pytest.approx(exact.beta_batch, rel=0.02)
    assert half.beta_weights == pytest.approx(exact.beta_weights, rel=0.02)
