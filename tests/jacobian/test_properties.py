"""The closed form against differentiation: reverse mode, divided differences in 100 digits, and curvlinops.

`Case.output` is the attention written out from its definition, sequence by sequence; it shares nothing with
`wellcond.jacobian` but the numbers. `exact_jacobian` is the same definition a second time, in mpmath.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import curvlinops
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import svds
from torch import Tensor, nn

import wellcond as wc
from wellcond import jacobian
from wellcond.attention.replay import causal_mask

ROLES = ("query", "key", "value")
HIDDEN = float("-inf")
Array = np.ndarray[Any, Any]


# ---------------------------------------------------------------------------------------------------------------------
# The definition, twice


@dataclass(frozen=True)
class Case:
    """One head of softmax attention and what it reads, all in float64.

    Args:
        x: `(B, N, D)`.
        weights: `(D, d)`, `(D_m, d)`, `(D_m, d_v)`.
        memory: `(B, T, D_m)` in cross-attention.
        scale: of the logits; `d^-1/2` if None.
        biases: by role.
        bias: added to the logits, −inf for hidden keys; broadcasts to `(B, 1, N, T)`.
        norm: of queries and keys before the product: `"l2"`, `"rms"` or `"layer"`.
        gain: `(d,)` of the norm.
        eps: of `"rms"` and `"layer"`.
        rotary: whether positions turn queries and keys.
        mapped: the roles that norm and rotation apply to.
        softcap: `c` of `c · tanh(logits / c)`.
    """

    x: Tensor
    weights: tuple[Tensor, Tensor, Tensor]
    memory: Tensor | None = None
    scale: float | Tensor | None = None
    biases: dict[str, Tensor] | None = None
    bias: Tensor | None = None
    norm: str | None = None
    gain: Tensor | None = None
    eps: float = 1e-6
    rotary: bool = False
    mapped: tuple[str, ...] = ("query", "key")
    softcap: float | None = None

    @property
    def read(self) -> Tensor:
        """What keys and values read."""
        return self.x if self.memory is None else self.memory

    @property
    def strength(self) -> float | Tensor:
        return self.weights[0].shape[1] ** -0.5 if self.scale is None else self.scale

    def head(self) -> jacobian.Head:
        options: dict[str, Any] = {"bias": self.bias, "softcap": self.softcap, "biases": self.biases}
        if self.norm or self.rotary:
            options |= {f"{role}_map": self.map for role in self.mapped}
        return jacobian.softmax_head(self.x, *self.weights, memory=self.memory, scale=self.scale, **options)

    def map(self, z: Tensor) -> Tensor:
        """Norm and rotation of `(…, N, d)`."""
        if self.norm == "l2":
            z = z / z.square().sum(-1, keepdim=True).sqrt()
        if self.norm == "layer":
            z = z - z.mean(-1, keepdim=True)
        if self.norm in ("rms", "layer"):
            z = z / (z.square().mean(-1, keepdim=True) + self.eps).sqrt()
        z = z if self.gain is None else z * self.gain
        return torch.einsum("nab,...nb->...na", rotations(*z.shape[-2:]), z) if self.rotary else z

    def output(self, *weights: Tensor) -> Tensor:
        """`(B, N, d_v)`; a query that sees no key gives 0."""
        batch, n, t = len(self.x), self.x.shape[1], self.read.shape[1]
        bias = torch.zeros(batch, n, t) if self.bias is None else self.bias.broadcast_to(batch, 1, n, t)[:, 0]
        scale = torch.as_tensor(self.strength, dtype=torch.float64).broadcast_to(batch, 1, n, t)[:, 0]
        outputs = []
        for x, y, b, s in zip(self.x, self.read, bias.double(), scale, strict=True):
            q, k, v = (
                tokens @ w + (self.biases or {}).get(role, 0.0)
                for role, tokens, w in zip(ROLES, (x, y, y), weights, strict=True)
            )
            if self.norm or self.rotary:
                q = self.map(q) if "query" in self.mapped else q
                k = self.map(k) if "key" in self.mapped else k
            logits = s * (q @ k.T)
            if self.softcap is not None:
                logits = self.softcap * torch.tanh(logits / self.softcap)
            visible = b > HIDDEN
            logits = logits + torch.where(visible, b, 0.0)
            top = torch.where(visible, logits, -1e9).amax(1, keepdim=True).detach()
            share = torch.where(visible, logits, top).sub(top).exp() * visible
            outputs.append(share @ v / share.sum(1, keepdim=True).clamp_min(1e-300))
        return torch.stack(outputs)

    def blocks(self, rows: Sequence[int] | None = None) -> list[Tensor]:
        """∂A/∂W_Q, ∂A/∂W_K, ∂A/∂W_V by reverse mode, `(B·R·d_v, D·d)` each."""

        def chosen(*weights: Tensor) -> Tensor:
            out = self.output(*weights)
            return (out if rows is None else out[:, list(rows)]).flatten()

        found = torch.autograd.functional.jacobian(chosen, self.weights, vectorize=True)
        return [block.flatten(1) for block in found]

    def side_by_side(self, rows: Sequence[int] | None = None) -> Tensor:
        return torch.cat(self.blocks(rows), 1)

    def vertical(self, rows: Sequence[int] | None = None) -> Tensor:
        return torch.cat(self.blocks(rows), 0)


def rotations(n: int, d: int) -> Tensor:
    """RoPE as one matrix per position, `(n, d, d)`: neighbouring coordinates turn together."""
    turned = torch.zeros(n, d, d, dtype=torch.float64)
    for position in range(n):
        for pair in range(d // 2):
            angle = torch.tensor(position * 100.0 ** (-2 * pair / d), dtype=torch.float64)
            i = 2 * pair
            turned[position, i, i] = turned[position, i + 1, i + 1] = angle.cos()
            turned[position, i, i + 1], turned[position, i + 1, i] = -angle.sin(), angle.sin()
    return turned


def exact(array: Tensor | Array | float) -> Array:
    """The same numbers as mpmath's."""
    return np.vectorize(mpmath.mpf, otypes=[object])(np.asarray(array, dtype=np.float64))


