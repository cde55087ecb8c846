"""Every scheme on every case: the invariants of its paper by an independent oracle, and nothing else touched."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.fft
import torch
from timm.models import vision_transformer
from torch import Tensor, nn

import wellcond as wc
from tests.cases import CASES
from wellcond._core.keyed_random import Draw
from wellcond._core.linalg import leading_triples
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.view import AttentionLayer, ResidualBlock
from wellcond.propagation.trainability import window
from wellcond.testing import same_bits, state

SIGMAS = 5
OPTIONS: dict[str, dict[str, object]] = {"critical": {"tokens": 197}}
NEEDS_MORE = ("weight_selection", "calibrated")  # a teacher, a batch
SCHEMES = [info.name for info in wc.schemes() if info.name not in NEEDS_MORE]


def heads_of(layer: AttentionLayer, *roles: str) -> list[Tensor]:
    return [head.double() for role, p in layer.projections(*roles) for head in p.read()]


def assert_semi_orthogonal(head: Tensor) -> None:
    gram = head.T @ head if head.shape[0] >= head.shape[1] else head @ head.T
    assert (gram - torch.eye(gram.shape[0])).abs().max() < 1e-6
    sigma = np.linalg.svd(head.numpy(), compute_uv=False)
    assert sigma[0] / sigma[-1] == pytest.approx(1, abs=1e-5)


def assert_std(weights: list[Tensor], std: float, kurtosis: float = 3.0) -> None:
    """Pooled over the layer: root mean square within five standard errors."""
    values = torch.cat([w.double().flatten() for w in weights])
    error = std * math.sqrt((kurtosis - 1) / (4 * len(values)))
    assert abs(float(values.square().mean().sqrt()) - std) < SIGMAS * error + 1e-6 * std


def whole(layer: AttentionLayer, role: str) -> Tensor:
    """The projection in the model's own forward direction: x @ whole(...) for Q, K, V; heads @ whole(...) for O."""
    matrix = getattr(layer, role).read().double().transpose(0, 1).flatten(1)
    return matrix.T if role == "output" else matrix


def check_conditioned(layers: AttentionLayers) -> None:
    for layer in layers:
        query_key = heads_of(layer, "query", "key")
        for head in query_key:
            assert_semi_orthogonal(head)
        for i, a in enumerate(query_key):
            assert all(not torch.allclose(a, b) for b in query_key[i + 1 :] if a.shape == b.shape)
        for head in heads_of(layer, "value"):
            assert torch.equal(head, torch.eye(*head.shape, dtype=torch.float64))


def check_orthogonal(layers: AttentionLayers) -> None:
    for layer in layers:
        for head in heads_of(layer):
            assert_semi_orthogonal(head)


def check_mimetic(layers: AttentionLayers) -> None:
    for layer in layers:
        draw = Draw(0, layer.name)
        d, size = layer.head_dim, layer.width
        eye = np.eye(size)
        z = draw.uniform("value", 1, size, size, first=-1)[0].double().numpy() * math.sqrt(3 / size)
        product = (whole(layer, "value") @ whole(layer, "output")).numpy()
        assert np.abs(product - (0.4 * z - 0.4 * eye)).max() < 1e-5
        queries, keys = layer.query.read().double().numpy(), layer.key.read().double().numpy()
        for head in range(layer.num_heads):
            z = draw.uniform("query", 1, size, size, first=head)[0].double().numpy() * math.sqrt(3 / size)
            u, s, vt = np.linalg.svd(0.7 * z + 0.7 * eye)
            best = (u[:, :d] * s[:d]) @ vt[:d]
            assert np.abs(queries[head] @ keys[head].T - best).max() < 1e-5


def check_dct(layers: AttentionLayers) -> None:
    for layer in layers:
        stored = whole(layer, "key").T.numpy()  # as nn.Linear stores it: rows are frequencies
        expected = scipy.fft.dct(np.eye(layer.key.shape[1]), norm="ortho").T
        assert np.abs(stored - expected).max() < 1e-6
        assert np.allclose(stored[0], stored[0, 0])


