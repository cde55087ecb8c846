"""What is true of a strange module: what it tells of itself, and autograd through it."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tests.attention.strange.claims import Attention, Match, Wrong, numbered
from tests.attention.strange.told import Told, listening


@torch.no_grad()
def told_by(model: nn.Module, batch: Any, attention: Attention) -> list[Told]:
    """What the module tells of one attention, one for each call, in evaluation mode; a copy of the model runs."""
    twin = copy.deepcopy(model).eval()
    with listening() as heard:
        twin(*batch)
    module = twin.get_submodule(attention.path)
    return [told for told in heard if told.module is module and told.site == attention.site]


def entropy(told: Told, head: int) -> float:
    """Mean over rows of the entropy ÷ log of the number of visible keys; rows with one visible key do not count."""
    p = told.p[:, head]
    keys = seen(told)[:, head].sum(-1)
    rows = torch.special.entr(p).sum(-1) / keys.clamp_min(2).log()
    return float(rows[keys > 1].mean())


def participation(told: Told, head: int) -> float:
    return float(told.p[:, head].square().sum(-1).mean())


def largest_logit(told: Told, head: int) -> float:
    return float(told.logits[:, head][seen(told)[:, head]].abs().max())


def seen(told: Told) -> Tensor:
    """Which keys each query may see, `(B, H, N, T)`."""
    everything = torch.ones(told.p.shape, dtype=torch.bool)
    return everything if told.visible is None else told.visible.expand_as(everything)


def singular_values(
    model: nn.Module, batch: Any, found: Match, head: int, *, call: int = 0, sequence: int | None = 0
) -> Tensor:
    """Singular values of ∂(output of a head) ÷ ∂(W_Q, W_K, W_V) of one sequence (all if None), tokens held fixed."""
    path, site = found.attention.path, found.attention.site
    true = found.query[head]
    group = head // (len(found.query) // len(found.key))
    claims = [found.claims["query"][head], found.claims["key"][group], found.claims["value"][group]]
    module, arguments = _called(model, batch, path, call)
    stored = {name: p.detach().double() for name, p in module.named_parameters()}
    where = _places(model, path, claims)
    start = tuple(stored[name].flatten()[index] for name, index in where)

    def output(*weights: Tensor) -> Tensor:
        parameters = dict(stored)
        for (name, index), weight in zip(where, weights, strict=True):
            parameters[name] = parameters[name].flatten().index_put((index,), weight).view(stored[name].shape)
        with listening() as heard:
            functional_call(copy.deepcopy(module), parameters, arguments)
        told = next(told for told in heard if told.site == site)
        return told.out[:, true] if sequence is None else told.out[sequence, true]

    blocks = torch.autograd.functional.jacobian(output, start)
    return torch.linalg.svdvals(torch.cat([b.flatten(-1).flatten(0, -2) for b in blocks], dim=-1))


def _called(model: nn.Module, batch: Any, path: str, call: int) -> tuple[nn.Module, Any]:
    """The attention module in float64 as it was before one of its calls, and what it was given then."""
    twin = copy.deepcopy(model).eval()
    module, calls = twin.get_submodule(path), []
    hook = module.register_forward_pre_hook(lambda m, given: calls.append((copy.deepcopy(m), given)))
    with torch.no_grad():
        twin(*batch)
    hook.remove()
    before, given = calls[call]
    before._forward_pre_hooks.clear()
    return before.double(), tuple(x.double() if x.is_floating_point() else x for x in given)


def _places(model: nn.Module, path: str, claims: list[Tensor]) -> list[tuple[str, Tensor]]:
    """Name in the module and flat indices of claimed elements; each claim lies in one parameter."""
    numbers, found = numbered(model), []
    for claim in claims:
        name = next(n for n, x in numbers.items() if bool(torch.isin(claim.flatten()[0], x)))
        index = claim.flatten() - int(numbers[name].flatten()[0])
        if int(index.min()) < 0 or int(index.max()) >= numbers[name].numel():
            raise Wrong(f"a head lies in several parameters, '{name}' among them")
        found.append((name.removeprefix(f"{path}.") if path else name, index))
    return found


def condition(values: Tensor) -> tuple[float, int]:
    """κ over the singular values that are not zero by the arithmetic of float64, and how many those are."""
    rank = int((values > 1e-11 * values[0]).sum())
    return (float(values[0] / values[rank - 1]) if rank else math.nan), rank
