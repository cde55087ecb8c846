"""Which elements of the parameters a view claims, and whether they are the true ones.

Of the library only `read` and `write_` are used. The elements of all parameters are numbered, and the numbers put in
place of the values: what a view reads then says which elements it claims, whatever its storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.attention.strange.told import Truth

QKV = ("query", "key", "value")


class Wrong(AssertionError):
    """Says how a view differs from the truth."""


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention of a model: whose it is, which of that module's, and where its weights are (element numbers)."""

    path: str
    site: int
    truth: Truth


def numbered(model: nn.Module) -> dict[str, Tensor]:
    """Numbers of all elements of all parameters, from 1."""
    numbers, first = {}, 1
    for name, parameter in model.named_parameters():
        numbers[name] = torch.arange(first, first + parameter.numel()).reshape(parameter.shape)
        first += parameter.numel()
    return numbers


def attentions(model: nn.Module) -> list[Attention]:
    """Every attention of a model, as its modules declare them."""
    numbers = numbered(model)
    found = []
    for path, module in model.named_modules():
        if hasattr(module, "truth"):
            truths = module.truth(lambda name, at=path: numbers[f"{at}.{name}" if at else name])
            found += [Attention(path, site, truth) for site, truth in enumerate(truths)]
    return found


@contextmanager
def numbers_in(model: nn.Module) -> Iterator[None]:
    """Put the numbers of the elements in place of their values; the values come back to the bit."""
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    try:
        with torch.no_grad():
            for (_, parameter), numbers in zip(model.named_parameters(), numbered(model).values(), strict=True):
                parameter.copy_(numbers)
        yield
    finally:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(kept[name])


def claimed(model: nn.Module, layer: Any) -> dict[str, Tensor]:
    """Numbers of the elements that a view claims, `(heads, D, d)` by role."""
    with numbers_in(model):
        roles = {role: getattr(layer, role) for role in (*QKV, "output")}
        return {role: view.read().round().long() for role, view in roles.items() if view is not None}


@dataclass(frozen=True)
class Match:
    """How the heads of a view are numbered in truth; where a module loops over its heads, a view may be of some."""

    attention: Attention
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    claims: dict[str, Tensor]


def match(model: nn.Module, layer: Any, among: list[Attention]) -> Match:
    """Find the attention that a view is about and hold every element to it; raise `Wrong`."""
    claims = claimed(model, layer)
    missing = [role for role in QKV if role not in claims]
    if missing:
        raise Wrong(f"'{layer.name}' has no {missing[0]}")
    close = [a for a in among if _overlap(claims["value"], a.truth.value) and _overlap(claims["query"], a.truth.query)]
    if not close:
        raise Wrong(f"'{layer.name}' is about no attention of this model")
    problems = []
    for attention in close:
        try:
            return _matched(layer, attention, claims)
        except Wrong as error:
            problems.append(f"{error}")
    raise Wrong("; ".join(problems))


def _overlap(a: Tensor, b: Tensor) -> bool:
    return bool(torch.isin(a, b).any())


def _matched(layer: Any, attention: Attention, claims: dict[str, Tensor]) -> Match:
    truth = attention.truth
    of: dict[str, tuple[int, ...]] = {}
    places: dict[str, list[tuple[int, ...]]] = {}
    for role in QKV:
        part = truth.partial and role != "value"
        found = [_head(layer, role, head, getattr(truth, role), partial=part) for head in claims[role]]
        of[role], places[role] = tuple(h for h, _ in found), [at for _, at in found]
        if len(set(of[role])) < len(of[role]):
            raise Wrong(f"'{layer.name}': {role} heads {of[role]} of {len(getattr(truth, role))}")
    heads, groups = len(of["query"]), len(of["key"])
    if heads % groups:
        raise Wrong(f"'{layer.name}': {heads} query heads do not share {groups} keys evenly")
    for index, head in enumerate(of["query"]):
        group = index // (heads // groups)
        averaged = truth.averaged or truth.groups
        if of["key"][group] != truth.groups[head] or of["value"][group] != averaged[head]:
            raise Wrong(f"'{layer.name}': query head {index} is paired with another head's key or value")
        if not truth.partial and places["query"][index] != places["key"][group]:
            raise Wrong(f"'{layer.name}': columns of query and key head {index} are not those that meet in the score")
    if "output" in claims and not truth.anywhere:
        _check_output(layer, truth, claims["output"], of, places["value"])
    return Match(attention, of["query"], of["key"], of["value"], claims)


def _head(layer: Any, role: str, claim: Tensor, truth: Tensor, *, partial: bool) -> tuple[int, tuple[int, ...]]:
    """The true head whose columns a claim has, and the place of each column in it."""
    for head, whole in enumerate(truth):
        if len(whole) == len(claim) and _overlap(claim, whole):
            columns = {tuple(column): place for place, column in enumerate(whole.mT.tolist())}
            places = [columns.get(tuple(column)) for column in claim.mT.tolist()]
            if None in places or len(set(places)) < len(places) or (len(places) < len(columns) and not partial):
                raise Wrong(
                    f"'{layer.name}': a {role} head reads {places} of the {len(columns)} columns of head {head}"
                )
            return head, tuple(p for p in places if p is not None)
    raise Wrong(f"'{layer.name}': a {role} head has elements of no head")


def _check_output(layer: Any, truth: Truth, claim: Tensor, of: dict[str, Any], places: list[tuple[int, ...]]) -> None:
    if truth.output is None:
        raise Wrong(f"'{layer.name}' has an output, but nothing reads its heads alone")
    share = len(of["query"]) // len(of["value"])
    for index, head in enumerate(of["query"]):
        expected = truth.output[head][:, list(places[index // share])]
        if claim[index].shape != expected.shape or not torch.equal(claim[index], expected):
            raise Wrong(f"'{layer.name}': output head {index} is not what reads head {head}")
