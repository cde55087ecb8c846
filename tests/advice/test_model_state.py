"""What is out of line in a model is named, and nothing of it in fresh ones."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Qwen3Config,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
)

import wellcond as wc
from tests.advice.models import BUILD, broken, data, fresh
from wellcond.advice.candidates import Candidate
from wellcond.advice.model_state import ModelState, measure_state
from wellcond.advice.stream_entry import measure_entry
from wellcond.inputs.objective import Objective

WORDS = {"q": "queries and keys", "o": "output projections", "e": "the embedding"}


def state_of(model: nn.Module, kind: str) -> ModelState:
    inputs = Objective().inputs(model, data(kind, 1)[0][0])
    return measure_state(copy.deepcopy(model), inputs, wc.attention_layers(model))


@pytest.mark.parametrize("kind", BUILD)
@pytest.mark.parametrize("what", ["", "q", "o", "e", "qo", "qoe"])
def test_what_was_broken_is_named_and_nothing_else(kind, what):
    found = state_of(broken(kind, what), kind)
    assert [finding.what for finding in found.findings] == [WORDS[letter] for letter in "qoe" if letter in what]
    assert bool(found.embedding) == ("e" in what)


@pytest.mark.parametrize("kind", BUILD)
def test_usual_sizes_are_those_before_the_weights_were_broken(kind):
    """Within a tenth: they are told by other weights of the same model, each a draw."""
    sizes = state_of(broken(kind, "qo"), kind).sizes
    assert sizes == pytest.approx({"query": 1 / 8, "key": 1 / 8, "output": 1 / 10}, rel=0.1)
    model = broken(kind, "qo")
    Candidate(sizes=sizes).apply_(model, None)
    for now, then in zip(wc.attention_layers(model), wc.attention_layers(fresh(kind)), strict=True):
        for role, projection in now.projections():
            assert torch.allclose(projection.read(), getattr(then, role).read(), rtol=0.1)


def test_what_no_factor_mends_has_no_usual_size():
    model = fresh("vit")
    with torch.no_grad():
        for block in model.blocks:
            block.norm1.weight.mul_(20)
    found = state_of(model, "vit")
    assert [finding.what for finding in found.findings] == ["queries and keys"]
    assert found.sizes == {}


@pytest.mark.parametrize("kind", BUILD)
def test_a_large_embedding_is_brought_back_to_a_usual_size(kind):
    own, large = state_of(fresh(kind), kind), state_of(broken(kind, "e"), kind)
    assert large.entry.size > 10 * own.entry.size  # positions stay
    back = large.entry.size * large.smaller
    assert back == pytest.approx(1 if kind == "vit" else own.entry.size, rel=0.3)


FRESH = {
    "deit": lambda: timm.create_model("deit_tiny_patch16_224", depth=2),
    "deit3": lambda: timm.create_model("deit3_small_patch16_224", depth=2),
    "swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 2, 1)),
    "cait": lambda: timm.create_model("cait_xxs24_224", depth=2),
    "hf vit": lambda: AutoModel.from_config(ViTConfig(num_hidden_layers=2, hidden_size=96, num_attention_heads=3)),
    "bert": lambda: BertForMaskedLM(BertConfig(num_hidden_layers=2, hidden_size=96, num_attention_heads=3)),
    "neox": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(num_hidden_layers=2, hidden_size=96, num_attention_heads=3, vocab_size=99)
    ),
    "torch": lambda: encoder(48),
    # What attention adds is normed, and several times the small stream of the embedding.
    "gemma2": lambda: AutoModel.from_config(Gemma2Config(**WIDE, num_key_value_heads=2, head_dim=16, vocab_size=99)),
    "olmo2": lambda: AutoModel.from_config(Olmo2Config(**WIDE, num_key_value_heads=4, vocab_size=99)),
    # A stem of many maps, some drawn much larger than blocks.
    "maxvit": lambda: timm.create_model("maxvit_rmlp_pico_rw_256", img_size=64),
    "torch's embedding": lambda: nn.Sequential(nn.Embedding(99, 256), encoder(256)),
}
WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def encoder(width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.mark.parametrize("name", FRESH)
def test_fresh_models_of_libraries_are_in_line(name):
    torch.manual_seed(0)
    model = FRESH[name]()
    of_ids = name in ("bert", "neox", "gemma2", "olmo2", "torch's embedding")
    size = 64 if name == "maxvit" else 224
    images = torch.randn(2, 9, 48) if name == "torch" else torch.randn(1, 3, size, size)
    inputs = torch.arange(40)[None] if of_ids else images
    assert measure_state(model, inputs, wc.attention_layers(model)).findings == ()


def test_the_entering_stream_is_that_of_the_model_and_its_parts_are_of_one_parameter_each():
    model = fresh("gpt2")
    ids = data("gpt2", 1)[0][0]["input_ids"]
    before = copy.deepcopy(model.state_dict())
    entry = measure_entry(model, {"input_ids": ids}, wc.attention_layers(model))
    tokens, positions = model.transformer.wte(ids), model.transformer.wpe(torch.arange(ids.shape[1]))
    sizes = {name: float(x.detach().square().mean().sqrt()) for name, x in (("wte", tokens), ("wpe", positions))}
    assert entry.size == pytest.approx(float((tokens + positions).detach().square().mean().sqrt()), rel=1e-6)
    assert entry.parts == pytest.approx({f"transformer.{name}.weight": size for name, size in sizes.items()}, rel=1e-6)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_a_stream_behind_a_norm_has_no_parts_as_nothing_scales_it():
    model = BertForMaskedLM(BertConfig(num_hidden_layers=1, hidden_size=48, num_attention_heads=3, vocab_size=99))
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)
    entry = measure_entry(model, torch.arange(40)[None], wc.attention_layers(model))
    assert entry.size == pytest.approx(1, rel=0.01)
    assert entry.parts == {}


def test_what_a_norm_hides_of_a_large_embedding_is_named_all_the_same():
    model = BertForMaskedLM(BertConfig(num_hidden_layers=1, hidden_size=48, num_attention_heads=3, vocab_size=99))
    table = model.get_input_embeddings().weight
    deviation = float(table.detach().square().mean().sqrt())
    with torch.no_grad():
        table.mul_(20)
    found = measure_state(model, torch.arange(40)[None], wc.attention_layers(model))
    assert [finding.what for finding in found.findings] == ["the embedding"]
    assert "a norm hides it" in found.findings[0].text
    path = "bert.embeddings.word_embeddings.weight"
    assert found.embedding == pytest.approx({path: 1 / 20}, rel=0.2)  # by the blocks' weights, of the same law
    assert found.embedding[path] * 20 * deviation < 2 * deviation
    assert found.smaller == 1


def test_patches_before_a_norm_are_seen_too():
    model = timm.create_model("vit_base_patch16_clip_224", depth=2, embed_dim=48, num_heads=3)
    assert model.patch_embed.proj.bias is None
    with torch.no_grad():
        model.patch_embed.proj.weight.mul_(20)
    found = measure_state(model, torch.randn(1, 3, 224, 224), wc.attention_layers(model))
    assert [finding.what for finding in found.findings] == ["the embedding"]
    assert set(found.embedding) == {"patch_embed.proj.weight"}


class OnlyAttention(nn.Module):
    """One attention between two maps: no MLP, so no block."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.o = nn.Linear(4, 32), nn.Linear(32, 1)
        self.a = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        return self.o(h + self.a(h, h, h)[0])


