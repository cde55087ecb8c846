"""Diagrams against the recursion they are drawn from, cell by cell."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import wellcond as wc
from wellcond.errors import WellcondError
from wellcond.propagation.attention_statistics import exact_statistics
from wellcond.propagation.lookup_tables import tabulated_statistics
from wellcond.propagation.thresholds import Thresholds

COSINE, GROWTH = 2e-4, 5e-3  # what tables may add to the cosine, and to log10 of the gradient's growth


def agree(dia: wc.Diagram, cells: list[tuple[int, int]], slack: float = 1.0) -> None:
    """Cells of a diagram are what `propagate` says of their parameters."""
    for i, j in cells:
        at = {dia.names[0]: float(dia.x[j]), dia.names[1]: float(dia.y[i])}
        for name in ("depth", "tokens", "width", "head_dim"):
            if name in at:
                at[name] = int(at[name])
        if "mlp_gain" in at:
            at["mlp_gain"] = (at["mlp_gain"], at["mlp_gain"])  # type: ignore[assignment]
        r = wc.propagate(**{**dia.parameters, **at})
        assert dia.cosine[i, j] == pytest.approx(float(r.cosine[-1]), abs=COSINE * slack), at
        assert dia.entropy[i, j] == pytest.approx(float(r.entropy.min()), abs=5e-4 * slack), at
        assert dia.participation[i, j] == pytest.approx(float(r.participation.max()), abs=5e-4 * slack), at
        assert dia.own[i, j] == pytest.approx(float(r.own.max()), abs=5e-4 * slack), at
        assert dia.gradient_growth[i, j] == pytest.approx(float(r.gradient_growth), abs=GROWTH * slack), at


def some(dia: wc.Diagram, count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Cells at random, the corners among them."""
    rows, columns = dia.phase.shape
    chosen = random.Random(seed)
    corners = [(0, 0), (0, columns - 1), (rows - 1, 0), (rows - 1, columns - 1)]
    return corners + [(chosen.randrange(rows), chosen.randrange(columns)) for _ in range(count)]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "erf"])
@pytest.mark.parametrize("theory", ["finite", "asymptotic"])
def test_a_cell_is_what_the_recursion_says(norm: str, activation: str, theory: str) -> None:
    dia = wc.trainability(
        ("beta", 0.05, 4),
        ("residual_attention", 0.1, 2),
        depth=12,
        tokens=64,
        value_gain=0.5,
        mlp_gain=(2.0, 0.7),
        bias=4e-4,
        norm=norm,
        activation=activation,
        theory=theory,
        resolution=21,
    )
    agree(dia, some(dia, 3))


@pytest.mark.parametrize(
    "settings",
    [
        {"x": ("beta", 0.1, 3), "y": ("value_gain", 0.1, 2), "attention": "centred"},
        {"x": ("beta", 0.1, 3), "y": ("cosine", 0.0, 0.95), "loss": "pooled", "norm": "post"},
        {"x": ("beta", 0.1, 3), "y": ("mlp_gain", 0.1, 3), "activation": "tanh"},
        {"x": ("bias", 0.0, 0.2), "y": ("residual_mlp", 0.3, 2), "beta": 1.0, "norm": "post", "activation": "tanh"},
        {"x": ("beta", 0.1, 3), "y": ("value_gain", 0.1, 2), "width": 256},
        {"x": ("beta", 0.1, 3), "y": ("value_gain", 0.1, 2), "activation": torch.nn.functional.silu},
        {"x": ("beta", 0.1, 3), "y": ("value_gain", 0.1, 2, "log"), "tokens": 2},
        {"x": ("beta", 0.1, 3), "y": ("value_gain", 0.1, 2), "tokens": 4096, "depth": 6},
        {"x": ("beta", 0.1, 1.5), "y": ("value_gain", 0.1, 1), "norm": "none", "depth": 4},
    ],
    ids=lambda s: ",".join(f"{k}={v if not callable(v) else v.__name__}" for k, v in s.items() if k not in ("x", "y")),
)
def test_any_two_numbers_are_axes(settings: dict[str, Any]) -> None:
    settings = {"depth": 8, "tokens": 64, "resolution": 15, **settings}
    dia = wc.trainability(**settings)
    # Without a norm the stream grows, and rows sharpen beyond the tables, where they are extrapolated.
    agree(dia, some(dia, 3), slack=2 if settings.get("norm") == "none" else 1)


