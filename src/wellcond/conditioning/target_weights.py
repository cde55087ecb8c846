"""The parameters that a conditioning touches: which heads lie where in them, and which numbers a fixed C changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.layouts import AnyLayout
from wellcond.attention.paths import resolve
from wellcond.attention.projection import Projection
from wellcond.attention.roles import QKV
from wellcond.attention.storage import like, split_path, write_refusal
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.storage.live_parameter import parameter_of
from wellcond.errors import SchemeError, WeightError

Strength = Annotated[float | Mapping[str, float], "a finite number, or a dict of them by role"]


@dataclass(frozen=True)
class TargetHeads:
    """The heads of one role of one layer, with their strength."""

    layer: AttentionLayer
    role: str
    projection: Projection
    strength: float

    @property
    def layout(self) -> AnyLayout:
        """The place of the heads in the parameter."""
        return self.projection.weight.layout

    @property
    def name(self) -> str:
        """For people: `blocks.0.attn query`."""
        return f"{self.layer.name} {self.role}".strip()


@dataclass(frozen=True)
class TargetWeight:
    """One parameter and the parts of it that are conditioned."""

    root: nn.Module
    path: str
    parts: tuple[TargetHeads, ...]

    @property
    def owner(self) -> nn.Module:
        """The module that has the parameter, looked up now."""
        return resolve(self.root, split_path(self.path)[0])

    @property
    def name(self) -> str:
        """The parameter's own name."""
        return split_path(self.path)[1]

    @property
    def parameter(self) -> Tensor:
        """The parameter, looked up now: it holds W if it is live, W + C if it is folded."""
        return parameter_of(self.owner, self.name)


@dataclass(frozen=True)
class Entries:
    r"""Flat indices into a parameter, and what is added there.

    A D × d identity has min(D, d) non-zero entries, so the correction costs a thousandth of its matrix.
    """

    index: Tensor
    value: Tensor

    @staticmethod
    def of(dense: Tensor) -> Entries:
        """Find the entries of a correction written out in full."""
        flat = dense.reshape(-1)
        index = flat.nonzero()[:, 0]
        return Entries(index, flat[index])

    def on(self, target: Tensor) -> Entries:
        """Bring the entries to a tensor's device and dtype."""
        return Entries(self.index.to(target.device), self.value.to(device=target.device, dtype=target.dtype))

    def add_(self, target: Tensor, factor: float = 1.0) -> None:
        """Add `factor · C` to a plain tensor of the parameter's shape."""
        mine = self.on(target)
        flat = target.view(-1) if target.is_contiguous() else target.flatten()
        flat.index_add_(0, mine.index, mine.value * factor)
        if flat.untyped_storage().data_ptr() != target.untyped_storage().data_ptr():
            target.copy_(flat.view(target.shape))

    def take(self, target: Tensor) -> Tensor:
        """Copy a plain tensor's numbers at these entries."""
        return target.reshape(-1)[self.index.to(target.device)]

    def put_(self, target: Tensor, numbers: Tensor) -> None:
        """Write numbers at these entries of a plain tensor."""
        target[torch.unravel_index(self.index.to(target.device), target.shape)] = numbers

    def local(self, target: Tensor) -> Entries:
        """Return the entries that lie in this rank's shard, in the shard's own indices."""
        if not is_dtensor(target):
            return self
        dense = torch.zeros(target.shape, dtype=torch.float64, device=target.device)
        self.add_(dense)
        return Entries.of(like(target, dense).to_local())


def weights_of(layers: AttentionLayers, strength: Mapping[str, float]) -> list[TargetWeight]:
    """Group the roles that have a strength by parameter.

    Args:
        layers: the layers to condition.
        strength: `{role: strength}`; a role that is absent or zero is left alone.
    """
    grouped: dict[str, dict[AnyLayout, TargetHeads]] = {}
    first: dict[tuple[int, AnyLayout], TargetHeads] = {}
    for layer in layers:
        for role, projection in layer.projections(*QKV):
            if not strength.get(role):
                continue
            part = TargetHeads(layer, role, projection, strength[role])
            parameter = _parameter(_root(layer), projection.weight.path)
            tied = first.setdefault((id(parameter), part.layout), part)
            if tied.strength != part.strength:
                raise SchemeError(
                    f"'{part.name}' and '{tied.name}' are one weight, so they have one strength; got "
                    f"{part.strength:g} and {tied.strength:g}"
                )
            grouped.setdefault(projection.weight.path, {}).setdefault(part.layout, part)
    return [TargetWeight(_root(layers[0]), path, tuple(parts.values())) for path, parts in grouped.items()]


def untied(weights: Sequence[TargetWeight]) -> list[TargetWeight]:
    """Return each parameter once, for what is done to the parameter itself."""
    return list({id(weight.parameter): weight for weight in reversed(weights)}.values())[::-1]


def strengths(strength: Strength | None, roles: str | Sequence[str], default: float) -> dict[str, float]:
    """Return `{role: strength}` from what a user may write.

    >>> strengths(10, "qk", 1.0)
    {'query': 10.0, 'key': 10.0}
    >>> strengths({"q": 2, "value": 1}, QKV, 1.0)
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
    return {role: found[role] for role in QKV if role in found}


def role_names(roles: str | Sequence[str]) -> tuple[str, ...]:
    """Return roles by name or first letter: `"qk"`, `"query"`, `("query", "key")`."""
    if isinstance(roles, str) and roles not in QKV:
        roles = list(roles)
    letters = {role[0]: role for role in QKV}
    found = [letters.get(role, role) for role in ([roles] if isinstance(roles, str) else roles)]
    if not found or not set(found) <= set(QKV):
        raise SchemeError(f"roles are some of 'query', 'key', 'value' or their first letters ('qk'); got {roles!r}")
    return tuple(role for role in QKV if role in found)


def _parameter(root: nn.Module, path: str) -> Tensor:
    """Return the parameter at a path; refuse a weight that is none."""
    owner_path, name = split_path(path)
    owner = resolve(root, owner_path)
    parameter = owner._parameters.get(name)
    if parameter is not None:
        return parameter
    if owner._buffers.get(name) is not None:
        raise WeightError(
            f"'{path}' in {type(owner).__name__} is a buffer, which no optimizer trains, so there is nothing to keep "
            "conditioned: make it a parameter (nn.Parameter) first, or leave the layer out with layers=…"
        )
    raise WeightError(write_refusal(root, path) or f"'{path}' in {type(owner).__name__} is not a parameter")


def _root(layer: AttentionLayer) -> nn.Module:
    if layer.root is None:
        raise WeightError(f"the view of '{layer.name}' is not bound: get it from wc.attention_layers(model)")
    return layer.root
