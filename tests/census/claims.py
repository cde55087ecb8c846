"""Test what a library says about an attention layer by changing weights and watching the arithmetic.

A layer has `name` (and `path`, where its module has several layers), and `query`, `key`, `value`, `output`: None, or
something with `read() -> (heads, D, d)` and `write_(tensor)`. Nothing else of the library is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.census.orientation import check_orientation
from tests.census.output_claim import check_output
from tests.census.perturb import Wrong, check_storage, others_redrawn, restore, turned
from tests.census.sites import Place
from tests.census.trial import Effect, Trial, moved

QKV = ("query", "key", "value")
Turned = dict[str, dict[int, list[Effect]]]  # role -> head -> effect at each site
Masks = dict[int, Tensor]  # head -> entries that it moves


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, at which places, and if not, what the change of weights showed."""

    layer: str
    passed: bool
    reason: str = ""
    places: tuple[Place, ...] = ()

    def __bool__(self) -> bool:
        return self.passed


def check_claim(model: nn.Module, inputs: dict[str, Any], layer: Any) -> Verdict:
    """Hold one layer to its claim at the places that its own weights move; weights and buffers keep their bits."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    places: tuple[Place, ...] = ()
    try:
        check_storage(layer)
        trial = Trial(model, inputs, layer)
        turns = {role: trial.turn(role) for role in QKV if getattr(layer, role, None) is not None}
        turns = without_late_query(trial, turns)
        own = own_sites(turns)
        places = tuple(dict.fromkeys(trial.base.sites[i].place for i in own))
        scores = separate_scores(turns, own)
        check_sharing(layer, scores, turns, own)
        check_complete(trial, turns, own)
        check_orientation(trial, turns, own)
        check_output(trial, turns, own)
        return Verdict(layer.name, True, places=places)
    except Wrong as error:
        return Verdict(layer.name, False, f"{error}", places)
    finally:
        restore(model, before)


def moved_sites(turn: dict[int, list[Effect]]) -> set[int]:
    """Return the sites that some head of a role moves."""
    return {i for effects in turn.values() for i, effect in enumerate(effects) if effect}


def without_late_query(trial: Trial, turns: Turned) -> Turned:
    """Leave the query out where keys alone are normalised and it meets their mixture with the values afterwards.

    Such a query is held to moving what the module returns, each head of it, and not to the partners that it meets.
    """
    if set(turns) != set(QKV) or moved_sites(turns["query"]):
        return turns
    both = moved_sites(turns["key"]) & moved_sites(turns["value"])
    if not both or any(trial.base.sites[i].scored for i in both):
        return turns
    for head in turns["query"]:
        with turned(trial.layer.query, head):
            if not bool(moved(trial.base.output, trial.again().output).any()):
                raise Wrong(f"query head {head} moves nothing")
    return {role: turn for role, turn in turns.items() if role != "query"}


def own_sites(turns: Turned) -> list[int]:
    """Return the sites that every role moves; each head of each role must move one of them."""
    reached = {role: moved_sites(turn) for role, turn in turns.items()}
    still = [role for role, found in reached.items() if not found]
    if still:
        raise Wrong(f"the {still[0]} moves no softmax and nothing that one mixes")
    own = sorted(set.intersection(*reached.values()))
    if not own:
        raise Wrong("the roles move different softmaxes: " + ", ".join(f"{r} {sorted(s)}" for r, s in reached.items()))
    return own


def over(turn: dict[int, list[Effect]], own: list[int], what: Callable[[Effect], Tensor]) -> Masks:
    return {head: torch.cat([what(found[i]) for i in own]) for head, found in turn.items()}


def disjoint(masks: Masks) -> bool:
    return bool((torch.stack(list(masks.values())).sum(0) <= 1).all())


def check_separate(role: str, masks: Masks) -> None:
    """Each head moves something, and no two move the same entry."""
    for head, mask in masks.items():
        if not bool(mask.any()):
            raise Wrong(f"{role} head {head} moves nothing")
        for other in masks:
            if other < head and bool((mask & masks[other]).any()):
                raise Wrong(f"{role} heads {other} and {head} move the same entries")


def separate_scores(turns: Turned, own: list[int]) -> dict[str, Masks]:
    """Return the scores that each head of the query and of the key moves, after checking that heads are separate.

    Where heads are mixed between the product and the softmax, the product is looked at instead.
    """
    roles = [role for role in ("query", "key") if role in turns]
    found = {role: over(turns[role], own, lambda e: e.scores) for role in roles}
    if not all(disjoint(masks) for masks in found.values()):
        products = {role: over(turns[role], own, lambda e: e.products) for role in roles}
        found = products if all(m.any() for masks in products.values() for m in masks.values()) else found
    for role, masks in found.items():
        check_separate(role, masks)
    return found


def check_sharing(layer: Any, scores: dict[str, Masks], turns: Turned, own: list[int]) -> None:
    """Hold heads to their partners: query head h is scored against key head h // (H/G), and averages such a value."""
    if {"query", "key"} <= set(scores):
        check_partners(layer, "key", scores["query"], scores["key"])
    values = over(turns["value"], own, lambda e: e.mixed)
    check_separate("value", values)
    asking = "query" if "query" in turns else "key" if "key" in turns else None
    if asking is None:
        return
    averaged = over(turns[asking], own, lambda e: e.mixed)
    if disjoint(averaged) and all(mask.any() for mask in averaged.values()):  # not so where heads are mixed
        check_partners(layer, "value", averaged, values, asking)


def check_partners(layer: Any, role: str, queries: Masks, partners: Masks, asking: str = "query") -> None:
    heads, groups = len(getattr(layer, asking).read()), len(getattr(layer, role).read())
    if heads % groups:
        raise Wrong(f"{heads} {asking} heads do not share {groups} {role} heads evenly")
    for head, entries in queries.items():
        for group, shared in partners.items():
            meet = bool((entries & shared).any())
            if meet != (head // (heads // groups) == group):
                raise Wrong(f"{asking} head {head} {'meets' if meet else 'does not meet'} {role} head {group}")


def check_complete(trial: Trial, turns: Turned, own: list[int]) -> None:
    """What a view leaves out of its own parameters makes no part of its role at its sites."""
    for role, turn in turns.items():
        with others_redrawn(trial.model, getattr(trial.layer, role)) as something:
            found = trial.effects() if something else None
        if found is None:
            continue
        first = next(iter(turn.values()))
        for i in own:
            pairs = [(first[i].value, found[i].value)]
            if role != "value":
                pairs = list(zip(sum(first[i].factors, ()), sum(found[i].factors, ()), strict=True))
            if any(by_view and by_rest for by_view, by_rest in pairs):
                raise Wrong(f"a part of the {role} comes from outside the view of it")