_exp, _sqrt, _tanh = (np.frompyfunc(f, 1, 1) for f in (mpmath.exp, mpmath.sqrt, mpmath.tanh))


def exact_output(case: Case, weights: Sequence[Array]) -> Array:
    """`Case.output` of one sequence, `(N, d_v)`, in mpmath's current precision."""
    x, y = exact(case.x[0]), exact(case.read[0])
    n, t = len(x), len(y)
    biases = {role: exact(b) for role, b in (case.biases or {}).items()}
    q, k, v = (tokens @ w + biases.get(role, 0) for role, tokens, w in zip(ROLES, (x, y, y), weights, strict=True))
    if "query" in case.mapped:
        q = _exact_map(case, q)
    if "key" in case.mapped:
        k = _exact_map(case, k)
    scale = torch.as_tensor(case.strength, dtype=torch.float64).broadcast_to(1, 1, n, t)[0, 0]
    logits = exact(scale) * (q @ k.T)
    if case.softcap is not None:
        logits = case.softcap * _tanh(logits / mpmath.mpf(case.softcap))
    bias = np.zeros((n, t)) if case.bias is None else case.bias.double().broadcast_to(1, 1, n, t)[0, 0].numpy()
    share = np.where(np.isinf(bias), mpmath.mpf(0), _exp(logits + exact(np.where(np.isinf(bias), 0.0, bias))))
    return (share / share.sum(1)[:, None]) @ v


def _exact_map(case: Case, z: Array) -> Array:
    if case.norm == "layer":
        z = z - z.mean(1)[:, None]
    if case.norm == "l2":
        z = z / _sqrt((z * z).sum(1))[:, None]
    elif case.norm:
        z = z / _sqrt((z * z).mean(1) + mpmath.mpf(case.eps))[:, None]
    z = z if case.gain is None else z * exact(case.gain)
    if not case.rotary:
        return z
    return np.stack([r @ row for r, row in zip(exact(rotations(*z.shape)), z, strict=True)])


def exact_jacobian(case: Case) -> list[Array]:
    """The three blocks of one sequence by divided differences: 110 digits and steps of 1e-50 leave about 50 digits."""
    weights = [exact(w) for w in case.weights]
    blocks = []
    with mpmath.workdps(110):
        step = mpmath.mpf(10) ** -50
        base = exact_output(case, weights)
        for role in range(3):
            columns = []
            for index in np.ndindex(weights[role].shape):
                moved = [w.copy() for w in weights]
                moved[role][index] += step
                columns.append((exact_output(case, moved) - base).flatten() / step)
            blocks.append(np.stack(columns, 1))
    return blocks


