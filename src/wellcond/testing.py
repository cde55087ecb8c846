"""Check an adapter against the contract that every adapter of the library passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond.attention.find import attention_layers
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.observe import observe
from wellcond.attention.paths import unwrap
from wellcond.attention.projection import Projection
from wellcond.attention.verify import check_call
from wellcond.attention.view import AttentionLayer


@checked
def check_adapter(model: nn.Module, inputs: Any) -> AttentionLayers:
    """Hold every view of a model to the adapter contract; raise `AssertionError` with the reason.

    1. Reading and writing back is bit-exact and touches nothing else.
    2. `verify` passes: the module's own output follows from view and replay (use a float64 model).
    3. `verify` fails when Q and K, two heads, or two groups are swapped on purpose.

    >>> model = nn.TransformerEncoderLayer(12, 3, batch_first=True).double()
    >>> len(check_adapter(model, torch.randn(2, 5, 12, dtype=torch.float64)))
    1
    """
    layers = attention_layers(model)
    for layer in layers:
        check_round_trip(model, layer)
    observed = observe(unwrap(model), layers, inputs, complete=False)
    for layer, call in zip(layers, observed.calls, strict=True):
        assert call is not None, f"'{layer.name}' was not called on this input"
        assert call.replay is not None, f"'{layer.name}': {call.refusal}"
        for what, tampered in tamper(layer):
            wrong = tampered.verify(inputs) if layer.replay is None else check_call(tampered, call)
            assert not wrong, f"'{layer.name}' passes with {what}: {wrong}"
    return layers


@checked
def check_round_trip(model: nn.Module, layer: AttentionLayer) -> None:
    """Write noise into each role and back; every other number of the model keeps its bits."""
    generator = torch.Generator().manual_seed(0)
    roles = dict(layer.projections())
    before = state(model)
    originals = {role: p.read() for role, p in roles.items()}
    for role, projection in roles.items():
        heads, width_in, width = projection.shape
        noise = torch.randn(heads, width_in, width, generator=generator, dtype=torch.float64).to(originals[role].dtype)
        projection.write_(noise)
        assert torch.equal(projection.read(), noise), f"'{layer.name}' {role}: read does not return what was written"
        for other, original in originals.items():
            if other != role:
                assert torch.equal(roles[other].read(), original), f"'{layer.name}': writing {role} changed {other}"
        changed = {name for name, value in state(model).items() if not same_bits(value, before[name])}
        path = projection.weight.path
        assert all(name.endswith(path.rpartition(".")[2]) for name in changed), f"writing {path} changed {changed}"
        projection.write_(originals[role])
    for name, value in state(model).items():
        assert same_bits(value, before[name]), f"'{name}' changed in a round trip of '{layer.name}'"


@checked
def tamper(layer: AttentionLayer) -> Iterator[tuple[str, AttentionLayer]]:
    """Yield views that are wrong on purpose, with what is wrong."""
    query, key = layer.query, layer.key
    if query and key and query.shape == key.shape:
        yield "Q and K swapped", replace(layer, query=key, key=query)
    for role, projection in layer.projections("query", "key", "value"):
        if projection.heads > 1:
            changed: dict[str, Any] = {role: _swap_heads(projection)}
            yield f"two {role} heads swapped", replace(layer, **changed)
    if key and layer.value and 1 < layer.num_kv_heads < layer.num_heads:
        yield "two groups swapped", replace(layer, key=_swap_heads(key), value=_swap_heads(layer.value))


def _swap_heads(projection: Projection) -> Projection:
    def swapped(starts: tuple[int, ...]) -> tuple[int, ...]:
        first, second, *rest = starts
        return second, first, *rest

    slot, bias = projection.weight, projection.bias_layout
    weight = replace(slot, layout=replace(slot.layout, starts=swapped(slot.layout.starts)))
    bias = replace(bias, starts=swapped(bias.starts)) if bias else None
    return replace(projection, weight=weight, bias_layout=bias)


@checked
def state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every parameter and buffer, non-persistent ones included."""
    return {name: value.detach().clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}


@checked
def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether all bits are equal, so that NaN equals itself and −0 differs from 0.

    >>> same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    True
    >>> same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    False
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))