class RootIsBlock(OnlyAttention):
    """The same with an MLP beside the attention: the model is its own block, and is given the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        h = h + self.a(h, h, h)[0]
        return self.o(h + self.mlp(h))


DEEP = {
    "vit": lambda: timm.create_model("vit_tiny_patch16_224", depth=4, embed_dim=48, num_heads=3),
    "swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1)),
    "gpt2": lambda: fresh("gpt2"),
    "t5": lambda: WITHOUT_CALLED_BLOCKS["t5"](),
    "mixtral": lambda: WITHOUT_CALLED_BLOCKS["mixtral"](),
}
ROLES = {"queries and keys": ("query", "key"), "values": ("value",), "output projections": ("output",)}


@pytest.mark.parametrize("what", ROLES)
@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("which", [0, -1])
def test_one_layer_that_is_out_of_line_is_named_and_nothing_else(name, what, which):
    torch.manual_seed(0)
    model = DEEP[name]()
    layers = wc.attention_layers(model)
    for role in ROLES[what]:
        projection = getattr(layers[which], role)
        projection.write_((10 if role == "output" else 8) * projection.read())
    ids = torch.arange(16)[None]
    inputs = {"t5": {"input_ids": ids, "decoder_input_ids": ids}, "gpt2": ids, "mixtral": ids}
    found = measure_state(model, inputs.get(name, torch.randn(1, 3, 224, 224)), layers)
    assert [finding.what for finding in found.findings] == [what]
    assert [layer.name for layer in layers if f"'{layer.name}'" in found.findings[0].text] == [layers[which].name]
    assert found.sizes == {}  # no factor of all layers mends one


WITHOUT_CALLED_BLOCKS = {
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(d_model=256, d_ff=512, d_kv=16, num_layers=2, num_heads=4, vocab_size=99, decoder_start_token_id=0)
    ),
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(**WIDE, num_key_value_heads=2, vocab_size=99, num_local_experts=2, num_experts_per_tok=1)
    ),
    "one attention": OnlyAttention,
    "one block": RootIsBlock,
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", WITHOUT_CALLED_BLOCKS)
def test_the_stream_is_found_where_no_block_is_called(name, large):
    """A block may be a list, that is never called, or hold its MLP in a form of its own, or there may be no MLP.

    T5's table has deviation 1 and is the output's matrix, too, which scales its inputs, so its logits are not large.
    """
    torch.manual_seed(0)
    model = WITHOUT_CALLED_BLOCKS[name]()
    first = model.inp if name.startswith("one") else model.get_input_embeddings()
    with torch.no_grad():
        first.weight.mul_(20 if large else 1)
    ids = torch.arange(40)[None]
    inputs = {"t5": {"input_ids": ids, "decoder_input_ids": ids}, "mixtral": ids}.get(name, torch.randn(8, 6, 4))
    found = measure_state(model, inputs, wc.attention_layers(model))
    assert found.entry.makers
    assert [finding.what for finding in found.findings] == ["the embedding"] * large


class Encoder(nn.Module):
    """A map of the data, or a table times √width, into torch's encoder."""

    def __init__(self, norm_first: bool, first: nn.Module) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
        self.first, self.stack = first, nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.places = nn.Parameter(torch.randn(12, 32) / 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(self.first(x) * 32 ** (0.5 * isinstance(self.first, nn.Embedding)) + self.places)


LARGE_DATA = {
    "mapped": (lambda norm_first: Encoder(norm_first, nn.Linear(8, 32)), (8, 12, 8)),
    "as they are": (lambda norm_first: Encoder(norm_first, nn.Identity()), (8, 12, 32)),
    "images": (lambda norm_first: fresh("vit"), (4, 3, 16, 16)),
}


@pytest.mark.parametrize("name", LARGE_DATA)
@pytest.mark.parametrize("norm_first", [False, True])
def test_large_data_are_told_from_large_weights(name, norm_first):
    torch.manual_seed(0)
    build, shape = LARGE_DATA[name]
    model, data = build(norm_first), 255 * torch.rand(shape)
    layers = wc.attention_layers(model)
    (finding,) = measure_state(model, data, layers).findings
    assert finding.what == "the inputs"
    assert f"{float(data.square().mean().sqrt()):.2g}" in finding.text
    assert "scale them" in finding.text
    assert not finding.roles
    assert not measure_state(model, data / 150, layers).findings


def test_no_candidate_is_said_to_mend_large_data():
    torch.manual_seed(0)
    model = Encoder(True, nn.Linear(8, 32))
    batches = [(255 * torch.rand(8, 12, 8), torch.rand(8, 12, 32)) for _ in range(4)]
    found = wc.recommend(model, batches, loss=nn.functional.mse_loss, seconds=0, schemes=["fan_in"])
    assert str(found).startswith("Out of line: the inputs.")
    assert found.best is found.own
    assert "mends" not in str(found)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_large_map_of_large_data_is_the_embedding_all_the_same(norm_first):
    torch.manual_seed(0)
    model = Encoder(norm_first, nn.Linear(8, 32))
    with torch.no_grad():
        model.first.weight.mul_(20)
    found = measure_state(model, 255 * torch.rand(8, 12, 8), wc.attention_layers(model))
    assert [finding.what for finding in found.findings] == ["the embedding"]
    assert set(found.embedding) == {"first.weight"}


@pytest.mark.parametrize("deviation", [0.02, 0.1, 1])
@pytest.mark.parametrize("norm_first", [False, True])
def test_heads_that_are_sharp_for_the_stream_are_no_fault_of_queries_and_keys(norm_first, deviation):
    torch.manual_seed(0)
    model, ids = Encoder(norm_first, nn.Embedding(99, 32)), torch.randint(99, (8, 12))
    nn.init.normal_(model.first.weight, std=20 * deviation)
    found = measure_state(model, ids, wc.attention_layers(model))
    sharp = found.ranges()["beta"][1] > 0.8
    assert sharp == (not norm_first)
    assert [finding.what for finding in found.findings] == ["the embedding"] * (sharp or deviation > 0.02)
    assert ("β" in "".join(finding.text for finding in found.findings)) == sharp


def test_the_norm_of_a_layer_that_is_the_model_is_no_embedding():
    """Nothing but the attention is given the stream then, and a norm makes it."""
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    with torch.no_grad():
        model.norm1.weight.mul_(20)
    found = measure_state(model, torch.randn(4, 9, 32), wc.attention_layers(model))
    assert [finding.what for finding in found.findings] == ["queries and keys"]


def test_small_patches_are_compared_with_the_blocks():
    """Twenty times too large, though the stream is not yet: 48 inputs of the small law of a library."""
    config = ViTConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, image_size=16, patch_size=4)
    model = AutoModel.from_config(config)
    patches = model.embeddings.patch_embeddings.projection
    with torch.no_grad():
        for parameter in patches.parameters():
            parameter.mul_(20)
    found = measure_state(model, torch.randn(2, 3, 16, 16), wc.attention_layers(model))
    assert [finding.what for finding in found.findings] == ["the embedding"]
    assert found.entry.size < 4
    gain = float(patches.weight.detach().square().mean().sqrt()) * 48**0.5
    path = "embeddings.patch_embeddings.projection."
    assert found.embedding == pytest.approx({f"{path}weight": 1 / gain, f"{path}bias": 1 / gain}, rel=1e-4)


def test_queries_and_keys_that_a_norm_hides_are_named_too():
    config = Qwen3Config(**WIDE, num_key_value_heads=2, head_dim=16, vocab_size=99)
    model = AutoModel.from_config(config)
    with torch.no_grad():
        for block in model.layers:
            block.self_attn.q_proj.weight.mul_(8)
            block.self_attn.k_proj.weight.mul_(8)
    (finding,) = measure_state(model, torch.arange(40)[None], wc.attention_layers(model)).findings
    assert finding.what == "queries and keys"
    assert finding.text.endswith("though a norm behind them hides it")
    assert finding.factor == pytest.approx(1 / 8, rel=0.1)


def test_an_embedding_as_torch_draws_it_is_too_large_for_an_output():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.stack, self.head = nn.Embedding(99, 64), encoder(64), nn.Linear(64, 99, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.stack(self.table(ids)))

    model = Tied()
    found = measure_state(model, torch.arange(40)[None], wc.attention_layers(model))
    assert "whose logits begin with a deviation of" in found.findings[0].text
