"""A layer under trial: passes with its weights changed, and what each change moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.census.passes import Call, Pass, first_call, run
from tests.census.perturb import Wrong, turned
from tests.census.sites import Site
from tests.census.steer import Nudge, Steer

LEAST = 1e-5  # a tensor has moved if its largest change is more than this share of its median entry
SHARE = 1e-5  # an entry has moved if it changed by more than this share of the largest change
MASKED = 1e3  # entries this large are masks, and no scale of the others
MOST_HEADS = 6  # that are tried of one role: the first, the middle and the last, with a neighbour each


def moved(before: Tensor, after: Tensor) -> Tensor:
    """Return which entries differ by more than rounding; NaN and infinities equal themselves."""
    change = torch.where((before == after) | (before.isnan() & after.isnan()), 0, (after - before).abs().nan_to_num())
    finite = before[unmasked(before) & (before != 0)].abs().float()
    largest = change.max() if change.numel() else torch.zeros(())
    if not finite.numel() or largest <= LEAST * finite.median():
        return torch.zeros_like(change, dtype=torch.bool)
    return change > SHARE * largest


def unmasked(scores: Tensor) -> Tensor:
    """Return which entries are no masks; where all are large, they are scores."""
    small = scores.abs() < MASKED
    return small if bool((small & (scores != 0)).any()) else torch.isfinite(scores)


@dataclass(frozen=True)
class Effect:
    """What a change moved at one site: scores, products that they come from (factors, result), and mixtures."""

    scores: Tensor
    factors: tuple[tuple[bool, bool], ...]
    products: Tensor
    mixed: Tensor
    value: bool

    def __bool__(self) -> bool:
        return bool(self.scores.any() or self.mixed.any())


def effect(before: Site, after: Site) -> Effect:
    pairs = list(zip(before.products, after.products, strict=True))
    mixtures = list(zip(before.mixtures, after.mixtures, strict=True))
    return Effect(
        moved(before.logits, after.logits).flatten(),
        tuple((bool(moved(p.a, q.a).any()), bool(moved(p.b, q.b).any())) for p, q in pairs),
        flat([moved(p.result, q.result) for p, q in pairs]),
        flat([moved(m.result, n.result) for m, n in mixtures]),
        any(bool(moved(m.value, n.value).any()) for m, n in mixtures if m.value is not None and n.value is not None),
    )


def flat(masks: list[Tensor]) -> Tensor:
    return torch.cat([mask.flatten() for mask in masks]) if masks else torch.zeros(0, dtype=torch.bool)


class Trial:
    """Calls of a layer's module as in its first call, with every mixture pinned to what it was.

    So a change of weights moves the sites that read those weights, and no site further on.
    """

    def __init__(self, model: nn.Module, inputs: dict[str, Any], layer: Any) -> None:
        path: str = getattr(layer, "path", layer.name)  # the names of a module's further layers are no paths
        self.model, self.layer = model, layer
        self.call, self.base = self._first(inputs, path)
        while path and not self._has_output():
            path = path.rpartition(".")[0]
            self.call, self.base = self._first(inputs, path)
        self.pins = [mixture.result for mixture in self.base.mixtures]

    def _first(self, inputs: dict[str, Any], path: str) -> tuple[Call, Pass]:
        call = first_call(self.model, inputs, path)
        if call is None:
            raise Wrong("its module is not called")
        return call, run(call, Steer(fill=True))

    def _has_output(self) -> bool:
        """Return whether the claimed output projection, if any, shows in what the module returns."""
        output = getattr(self.layer, "output", None)
        if output is None:
            return True
        weight = output.read()
        output.write_(torch.zeros_like(weight))
        without = run(self.call, Steer(fill=True)).output
        output.write_(weight)
        return without.shape != self.base.output.shape or bool(moved(self.base.output, without).any())

    def again(self, pins: list[Tensor] | None = None, nudge: Nudge | None = None, *, held: bool = False) -> Pass:
        """Call the module with the present weights; `held` scores are those of the base."""
        weights = self.base.weights if held else ()
        return run(self.call, Steer(pins or self.pins, weights, nudge, fill=True))

    def effects(self, nudge: Nudge | None = None, *, held: bool = False) -> list[Effect]:
        """Return what the present weights, or a nudge, move at each site."""
        later = self.again(nudge=nudge, held=held)
        same = len(later.sites) == len(self.base.sites)
        if not same or any(a.logits.shape != b.logits.shape for a, b in zip(self.base.sites, later.sites, strict=True)):
            raise Wrong("a weight changes the number or the shape of the softmaxes")
        return [effect(a, b) for a, b in zip(self.base.sites, later.sites, strict=True)]

    def turn(self, role: str) -> dict[int, list[Effect]]:
        """Return what each head of a role moves at each site; a value may also make scores, which are held then."""
        found = {}
        projection = getattr(self.layer, role)
        for head in chosen(len(projection.read())):
            with turned(projection, head):
                found[head] = self.effects(held=role == "value")
        return found


def chosen(heads: int) -> list[int]:
    """Return the heads that are tried.

    >>> chosen(3), chosen(12)
    ([0, 1, 2], [0, 1, 5, 6, 10, 11])
    """
    if heads <= MOST_HEADS:
        return list(range(heads))
    return [0, 1, heads // 2 - 1, heads // 2, heads - 2, heads - 1]
