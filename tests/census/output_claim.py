"""Whether each head of the output projection reads what its query head has averaged, and nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.census.perturb import Wrong, turned
from tests.census.trial import Trial, moved

# Share of a head's own effect that may show elsewhere, through a norm over all heads. A column of a head that another
# one reads shows 1/√d of it, 0.09 for d = 128.
LEAK = 0.03


def check_output(trial: Trial, turns: dict[str, Any], own: list[int]) -> None:
    """Move what one head has averaged: its own part of the output must be the only one that shows it."""
    output = getattr(trial.layer, "output", None)
    if output is None:
        return
    weight = output.read()
    parts = {role: turns[role] for role in ("value", "query") if role in turns}
    if "query" in parts and len(trial.layer.query.read()) != len(weight):
        raise Wrong(f"the output has {len(weight)} heads, the queries {len(trial.layer.query.read())}")
    alike = {r: turn for r, turn in parts.items() if len(getattr(trial.layer, r).read()) == len(weight)}
    role = next((r for r, turn in alike.items() if one_each(turn, own)), None)
    if role is None:
        return  # heads are mixed after the softmax, and share values
    try:
        for head, effects in parts[role].items():
            pins = changed(trial, head, {i: effects[i].mixed for i in own})
            zeros = torch.zeros_like(weight)
            zeros[head] = weight[head]
            mine, others = shown(trial, pins, zeros), shown(trial, pins, weight - zeros)
            if mine == 0:
                raise Wrong(f"output head {head} does not read what head {head} has averaged")
            if others > LEAK * mine:
                raise Wrong(f"other output heads than {head} read what head {head} has averaged")
    finally:
        output.write_(weight)


def one_each(turn: dict[int, Any], own: list[int]) -> bool:
    """Return whether each head moves mixed entries, and no two the same."""
    masks = torch.stack([torch.cat([effects[i].mixed for i in own]) for effects in turn.values()])
    return bool(masks.any(1).all()) and bool((masks.sum(0) <= 1).all())


def changed(trial: Trial, head: int, where: dict[int, Tensor]) -> list[Tensor]:
    """Return pins in which what one head has averaged has its columns turned, as by its value.

    A norm over all heads between the mixture and the output keeps the other heads as they are then.
    """
    value = trial.layer.value
    groups, _, width = value.read().shape
    with turned(value, head // (len(trial.layer.output.read()) // groups)):
        later = trial.again(held=True)
    pins = [pin.clone() for pin in trial.pins]
    for index, mask in where.items():
        for mixture in trial.base.sites[index].mixtures:
            here, mask = mask[: mixture.result.numel()], mask[mixture.result.numel() :]
            new = with_bias(
                mixture.result, later.mixtures[mixture.number].result, here.view(mixture.result.shape), width
            )
            pins[mixture.number] = torch.where(here.view(new.shape), new, pins[mixture.number])
    return pins


def with_bias(before: Tensor, turned_weight: Tensor, where: Tensor, width: int) -> Tensor:
    """Return a mixture with its columns turned along the axis that a turned weight shows, bias and all."""
    turns = [before.roll(1, axis) for axis, size in enumerate(before.shape) if size == width > 1]
    return min(turns, key=lambda t: float((t - turned_weight)[where].abs().sum()), default=turned_weight)


def shown(trial: Trial, pins: list[Tensor], weight: Tensor) -> float:
    """Return how far the module's result moves with these pins, with this output weight; 0 within rounding."""
    trial.layer.output.write_(weight)
    before, after = trial.again().output, trial.again(pins).output
    return float((after - before)[moved(before, after)].abs().max()) if bool(moved(before, after).any()) else 0.0