def exact_singular_values(matrix: Array) -> list[Any]:
    """Largest first, from the Gram matrix in 60 digits: those above 1e-20 σ_max have 20 digits or more."""
    with mpmath.workdps(60):
        small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        values = mpmath.eigsy(mpmath.matrix(small.tolist()), eigvals_only=True)
        return [mpmath.sqrt(max(value, 0)) for value in reversed(list(values))]


# ---------------------------------------------------------------------------------------------------------------------
# Draws


@dataclass(frozen=True)
class Shape:
    seed: int
    batch: int
    n: int
    t: int
    inputs: int
    memory: int
    d: int
    d_v: int


sizes = st.integers(1, 7)
shapes = st.builds(
    Shape,
    seed=st.integers(0, 2**20),
    batch=st.integers(1, 3),
    n=sizes,
    t=sizes,
    inputs=sizes,
    memory=sizes,
    d=st.integers(1, 4),
    d_v=st.integers(1, 4),
)


class Draw:
    """Numbers for a case, from its seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=self.generator)

    def positive(self, *shape: int) -> Tensor:
        return 0.5 + torch.rand(shape, dtype=torch.float64, generator=self.generator)

    def chance(self, share: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < share


def plain(shape: Shape, draw: Draw, *, cross: bool = False) -> Case:
    width, length = (shape.memory, shape.t) if cross else (shape.inputs, shape.n)
    return Case(
        draw.normal(shape.batch, shape.n, shape.inputs),
        (draw.normal(shape.inputs, shape.d), draw.normal(width, shape.d), draw.normal(width, shape.d_v)),
        draw.normal(shape.batch, length, width) if cross else None,
    )


Feature = Callable[[Case, Draw], Case]


def _sizes(case: Case) -> tuple[int, int, int, int]:
    return len(case.x), case.x.shape[1], case.read.shape[1], case.weights[0].shape[1]


def _biased(*roles: str) -> Feature:
    def feature(case: Case, draw: Draw) -> Case:
        widths = dict(zip(ROLES, (w.shape[1] for w in case.weights), strict=True))
        return replace(case, biases={role: draw.normal(widths[role]) for role in roles})

    return feature


def _scaled(shape: Callable[[int, int, int], tuple[int, ...]]) -> Feature:
    return lambda case, draw: replace(case, scale=draw.positive(*shape(*_sizes(case)[:3])))


def _masked(mask: Callable[[Draw, int, int, int], Tensor]) -> Feature:
    return lambda case, draw: replace(case, bias=mask(draw, *_sizes(case)[:3]))


def _causal(draw: Draw, batch: int, n: int, t: int) -> Tensor:
    return causal_mask(n, t)


def _padding(draw: Draw, batch: int, n: int, t: int) -> Tensor:
    """Each sequence has its own length, at least one."""
    ends = torch.randint(1, t + 1, (batch, 1, 1, 1), generator=draw.generator)
    return torch.zeros(batch, 1, 1, t).masked_fill(torch.arange(t) >= ends, HIDDEN)


def _left_padding(draw: Draw, batch: int, n: int, t: int) -> Tensor:
    """Causal, and hidden at the start: the first queries of some sequences see nothing."""
    starts = torch.randint(0, t, (batch, 1, 1, 1), generator=draw.generator)
    return torch.zeros(batch, 1, 1, t).masked_fill(torch.arange(t) < starts, HIDDEN) + causal_mask(n, t)


def _arbitrary(draw: Draw, batch: int, n: int, t: int) -> Tensor:
    """Any keys hidden, each query sees one at least, −10000 for hidden as older models have it."""
    hidden = draw.chance(0.4, batch, 1, n, t)
    hidden[..., 0] = False
    return torch.zeros(batch, 1, n, t, dtype=torch.float64).masked_fill(hidden, -10000.0)


def _relative(draw: Draw, batch: int, n: int, t: int) -> Tensor:
    """A table of distances."""
    table = draw.normal(n + t)
    return table[torch.arange(n)[:, None] - torch.arange(t) + t]


def _normed(norm: str, *, gain: bool = False, rotary: bool = False, mapped: tuple[str, ...] = ROLES[:2]) -> Feature:
    def feature(case: Case, draw: Draw) -> Case:
        width = _sizes(case)[3]
        return replace(
            case, norm=norm or None, gain=draw.positive(width) if gain else None, rotary=rotary, mapped=mapped
        )

    return feature


FEATURES: dict[str, Feature] = {
    "plain": lambda case, draw: case,
    "scale": lambda case, draw: replace(case, scale=2.5),
    "scale-of-zero-dimensions": _scaled(lambda b, n, t: ()),
    "scale-per-row": _scaled(lambda b, n, t: (n, 1)),
    "scale-per-key": _scaled(lambda b, n, t: (t,)),
    "scale-per-sequence-and-row": _scaled(lambda b, n, t: (b, 1, n, 1)),
    "scale-per-pair": _scaled(lambda b, n, t: (b, 1, n, t)),
    "query-bias": _biased("query"),
    "key-bias": _biased("key"),
    "value-bias": _biased("value"),
    "biases": _biased(*ROLES),
    "causal": _masked(_causal),
    "padding": _masked(_padding),
    "left-padding": _masked(_left_padding),
    "arbitrary-mask": _masked(_arbitrary),
    "relative": _masked(_relative),
    "causal-relative": _masked(lambda *a: _causal(*a) + _relative(*a)),
    "rope": _normed("", rotary=True),
    "rope-of-queries": _normed("", rotary=True, mapped=("query",)),
    "l2": _normed("l2"),
    "l2-of-keys": _normed("l2", mapped=("key",)),
    "rms-gain": _normed("rms", gain=True),
    "layer-gain": _normed("layer", gain=True),
    "rms-gain-rope": _normed("rms", gain=True, rotary=True),
    "softcap": lambda case, draw: replace(case, softcap=1.5),
}


def with_feature(shape: Shape, feature: str, *, cross: bool = False) -> Case:
    if FEATURES[feature] is FEATURES["plain"]:
        return plain(shape, Draw(shape.seed), cross=cross)
    if "rope" in feature:
        shape = replace(shape, d=shape.d + shape.d % 2)
    if "layer" in feature or "rms" in feature or "l2" in feature:  # one coordinate normed is a constant
        shape = replace(shape, d=shape.d + 2 * (shape.d < 3))
    draw = Draw(shape.seed)
    return FEATURES[feature](plain(shape, draw, cross=cross), draw)


# ---------------------------------------------------------------------------------------------------------------------
# Singular values

FACTOR, GRAM = 1e-10, 1e-7  # of σ_max: what the two routes promise; the oracle itself is good to about n·eps ≈ 1e-14


def assert_agree(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal but for zeros, of which the compressed matrix may have fewer."""
    common = min(len(found), len(expected))
    assert (found[:common] - expected[:common]).abs().max() <= tolerance * expected[0]
    for rest in (found[common:], expected[common:]):
        assert not len(rest) or rest.max() <= tolerance * expected[0]