def value_output(layer: AttentionLayer) -> Tensor:
    """Σ_h W_V W_O over the query heads, each with its group's value, in float64."""
    value, output = layer.value.read().double(), layer.output.read().double()
    return (value.repeat_interleave(len(output) // len(value), dim=0) @ output.mT).sum(0)


def check_centring(layers: AttentionLayers) -> None:
    """−½ I, exactly where the heads fill the width, else on as many dimensions as the value heads have."""
    for layer in layers:
        groups, width, d = layer.value.shape
        product = value_output(layer)
        if groups * d == width and layer.output.heads == groups:
            assert torch.equal(product, -0.5 * torch.eye(width, dtype=torch.float64))
        sigma = np.linalg.eigvalsh(product.numpy())
        rank = min(groups * d, width)
        np.testing.assert_allclose(sigma, [-0.5] * rank + [0.0] * (width - rank), atol=1e-6)
        assert (product - product.T).abs().max() < 1e-6
        for head in heads_of(layer, "query", "key"):
            assert_semi_orthogonal(head)


def check_skipless(layers: AttentionLayers) -> None:
    for layer in layers:
        size = layer.width
        draw, eye = Draw(0, layer.name), np.eye(size)
        assert (value_output(layer) - 9 * torch.eye(size)).abs().max() < 1e-5
        for role in ("value", "output"):
            sigma = np.linalg.svd(whole(layer, role).numpy(), compute_uv=False)
            np.testing.assert_allclose(sigma, 3, rtol=1e-6)
        queries, keys = layer.query.read().double().numpy(), layer.key.read().double().numpy()
        for head in range(layer.num_heads):
            z = draw.normal("query", 1, size, size, first=head)[0].double().numpy() / math.sqrt(size)
            u, s, vt = np.linalg.svd(2 * z + 0.6 * eye)
            best = (u[:, : layer.head_dim] * s[: layer.head_dim]) @ vt[: layer.head_dim]
            assert np.abs(queries[head] @ keys[head].T - best).max() < 1e-5


def check_symmetric(layers: AttentionLayers) -> None:
    for layer in layers:
        for query, key in zip(heads_of(layer, "query"), heads_of(layer, "key"), strict=True):
            product = (query @ key.T).numpy()
            assert np.abs(product - product.T).max() < 1e-12
            assert np.linalg.eigvalsh(product).min() > -1e-6
        assert_std([layer.query.read()], layer.query.shape[1] ** -0.5, 1.8)


def check_spectral(layers: AttentionLayers) -> None:
    for layer in layers:
        for role, projection in layer.projections():
            heads, width, d = projection.shape
            wanted = math.sqrt(width / (heads * d) if role == "output" else d / width)
            for head in projection.read():
                assert np.linalg.norm(head.double().numpy(), 2) == pytest.approx(wanted, rel=1e-6)


def check_zero_output(layers: AttentionLayers) -> None:
    for layer in layers:
        assert not layer.output.read().any()
        for _, projection in layer.projections("query", "key", "value"):
            assert_std([projection.read()], projection.shape[1] ** -0.5)
    written = [layer.output for layer in layers] + [matrix for block in layers.blocks for matrix in block.mlp_out]
    for matrix in written:
        bias = matrix.read_bias()
        assert not matrix.read().any()
        assert bias is None or not bias.any()


def check_impulse(layers: AttentionLayers) -> None:
    for layer in layers:
        for head in heads_of(layer, "query", "key"):
            assert float(head.norm()) == pytest.approx(7, rel=1e-6)


def gaussian(std: Callable[[AttentionLayer, str], float], kurtosis: float = 3.0) -> Callable[[AttentionLayers], None]:
    def check(layers: AttentionLayers) -> None:
        for layer in layers:
            for role, projection in layer.projections():
                assert_std([projection.read()], std(layer, role), kurtosis)

    return check


def fan_std(layer: AttentionLayer, role: str) -> float:
    heads, width, d = getattr(layer, role).shape
    return math.sqrt(2 / (width + heads * d))


def kaiming_std(layer: AttentionLayer, role: str) -> float:
    heads, width, d = getattr(layer, role).shape
    return math.sqrt(2 / (heads * d if role == "output" else width))


def matched_std(layer: AttentionLayer, role: str) -> float:
    _, width, d = getattr(layer, role).shape
    return math.sqrt(1 / max(width, d))


def fan_in_std(layer: AttentionLayer, role: str) -> float:
    heads, width, d = getattr(layer, role).shape
    return math.sqrt(1 / (heads * d if role == "output" else width))


def check_scale_matched(layers: AttentionLayers) -> None:
    for layer in layers:
        for role, projection in layer.projections("query", "key", "value"):
            assert_std([projection.read()], matched_std(layer, role))


def check_rotated(layers: AttentionLayers) -> None:
    """As conditioned, but for the plane that all heads read their values from; each layer has its own."""
    for layer in layers:
        for head in heads_of(layer, "query", "key", "value"):
            assert_semi_orthogonal(head)
        values = heads_of(layer, "value")
        assert all(torch.equal(values[0], head) for head in values)
        assert all(not torch.allclose(head, torch.eye(*head.shape, dtype=torch.float64), atol=0.1) for head in values)


def check_flipped(layers: AttentionLayers) -> None:
    for layer in layers:
        for head in heads_of(layer, "query", "key"):
            assert_semi_orthogonal(head)
        for head in heads_of(layer, "value"):
            assert torch.equal(head, -torch.eye(*head.shape, dtype=torch.float64))


def check_critical(layers: AttentionLayers) -> None:
    """Q and K each by the closed form; that it gives logits of std β √ln T is measured further below."""
    for layer in layers:
        width = math.sqrt(layer.query.shape[1] * layer.key.shape[1])
        variance = 0.5 * math.sqrt(math.log(197)) / (layer.scale * math.sqrt(layer.head_dim) * width)
        assert_std([layer.query.read()], math.sqrt(variance))
        assert_std([layer.key.read()], math.sqrt(variance))


def check_mlp(
    layers: AttentionLayers, std: Callable[[ResidualBlock, str, float], float], kurtosis: float = 3.0
) -> None:
    """Every MLP matrix against `std(block, "in" or "out", √(2/(fan_in + fan_out)))`."""
    for block in layers.blocks:
        for role, matrices in (("in", block.mlp_in), ("out", block.mlp_out)):
            for matrix in matrices:
                _, a, b = matrix.shape
                assert_std([matrix.read()], std(block, role, math.sqrt(2 / (a + b))), kurtosis)


def check_zero_biases(layers: AttentionLayers) -> None:
    """Of attention and MLP."""
    matrices = [p for layer in layers for _, p in layer.projections()]
    matrices += [matrix for block in layers.blocks for matrix in (*block.mlp_in, *block.mlp_out)]
    for matrix in matrices:
        bias = matrix.read_bias()
        assert bias is None or not bias.any(), matrix.bias


def check_depth_scaled(layers: AttentionLayers) -> None:
    gaussian(lambda layer, role: fan_std(layer, role) / math.sqrt(layer.block.index + 1), 1.8)(layers)
    check_mlp(layers, lambda block, role, fan: fan / math.sqrt(block.index + 1), 1.8)


def check_gpt2(layers: AttentionLayers) -> None:
    gaussian(lambda layer, role: 0.02 / (math.sqrt(2 * layer.block.depth) if role == "output" else 1))(layers)
    check_mlp(layers, lambda block, role, fan: 0.02 / (math.sqrt(2 * block.depth) if role == "out" else 1))


def check_small(layers: AttentionLayers) -> None:
    gaussian(lambda layer, role: math.sqrt(2 / (5 * getattr(layer, role).shape[1])))(layers)
    check_mlp(layers, lambda block, role, fan: fan)
    check_zero_biases(layers)


def check_tfixup(layers: AttentionLayers) -> None:
    def factor(block: ResidualBlock) -> float:
        return (9 * block.depth) ** -0.25 if block.stack == "decoder" else 0.67 * block.depth**-0.25

    def std(layer: AttentionLayer, role: str) -> float:
        return fan_std(layer, role) * (1 if role in ("query", "key") else factor(layer.block))

    gaussian(std, 1.8)(layers)
    check_mlp(layers, lambda block, role, fan: fan * factor(block), 1.8)
    check_zero_biases(layers)


def check_deepnorm(layers: AttentionLayers) -> None:
    depths = {block.stack: block.depth for block in layers.blocks}
    decoders = {layer.block.stack for layer in layers if layer.cross}  # a decoder is what has cross-attention

    def constants(block: ResidualBlock) -> tuple[float, float]:
        if block.stack in decoders:  # with or without an encoder in the same model
            m = block.depth
            return (3 * m) ** 0.25, (12 * m) ** -0.25
        if decoders:
            n, m = block.depth, depths["decoder"]
            return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
        return (2 * block.depth) ** 0.25, (8 * block.depth) ** -0.25

    def std(layer: AttentionLayer, role: str) -> float:
        alpha, beta = constants(layer.block)
        return fan_std(layer, role) * {"query": 1, "key": 1, "value": beta, "output": beta / alpha}[role]

    def mlp(block: ResidualBlock, role: str, fan: float) -> float:
        alpha, beta = constants(block)
        return fan * (beta if role == "in" else beta / alpha)

    gaussian(std)(layers)
    check_mlp(layers, mlp)
    check_zero_biases(layers)


def check_admin(layers: AttentionLayers) -> None:
    def omega(block: ResidualBlock) -> float:
        n = block.depth * (3 if block.stack == "decoder" else 2)
        return math.sqrt((n + 1) / math.log(n + 1) - 1)

    def std(layer: AttentionLayer, role: str) -> float:
        return fan_std(layer, role) / (omega(layer.block) if role == "output" else 1)

    gaussian(std, 1.8)(layers)
    check_mlp(layers, lambda block, role, fan: fan / (omega(block) if role == "out" else 1), 1.8)
    check_zero_biases(layers)


ORACLES: dict[str, Callable[[AttentionLayers], None]] = {
    "admin": check_admin,
    "centring": check_centring,
    "conditioned": check_conditioned,
    "critical": check_critical,
    "dct": check_dct,
    "deepnorm": check_deepnorm,
    "depth_scaled": check_depth_scaled,
    "fan_in": gaussian(fan_in_std),
    "flipped": check_flipped,
    "gpt2_residual": check_gpt2,
    "impulse": check_impulse,
    "kaiming": gaussian(kaiming_std),
    "keep": lambda layers: None,
    "mimetic": check_mimetic,
    "normal": gaussian(lambda layer, role: 0.02),
    "orthogonal": check_orthogonal,
    "rotated": check_rotated,
    "scale_matched": check_scale_matched,
    "skipless": check_skipless,
    "small_init": check_small,
    "spectral": check_spectral,
    "symmetric": check_symmetric,
    "tfixup": check_tfixup,
    "trunc_normal": gaussian(lambda layer, role: 0.02),
    "xavier": gaussian(fan_std, 1.8),
    "zero_output": check_zero_output,
}


def test_every_scheme_has_an_oracle() -> None:
    assert set(ORACLES) == set(SCHEMES)


@pytest.mark.parametrize("name", CASES)
def test_every_scheme(name: str) -> None:
    model = CASES[name].model()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # many libraries start biases at zero, where setting and keeping them look alike
        for path, parameter in model.named_parameters():
            if path.endswith("bias"):
                parameter.normal_(generator=generator)
    original = {key: value.clone() for key, value in model.state_dict().items()}
    for scheme in SCHEMES:
        options = OPTIONS.get(scheme, {})
        before = state(model)
        applied = wc.init_(model, scheme, seed=0, on_inapplicable="skip", **options)
        assert all(reason for _, reason in applied.skipped)
        ORACLES[scheme](applied.layers)
        if applied.layers:
            audit = wc.audit(model, scheme, on_inapplicable="skip", **options)
            assert audit.passed, f"{scheme}\n{audit}"
        assert_rest_untouched(model, before, applied)
        model.load_state_dict(original)


def assert_rest_untouched(model: nn.Module, before: dict[str, Tensor], applied: wc.Plan) -> None:
    """Outside the planned slots, and the biases that the scheme says it zeroes, every bit is the same."""
    zeroed = {
        entry.projection.bias
        for entry in applied.entries
        if entry.projection.bias and entry.role.partition("_")[0] in applied.scheme.zeroed()
    }
    written: dict[str, list[wc.PlanEntry]] = {}
    for entry in applied.entries:
        written.setdefault(entry.projection.weight.path, []).append(entry)
    for path, value in state(model).items():
        if path in written:
            old = before[path].clone()
            for entry in written[path]:  # what was planned may differ, so copy it over the old before comparing
                entry.projection.weight.layout.write_(old, entry.projection.read())
            assert same_bits(old, value), path
        elif path not in zeroed:
            assert same_bits(before[path], value), path


@pytest.mark.parametrize("name", ["timm-vit", "hf-gpt2", "hf-llama", "torch-mha"])
def test_seeds(name: str) -> None:
    case = CASES[name]
    layers = wc.attention_layers(case.model())
    first, last = layers[0].name, layers[-1].name

    def query(seed: int, pattern: str | None = None) -> Tensor:
        model = case.model()
        wc.init_(model, "conditioned", seed=seed, layers=pattern)
        return wc.attention_layers(model)[-1].query.read()

    assert same_bits(query(3), query(3))
    assert same_bits(query(3), query(3, last))  # a subset of the layers draws the same numbers
    assert not torch.equal(query(3), query(4))
    if first != last:
        assert not torch.equal(query(3), query(3, first))


def test_global_generator_is_not_touched() -> None:
    model = CASES["torch-encoder"].model()
    before = torch.random.get_rng_state()
    wc.init_(model, "mimetic", seed=0)
    wc.init_(model, "trunc_normal", generator=torch.Generator().manual_seed(5))
    assert torch.equal(before, torch.random.get_rng_state())


def test_generator_is_used_and_moved() -> None:
    generator = torch.Generator().manual_seed(5)
    model = CASES["torch-encoder"].model()
    weights = []
    for _ in range(2):
        wc.init_(model, "normal", generator=generator)
        weights.append(wc.attention_layers(model)[0].query.read())
    assert not torch.equal(*weights)


def test_impulse_attends_its_neighbour_in_the_model() -> None:
    """In the real module's replay on LN(positions), the argmax of each head's attention is its neighbour."""
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, patch_size=8, embed_dim=144, num_heads=9)
    wc.init_(model, "impulse", seed=0)
    layer = wc.attention_layers(model)[0]
    tokens = nn.functional.layer_norm(model.pos_embed[0, 1:].detach().double(), (144,))
    offsets = [(0, 0), (-1, 0), (0, 1), (0, -1), (1, 0), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    for head, (down, right) in enumerate(offsets):
        query, key = layer.query.read()[head].double(), layer.key.read()[head].double()
        attended = (tokens @ query @ key.T @ tokens.T).argmax(1)
        for row in range(16):
            r, c = row // 4 + down, row % 4 + right
            if 0 <= r < 4 and 0 <= c < 4:
                assert int(attended[row]) == r * 4 + c


@pytest.mark.parametrize(("heads", "literal"), [(1, False), (4, False), (12, False), (1, True)])
def test_critical_logit_scale(heads: int, literal: bool) -> None:
    """Measured on random unit tokens: β √ln T within 5 %."""
    model = nn.MultiheadAttention(96, heads)
    wc.init_(model, "critical", tokens=512, beta=0.7, literal=literal, seed=0)
    layer = wc.attention_layers(model)[0]
    x = torch.randn(512, 96, generator=torch.Generator().manual_seed(0)).double()
    query, key = (torch.einsum("nx,hxd->hnd", x, p.read().double()) for p in (layer.query, layer.key))
    logits = query @ key.mT * layer.scale
    assert float(logits.std()) == pytest.approx(0.7 * math.sqrt(math.log(512)), rel=0.05)


def test_composition_per_role() -> None:
    model = CASES["timm-vit"].model()
    applied = wc.init_(model, {"qk": "conditioned", "vo": ("mimetic", {"vo_alpha": 0.3})}, seed=0)
    layer = applied.layers[0]
    for head in heads_of(layer, "query", "key"):
        assert_semi_orthogonal(head)
    size = layer.width
    z = Draw(0, layer.name).uniform("value", 1, size, size, first=-1)[0].double() * math.sqrt(3 / size)
    target = 0.3 * z - 0.4 * torch.eye(size)
    assert (whole(layer, "value") @ whole(layer, "output") - target).abs().max() < 1e-5


def test_function_as_scheme() -> None:
    model = CASES["hf-llama"].model()
    before = state(model)
    applied = wc.init_(model, lambda layer, draw: {"key": draw.normal("key", *layer.key.shape)}, seed=1)
    for layer in applied.layers:
        assert torch.equal(layer.key.read(), Draw(1, layer.name).normal("key", *layer.key.shape))
        assert same_bits(layer.query.read(), layer.query.weight.layout.read(before[layer.query.weight.path]))


def test_neutral_is_identical() -> None:
    model = CASES["timm-vit"].model()
    before = state(model)
    wc.init_(model, "keep")
    wc.init_(model, "conditioned", layers=[])
    assert all(same_bits(value, before[name]) for name, value in state(model).items())


def test_undo() -> None:
    model = CASES["timm-vit"].model()
    before = state(model)
    wc.init_(model, "small_init").undo_()
    assert all(same_bits(value, before[name]) for name, value in state(model).items())


def test_conditioned_orthogonal_value_has_its_strength() -> None:
    model = CASES["timm-vit"].model()
    plan = wc.init_(model, "conditioned", value="orthogonal", value_strength=0.5, seed=0)
    for layer in plan.layers:
        for head in heads_of(layer, "value"):
            assert np.linalg.svd(head.numpy(), compute_uv=False) == pytest.approx(0.5, abs=1e-6)
        for head in heads_of(layer, "query", "key"):
            assert_semi_orthogonal(head)
    assert wc.audit(model, "conditioned", value="orthogonal", value_strength=0.5).passed
    assert not wc.audit(model, "conditioned", value="orthogonal").passed


def test_scale_matched_matches_the_mlp_and_the_biases_too() -> None:
    model = CASES["timm-vit"].model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.fill_(1)
    plan = wc.init_(model, "scale_matched", of="small_init", seed=0)
    check_small(plan.layers)
    assert wc.audit(model, "scale_matched", of="small_init").passed


def test_mimetic_audit_of_zero_weights_fails() -> None:
    model = CASES["timm-vit"].model()
    for layer in wc.attention_layers(model):
        for _, projection in layer.projections():
            projection.write_(torch.zeros(projection.shape))
    assert not wc.audit(model, "mimetic").passed


@pytest.mark.parametrize("heads", [1, 4, 12])
@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_critical_puts_the_measured_beta_where_it_was_asked_for(heads: int, beta: float) -> None:
    """Random tokens of cosine 0.2: rows of logits scatter as β √(q(q − p) log T), whatever the number of heads."""
    torch.manual_seed(0)
    model = nn.Sequential(*(vision_transformer.Block(768, heads) for _ in range(2)))
    wc.init_(model, "critical", beta=beta, tokens=197, seed=0)
    tokens = nn.functional.layer_norm(0.2**0.5 * torch.randn(1, 1, 768) + 0.8**0.5 * torch.randn(1, 197, 768), (768,))
    for spot in wc.locate(model, tokens).layers:
        assert spot.beta_batch == pytest.approx(beta, rel=0.05)
        assert spot.beta_weights == pytest.approx(beta, rel=0.05)


def post_norm_stack(value_gain: float) -> nn.Module:
    """24 blocks with this gain of W_V W_O, and 2 of each MLP matrix."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
    with torch.no_grad():
        for block, view in zip(model.layers, wc.attention_layers(model), strict=True):
            assert isinstance(block, nn.TransformerEncoderLayer)
            v, o = view.value.read(), view.output.read()
            view.output.write_(o * (value_gain / (((v.mT @ v) * (o.mT @ o)).sum() / 64)).sqrt())
            block.linear1.weight.mul_((2 * 128 / block.linear1.weight.square().sum()).sqrt())
            block.linear2.weight.mul_((2 * 64 / block.linear2.weight.square().sum()).sqrt())
    return model


def test_critical_keeps_to_the_window_of_the_stack() -> None:
    """A deep post-norm stack needs sharper attention than the usual 0.5, or its tokens become alike."""
    low, high = window(("beta", 0.05, 4), depth=24, tokens=197, norm="post", value_gain=0.25, mlp_gain=(2.0, 2.0)) or (
        0.0,
        0.0,
    )
    assert low > 0.6
    found = {
        float(text.split(",")[0])
        for text in str(wc.init_(post_norm_stack(0.25), "critical", tokens=197)).split("β = ")[1:]
    }
    assert found == {round(low + 0.1 * (high - low), 3)}
    with pytest.warns(UserWarning, match="no β with which a post-norm stack of 24 blocks"):
        wc.init_(post_norm_stack(1.0), "critical", tokens=197)


@pytest.mark.parametrize("shape", [(40, 40), (60, 25), (25, 60)])
def test_leading_triples_are_those_of_an_svd(shape: tuple[int, int]) -> None:
    """numpy's SVD; values to ε σ₁, vectors to ε (σ₁ ÷ σ_k)² over the gap between neighbours."""
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    k = 12
    u, s, vt = leading_triples(matrix, k)
    left, sigma, right = np.linalg.svd(matrix.numpy(), full_matrices=False)
    eps = np.finfo(np.float64).eps
    squared = (sigma[0] / sigma[k - 1]) ** 2
    np.testing.assert_allclose(s.numpy(), sigma[:k], rtol=0, atol=max(shape) * eps * sigma[0] * squared)
    gap = sigma[0] / np.min(sigma[:k] - sigma[1 : k + 1])
    same = np.sign(np.sum(left[:, :k] * u.numpy(), axis=0))
    tolerance = max(shape) * eps * squared * gap
    np.testing.assert_allclose(u.numpy(), left[:, :k] * same, rtol=0, atol=tolerance)
    np.testing.assert_allclose(vt.numpy(), right[:k] * same[:, None], rtol=0, atol=tolerance)
    assert tolerance < 1e-11  # so that the test can fail
    assert (u.gather(0, u.abs().argmax(0, keepdim=True)) > 0).all()
