"""The position-resolved decoder against exact limits, dense evaluation and random causal networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from wellcond.errors import WellcondError
from wellcond.propagation import causal_rows, causal_stream
from wellcond.propagation.activation_kernels import kernel
from wellcond.propagation.block import Architecture
from wellcond.propagation.causal_gradients import decoder_gradients
from wellcond.propagation.causal_stream import CausalStream, decoder_stream
from wellcond.propagation.exact_rows import exact_row
from wellcond.propagation.propagate import propagate

Array = np.ndarray[Any, Any]
GELU = kernel("gelu")
TABLE = 1e-10  # h⁴/384 of a table in the angle with h = π/1024
COARSE = 1e-5  # of the overlap of two rows, at the step that the decoder takes


def decoder(
    depth: int,
    tokens: int,
    beta: float,
    *,
    mlp_gain: tuple[float, float] = (1.0, 1.0),
    residual_attention: float = 1.0,
    residual_mlp: float = 1.0,
    cosine: float = 0.2,
    **rest: Any,
) -> Iterator[CausalStream]:
    skips = {"skip_attention": residual_attention, "skip_mlp": residual_mlp}
    return decoder_stream(depth, Architecture(tokens=tokens, beta=beta, mlp=mlp_gain, **skips, **rest), cosine)


def gram_of(stream: CausalStream) -> Array:
    return np.asarray(stream.gram)


def double(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


# --------------------------------------------------------------------------------------------------- exact limits


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    ("incoherent", "coherent", "trace", "centred"),
    [(0.7, 0.7, 0.0, False), (0.9, 0.3, 0.0, False), (0.4, 0.8, -0.3, False), (0.5, 0.5, 0.4, True)],
)
def test_without_logits_attention_averages_what_each_position_sees(
    norm: str, incoherent: float, coherent: float, trace: float, centred: bool
) -> None:
    """β = 0: the Gram matrix behind each half is that of prefix means, whatever the gain of what fluctuates."""
    tokens, skip, other, bias = 40, 0.9, 1.1, (0.02, 0.05, 0.03)
    average = np.tril(np.ones((tokens, tokens))) / np.arange(1, tokens + 1)[:, None]
    attention = np.zeros((tokens, tokens)) if centred else average

    def unit(g: Array) -> Array:
        return np.asarray(g / np.sqrt(np.outer(g.diagonal(), g.diagonal())))

    g = np.full((tokens, tokens), 0.2) + 0.8 * np.eye(tokens)
    found = decoder(
        3, tokens, 0.0, incoherent=incoherent, coherent=coherent, trace=trace, mlp_gain=(1.3, 0.8), bias=bias,
        residual_attention=skip, residual_mlp=other, norm=norm, kernel=GELU, centred=centred,
    )  # fmt: skip
    for behind in found:
        # Behind a norm, rounding moves a diagonal of 1 by an ulp or two.
        assert gram_of(behind) == pytest.approx(g, rel=3 * COARSE)
        seen = unit(g)
        along = skip * trace * np.sqrt(g.diagonal())[:, None] * (seen @ attention.T)
        g = skip**2 * g + coherent * attention @ seen @ attention.T + along + along.T + (0 if centred else bias[0])
        g = unit(g) if norm == "post" else g
        p = 1.3 * unit(g) + bias[1]
        k = GELU.value(torch.full((tokens, tokens), 1.3 + bias[1], dtype=torch.float64), double(p)).numpy()
        g = other**2 * g + 0.8 * k + bias[2]
        g = unit(g) if norm == "post" else g


@pytest.mark.parametrize("beta", [0.5, 2.0, 6.0])
def test_two_tokens_are_done_by_hand(beta: float) -> None:
    gain, skip, c = 0.6, 0.8, 0.3
    y = exact_row(beta * math.sqrt(math.log(2) * (1 - c)), 2).participation
    _, behind = decoder(
        1, 2, beta, incoherent=gain, coherent=gain, mlp_gain=(0.0, 0.0), residual_attention=skip, kernel=GELU, cosine=c
    )
    # The first row is (1, 0); the second's mean is (½, ½).
    expected = [
        [skip**2 + gain, skip**2 * c + gain * (1 + c) / 2],
        [skip**2 * c + gain * (1 + c) / 2, skip**2 + gain * (c + (1 - c) * y)],
    ]
    assert gram_of(behind) == pytest.approx(np.array(expected), rel=1e-12)
    assert behind.rows is not None
    assert behind.rows.participation.tolist() == pytest.approx([1.0, y], rel=1e-12)
    assert behind.rows.overlap.tolist() == pytest.approx([0.5, 0.5], rel=1e-12)
    assert behind.rows.own.tolist() == pytest.approx([1.0, 0.5], rel=1e-9)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh"])
def test_equal_tokens_stay_equal(norm: str, activation: str) -> None:
    found = decoder(
        3, 32, 1.5, incoherent=0.7, coherent=0.7, bias=(0.01, 0.02, 0.0), norm=norm, kernel=kernel(activation), cosine=1
    )
    for behind in found:
        assert behind.cosine() == pytest.approx(1.0, abs=1e-12)
        assert behind.rows is None or bool((behind.rows.entropy > 1 - 1e-9).all())


def test_a_strong_self_bias_leaves_tokens_as_they_are() -> None:
    """Attention is the identity: all that changes is the size."""
    *_, behind = decoder(
        2, 24, 1.0, incoherent=0.5, coherent=0.5, mlp_gain=(0.0, 0.0), norm="post", kernel=GELU, self_bias=200.0
    )
    assert gram_of(behind) == pytest.approx(np.full((24, 24), 0.2) + 0.8 * np.eye(24), abs=1e-6)
    assert behind.rows is not None
    assert behind.rows.own.tolist() == pytest.approx([1.0] * 24, abs=1e-6)


def test_a_vanishing_self_bias_changes_nothing() -> None:
    def end(self_bias: float) -> Array:
        *_, behind = decoder(2, 24, 1.5, incoherent=0.5, coherent=0.5, kernel=GELU, self_bias=self_bias)
        return gram_of(behind)

    assert end(1e-7) == pytest.approx(end(0.0), abs=1e-6)


def test_tokens_of_unit_size_stay_possible() -> None:
    """A Gram matrix has no negative eigenvalue; interpolation may cost a little of the smallest."""
    for norm in ("pre", "post"):
        for behind in decoder(4, 48, 2.0, incoherent=1.0, coherent=1.0, norm=norm, kernel=GELU, cosine=0.0):
            values = np.linalg.eigvalsh(gram_of(behind))
            assert values[0] > -1e-2 * values.mean()


# -------------------------------------------------------------------------------------------- tables and their cost


@pytest.mark.parametrize("activation", ["relu", "gelu", "erf", "tanh", torch.sin])
@pytest.mark.parametrize(("gain", "bias"), [(1.0, 0.0), (4.0, 0.3), (0.2, 4e-4)])
def test_the_kernel_is_tabulated_accurately(activation: Any, gain: float, bias: float) -> None:
    given = kernel(activation)
    c = torch.cat(
        [torch.linspace(-1, 1, 57, dtype=torch.float64), 1 - torch.logspace(-1, -12, 12, dtype=torch.float64)]
    )
    expected = given.value(torch.full_like(c, gain + bias), gain * c + bias)
    found = causal_stream._tabulate(given, gain, bias)[0](c)
    assert found.numpy() == pytest.approx(expected.numpy(), abs=TABLE * max(1.0, gain) ** 2)


@pytest.mark.parametrize("beta", [1.0, 3.0])
def test_few_positions_stand_for_all(beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> Array:
        *_, behind = decoder(2, 14, beta, incoherent=1.0, coherent=1.0, norm="post", kernel=GELU)
        return gram_of(behind)

    few = end()
    monkeypatch.setattr(causal_rows, "ROW_POSITIONS", 2000)
    monkeypatch.setattr(causal_rows, "PAIR_POSITIONS", 2000)  # every pair of 14
    assert few == pytest.approx(end(), abs=2e-3)


@pytest.mark.long
def test_a_long_decoder_stays_finite() -> None:
    for behind in decoder(2, 2048, 2.0, incoherent=1.0, coherent=1.0, kernel=kernel("tanh"), self_bias=0.5):
        assert bool(behind.gram.isfinite().all())


# ------------------------------------------------------------------------------------------------ random networks


def network(
    g: torch.Generator, depth: int, tokens: int, width: int, beta: float, norm: str, *, gain: float = 1.0,
    trace: float = 0.0, self_bias: float = 0.0, centred: bool = False, mlp: float = 1.0, cosine: float = 0.2,
    learns: bool = False,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:  # fmt: skip
    """The stream, the attention and the weights of a random causal GELU stack, from tokens of exactly one cosine."""
    heat = beta * math.sqrt(math.log(tokens))
    mask = torch.full((tokens, tokens), -math.inf).triu(1)
    uniform = torch.softmax(mask, dim=-1)
    weights: list[Tensor] = []

    def normal(variance: float) -> Tensor:
        weights.append((math.sqrt(variance / width) * torch.randn(width, width, generator=g)).requires_grad_(learns))
        return weights[-1]

    def layer_norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (width,))

    frame = torch.linalg.qr(torch.randn(width, tokens + 1, generator=g, dtype=torch.float64))[0].mT
    x = (math.sqrt(width) * (math.sqrt(cosine) * frame[:1] + math.sqrt(1 - cosine) * frame[1:])).float()
    x.requires_grad_(learns)
    stream, rows = [x], []
    for _ in range(depth):
        y = layer_norm(x) if norm == "pre" else x
        logits = (y @ normal(heat)) @ (y @ normal(heat)).mT / math.sqrt(width) + self_bias * (y @ y.mT) / width
        rows.append(torch.softmax(logits + mask, dim=-1))
        x = x + (rows[-1] - uniform if centred else rows[-1]) @ (y @ normal(gain) + trace * y)
        x = layer_norm(x) if norm == "post" else x
        y = layer_norm(x) if norm == "pre" else x
        x = x + functional.gelu(y @ normal(mlp)) @ normal(mlp)
        x = layer_norm(x) if norm == "post" else x
        stream.append(x)
    return stream, rows, weights


def simulate(networks: int, seed: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Gram matrices `(networks, depth + 1, T, T)` and attention `(networks, depth, T, T)` of random stacks."""
    g = torch.Generator().manual_seed(seed)
    grams, attentions = [], []
    for _ in range(networks):
        stream, rows, _ = network(g, *args, **kwargs)
        wide = torch.stack(stream).double()
        grams.append(wide @ wide.mT / wide.shape[-1])
        attentions.append(torch.stack(rows).double())
    return torch.stack(grams), torch.stack(attentions)


