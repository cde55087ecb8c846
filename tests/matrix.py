"""Print the scheme × case matrix: where each scheme applies, and why not elsewhere (`make matrix`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from tqdm import tqdm

import wellcond as wc
from tests.cases import CASES
from wellcond.schemes.base import _SCHEMES
from wellcond.schemes.compose import as_scheme

# What the schemes that cannot do without an option get; the others get their defaults.
OPTIONS: dict[str, Callable[[nn.Module], dict[str, Any]]] = {
    "critical": lambda model: {"tokens": 196},
    "scale_matched": lambda model: {"of": "conditioned"},
    "weight_selection": lambda model: {"teacher": model},
}

INTRODUCTION = """\
# Which scheme applies where

Whether a scheme applies to a layer is a value, `scheme.applies(layer)`: nothing, or the reason why not. This is that
value for every scheme, with its default options, and every model of the test suite. `make matrix` writes this page.

✓: every attention layer of the model. `2 of 3`: two of its three layers. –: none. The numbers refer to the reasons
below. `critical` is asked for 196 tokens, `scale_matched` for the scale of `conditioned`, and `weight_selection` has
the model itself as teacher.

"""


def shipped() -> list[str]:
    """The schemes that come with the package; tests and other packages may have registered more."""
    return sorted(name for name, cls in _SCHEMES.items() if cls.__module__.startswith("wellcond."))


def header(schemes: Sequence[str]) -> str:
    """The table's first two lines."""
    return "| model | " + " | ".join(f"`{name}`" for name in schemes) + " |\n|---|" + ":-:|" * len(schemes)


def cell(scheme: str, model: nn.Module, layers: wc.AttentionLayers, reasons: dict[str, int]) -> str:
    """✓, or how many layers, with the numbers of the reasons; new reasons are added."""
    made = as_scheme(scheme, OPTIONS.get(scheme, lambda _: {})(model))
    refused = [reason for layer in layers if (reason := made.applies(layer)) is not None]
    if not refused:
        return "✓"
    numbers = sorted({reasons.setdefault(reason, len(reasons) + 1) for reason in refused})
    applied = len(layers) - len(refused)
    count = f"{applied} of {len(layers)}" if applied else "–"
    return f"{count} <sup>{', '.join(map(str, numbers))}</sup>"


def matrix() -> str:
    """The page."""
    schemes = shipped()
    reasons: dict[str, int] = {}
    rows = []
    for name, case in tqdm(CASES.items(), desc="models", leave=False):
        model = case.model()
        layers = wc.attention_layers(model)
        rows.append(f"| {name} | " + " | ".join(cell(scheme, model, layers, reasons) for scheme in schemes) + " |")
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return INTRODUCTION + "\n".join([header(schemes), *rows]) + "\n\n## Reasons\n\n" + "\n".join(notes)


if __name__ == "__main__":
    print(matrix())
