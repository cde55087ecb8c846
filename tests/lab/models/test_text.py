"""The laboratory's Nyströmformer and Crammed BERT: sizes, attention by hand, masks, pairs, and wellcond on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.jacobian_oracle import oracle_jacobian
from wellcond import jacobian
from wellcond.errors import WellcondError
from wellcond.lab.models import check_fits, lab_model
from wellcond.lab.models.bert import CrammedBert
from wellcond.lab.models.layers import SelfAttention
from wellcond.lab.models.nystromformer import NystromAttention, Nystromformer, nystrom_attention, pseudo_inverse
from wellcond.lab.tasks import task
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.sequences import Pairs, packed
from wellcond.testing import check_adapter

SMALL: dict[str, Any] = {"width": 12, "depth": 2, "heads": 3, "mlp": 16}
TEXT = {"vocabulary": 20, "tokens": 8, "classes": 4}
NYSTROM: dict[str, Any] = SMALL | {"landmarks": 4, "kernel": 3}


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().double().eval()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sharpened(model: nn.Module) -> nn.Module:
    """With larger queries and keys: attention that is not nearly uniform, landmarks that can be told apart."""
    with torch.no_grad():
        for layer in wc.attention_layers(model):
            for projection in (layer.query, layer.key):
                assert projection is not None
                projection.write_(3 * projection.read())
    return model


def padded(batch: int = 3, tokens: int = 8) -> dict[str, Tensor]:
    """Ids from 1 on, with some padding at the end of every sequence but the first."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([tokens, *range(3, batch + 2)])
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    return {"input_ids": torch.randint(1, 20, (batch, tokens), generator=generator) * mask, "attention_mask": mask}


def pair_task() -> Task:
    generator = torch.Generator().manual_seed(2)
    sides = [
        packed(
            [
                torch.randint(1, 20, (int(n),), generator=generator)
                for n in torch.randint(2, 9, (6,), generator=generator)
            ],
            torch.arange(6) % 4,
            tokens=8,
        )
        for _ in range(2)
    ]
    examples = Pairs(*sides)
    return Task("pairs", "pair", TEXT, examples, examples, "accuracy", "drawn")


# ------------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ({"vocabulary": 32, "tokens": 2000, "classes": 10}, 209_942),  # ListOps
        ({"vocabulary": 512, "tokens": 4000, "classes": 2}, 370_702),  # Text
        ({"vocabulary": 512, "tokens": 4000, "classes": 2, "sequences": 2}, 395_278),  # Retrieval
        ({"vocabulary": 512, "tokens": 1024, "classes": 10}, 175_126),  # Image
        ({"vocabulary": 512, "tokens": 1024, "classes": 2}, 174_094),  # Pathfinder
    ],
)
def test_the_nystromformer_has_the_size_of_the_long_range_arena(shape: dict[str, int], parameters: int) -> None:
    with torch.device("meta"):
        model = Nystromformer(shape)
        plain = Nystromformer(shape, attention="softmax")
    assert sum(p.numel() for p in model.parameters()) == parameters
    # Softmax has no convolutions: 35 numbers for each of 2 heads in 2 layers.
    assert sum(p.numel() for p in plain.parameters()) == parameters - 35 * 2 * 2


