"""A plan: what a scheme writes where, made from shapes, applied all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from wellcond.attention.find import AttentionLayers, attention_layers
from wellcond.attention.storage import assign_, fetch, full, refusal
from wellcond.attention.view import ROLES, AttentionLayer, Projection, fits
from wellcond.draw import Draw, neutral
from wellcond.errors import InapplicableError, SchemeError, WeightError
from wellcond.linalg import condition_numbers
from wellcond.schemes.base import Scheme
from wellcond.schemes.compose import SchemeLike, as_scheme
from wellcond.tables import table

LayerFilter = str | Sequence[str] | Callable[[AttentionLayer], bool] | None
RETURNED = "what the function returns"
SLOW = 20  # layers above which drawing shows a progress bar


@dataclass(frozen=True)
class Entry:
    """One row of a plan: which role of which layer (or block) gets what."""

    layer: str
    role: str
    scheme: str
    law: str
    projection: Projection = field(repr=False)


@dataclass
class Plan:
    """What a scheme writes where; prints as a table with κ before and after.

    Made from shapes alone, so a model on the meta device has one too: apply it after `to_empty`.

    Attributes:
        entries: one per role.
        skipped: `(layer, reason)` where the scheme does not apply or a weight is tied to one already listed.
        applied: whether the weights are in the model.
    """

    layers: AttentionLayers
    scheme: Scheme
    seed: int
    entries: list[Entry] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    applied: bool = False
    _before: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def values(self) -> Iterator[tuple[Projection, Tensor]]:
        """Draw the weights, layer by layer: `(projection, (heads, D, d))`."""
        planned: dict[str, dict[str, Projection]] = {}
        for entry in self.entries:
            planned.setdefault(entry.layer, {})[entry.role] = entry.projection
        for layer in tqdm(self.layers, desc="drawing", disable=len(self.layers) < SLOW, leave=False, delay=2):
            wanted = planned.get(layer.name, {})
            if wanted:
                yield from _values(layer, self.scheme, self.seed, wanted)
        for target in self.scheme.beyond(self.layers):
            wanted = planned.get(target.scope, {})
            if target.role in wanted:
                shape = target.projection.shape
                (weight,) = target.law.sample(Draw(self.seed, target.scope), (target.role,), (shape,))
                yield target.projection, weight

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters the scheme sets, and the biases it zeroes."""
        root = self.layers[0].root if self.layers else None
        if root is None:
            return
        yield from self.scheme.parameters(self.layers, self.seed)
        zeroed = self.scheme.zeroed()
        for entry in self.entries:
            bias = entry.projection.bias
            if bias is not None and entry.role.partition("_")[0] in zeroed:
                yield bias, entry.projection.bias_zeroed(full(fetch(root, bias)))

    @neutral()
    def apply_(self) -> Plan:
        """Draw and write layer by layer; if anything fails the model is put back as it was."""
        root = self.layers[0].root if self.layers else None
        if root is not None:
            self._before = {}
            try:
                self._write(root)
            except BaseException:
                self._restore(root)
                raise
        self.applied = True
        return self

    def _write(self, root: nn.Module) -> None:
        for path, value in self.parameters():
            target = self._save(root, path)
            check_parameter(root, path, value)
            assign_(target, value)
        written = set()
        for projection, weight in self.values():
            projection.check(weight)
            self._save(root, projection.weight.path)
            projection.store_(weight)
            written.add(projection.weight)
        # A function says which roles it sets only by setting them.
        self.entries = [e for e in self.entries if e.law != RETURNED or e.projection.weight in written]

    def _save(self, root: nn.Module, path: str) -> Tensor:
        """Keep what a parameter held before its first write; return the parameter."""
        target = fetch(root, path)
        if target.is_meta:
            raise WeightError(f"'{path}' is on the meta device: materialise the model (to_empty), then plan.apply_()")
        if path not in self._before:
            self._before[path] = target.detach().clone()
        return target

    @property
    def on_meta(self) -> bool:
        """Whether the model has weights without numbers yet, so that the plan must wait."""
        root = self.layers[0].root if self.layers else None
        return root is not None and any(parameter.is_meta for parameter in root.parameters())

    def undo_(self) -> None:
        """Put back the weights that `apply_` replaced."""
        root = self.layers[0].root if self.layers else None
        if root is not None:
            self._restore(root)
        self.applied = False

    @torch.no_grad()
    def _restore(self, root: nn.Module) -> None:
        for path, value in self._before.items():
            fetch(root, path).copy_(value)

    @neutral()
    def conditions(self) -> list[tuple[Entry, float, float]]:
        """The largest κ over the heads of each entry, before and after."""
        if not self.applied:
            raise SchemeError("the plan is not applied yet, so there are no weights to measure: plan.apply_()")
        found = []
        for entry in self.entries:
            old = self._before[entry.projection.weight.path]
            before = condition_numbers(entry.projection.weight.layout.read(full(old))).max()
            after = condition_numbers(entry.projection.read()).max()
            found.append((entry, float(before), float(after)))
        return found

    def __str__(self) -> str:
        rows = []
        if self.applied:
            measured = self.conditions()
            header = ["layer", "role", "scheme", "set to", "κ before", "κ after"]
            rows = [[e.layer, e.role, e.scheme, e.law, f"{b:.3g}", f"{a:.3g}"] for e, b, a in measured]
        else:
            header = ["layer", "role", "scheme", "to be set to"]
            rows = [[e.layer, e.role, e.scheme, e.law] for e in self.entries]
        text = table(header, rows)
        whole = sorted(set(self._before) - {e.projection.weight.path for e in self.entries})
        if whole:
            text += f"\n{len(whole)} whole parameters set: {', '.join(whole[:3])}{', …' if len(whole) > 3 else ''}"
        text += "".join(f"\nskipped {name}: {reason}" for name, reason in self.skipped)
        if not self.applied:
            text += "\nnot applied yet: materialise the model, then call plan.apply_()"
        return text


