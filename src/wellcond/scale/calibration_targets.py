"""Targets of a calibration, layer by layer, from what the user gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from wellcond.errors import ArgumentError

if TYPE_CHECKING:  # the command line reads the defaults without torch
    from wellcond.attention.layers import AttentionLayers
    from wellcond.attention.view import AttentionLayer

# The targets of least regret over the surfaces of docs/study.md, whose models have up to 12 layers and 64 tokens; of a
# gain that is the same at all depths and one that falls as 1/√(2L), the rule that cost less where a task was left out.
BETA: Final = 0.35
BRANCH: Final = 0.06
BY_DEPTH: Final = "1/sqrt(2L)"
Beta = Annotated[
    float | Sequence[Any] | Mapping[str, Any] | None,
    "a number, one a layer, or numbers (or one a head) by the names of layers; None leaves the sharpness as it is",
]
Branch = Annotated[
    float | str | Sequence[float] | Mapping[str, float] | None,
    "a number, '1/sqrt(2L)', one a layer, or numbers by the names of layers; None leaves the gains as they are",
]


class Targets:
    """The targets of each layer, None where it has none."""

    def __init__(self, layers: AttentionLayers, beta: Any, branch: Any) -> None:
        self._beta = _by_layer(layers, beta, "beta")
        if isinstance(branch, str):
            if branch != BY_DEPTH:
                raise ArgumentError(f"branch is a number or '{BY_DEPTH}', got {branch!r}")
            branch = {layer.name: 1 / math.sqrt(2 * _depth(layer, layers)) for layer in layers}
        self._branch = _by_layer(layers, branch, "branch")

    def beta(self, layer: AttentionLayer) -> list[float] | None:
        """One number for each head."""
        wanted = self._beta.get(layer.name)
        if wanted is None:
            return None
        several = isinstance(wanted, Sequence) and not isinstance(wanted, str)
        found = list(wanted) if several else [wanted] * layer.num_heads
        if len(found) != layer.num_heads or not all(map(_positive, found)):
            raise ArgumentError(
                f"beta of '{layer.name}' is a positive number, or one for each of its {layer.num_heads} heads; got "
                f"{wanted!r}"
            )
        return [float(number) for number in found]

    def branch(self, layer: AttentionLayer) -> float | None:
        """One number."""
        wanted = self._branch.get(layer.name)
        if wanted is not None and not _positive(wanted):
            raise ArgumentError(f"branch of '{layer.name}' is a positive number, got {wanted!r}")
        return None if wanted is None else float(wanted)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and 0 < value < math.inf


def _by_layer(layers: AttentionLayers, given: Any, what: str) -> dict[str, Any]:
    if given is None:
        return {}
    names = [layer.name for layer in layers]
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ArgumentError(f"{what}: '{unknown[0]}' is none of the layers {', '.join(names[:3])}, …")
        return dict(given)
    if isinstance(given, Sequence):
        if len(given) != len(names):
            raise ArgumentError(f"{what} has {len(given)} numbers for {len(names)} layers")
        return dict(zip(names, given, strict=True))
    return dict.fromkeys(names, given)


def _depth(layer: AttentionLayer, layers: AttentionLayers) -> int:
    return len(layers) if layer.block is None else layer.block.depth