def test_a_self_bias_is_an_axis() -> None:
    """Both sides of the transition, and far beyond it; the planted tables have an error of 3e-4."""
    dia = wc.trainability(("beta", 0.1, 3), ("self_bias", -3, 40), depth=4, tokens=64, resolution=12)
    agree(dia, some(dia, 8), slack=2)
    assert bool((dia.own > 0.9).any())
    assert bool((dia.phase & 16 > 0).any())


def test_the_depth_is_an_axis() -> None:
    dia = wc.trainability(("beta", 0.1, 3), ("depth", 1, 12), tokens=64, value_gain=0.5, resolution=12)
    assert dia.y.tolist() == list(range(1, 13))
    agree(dia, some(dia, 4))
    # Behind fewer blocks nothing is sharper, and no token more like the others than at the end of a collapsing stack.
    assert bool((dia.entropy[1:] <= dia.entropy[:-1]).all())


def test_the_length_is_an_axis() -> None:
    dia = wc.trainability(("tokens", 4, 256), ("beta", 0.1, 3), depth=4, resolution=5)
    assert dia.x.tolist() == [4, 11, 32, 91, 256]
    agree(dia, [(0, 0), (2, 1), (4, 4), (1, 3)])


@pytest.mark.long
def test_a_heads_width_is_taken_into_account() -> None:
    dia = wc.trainability(("beta", 0.5, 3), ("value_gain", 0.1, 1), depth=2, tokens=64, head_dim=16, resolution=4)
    agree(dia, [(0, 0), (2, 1), (3, 3)])


@pytest.mark.parametrize(
    ("tokens", "low", "high"), [(64, 1.71, 2.66), (256, 1.63, 2.31), (1024, 1.64, 2.10), (4096, 1.68, 1.95)]
)
def test_windows_are_those_of_the_specification(tokens: int, low: float, high: float) -> None:
    """Rank and entropy alone decide there, entropy at 0.25, which trained cells showed to be too strict a limit."""
    dia = wc.trainability(
        ("beta", 0.05, 4),
        ("residual_attention", 0.5, 1.5),
        depth=24,
        tokens=tokens,
        value_gain=0.5,
        mlp_gain=(2.0, 2.0),
        norm="post",
        activation="tanh",
        resolution=100,
        thresholds=Thresholds(entropy=0.25, gradient=1e3),
    )
    assert dia.window(residual_attention=1.0) == pytest.approx((low, high), abs=0.02)
    infinite = wc.trainability(
        ("beta", 0.05, 4),
        ("residual_attention", 0.5, 1.5),
        resolution=20,
        thresholds=Thresholds(entropy=0.25, gradient=1e3),
        **{**dia.parameters, "theory": "asymptotic"},
    )
    assert infinite.window(residual_attention=1.0) is None


def test_a_window_ends_where_the_verdict_changes() -> None:
    dia = wc.trainability(("beta", 0.05, 8), ("value_gain", 0.05, 1), depth=24, tokens=197, resolution=60)
    window = dia.window(value_gain=0.3)
    assert window is not None
    assert window[0] == 0.05
    assert dia.verdict(beta=window[1] - 0.02, value_gain=0.3) == "trainable"
    assert dia.verdict(beta=window[1] + 0.02, value_gain=0.3) == "entropy collapse"
    assert dia.window(beta=0.5) == (0.05, 1.0)
    assert dia.window(beta=7.0) is None


