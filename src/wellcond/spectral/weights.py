"""Which stored parameters a conditioning touches, and which heads of which role lie where in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from wellcond.attention.find import AttentionLayers
from wellcond.attention.layouts import Layout
from wellcond.attention.paths import resolve
from wellcond.attention.storage import fetch, full, refusal, split
from wellcond.attention.view import AttentionLayer, Projection
from wellcond.errors import SchemeError, WeightError
from wellcond.live import live_rules, stored_weight

ROLES = ("query", "key", "value")
Strength = Annotated[float | Mapping[str, float], "a finite number, or a dict of them by role"]


@dataclass(frozen=True)
class Part:
    """The heads of one role of one layer, with their strength."""

    layer: AttentionLayer
    role: str
    projection: Projection
    strength: float

    @property
    def layout(self) -> Layout:
        """Where the heads lie in the stored parameter."""
        return self.projection.weight.layout

    @property
    def name(self) -> str:
        """For people: `blocks.0.attn query`."""
        return f"{self.layer.name} {self.role}".strip()


@dataclass(frozen=True)
class Weight:
    """One stored parameter and the parts of it that are conditioned."""

    root: nn.Module
    path: str
    parts: tuple[Part, ...]

    @property
    def owner(self) -> nn.Module:
        """The module that has the parameter, looked up now."""
        return resolve(self.root, split(self.path)[0])

    @property
    def name(self) -> str:
        """The parameter's own name."""
        return split(self.path)[1]

    @property
    def stored(self) -> Tensor:
        """The trained parameter, looked up now."""
        return stored_weight(self.owner, self.name)

    def dense(self, heads: Callable[[Part, tuple[int, int, int]], Tensor]) -> Tensor:
        """A float64 tensor of the parameter's shape with `heads(part, shape)` in its parts, zero elsewhere."""
        dense = torch.zeros(tuple(self.stored.shape), dtype=torch.float64)
        for part in self.parts:
            part.layout.write_(dense, heads(part, part.projection.shape))
        return dense


def weights_of(layers: AttentionLayers, strength: Mapping[str, float]) -> list[Weight]:
    """Group the roles that have a strength by stored parameter.

    Args:
        layers: the layers to condition.
        strength: `{role: strength}`; a role that is absent or zero is left alone.
    """
    grouped: dict[str, dict[Layout, Part]] = {}
    first: dict[tuple[int, Layout], Part] = {}
    for layer in layers:
        for role, projection in layer.projections(*ROLES):
            if not strength.get(role):
                continue
            part = Part(layer, role, projection, strength[role])
            stored = _parameter(_root(layer), projection.weight.path)
            tied = first.setdefault((id(stored), part.layout), part)
            if tied.strength != part.strength:
                raise SchemeError(
                    f"'{part.name}' and '{tied.name}' are one weight, so they have one strength; got "
                    f"{part.strength:g} and {tied.strength:g}"
                )
            grouped.setdefault(projection.weight.path, {}).setdefault(part.layout, part)
    return [Weight(_root(layers[0]), path, tuple(parts.values())) for path, parts in grouped.items()]


def untied(weights: Sequence[Weight]) -> list[Weight]:
    """Each stored parameter once, for what is done to the parameter itself."""
    return list({id(weight.stored): weight for weight in reversed(weights)}.values())[::-1]


def check_weights(weights: Sequence[Weight]) -> None:
    """Raise unless every parameter may be conditioned; nothing has been changed yet."""
    for weight in weights:
        if weight.name in live_rules(weight.owner):
            raise WeightError(
                f"'{weight.path}' is conditioned already (live, in a copy of a conditioned model): copy the model "
                "before wc.condition_, or call remove_() on the original's handle and copy it then"
            )
        reason = refusal(weight.root, weight.path)
        if reason:
            raise WeightError(reason)
        tensor = fetch(weight.root, weight.path)
        if tensor.is_meta:
            raise WeightError(
                f"'{weight.path}' is on the meta device: materialise the model (to_empty) and initialise it"
            )
        if not torch.isfinite(full(tensor)).all():
            raise WeightError(f"'{weight.path}' of shape {tuple(tensor.shape)} has numbers that are not finite")


def strengths(strength: Strength | None, roles: str | Sequence[str], default: float) -> dict[str, float]:
    """`{role: strength}` from what a user may write.

    >>> strengths(10, "qk", 1.0)
    {'query': 10.0, 'key': 10.0}
    >>> strengths({"q": 2, "value": 1}, ROLES, 1.0)
    {'query': 2.0, 'value': 1.0}
    """
    wanted = role_names(roles)
    given = dict.fromkeys(wanted, default) if strength is None else strength
    if not isinstance(given, Mapping):
        given = dict.fromkeys(wanted, given)
    found: dict[str, float] = {}
    for names, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise SchemeError(f"a strength is a finite number, or one per role; got {value!r} for {names!r}")
        found |= {role: float(value) for role in role_names(names) if role in wanted}
    return {role: found[role] for role in ROLES if role in found}


def role_names(roles: str | Sequence[str]) -> tuple[str, ...]:
    """Roles by name or first letter: `"qk"`, `"query"`, `("query", "key")`."""
    if isinstance(roles, str) and roles not in ROLES:
        roles = list(roles)
    letters = {role[0]: role for role in ROLES}
    found = [letters.get(role, role) for role in ([roles] if isinstance(roles, str) else roles)]
    if not found or not set(found) <= set(ROLES):
        raise SchemeError(f"roles are some of 'query', 'key', 'value' or their first letters ('qk'); got {roles!r}")
    return tuple(role for role in ROLES if role in found)


def _parameter(root: nn.Module, path: str) -> Tensor:
    """The trained parameter at a path; a weight that is none is refused."""
    owner_path, name = split(path)
    owner = resolve(root, owner_path)
    parameter = owner._parameters.get(name)
    if parameter is not None:
        return parameter
    if owner._buffers.get(name) is not None:
        raise WeightError(
            f"'{path}' in {type(owner).__name__} is a buffer, which no optimizer trains, so there is nothing to keep "
            "conditioned: make it a parameter (nn.Parameter) first, or leave the layer out with layers=…"
        )
    raise WeightError(refusal(root, path) or f"'{path}' in {type(owner).__name__} is not a parameter")


def _root(layer: AttentionLayer) -> nn.Module:
    if layer.root is None:
        raise WeightError(f"the view of '{layer.name}' is not bound: get it from wc.attention_layers(model)")
    return layer.root
