"""A plan: what a scheme writes where, made from shapes, applied all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond._core.keyed_random import Draw, neutral
from wellcond._core.linalg import condition_numbers
from wellcond._core.progress import bar
from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.safe_text import visible
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.projection import Projection, fits
from wellcond.attention.roles import ROLES
from wellcond.attention.storage import assign_, fetch, full, write_refusal
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.errors import SchemeError, WeightError
from wellcond.init.laws import Law
from wellcond.init.scheme import Scheme


@dataclass(frozen=True)
class Assignment:
    """One law, and the roles of one layer (or block, or table) that it governs together.

    Args:
        scope: canonical path of the layer, block or table; the key of its draws.
        roles: the roles.
        law: None for what a user's function returns.
        projections: one per role.
    """

    scope: str
    roles: tuple[str, ...]
    law: Law | None
    projections: tuple[Projection, ...] = field(repr=False)


@dataclass(frozen=True)
class PlanEntry:
    """One row of a plan: which role of which layer (or block) gets what.

    >>> import torch, wellcond as wc
    >>> entry = wc.plan(torch.nn.MultiheadAttention(8, 2), "conditioned").entries[2]
    >>> entry.role, entry.law, entry.projection.shape
    ('value', 'identity (the same coordinates)', (2, 8, 4))
    """

    layer: str
    role: str
    scheme: str
    law: str
    projection: Projection = field(repr=False)


@dataclass(eq=False)
class Plan(Tabular):
    """The weights that a scheme writes, role by role; prints as a table with κ before and now.

    Made from shapes alone, so a model on the meta device has one too: apply it after `to_empty`. An applied plan keeps
    a copy of what it replaced, for `undo_` and κ before; it is freed with the plan.

    Attributes:
        assignments: the laws, each with the roles it governs.
        inapplicable: `(layer, reason)` where the scheme does not apply.
        tied: `(role of a layer, the one it is tied to)`: drawn once.
        applied: whether the weights are in the model.
        written_to: the directory of `init_to_files`, whose weights are in files.

    >>> import torch, wellcond as wc
    >>> plan = wc.init_(torch.nn.MultiheadAttention(8, 2), "conditioned", seed=0)
    >>> [(entry.role, round(now, 3)) for entry, before, now in plan.conditions()]
    [('query', 1.0), ('key', 1.0), ('value', 1.0)]
    >>> plan.undo_()
    >>> plan.applied
    False
    """

    layers: AttentionLayers
    scheme: Scheme
    seed: int
    assignments: list[Assignment] = field(default_factory=list)
    inapplicable: list[tuple[str, str]] = field(default_factory=list)
    tied: list[tuple[str, str]] = field(default_factory=list)
    applied: bool = False
    written_to: Path | None = None
    _writes: ParameterWrites | None = field(default=None, repr=False)

    @property
    def root(self) -> nn.Module | None:
        """The model that the layers are in; None where the plan has no layer."""
        return self.layers[0].root if self.layers else None

    @property
    def entries(self) -> list[PlanEntry]:
        """One row per role."""
        return [
            PlanEntry(a.scope, role, str(self.scheme), "what the function returns" if a.law is None else str(a.law), p)
            for a in self.assignments
            for role, p in zip(a.roles, a.projections, strict=True)
        ]

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Layers and roles that are not written, with the reason."""
        return self.inapplicable + [(what, f"tied to {first}") for what, first in self.tied]

    def values(self) -> Iterator[tuple[Projection, Tensor]]:
        """Draw the weights, assignment by assignment: `(projection, (heads, D, d))`."""
        layers = {layer.name: layer for layer in self.layers}
        for assignment in bar(self.assignments, "drawing"):
            draw, projections = Draw(self.seed, assignment.scope), assignment.projections
            if assignment.law is not None:
                shapes = tuple(projection.shape for projection in projections)
                yield from zip(projections, assignment.law.sample(draw, assignment.roles, shapes), strict=True)
                continue
            layer = layers[assignment.scope]
            for role, weight in self.scheme.returned(layer, draw).items():
                if role not in ROLES or getattr(layer, role) is None:
                    has = ", ".join(role for role, _ in layer.projections())
                    raise SchemeError(f"'{layer.name}' has no role {role!r}; it has {has}")
                if role in assignment.roles:
                    yield projections[assignment.roles.index(role)], weight

    @checked
    def parameters(self, wanted: Collection[str] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters the scheme sets, and the biases it zeroes; only those in `wanted`, if given."""
        if self.root is None:
            return
        yield from self.scheme.parameters(self.layers, self.seed, wanted)
        zeroed = self.scheme.zeroed()
        for entry in self.entries:
            bias = entry.projection.bias
            if bias is not None and entry.role.partition("_")[0] in zeroed and (wanted is None or bias in wanted):
                yield bias, entry.projection.bias_zeroed(full(fetch(self.root, bias)))

    @neutral()
    def apply_(self) -> Plan:
        """Draw and write layer by layer; if anything fails the model is put back as it was."""
        if self.root is not None:
            with ParameterWrites(self.root) as self._writes:
                self._write(self.root, self._writes)
        self.applied = True
        return self

    def _write(self, root: nn.Module, writes: ParameterWrites) -> None:
        for path, value in self.parameters():
            check_parameter(root, path, value)
            assign_(writes.open(path), value)
        written = set()
        for projection, weight in self.values():
            projection.check(weight)
            writes.open(projection.weight.path)
            projection.store_(weight)
            written.add(projection.weight)
        # A function says which roles it sets only by setting them.
        self.assignments = [
            narrowed(a, lambda p: p.weight in written) if a.law is None else a for a in self.assignments
        ]
        self.scheme.finish_(self.layers, writes)

    @property
    def on_meta(self) -> bool:
        """Whether a parameter that the plan writes has no numbers yet, so that the plan must wait."""
        if self.scheme.composable or self.root is None:
            return any(entry.projection.parameter().is_meta for entry in self.entries)
        return any(parameter.is_meta for parameter in self.root.parameters())

    def undo_(self) -> None:
        """Put back the weights that `apply_` replaced."""
        if self._writes is not None:
            self._writes.undo_()
        self.applied = False

    @neutral()
    def conditions(self) -> list[tuple[PlanEntry, float, float]]:
        """The largest κ over the heads of each entry, before the plan was applied and now."""
        if not self.applied:
            raise SchemeError("the plan is not applied yet, so there are no weights to measure: plan.apply_()")
        found = []
        for entry in self.entries:
            assert self._writes is not None
            old = self._writes.before[entry.projection.weight.path]
            before = condition_numbers(entry.projection.weight.layout.read(full(old))).max()
            found.append((entry, float(before), float(condition_numbers(entry.projection.read()).max())))
        return found

    def records(self) -> list[dict[str, Any]]:
        """One row per layer and role; κ, the largest over heads, where the weights are in the model.

        >>> import torch, wellcond as wc
        >>> plan = wc.init_(torch.nn.MultiheadAttention(8, 2), "conditioned", seed=0)
        >>> [(row["role"], round(row["kappa_now"], 3)) for row in plan.records()]
        [('query', 1.0), ('key', 1.0), ('value', 1.0)]
        """
        measured = self.conditions() if self.applied else [(entry, None, None) for entry in self.entries]
        return [
            {"layer": e.layer, "role": e.role, "scheme": e.scheme, "law": e.law}
            | ({"kappa_before": before, "kappa_now": now} if self.applied else {})
            for e, before, now in measured
        ]

    def _result_table(self) -> ResultTable:
        header = ["layer", "role", "scheme", "set to", *(["κ before", "κ now"] if self.applied else [])]
        rows = [[v if isinstance(v, str) else f"{v:.3g}" for v in row.values()] for row in self.records()]
        notes = []
        whole = sorted(
            set(self._writes.before if self._writes else ()) - {e.projection.weight.path for e in self.entries}
        )
        if whole:
            named = visible(", ".join(whole[:3])) + (", …" if len(whole) > 3 else "")
            notes.append(f"{len(whole)} whole parameters set: {named}")
        frozen = sum(not entry.projection.parameter().requires_grad for entry in self.entries)
        if frozen:
            notes.append(f"{frozen} of these rows are frozen parameters (requires_grad is False), written all the same")
        guessed = sum(layer.standing == "guessed" for layer in self.layers)
        if guessed:
            notes.append(
                f"{guessed} of {len(self.layers)} layers are guessed from names and sizes; to have them checked, or "
                "found, by a pass: layers=wc.attention_layers(model, batch)"
            )
        notes += [visible(f"skipped {name}: {reason}") for name, reason in self.skipped]
        if self.written_to is not None:
            notes.append(f"written to {self.written_to}")
        elif not self.applied:
            notes.append("not applied yet: materialise the model, then call plan.apply_()")
        return ResultTable(header, rows, notes=notes)


def narrowed(assignment: Assignment, keep: Callable[[Projection], bool]) -> Assignment:
    """Return an assignment for some of its roles."""
    pairs = [(r, p) for r, p in zip(assignment.roles, assignment.projections, strict=True) if keep(p)]
    return Assignment(assignment.scope, tuple(r for r, _ in pairs), assignment.law, tuple(p for _, p in pairs))


def check_parameter(root: nn.Module, path: str, value: Tensor) -> None:
    """Raise unless a whole parameter may take a value."""
    stored = fetch(root, path)
    if stored.is_meta:
        raise WeightError(f"'{path}' is on the meta device: materialise the model (to_empty), then plan.apply_()")
    reason = write_refusal(root, path)
    if reason:
        raise WeightError(reason)
    if stored.shape != value.shape:
        raise WeightError(f"'{path}' has shape {tuple(stored.shape)}, the scheme gives {tuple(value.shape)}")
    if not fits(value, stored.dtype):
        raise WeightError(f"the new values of '{path}' are not finite numbers in the range of its {stored.dtype}")