def test_thresholds_move_the_phases() -> None:
    settings: dict[str, Any] = {"depth": 12, "tokens": 64, "norm": "post", "resolution": 30}
    strict = wc.trainability(
        ("beta", 0.05, 4), ("value_gain", 0.1, 1), thresholds=Thresholds(cosine=0.5, gradient=0.5), **settings
    )
    lax = wc.trainability(
        ("beta", 0.05, 4), ("value_gain", 0.1, 1), thresholds=Thresholds(1.1, 0.0, 1e3, 1.1), **settings
    )
    assert int((lax.phase != 0).sum()) == 0
    assert torch.equal(strict.phase & 1 > 0, strict.cosine > 0.5)
    assert torch.equal(strict.phase & 4 > 0, strict.gradient_growth > 0.5)
    assert torch.equal(strict.phase & 8 > 0, strict.gradient_growth < -0.5)
    collapsed = strict.cosine > 0.5
    assert bool((strict.collapse_depth[collapsed] <= 12).all())
    assert bool(strict.collapse_depth[~collapsed].isinf().all())


def test_a_stream_that_overflows_is_a_cell_like_others() -> None:
    dia = wc.trainability(("value_gain", 0.1, 60), ("beta", 0.1, 4), depth=200, tokens=16, norm="none", resolution=6)
    assert bool((dia.phase[:, -1] & 4 > 0).all())


def test_without_gradients_a_diagram_says_nothing_of_them() -> None:
    plain = wc.trainability(("beta", 0.1, 4), ("value_gain", 0.1, 1), depth=50, tokens=64, norm="post", resolution=9)
    forward = wc.trainability(
        ("beta", 0.1, 4), ("value_gain", 0.1, 1), depth=50, tokens=64, norm="post", resolution=9, gradients=False
    )
    assert torch.equal(plain.cosine, forward.cosine)
    assert bool((forward.phase & 12 == 0).all())


@pytest.mark.parametrize("tokens", [2, 3, 16, 197, 4096, 2**20])
def test_tables_agree_with_the_integrals(tokens: int) -> None:
    g = torch.Generator().manual_seed(tokens)
    largest = 3 * math.sqrt(math.log(tokens))
    s = largest * torch.rand(12, generator=g, dtype=torch.float64)
    lowest = -1 / (tokens - 1)
    rho = lowest + (1 - lowest) * torch.rand(12, generator=g, dtype=torch.float64).sqrt()
    none = torch.zeros_like(s)
    table, exact = tabulated_statistics(tokens, largest)(s, rho, none), exact_statistics(tokens)(s, rho, none)
    for name, tolerance in (("participation", 2e-5), ("overlap", 1e-4), ("entropy", 2e-5), ("row_gradient", 2e-5)):
        found, wanted = getattr(table, name), getattr(exact, name)
        assert float((found - wanted).abs().max()) < tolerance, name
    assert isinstance(table.pair_gradient, Tensor)
    assert float((table.pair_gradient / exact.pair_gradient).log10().abs().max()) < GROWTH


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": ("gain", 0, 1)}, "an axis is"),
        ({"x": ("norm", 0, 1)}, "an axis is"),
        ({"x": ("value_gain", 0, 1)}, "twice"),
        ({"x": ("beta", 1, 1)}, "lower to a higher"),
        ({"x": ("beta", 0, 1, "log")}, "above 0"),
        ({"x": ("beta", 0.1, 1, "cubic")}, "log"),
        ({"x": ("beta", -1, 1)}, "beta is a number from 0"),
        ({"x": ("cosine", 0, 2), "beta": 1.0}, "cosine lies between"),
        ({"beta": 1.0}, "is an axis"),
        ({"tokens": 1}, "tokens is a whole number"),
        ({"sharpness": 1.0}, "no parameter"),
        ({"x": ("bias", 0, 1)}, "beta="),
        ({"resolution": 0}, "resolution"),
    ],
)
def test_what_is_no_diagram_is_said(arguments: dict[str, Any], words: str) -> None:
    settings = {"x": ("beta", 0.1, 1), "y": ("value_gain", 0.1, 1), "depth": 2, "tokens": 8, "resolution": 3}
    with pytest.raises(WellcondError, match=words):
        wc.trainability(**{**settings, **arguments})