def autograd(networks: int, seed: int, loss: str, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """‖∂L/∂x_t‖² `(networks, depth + 1, T)`, that of weights ÷ (D T) `(networks, 5 depth)`, growth `(networks,)`."""
    g = torch.Generator().manual_seed(seed)
    streams, weighted, growths = [], [], []
    for _ in range(networks):
        stream, _, weights = network(g, *args, learns=True, **kwargs)
        tokens, width = stream[0].shape
        gamma = functional.normalize(torch.randn(1 if loss == "pooled" else tokens, width, generator=g), dim=-1)
        grads = torch.autograd.grad((stream[-1] * gamma).sum(), [*stream, *weights])
        squares = torch.stack([grad.double().square().sum(-1) for grad in grads[: len(stream)]])
        streams.append(squares)
        weighted.append(torch.stack([grad.double().square().sum() for grad in grads[len(stream) :]]) / (width * tokens))
        sizes = [float(x.detach().square().mean()) for x in (stream[0], stream[-1])]
        growths.append(math.log10(float(squares[0].mean() / squares[-1].mean()) * sizes[0] / sizes[1]))
    return torch.stack(streams), torch.stack(weighted), torch.tensor(growths)


def last_cosines(grams: Tensor, last: int) -> Array:
    size = grams.diagonal(dim1=-2, dim2=-1).sqrt()
    unit = (grams / size[..., None] / size[..., None, :])[..., -last:, -last:]
    return ((unit.sum((-2, -1)) - last) / (last * (last - 1))).numpy()


def errors(networks: int, depth: int, tokens: int, width: int) -> tuple[dict[Any, Array], float]:
    """Mean absolute errors of the last quarter's cosine, the decoder's and the encoder map's; the noise of the mean."""
    found, noise = {}, []
    for norm in ("pre", "post"):
        for seed, beta in enumerate((1.0, 2.0, 3.0)):
            seen = last_cosines(simulate(networks, seed, depth, tokens, width, beta, norm)[0], tokens // 4)[:, 1:]
            stream = decoder(depth, tokens, beta, incoherent=1.0, coherent=1.0, norm=norm, kernel=GELU)
            said = np.array([behind.cosine(tokens // 4) for behind in stream])[1:]
            encoder = np.array([float(c) for c in propagate(depth, tokens, beta, norm=norm).cosine])[1:]
            noise.append(float((seen.std(0, ddof=1) / math.sqrt(networks)).mean()))
            found[norm, beta] = np.array([np.abs(each - seen.mean(0)).mean() for each in (said, encoder)])
    return found, float(np.mean(noise))


@pytest.mark.long
def test_the_last_tokens_of_networks_are_as_alike_as_the_decoder_says() -> None:
    found, noise = errors(40, 6, 128, 256)
    position, encoder = np.mean(list(found.values()), axis=0)
    assert noise < 0.008
    assert max(mine for mine, _ in found.values()) <= 0.012 + noise, found
    assert position <= 0.012, found
    assert position < 0.7 * encoder, found  # 0.37 for 150 networks, whose noise is half as large


@pytest.mark.long
def test_the_last_tokens_of_deep_networks_are_as_alike_as_the_decoder_says() -> None:
    found, noise = errors(60, 12, 256, 512)
    position, encoder = np.mean(list(found.values()), axis=0)
    assert position <= 0.006 + noise, found
    assert position < 0.6 * encoder, found


def judge(sample: Tensor, expected: Tensor, slack: float) -> None:
    """Means over networks are what was expected in every octave of positions, to 4 standard errors and some slack.

    A single position's weights are too seldom large for fifty networks to tell how far they scatter.
    """
    for low in (1, 2, 4, 8, 16, 32):
        seen, said = sample[:, low - 1 : 2 * low - 1].mean(1), float(expected[low - 1 : 2 * low - 1].mean())
        error = float(seen.std()) / math.sqrt(len(seen))
        assert abs(float(seen.mean()) - said) <= 4 * error + slack, (low, float(seen.mean()), said, error)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"beta": 1.5},
        {"beta": 3.0},
        {"beta": 1.0, "self_bias": 4.0},
        {"beta": 1.5, "trace": -0.4, "gain": 0.3},
        {"beta": 1.5, "centred": True},
        {"beta": 1.0, "centred": True, "self_bias": 3.0, "trace": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_each_position_of_a_layer_is_as_predicted(kwargs: dict[str, Any], norm: str) -> None:
    tokens, width, networks = 48, 256, 50
    beta, gain = kwargs["beta"], kwargs.get("gain", 0.8)
    grams, attention = simulate(networks, 5, 1, tokens, width, norm=norm, **{"gain": gain, "mlp": 0.5, **kwargs})
    shared = {name: value for name, value in kwargs.items() if name in ("trace", "self_bias", "centred")}
    # A value matrix of trace τD has τ² more gain.
    gain += kwargs.get("trace", 0.0) ** 2
    _, behind = decoder(
        1, tokens, beta, incoherent=gain, coherent=gain, mlp_gain=(0.5, 0.5), norm=norm, kernel=GELU, **shared
    )
    a, rows, t = attention[:, 0], behind.rows, torch.arange(1, tokens + 1)
    assert rows is not None
    # What is allowed beyond sampling is for finite width; most is used where rows are planted and centred.
    judge(a.square().sum(-1), rows.participation, 0.005)
    judge(a.diagonal(dim1=-2, dim2=-1), rows.own, 0.005)
    judge(torch.special.entr(a).sum(-1)[:, 1:] / t[1:].log(), rows.entropy, 0.005)
    others = (a @ a.mT).sum(-1) - a.square().sum(-1)
    judge(others / (tokens - 1), rows.overlap, 0.002)
    size = grams[:, 1].diagonal(dim1=-2, dim2=-1).sqrt()
    cosines = causal_stream.normalize_gram(behind.gram)[0]
    judge((grams[:, 1] / size[:, :, None] / size[:, None]).mean(-1), cosines.mean(-1), 0.006)
    judge(grams[:, 1].diagonal(dim1=-2, dim2=-1), behind.gram.diagonal(), 0.01)


# ------------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    ("loss", "kwargs"),
    [
        ("token", {"beta": 0.5}),
        ("token", {"beta": 1.5}),
        ("token", {"beta": 3.0}),
        ("token", {"beta": 1.5, "trace": -0.4, "gain": 0.3}),
        ("token", {"beta": 1.5, "centred": True}),
        ("pooled", {"beta": 1.5}),
    ],
    ids=str,
)
def test_autograd_through_a_block_finds_the_gradients_predicted(loss: str, kwargs: dict[str, Any], norm: str) -> None:
    tokens, width, networks = 48, 192, 30
    gain = kwargs.get("gain", 0.8)
    streams, weights, _ = autograd(
        networks, 6, loss, 1, tokens, width, norm=norm, **{"gain": gain, "mlp": 0.7, **kwargs}
    )
    gain += kwargs.get("trace", 0.0) ** 2
    shared = {name: value for name, value in kwargs.items() if name in ("trace", "centred")}
    stream = list(
        decoder(
            1,
            tokens,
            kwargs["beta"],
            incoherent=gain,
            coherent=gain,
            mlp_gain=(0.7, 0.7),
            norm=norm,
            kernel=GELU,
            **shared,
        )
    )
    (found,) = decoder_gradients(stream, loss)
    value = found.value  # of the whole W_O W_V, whose mean part is not learnt here
    predicted = torch.tensor([found.query, found.query, value, *found.mlp], dtype=torch.float64)
    # A tenth for finite width and for tokens of unequal size, as for the encoder; 4 standard errors of sampling.
    error = (weights / predicted).std(0) / math.sqrt(networks)
    assert bool((((weights / predicted).mean(0) - 1).abs() <= 0.1 + 4 * error).all()), (weights / predicted).mean(0)
    judge(streams[:, 0] / found.gram.diagonal(), torch.ones(tokens), 0.1)


GROWTH = [("pre", 1.0), ("pre", 3.0), ("post", 0.3), ("post", 1.0)]


def growths(networks: int, depth: int, norm: str, beta: float) -> tuple[float, float, float, float]:
    """log10 of the growth of gradients on their way back: of networks, as decoder and encoder map say; the noise."""
    tokens, width = 128, 256
    *_, seen = autograd(networks, 3, "token", depth, tokens, width, beta, norm)
    stream = list(decoder(depth, tokens, beta, incoherent=1.0, coherent=1.0, norm=norm, kernel=GELU))
    *_, first = decoder_gradients(stream)
    said = math.log10(float(first.gram.diagonal().mean() / stream[-1].gram.diagonal().mean()))
    encoder = float(propagate(depth, tokens, beta, norm=norm).gradient_growth)
    mean = math.log10(float((10**seen).mean()))  # which is what mean field predicts
    return mean, said, encoder, float(seen.std()) / math.sqrt(networks)


def judge_growths(networks: int, depth: int, slack: float) -> None:
    found = {setting: growths(networks, depth, *setting) for setting in GROWTH}
    for seen, said, _, noise in found.values():
        assert abs(said - seen) <= slack + 3 * noise, found
    mine, encoder = np.abs([(said - seen, other - seen) for seen, said, other, _ in found.values()]).mean(0)
    assert mine <= 0.4 * encoder, found


def test_gradients_grow_as_the_decoder_says_and_not_as_the_encoder() -> None:
    judge_growths(12, 6, 0.1)


@pytest.mark.long
def test_gradients_of_deep_decoders_grow_as_predicted() -> None:
    judge_growths(40, 12, 0.2)


def test_two_tokens_pass_gradients_back_as_done_by_hand() -> None:
    """β = 0: the first token is read by both, the second by itself, each half by the second."""
    gain, skip = 0.6, 0.8
    stream = list(
        decoder(1, 2, 0.0, incoherent=gain, coherent=gain, mlp_gain=(0.0, 0.0), residual_attention=skip, kernel=GELU)
    )
    (found,) = decoder_gradients(stream)
    attention = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert np.asarray(found.gram) == pytest.approx(skip**2 * np.eye(2) + gain * attention.T @ attention, rel=1e-6)
    assert found.query == 0


def test_a_stream_with_something_left_out_is_refused() -> None:
    stream = list(decoder(2, 16, 1.0, incoherent=1.0, coherent=1.0, kernel=GELU))
    for part in (stream[1:], stream[:1], []):
        with pytest.raises(WellcondError, match="stream"):
            decoder_gradients(part)
    with pytest.raises(WellcondError, match="loss"):
        decoder_gradients(stream, "sum")


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("depth", v) for v in (0, -1)),
        *(("tokens", v) for v in (1, 0)),
        *((name, v) for name in ("beta", "incoherent", "coherent") for v in (-0.1, math.nan, math.inf)),
        *((name, v) for name in ("residual_attention", "residual_mlp") for v in (-1.0, math.nan)),
        ("mlp_gain", (1.0, -1.0)),
        ("bias", (0.0, -1e-3, 0.0)),
        *(("cosine", v) for v in (1.1, -0.5, math.nan)),
        *(("norm", v) for v in ("none", "middle", None)),
    ],
)
def test_a_parameter_out_of_range_is_named(name: str, value: Any) -> None:
    given = {"depth": 2, "tokens": 16, "beta": 1.0, "incoherent": 1.0, "coherent": 1.0, "kernel": GELU, name: value}
    with pytest.raises(WellcondError, match=name):
        decoder(**given)


def test_a_decoder_without_a_norm_is_told_what_to_do() -> None:
    with pytest.raises(WellcondError, match="Add a norm"):
        decoder(1, 16, 1.0, incoherent=1.0, coherent=1.0, norm="none", kernel=GELU)


def test_a_stream_of_nothing_is_reported() -> None:
    """Centred attention leaves nothing of the first token."""
    with pytest.raises(WellcondError, match="residual"):
        list(decoder(1, 16, 1.0, incoherent=1.0, coherent=1.0, residual_attention=0.0, kernel=GELU, centred=True))


# ------------------------------------------------------------------------------------------------ wc.propagate


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_prediction_is_the_average_over_positions(norm: str) -> None:
    r = propagate(2, 32, 1.5, 0.5, (0.7, 0.9), 0.01, norm=norm, self_bias=1.0, causal=True)
    stream = list(
        decoder(
            2, 32, 1.5, incoherent=0.5, coherent=0.5, mlp_gain=(0.7, 0.9), bias=(0.01, 0.01, 0.01), norm=norm,
            kernel=GELU, self_bias=1.0,
        )
    )  # fmt: skip
    assert r.cosine.tolist() == [behind.cosine() for behind in stream]
    *_, first = decoder_gradients(stream)
    assert float(r.stream_gradient[0]) == pytest.approx(float(first.gram.diagonal().mean()))
    assert float(r.query_gradient[0]) == first.query
    assert r.mlp_gradient.shape == (2, 2)
    assert r.stream_gradient.shape == (3,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("norm", "none"),
        ("theory", "asymptotic"),
        ("width", 64),
        ("head_dim", 8),
        ("beta", torch.ones(2)),
        ("causal", 1),
    ],
)
def test_what_a_decoder_does_not_have_is_said(name: str, value: Any) -> None:
    with pytest.raises(WellcondError, match=name if name != "theory" else "finite"):
        propagate(**{"depth": 1, "tokens": 8, "beta": 1.0, "causal": True, name: value})
