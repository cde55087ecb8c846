"""Rule out candidates before anything is trained: by the theory's alarms, or because another begins the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wellcond.advice.candidates import Candidate, Refused
from wellcond.advice.prediction import Prediction

ALIKE = 0.05  # relative distance of two candidates' predicted numbers, within which independent weights are the same


def rule_out(
    candidates: Sequence[Candidate], predictions: Mapping[str, Prediction]
) -> tuple[list[Candidate], list[Refused]]:
    """Return the candidates that are left, in their order, and the others with the reason.

    The model's own weights are never ruled out, nor is anything where the theory does not cover the model.

    >>> rule_out([Candidate(), Candidate("fan_in")], {})[1]
    []
    """
    left, refused = list[Candidate](), list[Refused]()
    for one in candidates:
        found = predictions.get(one.name)
        if found is None or one.scheme is None:
            left.append(one)
            continue
        twin = next((other.name for other in left if _same(found, predictions.get(other.name))), None)
        if found.alarms:
            refused.append(Refused(one, f"predicted: {', '.join(found.alarms)}"))
        elif twin is not None:
            refused.append(Refused(one, f"independent weights that begin as '{twin}' does"))
        else:
            left.append(one)
    return left, refused


def _same(one: Prediction, other: Prediction | None) -> bool:
    """Whether two candidates draw independent entries, and are predicted to begin alike in every block."""
    if other is None or not (one.independent and other.independent):
        return False
    pairs = [*zip(one.beta, other.beta, strict=True), *zip(one.branch, other.branch, strict=True)]
    pairs.append((1 - one.similarity, 1 - other.similarity))
    return all(abs(a - b) <= ALIKE * max(abs(a), abs(b)) for a, b in pairs)