def test_a_window_is_asked_for_by_one_axis() -> None:
    dia = wc.trainability(("beta", 0.1, 1), ("value_gain", 0.1, 1), depth=2, tokens=8, resolution=3)
    for at in ({}, {"beta": 1.0, "value_gain": 1.0}, {"depth": 3}):
        with pytest.raises(WellcondError, match="one of the two"):
            dia.window(**at)
    with pytest.raises(WellcondError, match="a point of this diagram"):
        dia.verdict(beta=1.0)


def test_a_point_may_be_a_layers_own_gains() -> None:
    """Three numbers of a layer's values, at which the diagram says what the recursion does."""
    dia = wc.trainability(("beta", 0.1, 8), ("value_gain", 0.1, 1), depth=12, tokens=16, norm="post", resolution=3)
    for beta, gain in ((0.5, (2.0, 2.0, 0.0)), (0.5, (0.1, 0.1, -0.3)), (7.5, (0.3, 0.2, 0.1)), (0.5, 0.3)):
        expected = wc.propagate(**{**dia.parameters, "beta": beta, "value_gain": gain}).verdict
        assert dia.verdict(beta=beta, value_gain=gain) == expected
    assert dia.verdict(beta=torch.tensor(7.5), value_gain=1) == dia.verdict(beta=7.5, value_gain=1.0)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ({"beta": None, "value_gain": 0.3}, "beta is a number on this diagram, got None"),
        ({"beta": "1", "value_gain": 0.3}, "beta is a number"),
        ({"beta": math.nan, "value_gain": 0.3}, "beta is a number"),
        ({"beta": -1.0, "value_gain": 0.3}, "beta is a number from 0 to 1e"),
        ({"beta": 1.0, "value_gain": (0.1, 0.2)}, "value_gain is a number, or three"),
        ({"beta": (1.0, 2.0), "value_gain": 0.3}, "beta is a number"),
        ({"beta": torch.ones(2), "value_gain": 0.3}, "beta is a number"),
    ],
)
def test_what_is_no_point_is_said(at: dict[str, Any], words: str) -> None:
    dia = wc.trainability(("beta", 0.1, 1), ("value_gain", 0.1, 1), depth=2, tokens=8, resolution=3)
    with pytest.raises(WellcondError, match=words):
        dia.verdict(**at)


def test_the_picture_shows_phases_and_states_thresholds(tmp_path: Path) -> None:
    dia = wc.trainability(("beta", 0.05, 8), ("value_gain", 0.05, 2), depth=24, tokens=197, resolution=40)
    figure = dia.plot(tmp_path / "diagram.png")
    (axes,) = figure.axes
    texts = " ".join(text.get_text() for text in (*axes.texts, figure._supxlabel))
    for words in ("can be trained", "attention collapses", "0.99", "0.1 log T", "10^6"):
        assert words in texts
    assert "sharpness of attention" in axes.get_xlabel()
    with Image.open(tmp_path / "diagram.png") as image:
        colours = image.convert("RGB").getcolors(1 << 24) or []
    assert {(242, 247, 242), (230, 159, 0)} <= {colour for count, colour in colours if count > 10_000}


def test_tensors_go_in_and_come_out() -> None:
    beta = torch.tensor([0.5, 2.0])
    both = wc.propagate(3, 16, beta)
    assert both.cosine.shape == (4, 2)
    assert both.cosine.dtype == torch.float64
    assert both.mlp_gradient.shape == (3, 2, 2)
    for k, value in enumerate(beta.tolist()):
        one = wc.propagate(3, 16, value)
        assert torch.allclose(both.cosine[:, k], one.cosine, rtol=1e-12)
        assert torch.allclose(both.query_gradient[:, k], one.query_gradient, rtol=1e-12)
        assert both.verdict[k] == one.verdict
    json.dumps(both.cosine.tolist())