def _values(
    layer: AttentionLayer, scheme: Scheme, seed: int, wanted: dict[str, Projection]
) -> Iterator[tuple[Projection, Tensor]]:
    drawn = scheme.weights(layer, Draw(seed, layer.name))
    for role, weight in drawn.items():
        if role not in ROLES or getattr(layer, role) is None:
            raise SchemeError(
                f"'{layer.name}' has no role {role!r}; it has {', '.join(r for r, _ in layer.projections())}"
            )
        if role in wanted:
            yield wanted[role], weight


def check_parameter(root: nn.Module, path: str, value: Tensor) -> None:
    """Raise unless a whole parameter may take a value."""
    stored = fetch(root, path)
    reason = refusal(root, path)
    if reason:
        raise WeightError(reason)
    if stored.shape != value.shape:
        raise WeightError(f"'{path}' has shape {tuple(stored.shape)}, the scheme gives {tuple(value.shape)}")
    if not fits(value, stored.dtype):
        raise WeightError(f"the new values of '{path}' are not finite numbers in the range of its {stored.dtype}")


@neutral()
def plan(
    model: nn.Module,
    scheme: SchemeLike,
    *,
    seed: int = 0,
    generator: torch.Generator | None = None,
    layers: LayerFilter = None,
    on_inapplicable: Literal["error", "skip"] = "error",
    **options: Any,
) -> Plan:
    """Work out what `init_` would write, from shapes alone; `plan.apply_()` writes it. Arguments as in `init_`.

    >>> import torch, wellcond as wc
    >>> with torch.device("meta"):
    ...     model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> later = wc.plan(model, "conditioned", seed=0)
    >>> _ = model.to_empty(device="cpu")
    >>> later.apply_().applied
    True
    """
    if on_inapplicable not in ("error", "skip"):
        raise SchemeError(f"on_inapplicable is 'error' or 'skip', got {on_inapplicable!r}")
    chosen = as_scheme(scheme, options)
    found = attention_layers(model).select(layers)
    made = Plan(found, chosen, _seed(seed, generator))
    kept: list[AttentionLayer] = []
    for layer in found:
        reason = chosen.applies(layer)
        if reason is None:
            kept.append(layer)
        elif on_inapplicable == "error":
            raise InapplicableError(
                f"'{chosen}' does not apply to '{layer.name}' ({type(layer.module).__name__}): {reason}. Leave "
                "the layer out with layers=…, or pass on_inapplicable='skip'"
            )
        else:
            made.skipped.append((layer.name, reason))
    made.layers = AttentionLayers(kept, found.unclaimed)
    _list_entries(made)
    return made


def _seed(seed: int, generator: torch.Generator | None) -> int:
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            raise SchemeError(f"generator is a torch.Generator, got {type(generator).__name__}")
        return int(torch.randint(2**62, (), generator=generator, device=generator.device))
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise SchemeError(f"seed is a whole number, got {seed!r}")
    return seed


def _list_entries(made: Plan) -> None:
    """List every role that gets a law, once per stored weight; refuse what cannot be written."""
    owners: dict[tuple[int, object], str] = {}

    def add(entry: Entry) -> None:
        reason = entry.projection.refusal()
        if reason:
            raise WeightError(reason)
        place = (id(entry.projection.parameter()), entry.projection.weight.layout)
        if place in owners:
            made.skipped.append((f"{entry.layer} {entry.role}", f"tied to {owners[place]}"))
            return
        owners[place] = f"{entry.layer} {entry.role}"
        made.entries.append(entry)

    name = str(made.scheme)
    for layer in made.layers:
        for role, projection in layer.projections():
            if role in made.scheme.functional():
                add(Entry(layer.name, role, "function", RETURNED, projection))
        for roles, law in made.scheme.laws(layer).items():
            for role in roles:
                if role not in ROLES or getattr(layer, role) is None:
                    raise SchemeError(f"'{name}' sets {role!r}, which '{layer.name}' does not have")
                add(Entry(layer.name, role, name, str(law), getattr(layer, role)))
    made.scheme.check_layers(made.layers)
    for target in made.scheme.beyond(made.layers):
        add(Entry(target.scope, target.role, name, str(target.law), target.projection))
