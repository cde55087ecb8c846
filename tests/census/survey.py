"""Hold what the library says about one model against what the oracle sees."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from tests.census.claims import Verdict, check_claim
from tests.census.library import find
from tests.census.passes import watch
from tests.census.sites import Place

LONGEST = 200  # characters of a message that are kept


@dataclass(frozen=True)
class Survey:
    """The attention of one model, counted by places: softmaxes of products of two activations that mix something.

    Attributes:
        seen: places that the oracle sees.
        verified: those at which a view holds that the library stands for.
        refused: those that the library names without standing for a view, by its reason.
        missed: those of which it says nothing, by module.
        wrong: views that the library stands for and the oracle does not, with the reason.
        raised: what the library raised instead of an answer.
    """

    seen: int
    verified: int
    refused: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    raised: str = ""

    @property
    def found(self) -> int:
        return self.verified + sum(self.refused.values())

    @property
    def perfect(self) -> bool:
        return self.verified == self.seen and not self.wrong and not self.raised

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def survey(model: nn.Module, inputs: dict[str, Any]) -> Survey:
    """Watch a model, ask the library about it, and check each view that the library stands for."""
    places = list(dict.fromkeys(site.place for site in watch(model, inputs) if site.scored))
    try:
        found = find(model, inputs)
    except Exception as error:  # whatever it raises, it says nothing about these places
        return replace(count(places, [], []), raised=f"{type(error).__name__}: {error}"[:LONGEST])
    verdicts = [check_claim(model, inputs, layer) for layer in found.verified]
    return count(places, verdicts, found.refused)


def count(places: list[Place], verdicts: list[Verdict], refused: list[tuple[str, str]]) -> Survey:
    """Give every place to a view that holds there, else to a refusal of a module around it, else to nobody."""
    held = {place for verdict in verdicts if verdict for place in verdict.places}
    reasons: Counter[str] = Counter()
    missed = []
    for place in places:
        if place in held:
            continue
        around = [(name, reason) for name, reason in refused if within(place[0], name)]
        if around:
            reasons[max(around, key=lambda one: len(one[0]))[1]] += 1
        else:
            missed.append(place[0])
    wrong = [f"{verdict.layer}: {verdict.reason}" for verdict in verdicts if not verdict]
    return Survey(len(places), len(held.intersection(places)), dict(reasons), missed, wrong)


def within(path: str, module: str) -> bool:
    """Return whether a path is a module or inside it; the whole model is only its own place."""
    return path == module or (module != "" and path.startswith(f"{module}."))
