"""Print the scheme × case matrix: where each scheme applies, and why not elsewhere (`make matrix`)."""

from __future__ import annotations

from collections.abc import Sequence

from tqdm import tqdm

from tests.cases import CASES
from wellcond.init.applicability import Applicability, applicability
from wellcond.init.registry import registered_schemes

INTRODUCTION = """\
# Which scheme applies where

Whether a scheme applies to a layer is a value, `scheme.applies(layer)`: nothing, or the reason why not. This is that
value for every scheme, with its default options, and every model of the test suite. `make matrix` writes this page.

✓: every attention layer of the model. `2 of 3`: two of its three layers. –: none. The numbers refer to the reasons
below. `critical` is asked for 196 tokens, `flipped`, `rotated` and `scale_matched` for controls of `conditioned`, and
`weight_selection` for no teacher in particular.

"""


def shipped() -> list[str]:
    """The schemes that come with the package; tests and other packages may have registered more."""
    return sorted(name for name, cls in registered_schemes().items() if cls.__module__.startswith("wellcond."))


def header(schemes: Sequence[str]) -> str:
    """The table's first two lines."""
    return "| model | " + " | ".join(f"`{name}`" for name in schemes) + " |\n|---|" + ":-:|" * len(schemes)


def cell(found: Applicability, reasons: dict[str, int]) -> str:
    """✓, or how many layers, with the numbers of the reasons; new reasons are added."""
    if found.applies == found.layers:
        return "✓"
    numbers = sorted({reasons.setdefault(reason, len(reasons) + 1) for reason in found.reasons})
    count = str(found) if found.applies else "–"
    return f"{count} <sup>{', '.join(map(str, numbers))}</sup>"


def matrix() -> str:
    """The page."""
    schemes = shipped()
    reasons: dict[str, int] = {}
    rows = []
    for name, case in tqdm(CASES.items(), desc="models", leave=False, disable=None):
        found = applicability(case.model(), schemes)
        rows.append(f"| {name} | " + " | ".join(cell(found[scheme], reasons) for scheme in schemes) + " |")
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return INTRODUCTION + "\n".join([header(schemes), *rows]) + "\n\n## Reasons\n\n" + "\n".join(notes)


if __name__ == "__main__":
    print(matrix())
