"""Random layouts: whatever the storage, a view reads and writes `(heads, D, d)` and nothing else.

Where Q, K and V lie is written down twice: as `Layout`s in `describe`, and as plain reshapes in `split` and `fuse`,
with which the attention module below computes. Neither uses the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import wellcond as wc
from wellcond.attention.adapters import build
from wellcond.attention.capture import capture
from wellcond.attention.layouts import Layout, contiguous, grouped, head_fastest, interleaved
from wellcond.attention.replay import Replay, Softmax, causal_mask, tokens_from
from wellcond.attention.verify import check_call
from wellcond.errors import WeightError
from wellcond.testing import same_bits, state, tamper

ROLES = ("query", "key", "value")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Spec:
    """One storage of one attention layer.

    Args:
        storage: `separate`; fused as `block` [part, head, d], `head` [head, part, d], `grouped`
            [group, (queries, k, v), d], or `fastest` [part, d, head].
        linear: `linear` (out, in), `conv1d` (in, out) as in transformers, `conv` a 1×1 convolution, `channels_last` the
            same in that memory format.
        extra: rows of a fused weight that belong to nobody (a gate).
    """

    storage: str
    linear: str
    heads: int
    groups: int
    width: int
    inputs: int
    bias: bool
    extra: int = 0
    causal: bool = False

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.heads, self.groups, self.groups

    @property
    def fused(self) -> int:
        return sum(self.counts) * self.width


STORAGES = ("separate", "block", "head", "grouped", "fastest")
LINEARS = ("linear", "conv1d", "conv", "channels_last")


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    storage = draw(st.sampled_from(STORAGES))
    groups = draw(st.integers(1, 4))
    shared = 1 if storage == "head" else draw(st.integers(1, 3))
    return Spec(
        storage=storage,
        linear=draw(st.sampled_from(LINEARS)),
        heads=groups * shared,
        groups=groups,
        width=draw(st.integers(1, 6)),
        inputs=draw(st.integers(2, 9)),  # with D = 1 the logits are symmetric, and Q and K cannot be told apart
        bias=draw(st.booleans()),
        extra=0 if storage == "separate" else draw(st.integers(0, 3)),
        causal=draw(st.booleans()),
    )


# ---- the oracle: reshapes ----


def split(stored: Any, spec: Spec) -> list[Any]:
    """The last axis of a fused array or tensor to Q, K and V: `(…, out)` to three times `(…, heads, d)`."""
    lead, d, (h, g, _) = stored.shape[:-1], spec.width, spec.counts
    used = stored[..., : spec.fused]
    if spec.storage == "head":
        q_k_v = used.reshape(*lead, h, 3, d)
        return [q_k_v[..., part, :] for part in range(3)]
    if spec.storage == "grouped":
        by_group = used.reshape(*lead, g, h // g + 2, d)
        queries = by_group[..., : h // g, :].reshape(*lead, h, d)
        return [queries, by_group[..., h // g, :], by_group[..., h // g + 1, :]]
    parts = used[..., : h * d], used[..., h * d : (h + g) * d], used[..., (h + g) * d :]
    if spec.storage == "fastest":
        return [part.reshape(*lead, d, n).swapaxes(-1, -2) for part, n in zip(parts, spec.counts, strict=True)]
    return [part.reshape(*lead, n, d) for part, n in zip(parts, spec.counts, strict=True)]


def fuse(q: Array, k: Array, v: Array, spec: Spec) -> Array:
    """The inverse of `split`, built up instead of cut down."""
    lead, d, (h, g, _) = q.shape[:-2], spec.width, spec.counts
    if spec.storage == "head":
        return np.stack([q, k, v], axis=-2).reshape(*lead, -1)
    if spec.storage == "grouped":
        by_group = np.concatenate([q.reshape(*lead, g, h // g, d), k[..., None, :], v[..., None, :]], axis=-2)
        return by_group.reshape(*lead, -1)
    if spec.storage == "fastest":
        q, k, v = (part.swapaxes(-1, -2) for part in (q, k, v))
    return np.concatenate([part.reshape(*lead, -1) for part in (q, k, v)], axis=-1)


def in_out(linear: nn.Module) -> Array:
    """The weight of a linear-like module as (in, out)."""
    weight = linear.get_parameter("weight").detach().numpy()
    return weight if isinstance(linear, Conv1D) else weight.reshape(weight.shape[:2]).T


# ---- the module: attention by explicit reshape ----


def make_linear(kind: str, inputs: int, outputs: int, bias: bool) -> nn.Module:
    if kind == "linear":
        return nn.Linear(inputs, outputs, bias)
    if kind == "conv1d":
        module = Conv1D(outputs, inputs)
        module.bias = module.bias if bias else None
        return module
    conv = nn.Conv2d(inputs, outputs, 1, bias=bias)
    return conv.to(memory_format=torch.channels_last) if kind == "channels_last" else conv


def apply(linear: nn.Module, x: Tensor) -> Tensor:
    """`(B, N, in)` to `(B, N, out)`."""
    if isinstance(linear, nn.Conv2d):
        return linear(x.mT[..., None])[..., 0].mT
    if isinstance(linear, Conv1D) and linear.bias is None:
        return x @ linear.weight
    return linear(x)


class Mixer(nn.Module):
    """Attention with the storage of a `Spec`; its names say nothing, so only `describe` knows."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        names = ("left", "right", "content") if spec.storage == "separate" else ("all",)
        sizes = [n * spec.width for n in spec.counts] if len(names) == 3 else [spec.fused + spec.extra]
        for name, size in zip(names, sizes, strict=True):
            self.add_module(name, make_linear(spec.linear, spec.inputs, size, spec.bias))
        self.back = make_linear(spec.linear, spec.heads * spec.width, spec.inputs, spec.bias)

    def project(self, x: Tensor) -> list[Tensor]:
        if self.spec.storage != "separate":
            return split(apply(self.all, x), self.spec)
        return [
            apply(self.get_submodule(name), x).unflatten(-1, (n, self.spec.width))
            for name, n in zip(("left", "right", "content"), self.spec.counts, strict=True)
        ]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)  # (B, N, heads, d)
        outputs = []
        for head in range(self.spec.heads):
            group = head // (self.spec.heads // self.spec.groups)
            logits = q[:, :, head] @ k[:, :, group].mT / self.spec.width**0.5
            if self.spec.causal:
                logits = logits.masked_fill(torch.ones(logits.shape[1:]).triu(1).bool(), float("-inf"))
            outputs.append(logits.softmax(-1) @ v[:, :, group])
        return apply(self.back, torch.cat(outputs, -1))


