"""The Jacobian of one head by differentiating the real module: `functional_call` in float64 and nothing of ours.

What is differentiated is what the module hands to its output projection, with respect to the entries of its stored
parameters that hold the head. Where a module does not call its output projection, the projection is made the identity.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from wellcond.attention.view import AttentionLayer

ROLES = ("query", "key", "value")


def oracle_jacobian(layer: AttentionLayer, model: nn.Module, batch: Any, head: int) -> dict[str, Tensor]:
    """`(rows, D·d)` by role, rows being (sequence, query, output coordinate) in some order."""
    module = layer.module
    args, kwargs = _arguments(module, model, batch)
    owners = {
        role: projection.weight.path.removeprefix(f"{layer.name}." if layer.name else "")
        for role, projection in layer.projections()
    }
    stored = {path: dict(module.named_parameters())[path].detach() for path in owners.values()}
    entries = {
        role: _entries(stored[owners[role]], layer, role, head // (layer.num_heads // projection.heads))
        for role, projection in layer.projections(*ROLES)
    }
    width = layer.value.width
    columns = slice(head * width, (head + 1) * width)

    def mixed(*weights: Tensor) -> Tensor:
        parameters = dict(stored)
        for role, weight in zip(entries, weights, strict=True):
            path = owners[role]
            parameters[path] = parameters[path].flatten().index_put((entries[role],), weight).view(stored[path].shape)
        return _before_output(layer, module, parameters, args, kwargs, owners.get("output"))[..., columns].flatten()

    start = tuple(stored[owners[role]].flatten()[index] for role, index in entries.items())
    found = torch.autograd.functional.jacobian(mixed, start)
    return dict(zip(entries, found, strict=True))


def _entries(stored: Tensor, layer: AttentionLayer, role: str, head: int) -> Tensor:
    """Flat indices of a head in a stored parameter, `(D·d)`, in the order of `(D, d)`."""
    numbers = torch.arange(stored.numel()).view(stored.shape)
    return getattr(layer, role).weight.layout.views(numbers)[head].flatten()


def _arguments(module: nn.Module, model: nn.Module, batch: Any) -> tuple[Any, Any]:
    given: list[Any] = []
    hook = module.register_forward_pre_hook(lambda _, args, kwargs: given.append((args, kwargs)), with_kwargs=True)
    with torch.no_grad():
        if isinstance(batch, dict):
            model(**batch)
        else:
            model(*batch) if isinstance(batch, tuple) else model(batch)
    hook.remove()
    args, kwargs = given[0]
    return tuple(map(_without_cache, args)), {key: _without_cache(value) for key, value in kwargs.items()}


def _without_cache(argument: Any) -> Any:
    """A module that is run again must not find its own keys in a cache."""
    return None if type(argument).__name__.endswith("Cache") else argument


def _before_output(
    layer: AttentionLayer, module: nn.Module, parameters: dict[str, Tensor], args: Any, kwargs: Any, output: str | None
) -> Tensor:
    if output is None:
        out = functional_call(module, parameters, args, kwargs)
        return out[0] if isinstance(out, tuple) else out
    owner = module.get_submodule(output.rpartition(".")[0])
    seen: list[Tensor] = []
    hook = owner.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    size = parameters[output].shape[0]
    if isinstance(module, nn.MultiheadAttention):  # hands the weight of its output projection to a function
        identity = {output: torch.eye(size, dtype=torch.float64), output.replace("weight", "bias"): torch.zeros(size)}
        parameters = parameters | {k: v.double() for k, v in identity.items() if k in dict(module.named_parameters())}
    try:
        out = functional_call(module, parameters, args, kwargs)
    finally:
        hook.remove()
    if not seen:
        return out[0] if isinstance(out, tuple) else out
    return seen[0].movedim(1, -1) if isinstance(owner, nn.Conv2d) else seen[0]
