"""Set the sharpness of the heads of a layer that is about to run: scale W_Q and W_K, or the gains of its QK-norm."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from wellcond._core.linalg import wide
from wellcond.attention.paths import join
from wellcond.attention.projection import Projection
from wellcond.attention.storage import HALF_DTYPES, assign_, fetch, full, write_refusal
from wellcond.attention.view import QK_NORMS, AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.scale.queries_and_keys import QueriesAndKeys

CLOSE = 1e-3  # relative distance from a target at which it is reached
ROUNDS = 12


def sharpen_(
    logits: QueriesAndKeys,
    before: Sequence[float | None],
    targets: Sequence[float],
    writes: ParameterWrites,
    measure: Callable[[], QueriesAndKeys | str],
) -> str:
    """Scale the queries and keys of a layer from one β to another; return why that cannot be, or nothing.

    `measure` gives the logits anew, with weights as they are then.
    """
    layer = logits.layer
    assert layer.query is not None
    assert layer.key is not None
    if not before:
        return f"{layer.kind}: no softmax over tokens alone"
    if any(not beta for beta in before):
        return "its logits are all equal, or rows have one key: there is no sharpness to scale"
    if layer.query.weight == layer.key.weight:
        return "queries and keys are one projection, which cannot be scaled by head"
    reason = layer.query.refusal() or layer.key.refusal()
    if reason:
        return reason
    factors = [1.0] * layer.num_heads  # of the logits of each head
    now: Sequence[float | None] = before
    for _ in range(ROUNDS):
        if _alike(targets, now):
            _write(layer, *_split(layer, factors), writes)
            return ""
        factors = [f * t / (beta or math.inf) for f, t, beta in zip(factors, targets, now, strict=True)]
        last, now = now, logits.sharpness(*_split(layer, factors))
        if _alike(last, now) and not _alike(targets, now):
            break
    if _alike(before, logits.sharpness(*_split(layer, [100.0] * layer.num_heads))):
        return _by_gains(layer, measure, targets, writes)
    return "a bias or a cap of its logits, or something else beside Q and K, keeps its sharpness from the target"


def _alike(a: Sequence[float | None], b: Sequence[float | None]) -> bool:
    return all(x and y and abs(y / x - 1) < CLOSE for x, y in zip(a, b, strict=True))


def _split(layer: AttentionLayer, factors: Sequence[float]) -> tuple[list[float], list[float]]:
    """Queries' and keys' parts of the factors: equal roots; heads that share a key share the mean of its root.

    Where part of each key is no head's, as the rotary part of latent attention, queries take all of it: QK-clip
    (2507.20534) multiplies their rotary part by γ and the rest by √γ on both sides, which are the same logits.
    """
    assert layer.query is not None
    assert layer.key is not None
    if layer.query.width != layer.key.width:
        return list(factors), [1.0] * layer.key.heads
    group, keys = layer.num_heads // layer.key.heads, []
    for start in range(0, len(factors), group):
        mine = factors[start : start + group]
        keys.append(math.exp(sum(math.log(f) for f in mine) / len(mine) / 2))
    return [f / keys[head // group] for head, f in enumerate(factors)], keys


def _write(layer: AttentionLayer, query: Sequence[float], key: Sequence[float], writes: ParameterWrites) -> None:
    assert layer.query is not None
    assert layer.key is not None
    multiply_(layer.query, query, writes)
    multiply_(layer.key, key, writes)


def multiply_(projection: Projection, factors: Sequence[float], writes: ParameterWrites) -> None:
    """Multiply each head of a projection, and its bias; the bias of an output projection by the first number."""
    with writes.at_rest(projection.weight.path):
        writes.open(projection.weight.path)
        weight = projection.read()
        weight = wide(weight) if weight.dtype in HALF_DTYPES else weight
        projection.store_(weight * weight.new_tensor(factors)[:, None, None])
    if projection.bias is None:
        return
    with writes.at_rest(projection.bias):
        writes.open(projection.bias)
        bias = projection.read_bias()
        assert bias is not None
        each = wide(bias).new_tensor(factors)
        projection.store_bias_(wide(bias) * (each[0] if projection.bias_layout is None else each[:, None]))


def _by_gains(
    layer: AttentionLayer,
    measure: Callable[[], QueriesAndKeys | str],
    targets: Sequence[float],
    writes: ParameterWrites,
) -> str:
    """Scale the gains of a QK-norm, which all heads share: the mean β of the layer becomes the targets' mean."""
    gains = _gains(layer)
    if not gains:
        return "queries and keys are normalised without a gain to scale"
    assert layer.root is not None
    rounding = max(torch.finfo(fetch(layer.root, path).dtype).eps for path in gains)
    target, held = sum(targets) / len(targets), dict[str, Tensor]()
    for _ in range(ROUNDS):
        logits = measure()
        known = [] if isinstance(logits, str) else [beta for beta in logits.sharpness() if beta is not None]
        if not known:
            break
        ratio = target * len(known) / sum(known)
        if abs(ratio - 1) < max(CLOSE, rounding):
            return ""
        factor = ratio ** (1 / len(gains))
        for path, offset in gains.items():
            held.setdefault(path, _rescale(path, factor, offset, writes))
    for path, value in held.items():
        with writes.at_rest(path):
            assign_(writes.open(path), value)
    return "the gains of its QK-norm do not bring its sharpness to the target"


def _rescale(path: str, factor: float, offset: float, writes: ParameterWrites) -> Tensor:
    """Multiply a gain, to which something is added at use; return what it was."""
    with writes.at_rest(path):
        parameter = writes.open(path)
        before = full(parameter).clone()
        assign_(parameter, (before.double() + offset) * factor - offset)
    return before


def _gains(layer: AttentionLayer) -> dict[str, float]:
    """Paths of the gains of a layer's QK-norms, and what is added to each at use: 1 where γ − 1 is stored."""
    found: dict[str, float] = {}
    for pattern in QK_NORMS.values():
        for name, module in layer.module.named_modules():
            weight = getattr(module, "weight", None)
            if re.search(pattern, name) and isinstance(weight, Tensor) and not list(module.children()):
                path = join(join(layer.path, name), "weight")
                assert layer.root is not None
                if write_refusal(layer.root, path) is None:
                    found[path] = 1.0 if _stores_difference(module, full(weight)) else 0.0
    return found


def _stores_difference(norm: nn.Module, weight: Tensor) -> bool:
    """Whether a norm multiplies by 1 + weight, as Gemma's do: asked with a vector of ones and minus ones."""
    x = weight.new_ones(weight.shape)
    x[..., ::2] = -1.0
    out = norm(x[None])[0] / x
    return bool((out - 1 - weight).abs().max() < (out - weight).abs().max())