def test_the_crammed_bert_has_its_full_size() -> None:
    with torch.device("meta"):
        model = CrammedBert({"vocabulary": 32_768, "tokens": 128})
        short = CrammedBert({"vocabulary": 32_768, "tokens": 128}, depth=12)
    block = 4 * 768**2 + 768 * 3072 + 1536 * 768 + 2 * 2 * 768  # attention, gated MLP, two norms
    rest = 32_768 * 768 + 1 + 2 * 2 * 768  # words (tied), the scale of positions, the first and the last norm
    assert sum(p.numel() for p in model.parameters()) == 16 * block + rest == 119_589_889
    assert sum(p.numel() for p in short.parameters()) == 12 * block + rest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"heads": 5}, "width = 12 does not split into 5 heads"),
        ({"kernel": 4}, "kernel = 4 has no middle"),
        ({"attention": "linear"}, "attention is one of nystrom, softmax"),
        ({"length": 4}, "length = 4 must be a multiple of 4 landmarks and hold 8 tokens, as 8 does"),
        ({"length": 10}, "length = 10 must be a multiple of 4 landmarks"),
        ({"landmarks": 0}, "landmarks is a whole number from 1 on"),
        ({"landmark": 4}, "it takes width, depth, heads, mlp, dropout, attention, landmarks"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(WellcondError, match=says):
        lab_model("nystromformer", NYSTROM | options, pair_task(), 0)


def test_a_bert_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(WellcondError, match="mlp = 15 does not split into values and gates"):
        CrammedBert(TEXT, **SMALL | {"mlp": 15})
    with pytest.raises(WellcondError, match="width = 9 does not split into sines and cosines"):
        CrammedBert(TEXT, **SMALL | {"width": 9})


# ------------------------------------------------------------------------------------------------ Nyström attention


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def by_hand(attention: NystromAttention, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """One sequence and head after the other, with the pseudo-inverse of NumPy; `(B, H, N, d)`."""
    out = np.zeros_like(v)
    tokens, d, m = q.shape[2], q.shape[3], attention.landmarks
    for b, h in np.ndindex(*q.shape[:2]):
        seen = mask[b][:, None]
        qs, ks, vs = (x[b, h] * seen for x in (q / d**0.25, k / d**0.25, v))
        run = tokens // m
        q_marks, k_marks = (np.stack([x[i * run : (i + 1) * run].mean(0) for i in range(m)]) for x in (qs, ks))
        hidden = np.where(mask[b] == 0, -np.inf, 0.0)
        middle = np.linalg.pinv(softmax(q_marks @ k_marks.T))
        out[b, h] = softmax(qs @ k_marks.T) @ middle @ softmax(q_marks @ ks.T + hidden) @ vs
        if attention.conv is not None:
            weights = attention.conv.weight[h, 0, :, 0].detach().numpy()
            reach = len(weights) // 2
            around = np.pad(vs, ((reach, reach), (0, 0)))
            out[b, h] += sum(w * around[i : i + tokens] for i, w in enumerate(weights))
    return out


@pytest.mark.parametrize("kernel", [0, 5])
@pytest.mark.parametrize("padding", [0, 3])
def test_nystrom_attention_is_what_numpy_makes_of_it(kernel: int, padding: int) -> None:
    attention = seeded(lambda: NystromAttention(15, 3, landmarks=4, kernel=kernel, iterations=40))
    assert isinstance(attention, NystromAttention)
    q, k, v = 4 * normal(3, 2, 3, 16, 5)
    mask = torch.ones(2, 16)
    mask[1, 16 - padding :] = 0
    with torch.no_grad():
        found = attention.mix(q, k, v, mask if padding else None)
    expected = by_hand(attention, q.numpy(), k.numpy(), v.numpy(), mask.numpy())
    # κ of the landmarks' matrix is below 1e3 here: two pseudo-inverses agree to 1e3 times float64's 1e-16.
    assert np.abs(found.numpy() - expected).max() <= 1e-11 * np.abs(expected).max()


def test_with_a_landmark_for_each_token_it_is_softmax_attention() -> None:
    q, k, v = normal(3, 2, 3, 8, 5)
    exact = nn.functional.scaled_dot_product_attention(4 * q, 4 * k, v)
    # A A⁺ A = A; the iteration ends at the rounding error of the inverse, κ(A) eps, which is 1e-10 to 1e-4 here.
    kappa = torch.linalg.cond((16 * q @ k.mT / math.sqrt(5)).softmax(-1))
    error = (nystrom_attention(4 * q, 4 * k, v, landmarks=8, iterations=60) - exact).abs().amax((2, 3))
    assert (error <= kappa * torch.finfo(torch.float64).eps * v.abs().amax((2, 3))).all()
    module = seeded(lambda: NystromAttention(15, 3, landmarks=8, kernel=0))
    assert isinstance(module, NystromAttention)
    assert (module.mix(4 * q, 4 * k, v) - exact).abs().max() <= 1e-14  # and with no iteration at all


def test_six_steps_come_near_the_pseudo_inverse() -> None:
    matrix = (3 * normal(2, 3, 6, 6)).softmax(-1)
    exact = torch.linalg.pinv(matrix)
    errors = [float((pseudo_inverse(matrix, n) - exact).norm() / exact.norm()) for n in (0, 3, 6, 30)]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] <= 1e-10


def test_an_example_does_not_depend_on_its_batch() -> None:
    model = seeded(lambda: Nystromformer(TEXT, **NYSTROM))
    inputs = padded()
    whole = model(**inputs)
    for number in range(3):
        alone = model(**{name: value[number : number + 1] for name, value in inputs.items()})
        assert (alone[0] - whole[number]).abs().max() <= 1e-12


@pytest.mark.parametrize("attention", ["nystrom", "softmax"])
def test_padding_is_not_read(attention: str) -> None:
    model = seeded(lambda: Nystromformer(TEXT, **NYSTROM, attention=attention))
    inputs = padded()
    other = inputs["input_ids"].where(inputs["attention_mask"] == 1, 7)
    assert (model(other, inputs["attention_mask"]) - model(**inputs)).abs().max() <= 1e-12
    assert (model(other) - model(**inputs)).abs().max() > 1e-4


def test_what_is_short_is_padded_inside() -> None:
    model = seeded(lambda: Nystromformer(TEXT | {"tokens": 7}, **NYSTROM))
    inputs = padded()
    mask = torch.tensor([[1] * 5 + [0] * 3])
    ids = inputs["input_ids"][:1]
    assert model.length == 8
    assert (model(ids[:, :5]) - model(ids * mask, mask)).abs().max() <= 1e-12
    with pytest.raises(WellcondError, match="9 tokens are more than the model's 8"):
        model(torch.ones(1, 9, dtype=torch.int64))


def test_the_mean_is_over_the_padded_length() -> None:
    model = seeded(lambda: Nystromformer(TEXT, **NYSTROM))
    assert isinstance(model, Nystromformer)
    inputs = padded()
    seen: list[Tensor] = []
    handle = model.norm.register_forward_hook(lambda module, args, output: seen.append(output))
    pooled = model.pooled(**inputs)
    handle.remove()
    summed = (seen[0] * inputs["attention_mask"][..., None]).sum(1)
    assert (pooled - summed / 8).abs().max() <= 1e-14


def test_a_sequence_of_nothing_but_padding_gives_numbers() -> None:
    nothing = {"input_ids": torch.zeros(2, 8, dtype=torch.int64), "attention_mask": torch.zeros(2, 8)}
    for attention in ("nystrom", "softmax"):
        model = lab_model(
            "nystromformer", NYSTROM | {"attention": attention}, task("listops", train_examples=1, tokens=128), 0
        )
        assert bool(model(**nothing).isfinite().all())


@pytest.mark.parametrize("attention", ["nystrom", "softmax"])
def test_attention_is_in_float32_under_autocast(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(lambda: Nystromformer(TEXT, **NYSTROM, attention=attention)).float()
    module = model.get_submodule("blocks.0.attention")
    assert isinstance(module, SelfAttention)
    dtypes: list[torch.dtype] = []
    mix = module.mix

    def watched(q: Tensor, *rest: Any) -> Tensor:
        out = mix(q, *rest)
        dtypes.extend([q.dtype, (q @ q.mT).dtype, out.dtype])
        return out

    monkeypatch.setattr(module, "mix", watched)
    with torch.autocast("cpu", torch.bfloat16):
        model(**padded())
    assert dtypes == [torch.float32] * 3


# ------------------------------------------------------------------------------------------------ pairs


def test_a_pair_goes_through_one_tower() -> None:
    pairs = pair_task()
    model = lab_model("nystromformer", NYSTROM, pairs, 0).double().eval()
    assert isinstance(model, Nystromformer)
    batch = pairs.train[torch.arange(3)]
    check_fits(model, pairs, batch)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    a, b = (model.pooled(ids[:, side], mask[:, side]) for side in (0, 1))
    expected = model.head(torch.cat([a, b, a * b, a - b], -1))
    assert (model(**batch.inputs) - expected).abs().max() <= 1e-12


def test_models_are_for_their_kinds_of_task() -> None:
    with pytest.raises(WellcondError, match="'crammed-bert' is for masked-text or sequence tasks"):
        lab_model("crammed-bert", SMALL, pair_task(), 0)
    listops = task("listops", train_examples=8, test_examples=4)
    for name, options in {"nystromformer": NYSTROM, "crammed-bert": SMALL}.items():
        check_fits(lab_model(name, options, listops, 0), listops, listops.train[torch.arange(2)])


# ------------------------------------------------------------------------------------------------ Crammed BERT


def test_pretrained_weights_load_into_a_classifier_by_name() -> None:
    text = task("masked-text", length=8)
    pretrained = lab_model("crammed-bert", SMALL, text, 0)
    classifier = CrammedBert(TEXT | {"vocabulary": text.shape["vocabulary"]}, **SMALL)
    found = classifier.load_state_dict(pretrained.state_dict(), strict=False)
    assert not found.unexpected_keys
    assert sorted(found.missing_keys) == ["head.bias", "head.weight", "pooler.0.bias", "pooler.0.weight"]
    inputs = padded()
    assert torch.equal(classifier.encoder(**inputs), pretrained.get_submodule("encoder")(**inputs))


def test_words_are_read_off_by_their_own_embedding() -> None:
    model = seeded(lambda: CrammedBert({"vocabulary": 20, "tokens": 8}, **SMALL))
    assert isinstance(model, CrammedBert)
    ids = padded()["input_ids"]
    expected = torch.einsum("btd,vd->btv", model.encoder(ids), model.encoder.words.weight)
    assert (model(ids) - expected).abs().max() <= 1e-12
    assert not [name for name, p in model.named_parameters() if p.shape[0] == 20 and name != "encoder.words.weight"]


def test_a_block_of_the_bert_is_what_its_formula_says() -> None:
    model = sharpened(seeded(lambda: CrammedBert(TEXT, **SMALL)))
    assert isinstance(model, CrammedBert)
    block, x, mask = model.encoder.blocks[0], normal(3, 8, 12), padded()["attention_mask"]
    weights = {name: p.detach() for name, p in block.named_parameters()}

    def norm(y: Tensor) -> Tensor:
        return (y - y.mean(-1, keepdim=True)) / y.var(-1, correction=0, keepdim=True).sqrt()

    q, k, v = (
        (norm(x) @ weights[f"attention.{name}.weight"].T).reshape(3, 8, 3, 4).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    logits = (q @ k.mT / 4**0.5).masked_fill(mask[:, None, None] == 0, float("-inf"))
    after = x + (logits.softmax(-1) @ v).transpose(1, 2).reshape(3, 8, 12) @ weights["attention.out.weight"].T
    value, gate = (norm(after) @ weights["mlp.0.weight"].T).chunk(2, -1)
    gelu = gate * 0.5 * (1 + torch.erf(gate / 2**0.5))
    expected = after + (value * gelu) @ weights["mlp.2.weight"].T
    assert (block(x, mask) - expected).abs().max() <= 1e-10


def test_the_bert_begins_as_its_authors_say() -> None:
    model = lab_model("crammed-bert", SMALL | {"width": 128, "heads": 4, "mlp": 256}, task("masked-text", length=8), 0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:  # from 16 384 numbers on: four standard errors of the deviation are 2.3 %
            assert parameter.std().item() == pytest.approx(0.02, rel=0.023), name
        assert parameter.ndim == 2 or "norm" in name or name == "encoder.positions.scale", name  # and no biases
    assert model.get_parameter("encoder.positions.scale").item() == pytest.approx(128**-0.5)


def test_the_bert_averages_what_is_not_padding() -> None:
    model = seeded(lambda: CrammedBert(TEXT, **SMALL))
    inputs = padded()
    other = inputs["input_ids"].where(inputs["attention_mask"] == 1, 7)
    found = model(**inputs)
    assert (model(other, inputs["attention_mask"]) - found).abs().max() <= 1e-12
    for number, length in enumerate(inputs["attention_mask"].sum(1).tolist()):  # as without padding
        assert (model(inputs["input_ids"][number : number + 1, :length])[0] - found[number]).abs().max() <= 1e-12
    with pytest.raises(WellcondError, match="9 tokens are more than the model's 8 positions"):
        model(torch.ones(1, 9, dtype=torch.int64))


def test_a_joined_pair_brings_types_along() -> None:
    model = seeded(lambda: CrammedBert(TEXT, **SMALL))
    inputs = padded()
    assert torch.equal(model(**inputs, token_type_ids=torch.ones(3, 8, dtype=torch.int64)), model(**inputs))


def test_a_bert_of_transformers_fits_masked_text() -> None:
    text = task("masked-text", length=16)
    options = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    model = lab_model("hf:bert", options, text, 0)
    assert type(model).__name__ == "BertForMaskedLM"
    batch = text.prepare(text.train[torch.arange(2)], torch.Generator().manual_seed(0))
    check_fits(model, text, batch)
    assert model(batch.inputs).logits.shape == (2, 16, text.shape["vocabulary"])


# ------------------------------------------------------------------------------------------------ wellcond on them

MODELS: dict[str, Callable[[], nn.Module]] = {
    "nystrom": lambda: Nystromformer(TEXT, **NYSTROM),
    "nystrom, no convolution": lambda: Nystromformer(TEXT, **NYSTROM | {"kernel": 0}),
    "softmax": lambda: Nystromformer(TEXT, **NYSTROM, attention="softmax"),
    "bert": lambda: CrammedBert(TEXT, **SMALL),
    "masked bert": lambda: CrammedBert({"vocabulary": 20, "tokens": 8}, **SMALL),
}


@pytest.mark.parametrize("name", MODELS)
def test_views_keep_to_the_contract(name: str) -> None:
    model = sharpened(seeded(MODELS[name]))
    layers = check_adapter(model, padded())
    assert [layer.kind for layer in layers] == ["nystrom" if "nystrom" in name else "softmax"] * 2
    assert layers.unclaimed == ()
    assert [layer.query.shape for layer in layers if layer.query] == [(3, 12, 4)] * 2
    assert [block.norm_position for block in layers.blocks] == ["pre", "pre"]
    assert all(len(block.mlp_in) == len(block.mlp_out) == 1 for block in layers.blocks)


@pytest.mark.parametrize("name", MODELS)
def test_the_jacobian_is_that_of_the_module(name: str) -> None:
    model, batch = sharpened(seeded(MODELS[name])), padded(2)
    layer = wc.attention_layers(model)[1]
    blocks = oracle_jacobian(layer, model, batch, head=2)
    expected = torch.linalg.svdvals(torch.cat(list(blocks.values()), 1))
    found = jacobian.singular_values(jacobian.head_of(layer, batch, 2))
    common = min(len(found), len(expected))  # the compressed matrix may have fewer zeros
    assert (found[:common] - expected[:common]).abs().max() <= 1e-10 * expected[0]
    assert not len(expected[common:]) or expected[common:].max() <= 1e-10 * expected[0]


@pytest.mark.parametrize("name", MODELS)
def test_wellcond_initialises_conditions_and_measures_them(name: str) -> None:
    model = seeded(MODELS[name]).float()
    wc.init_(model, "conditioned", seed=0)
    for layer in wc.diagnose(model, padded(), progress=False).to_dict()["layers"]:
        assert all(head["condition"]["value"] > 1 for head in layer["jacobian"])
        for weight in (w for w in layer["weights"] if w["head"] is not None):
            assert weight["effective"]["condition"] == pytest.approx(
                1, abs=1e-4
            )  # float32 rounds 1 to 1e-7, 144 numbers
    before = model(**padded())
    wc.condition_(model, "shift", strength=2.0)
    assert (model(**padded()) - before).abs().max() > 1e-4
    records = wc.Monitor(model, padded(), every=1, alarms=False).step(0)
    assert {record["tier"] for record in records} == {"weights", "attention", "jacobian"}