class Net(nn.Module):
    """A mixer among parameters that are nobody's business."""

    def __init__(self, spec: Spec, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.before, self.mixer, self.after = nn.Linear(3, 5), Mixer(spec), nn.LayerNorm(4)
            for parameter in self.parameters():
                nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(x)


def layouts(spec: Spec) -> list[Layout]:
    h, g, d = spec.heads, spec.groups, spec.width
    if spec.storage == "head":
        return [interleaved(h, d, part) for part in range(3)]
    if spec.storage == "grouped":
        return [grouped(g, h // g, d, role) for role in ROLES]
    place = head_fastest if spec.storage == "fastest" else contiguous
    return [place(h, d), place(g, d, h * d), place(g, d, (h + g) * d)]


def describe(module: nn.Module, name: str) -> wc.AttentionLayer:
    spec: Spec = module.spec
    if spec.storage == "separate":
        children = zip(("left", "right", "content"), spec.counts, strict=True)
        parts = [build.separate(module, name, child, n) for child, n in children]
    else:
        parts = [build.part(module, name, "all", layout) for layout in layouts(spec)]
    return wc.AttentionLayer(
        name,
        "softmax",
        *parts,
        build.output(module, name, "back", spec.heads),
        scale=spec.width**-0.5,
        replay=Replay(mixing, tokens_from("x"), target=lambda call: call.output),
    )


def mixing(call: Any) -> Softmax:
    n = call.arguments["x"].shape[1]
    spec = call.module.spec
    return Softmax(spec.width**-0.5, causal_mask(n, n, call.arguments["x"]) if spec.causal else None)


wc.register_attention(Mixer, describe)


def view(net: Net) -> wc.AttentionLayer:
    (layer,) = wc.attention_layers(net)
    return layer


def expected(net: Net) -> list[Array]:
    """Q, K and V as `(heads, D, d)`, by the oracle."""
    spec, mixer = net.mixer.spec, net.mixer
    if spec.storage == "separate":
        matrices = [in_out(mixer.get_submodule(name)) for name in ("left", "right", "content")]
        parts = [m.reshape(len(m), n, spec.width) for m, n in zip(matrices, spec.counts, strict=True)]
    else:
        parts = split(in_out(mixer.all), spec)
    return [part.swapaxes(0, 1) for part in parts]


def unchanged(net: Net, before: dict[str, Tensor], *but: str) -> None:
    for name, value in state(net).items():
        assert name in but or same_bits(value, before[name]), name


# ---- the properties ----


@given(specs())
@settings(max_examples=100)
def test_the_oracle_inverts_itself(spec: Spec) -> None:
    fused = np.arange(2.0 * spec.fused).reshape(2, -1)
    assert np.array_equal(fuse(*split(fused, spec), spec), fused)


@given(specs())
@settings(max_examples=100)
def test_reading_is_reshaping(spec: Spec) -> None:
    net = Net(spec)
    layer = view(net)
    for role, want in zip(ROLES, expected(net), strict=True):
        projection = getattr(layer, role)
        assert projection.shape == want.shape
        assert np.array_equal(projection.read().numpy(), want), role
    output = in_out(net.mixer.back).reshape(spec.heads, spec.width, spec.inputs).swapaxes(1, 2)
    assert np.array_equal(layer.output.read().numpy(), output)


@given(specs())
@settings(max_examples=100)
def test_a_bias_is_read_where_its_weight_is(spec: Spec) -> None:
    net = Net(spec)
    layer = view(net)
    for index, role in enumerate(ROLES):
        bias = getattr(layer, role).read_bias()
        if not spec.bias:
            assert bias is None
        elif spec.storage == "separate":
            stored = net.mixer.get_submodule(("left", "right", "content")[index]).bias
            assert torch.equal(bias, stored.detach().reshape(spec.counts[index], spec.width))
        else:
            assert np.array_equal(bias.numpy(), split(net.mixer.all.bias.detach().numpy(), spec)[index])
    assert (layer.output.read_bias() is None) == (not spec.bias)


@given(specs(), st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]), st.integers(0, 99))
@settings(max_examples=100)
def test_a_round_trip_is_exact_and_touches_nothing_else(spec: Spec, dtype: torch.dtype, seed: int) -> None:
    net = Net(spec).to(dtype)
    layer, before = view(net), state(net)
    for role, projection in layer.projections():
        original, path = projection.read(), projection.weight.path
        noise = torch.randn(projection.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        projection.write_(noise)
        assert same_bits(projection.read(), noise)
        for other, untouched in layer.projections():
            if other != role and untouched.weight.path == path:
                assert same_bits(untouched.read(), untouched.weight.layout.read(before[path])), (role, other)
        unchanged(net, before, path)
        projection.write_(original)
        unchanged(net, before)


@given(specs())
@settings(max_examples=100)
def test_writing_is_reshaping_back(spec: Spec) -> None:
    net, noise = Net(spec, seed=0), Net(spec, seed=1)
    if spec.storage == "separate":
        return
    extra = in_out(net.mixer.all)[:, spec.fused :].copy()
    q, k, v = expected(noise)
    layer = view(net)
    for role, weight in zip(ROLES, (q, k, v), strict=True):
        getattr(layer, role).write_(torch.tensor(weight))
    stored = in_out(net.mixer.all)
    assert np.array_equal(stored[:, : spec.fused], fuse(*(part.swapaxes(0, 1) for part in (q, k, v)), spec))
    assert np.array_equal(stored[:, spec.fused :], extra)


@given(specs())
@settings(max_examples=100)
def test_more_heads_than_there_are_rows_are_refused(spec: Spec) -> None:
    if spec.storage == "separate":
        return
    net = Net(replace(spec, extra=0))
    for place, heads in ((contiguous, sum(spec.counts) + 1), (head_fastest, sum(spec.counts) + 1)):
        with pytest.raises(WeightError, match="head count"):
            build.part(net.mixer, "mixer", "all", place(heads, spec.width))


def inputs(spec: Spec) -> Tensor:
    return torch.randn(2, 5, spec.inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@given(specs())
@settings(max_examples=100)
def test_verify_passes(spec: Spec) -> None:
    net = Net(spec).double()
    result = view(net).verify(inputs(spec))
    assert result.method == "replay"
    assert result.error <= 1e-6


@given(specs())
@settings(max_examples=100)
def test_verify_fails_on_a_view_that_is_wrong(spec: Spec) -> None:
    net = Net(spec).double()
    layer = view(net)
    (call,) = capture([layer], inputs(spec))
    assert call is not None
    wrong = dict(tamper(layer))
    for what, tampered in wrong.items():
        assert not check_call(tampered, call), what
    assert ("Q and K swapped" in wrong) == (spec.heads == spec.groups)
    assert ("two groups swapped" in wrong) == (1 < spec.groups < spec.heads)
    assert ("two query heads swapped" in wrong) == (spec.heads > 1)


@given(specs())
@settings(max_examples=100)
def test_verify_fails_on_another_storage_order(spec: Spec) -> None:
    """Reading one fused order as another is what an adapter gets wrong."""
    net = Net(spec).double()
    layer = view(net)
    (call,) = capture([layer], inputs(spec))
    assert call is not None
    if spec.storage == "separate":
        return
    mine = [rows(layout) for layout in layouts(spec)]
    for storage in STORAGES[1:]:
        if storage == "head" and spec.heads != spec.groups:
            continue
        other = layouts(replace(spec, storage=storage))
        if [rows(layout) for layout in other] == mine:  # as all are for one head
            continue
        parts = {role: build.part(net.mixer, "mixer", "all", lay) for role, lay in zip(ROLES, other, strict=True)}
        wrong = replace(layer, **{role: replace(part, root=net) for role, part in parts.items()})
        assert not check_call(wrong, call), storage


def rows(layout: Layout) -> list[int]:
    return [start + i * layout.step for start in layout.starts for i in range(layout.width)]


def orthonormal(weight: Tensor) -> Tensor:
    """|WᵀW − I| per head, rows where d > D."""
    wide = weight.double()
    gram = wide.mT @ wide if wide.shape[1] >= wide.shape[2] else wide @ wide.mT
    return (gram - torch.eye(gram.shape[-1], dtype=torch.float64)).abs().amax((1, 2))


@given(specs(), st.integers(0, 2**40))
@settings(max_examples=100)
def test_conditioned_holds_per_head_and_leaves_the_rest(spec: Spec, seed: int) -> None:
    net = Net(spec)
    before = state(net)
    wc.init_(net, "conditioned", seed=seed)
    query, key, value = expected(net)  # by the oracle, so that a wrong place shows
    assert orthonormal(torch.tensor(query)).max() < 1e-6
    assert orthonormal(torch.tensor(key)).max() < 1e-6
    assert np.array_equal(value, np.broadcast_to(np.eye(spec.inputs, spec.width), value.shape))
    names = ("left", "right", "content") if spec.storage == "separate" else ("all",)
    unchanged(net, before, *(f"mixer.{name}.weight" for name in names))
    if spec.extra:
        outside = before["mixer.all.weight"].clone()
        old = net.mixer.all.weight.detach().clone()
        at = 1 if spec.linear == "conv1d" else 0
        assert same_bits(old.narrow(at, spec.fused, spec.extra), outside.narrow(at, spec.fused, spec.extra))


@given(specs(), st.integers(0, 99), st.sampled_from(["conditioned", "normal", "orthogonal", "xavier", "critical"]))
@settings(max_examples=100)
def test_the_same_seed_gives_the_same_heads_in_every_storage(spec: Spec, seed: int, scheme: str) -> None:
    options = {"tokens": 16} if scheme == "critical" else {}
    plain = Net(replace(spec, storage="separate", linear="linear", extra=0), seed=5)
    wc.init_(plain, scheme, seed=seed, **options)
    net = Net(spec)
    wc.init_(net, scheme, seed=seed, **options)
    for role, ours, theirs in zip(ROLES, expected(net), expected(plain), strict=True):
        if scheme != "critical" or role != "value":
            assert np.array_equal(ours, theirs), role


@given(specs(), st.integers(0, 99))
@settings(max_examples=50)
def test_a_head_does_not_depend_on_how_many_there_are(spec: Spec, seed: int) -> None:
    more = replace(spec, heads=2 * spec.heads, groups=2 * spec.groups)
    few, many = Net(spec), Net(more)
    for net in (few, many):
        wc.init_(net, "conditioned", seed=seed)
    for ours, theirs in zip(expected(few), expected(many), strict=True):
        assert np.array_equal(ours, theirs[: len(ours)])


def test_heads_and_roles_differ() -> None:
    net = Net(Spec("block", "linear", heads=4, groups=2, width=3, inputs=8, bias=True))
    wc.init_(net, "conditioned", seed=0)
    query, key, _ = expected(net)
    drawn = [*query, *key]
    assert all(not np.allclose(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


@pytest.mark.parametrize("make", [lambda s: Net(s).double(), lambda s: Net(s).bfloat16()], ids=["float64", "bfloat16"])
def test_the_storage_type_rounds_the_same_draw(make: Callable[[Spec], Net]) -> None:
    spec = Spec("head", "linear", heads=3, groups=3, width=4, inputs=8, bias=False)
    net, plain = make(spec), Net(spec)
    for model in (net, plain):
        wc.init_(model, "conditioned", seed=7)
    for role in ROLES:
        ours, theirs = getattr(view(net), role).read(), getattr(view(plain), role).read()
        assert same_bits(ours, theirs.to(ours.dtype))


# ---- the same seed under whatever the user has switched on ----


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


DRAWN = [info.name for info in wc.schemes() if info.name not in ("weight_selection", "calibrated")]  # they need more
AMBIENT: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64 by default": lambda: default_dtype(torch.float64),
    "bfloat16 by default": lambda: default_dtype(torch.bfloat16),
    "another device by default": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "two threads": lambda: threads(2),
}


def post_norm() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)


@pytest.mark.parametrize("ambient", AMBIENT)
@pytest.mark.parametrize("scheme", DRAWN)
def test_a_draw_depends_on_its_key_alone(scheme: str, ambient: str) -> None:
    options = {"on_inapplicable": "skip"} | ({"tokens": 16} if scheme == "critical" else {})
    plain, model = post_norm(), post_norm()
    wc.init_(plain, scheme, seed=0, **options)
    with AMBIENT[ambient]():
        wc.init_(model, scheme, seed=0, **options)
        assert wc.audit(model, scheme, **options).passed
    for name, value in state(model).items():
        assert same_bits(value, state(plain)[name]), name