def assert_spectra(case: Case, rows: list[int] | None = None) -> None:
    head = case.head()
    blocks = case.blocks(rows)
    expected = torch.linalg.svdvals(torch.cat(blocks, 1))
    assert_agree(jacobian.singular_values(head, rows=rows), expected, FACTOR)
    assert_agree(jacobian.singular_values(head, rows=rows, method="gram"), expected, GRAM)
    if len({w.shape for w in case.weights}) == 1:
        expected = torch.linalg.svdvals(torch.cat(blocks, 0))
        assert_agree(jacobian.singular_values(head, rows=rows, convention="vertical"), expected, FACTOR)
        vertical = jacobian.singular_values(head, rows=rows, convention="vertical", method="gram")
        assert_agree(vertical, expected, GRAM)


@pytest.mark.parametrize("feature", FEATURES)
@settings(max_examples=8)
@given(shape=shapes, cross=st.booleans(), square=st.booleans())
def test_singular_values_are_those_of_reverse_mode(feature: str, shape: Shape, cross: bool, square: bool) -> None:
    if square:  # one shape for all weights, as the vertical convention needs
        shape = replace(shape, memory=shape.inputs, d_v=shape.d + shape.d % 2 + 2, d=shape.d + shape.d % 2 + 2)
    assert_spectra(with_feature(shape, feature, cross=cross))


