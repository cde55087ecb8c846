"""The table of schemes × models: where each scheme applies, and the reasons where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from wellcond._core.safe_text import visible
from wellcond._core.text_tables import table
from wellcond.attention.find import attention_layers
from wellcond.init.registry import find_scheme, make_scheme


@dataclass(frozen=True)
class Applicability:
    """To how many layers of a model a scheme applies, and why not to the others."""

    layers: int
    applies: int
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.applies == self.layers:
            return "yes"
        return f"{self.applies} of {self.layers}" if self.applies else "no"


def applicability(model: nn.Module, names: Sequence[str]) -> dict[str, Applicability]:
    """Ask each scheme, with its default options, about every attention layer of a model (the meta device will do).

    >>> import torch
    >>> print(applicability(torch.nn.MultiheadAttention(8, 2), ["conditioned"])["conditioned"])
    yes
    """
    layers = attention_layers(model)
    found: dict[str, Applicability] = {}
    for name in names:
        scheme = make_scheme(name, find_scheme(name).stand_ins)
        refused = [reason for layer in layers if (reason := scheme.applies(layer)) is not None]
        found[name] = Applicability(len(layers), len(layers) - len(refused), tuple(dict.fromkeys(refused)))
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
    lines = [f"{number} {visible(model)}" for model, number in numbers.items()]
    lines.append(table(["scheme", *numbers.values()], rows))
    reasons: dict[tuple[str, str], list[str]] = {}
    for model, number in numbers.items():
        for name in names:
            for reason in matrix[model][name].reasons:
                reasons.setdefault((name, reason), []).append(number)
    return "\n".join([*lines, *(f"{name} {' '.join(where)}: {visible(why)}" for (name, why), where in reasons.items())])
