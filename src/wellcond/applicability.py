"""The table of schemes × models: where each scheme applies, and the reasons where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from wellcond.attention.find import attention_layers
from wellcond.errors import SchemeError
from wellcond.planning import plan
from wellcond.tables import table


@dataclass(frozen=True)
class Applicability:
    """To how many layers of a model a scheme applies (None: it needs options first), and why not to the others."""

    layers: int
    applies: int | None
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.applies is None:
            return "needs options"
        if self.applies == self.layers:
            return "yes"
        return f"{self.applies} of {self.layers}" if self.applies else "no"


def applicability(model: nn.Module, names: Sequence[str]) -> dict[str, Applicability]:
    """Ask each scheme, with its default options, about every attention layer of a model (the meta device will do).

    >>> import torch
    >>> print(applicability(torch.nn.MultiheadAttention(8, 2), ["conditioned"])["conditioned"])
    yes
    """
    total = len(attention_layers(model))
    found: dict[str, Applicability] = {}
    for name in names:
        try:
            made = plan(model, name, on_inapplicable="skip")
        except SchemeError as error:  # an option without default
            found[name] = Applicability(total, None, (str(error),))
            continue
        reasons = dict.fromkeys(reason for _, reason in made.inapplicable)
        found[name] = Applicability(total, len(made.layers), tuple(reasons))
    return found


def matrix_text(matrix: dict[str, dict[str, Applicability]]) -> str:
    """A row per scheme, a column per model by number, then the reasons.

    Args:
        matrix: `{model: {scheme: applicability}}`, the same schemes for every model.
    """
    models = list(matrix)
    names = list(matrix[models[0]])
    numbers = {model: f"[{number}]" for number, model in enumerate(models, start=1)}
    rows = [[name, *(str(matrix[model][name]) for model in models)] for name in names]
    lines = [f"{number} {model}" for model, number in numbers.items()]
    lines.append(table(["scheme", *numbers.values()], rows))
    reasons: dict[tuple[str, str], list[str]] = {}
    for model, number in numbers.items():
        for name in names:
            for reason in matrix[model][name].reasons:
                reasons.setdefault((name, reason), []).append(number)
    return "\n".join([*lines, *(f"{name} {' '.join(where)}: {why}" for (name, why), where in reasons.items())])