@settings(max_examples=60)
@given(
    shape=shapes,
    cross=st.booleans(),
    names=st.lists(st.sampled_from([n for n in FEATURES if n != "plain"]), min_size=2, max_size=4),
    data=st.data(),
)
def test_features_combine_and_query_rows_can_be_chosen(shape: Shape, cross: bool, names: list[str], data: Any) -> None:
    shape = replace(shape, d=4)
    draw = Draw(shape.seed)
    case = plain(shape, draw, cross=cross)
    for name in names:
        case = FEATURES[name](case, draw)
    rows = data.draw(st.lists(st.integers(0, shape.n - 1), min_size=1, unique=True).map(sorted))
    assert_spectra(case, rows)


@settings(max_examples=15)
@given(shape=shapes, count=st.integers(1, 9))
def test_a_number_of_rows_is_spread_evenly_from_the_first_to_the_last(shape: Shape, count: int) -> None:
    case = plain(shape, Draw(shape.seed))
    found = jacobian.tangent_kernel(case.head(), rows=count)
    count = min(count, shape.n)
    whole = case.side_by_side().view(shape.batch, shape.n, shape.d_v, -1)
    places = [round(float(place)) for place in np.linspace(0, shape.n - 1, count)]
    assert len(set(places)) == count
    chosen = whole[:, places].flatten(0, 2)
    torch.testing.assert_close(found.reshape(len(chosen), -1), chosen @ chosen.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mask", ["causal", "plain"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_jacobian_wider_than_one_panel(mask: str, empty: bool) -> None:
    """16 queries of 16 coordinates; a causal mask and an empty column of W_V leave columns that begin with zeros."""
    shape = Shape(seed=2, batch=1, n=16, t=16, inputs=16, memory=16, d=16, d_v=16)
    case = with_feature(shape, mask)
    w_q, w_k, w_v = (w / 4 for w in case.weights)
    if empty:
        w_v[:, 3] = 0.0
    case = replace(case, weights=(w_q, w_k, w_v))
    expected = torch.linalg.svdvals(case.side_by_side())
    assert_agree(jacobian.singular_values(case.head()), expected, FACTOR)
    assert_agree(jacobian.singular_values(case.head(), method="gram"), expected, GRAM)


@pytest.mark.parametrize("n", [3, 16])
def test_sizes_that_need_several_chunks_and_panels(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few rows and panels of a few columns must give what one chunk gives."""
    for module in ("softmax_closed_form", "operator", "autograd"):
        monkeypatch.setattr(f"wellcond.jacobian.{module}.CHUNK_ENTRIES", 50)
    monkeypatch.setattr("wellcond.jacobian.blocked_qr.PANEL", 5)
    shape = Shape(seed=n, batch=2, n=n, t=7, inputs=4, memory=4, d=2, d_v=2)
    for feature in ("plain", "rope", "softcap", "causal", "scale-per-pair", "scale-per-row"):
        assert_spectra(with_feature(shape, feature))
        assert_spectra(with_feature(shape, feature, cross=True), rows=[0, 2])


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Positive features, no softmax."""
    q, k = (torch.nn.functional.elu(z) + 1 for z in (q, k))
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


def channel_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Channels attend to channels: every query matters for every row."""
    return v @ (q.mT @ k / q.shape[-2]).softmax(-1).mT


@pytest.mark.parametrize("mixing", [linear_attention, channel_attention])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("rows", [None, [0, 2]])
def test_any_mixing_of_queries_keys_and_values(mixing: Any, cross: bool, rows: list[int] | None) -> None:
    """One factorisation for every attention that reads its tokens linearly."""
    draw = Draw(11)
    x = draw.normal(2, 4, 5)
    y = draw.normal(2, 4, 3) if cross else x
    weights = [draw.normal(5, 2), draw.normal(y.shape[2], 2), draw.normal(y.shape[2], 2)]
    tokens = dict(zip(ROLES, (x, y, y), strict=True))
    head = jacobian.Head(tokens, dict(zip(ROLES, weights, strict=True)), {}, mixing)

    def output(w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
        out: Tensor = torch.stack([mixing(a @ w_q, b @ w_k, b @ w_v) for a, b in zip(x, y, strict=True)])
        return (out if rows is None else out[:, rows]).flatten()

    blocks = [b.flatten(1) for b in torch.autograd.functional.jacobian(output, tuple(weights))]
    j = torch.cat(blocks, 1)
    expected = torch.linalg.svdvals(j)
    assert_agree(jacobian.singular_values(head, rows=rows), expected, FACTOR)
    assert_agree(jacobian.singular_values(head, rows=rows, method="gram"), expected, GRAM)
    kernel = jacobian.tangent_kernel(head, rows=rows)
    torch.testing.assert_close(kernel.reshape(len(j), -1), j @ j.T, rtol=1e-10, atol=1e-12)
    assert jacobian.spectrum(head, rows=rows, max_memory=1).sigma_max == pytest.approx(float(expected[0]), rel=1e-5)
    if not cross:
        vertical = jacobian.singular_values(head, rows=rows, convention="vertical")
        assert_agree(vertical, torch.linalg.svdvals(torch.cat(blocks)), FACTOR)


def test_a_norm_is_differentiated_where_it_changes_no_value() -> None:
    """Queries and keys that have unit length already: ℓ2-norm is the identity there, its derivative is not."""
    eye = torch.eye(4, dtype=torch.float64)
    case = Case(eye[None], (eye, eye, Draw(0).normal(4, 4)), scale=3.0, norm="l2")
    assert torch.equal(case.map(eye), eye)
    assert_spectra(case)


def test_a_map_of_one_coordinate_is_constant() -> None:
    """Of a query and a key with one coordinate each only the signs are left: what remains is the value block."""
    draw = Draw(1)
    case = replace(plain(Shape(1, 1, 5, 5, 4, 4, 1, 2), draw), norm="l2")
    values = torch.linalg.svdvals(case.blocks()[2])
    assert_agree(jacobian.singular_values(case.head()), values, FACTOR)


def test_inputs_in_single_precision_are_widened_and_left_as_they_are() -> None:
    case = plain(Shape(3, 2, 5, 5, 6, 6, 3, 3), Draw(3))
    single = [tensor.float() for tensor in (case.x, *case.weights)]
    before = [tensor.clone() for tensor in single]
    widened = replace(case, x=single[0].double(), weights=tuple(w.double() for w in single[1:]))  # type: ignore[arg-type]
    assert torch.equal(
        jacobian.singular_values(jacobian.softmax_head(*single)), jacobian.singular_values(widened.head())
    )
    assert all(torch.equal(a, b) for a, b in zip(single, before, strict=True))


@pytest.mark.parametrize(
    "feature", [n for n in FEATURES if "sequence" not in n and "pair" not in n and "left" not in n]
)
def test_the_smallest_singular_value_agrees_with_50_digits(feature: str) -> None:
    """Backward errors of QR and SVD are of the order n·eps·σ_max, n = 10 rows: 1e-13 leaves a factor of 40."""
    for seed, (n, inputs) in enumerate(((5, 6), (6, 3))):
        case = with_feature(Shape(seed, 1, n, n, inputs, inputs, 2, 2), feature)
        truth = exact_singular_values(np.concatenate(exact_jacobian(case), 1))
        found = jacobian.singular_values(case.head())
        for ours, theirs in zip(found.tolist(), truth, strict=False):
            assert abs(ours - theirs) <= 1e-13 * truth[0]


def test_the_oracles_agree() -> None:
    """Reverse mode and divided differences, for every feature at once: a mistake would have to be made twice."""
    shape = Shape(5, 1, 4, 3, 3, 2, 2, 3)
    draw = Draw(5)
    case = plain(shape, draw, cross=True)
    for feature in ("scale-per-pair", "biases", "causal-relative", "rms-gain-rope", "softcap"):
        case = FEATURES[feature](case, draw)
    for ours, theirs in zip(case.blocks(), exact_jacobian(case), strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs.astype(np.float64)), rtol=1e-11, atol=1e-13)


# ---------------------------------------------------------------------------------------------------------------------
# Kernel and matrix


@settings(max_examples=60)
@given(shape=shapes, feature=st.sampled_from(list(FEATURES)), cross=st.booleans())
def test_the_tangent_kernel_is_j_times_its_transpose(shape: Shape, feature: str, cross: bool) -> None:
    case = with_feature(shape, feature, cross=cross)
    j = case.side_by_side()
    kernel = jacobian.tangent_kernel(case.head())
    rows, width = shape.batch * shape.n, case.weights[2].shape[1]
    assert kernel.shape == (rows, width, rows, width)
    expected = j @ j.T
    # Sums of at most some hundred products: entries to 100 eps of the largest, here with a factor of 50 to spare.
    assert (kernel.reshape(expected.shape) - expected).abs().max() <= 1e-12 * expected.abs().max()


@settings(max_examples=60)
@given(shape=shapes, feature=st.sampled_from(list(FEATURES)), cross=st.booleans())
def test_the_compressed_matrix_has_the_left_singular_vectors_of_j(shape: Shape, feature: str, cross: bool) -> None:
    case = with_feature(shape, feature, cross=cross)
    head = case.head()
    conventions = {"side-by-side": case.side_by_side()}
    if len({w.shape for w in case.weights}) == 1:
        conventions["vertical"] = case.vertical()
    for convention, j in conventions.items():
        ours = jacobian.matrix(head, convention=convention)
        assert_agree(torch.linalg.svdvals(ours), torch.linalg.svdvals(j), FACTOR)
        assert ours.shape[1] <= j.shape[1]
        if convention == "side-by-side":
            assert (ours @ ours.T - j @ j.T).abs().max() <= 1e-12 * (j @ j.T).abs().max()  # as for the kernel


def test_one_head_of_a_real_layer_on_some_of_its_sequences() -> None:
    """`nn.MultiheadAttention`, its fused weight cut by hand."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    nn.init.normal_(layer.in_proj_bias)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    weights = [part[4:].T.detach() for part in layer.in_proj_weight.chunk(3)]
    biases = {role: part[4:].detach() for role, part in zip(ROLES, layer.in_proj_bias.chunk(3), strict=True)}
    case = Case(x[[2, 0]], tuple(weights), biases=biases)  # type: ignore[arg-type]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = layer

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.attention(x, x, x, need_weights=False)[0]
            return out

    view = wc.attention_layers(Model())[0]
    head = jacobian.head_of(view, x, 1, sequences=[2, 0])
    torch.testing.assert_close(head.output(), case.output(*weights), rtol=1e-12, atol=1e-13)
    assert_agree(jacobian.singular_values(head), torch.linalg.svdvals(case.side_by_side()), FACTOR)
    kernel = jacobian.tangent_kernel(head).reshape(40, 40)
    j = case.side_by_side()
    torch.testing.assert_close(kernel, j @ j.T, rtol=1e-10, atol=1e-13)


# ---------------------------------------------------------------------------------------------------------------------
# curvlinops


class OneHead(nn.Module):
    """Causal or not, from three parameters; written for curvlinops, which differentiates it by `torch.func`."""

    def __init__(self, inputs: int, d: int, d_v: int, *, masked: bool) -> None:
        super().__init__()
        self.w_q, self.w_k = (nn.Parameter(torch.randn(inputs, d, dtype=torch.float64)) for _ in range(2))
        self.w_v = nn.Parameter(torch.randn(inputs, d_v, dtype=torch.float64))
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x @ self.w_q, x @ self.w_k, x @ self.w_v  # the fused kernels have no forward mode
        logits = q @ k.mT / q.shape[-1] ** 0.5
        if self.masked:
            logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), HIDDEN)
        return logits.softmax(-1) @ v


@pytest.mark.parametrize("masked", [False, True])
def test_curvlinops_finds_the_same_singular_values(masked: bool) -> None:
    torch.manual_seed(7)
    n, inputs, d = 6, 5, 3
    module = OneHead(inputs, d, d, masked=masked)
    x = torch.randn(1, n, inputs, dtype=torch.float64)
    weights = list(module.parameters())
    data = [(x, torch.zeros(1, n, d, dtype=torch.float64))]
    forward = curvlinops.JacobianLinearOperator(module, weights, data)
    backward = curvlinops.TransposedJacobianLinearOperator(module, weights, data)
    columns = sum(w.numel() for w in weights)
    j = forward @ torch.eye(columns, dtype=torch.float64)
    torch.testing.assert_close(j.T, backward @ torch.eye(n * d, dtype=torch.float64), rtol=1e-12, atol=1e-13)
    options = {"bias": causal_mask(n, n)} if masked else {}
    head = jacobian.softmax_head(x, *(w.detach() for w in weights), **options)
    assert_agree(jacobian.singular_values(head), torch.linalg.svdvals(j.detach()), FACTOR)
    largest = svds(forward.to_scipy(), k=5, return_singular_vectors=False, random_state=0)
    ours = jacobian.singular_values(head)[:5].numpy()
    np.testing.assert_allclose(np.sort(largest)[::-1], ours, rtol=1e-9)  # ARPACK to machine precision of σ²
    assert jacobian.spectrum(head).sigma_max == pytest.approx(largest.max(), rel=1e-9)
