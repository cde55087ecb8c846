"""`plan` works out what a scheme writes into a model; `init_` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from wellcond._core.checked import checked
from wellcond._core.keyed_random import neutral
from wellcond.attention.find import chosen_layers
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.layers import LayerFilter as LayerFilter
from wellcond.attention.roles import ROLES
from wellcond.attention.view import AttentionLayer
from wellcond.errors import InapplicableError, SchemeError, WeightError
from wellcond.init.compose import SchemeLike, as_scheme
from wellcond.init.plan import Assignment, Plan, narrowed
from wellcond.init.scheme import OnInapplicable

P = ParamSpec("P")
R = TypeVar("R")


@checked
@neutral()
def plan(
    model: nn.Module,
    scheme: SchemeLike,
    *,
    seed: int = 0,
    generator: torch.Generator | None = None,
    layers: LayerFilter = None,
    on_inapplicable: OnInapplicable = "error",
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
    chosen = as_scheme(scheme, options)
    found = chosen_layers(model, layers)
    if generator is not None:
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    made = Plan(found, chosen, seed)
    kept: list[AttentionLayer] = []
    for layer in found:
        reason = layer.reason or chosen.applies(layer)
        if reason is None:
            kept.append(layer)
        elif on_inapplicable == "skip":
            made.inapplicable.append((layer.name, reason))
        else:
            raise InapplicableError(
                f"'{chosen}' does not apply to '{layer.name}' ({type(layer.module).__name__}): {reason}. Leave "
                "the layer out with layers=…, or pass on_inapplicable='skip'"
            )
    made.layers = AttentionLayers(kept, found.unclaimed, filtered=found.filtered)
    owners: dict[tuple[int, object], str] = {}
    for assignment in _assignments(made):
        _add(made, assignment, owners)
    chosen.check_layers(made.layers)
    return made


def same_arguments(like: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Declare that a function takes the arguments of another: to type checkers, `help` and `@checked`."""

    def declare(function: Callable[..., R]) -> Callable[P, R]:
        function.__annotations__ = like.__annotations__
        function.__signature__ = inspect.signature(like)  # type: ignore[attr-defined]
        return function

    return declare


@checked
@same_arguments(plan)
def init_(*args: Any, **kwargs: Any) -> Plan:  # noqa: D417
    """Initialise the attention of a model in place, all or nothing; return what was written where.

    Every draw is keyed by (seed, layer name, role, head) and made on the CPU in float32 or wider, so with one build of
    torch the same seed gives the same weights on any device, for any subset of layers and any number of processes and
    threads. The global generator is not touched, and everything the scheme does not own keeps its bits. On the meta
    device the plan is returned unapplied.

    Args:
        model: any model, wrapped, compiled or sharded.
        scheme: a name (`wc.schemes()` lists them), a function `(layer, draw) -> {role: (heads, D, d)}`, or a
            composition per role such as `{"qk": "conditioned", "vo": "mimetic"}`.
        seed: the key's first part.
        generator: a seed is drawn from it instead.
        layers: shell pattern on the layer name, a list of them, or a predicate; None for all.
        on_inapplicable: what to do with a layer the scheme does not apply to.
        options: the scheme's own.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> print(wc.init_(model, "conditioned", seed=0).entries[0])
    PlanEntry(layer='self_attn', role='query', scheme='conditioned', law='semi-orthogonal')
    """
    made = plan(*args, **kwargs)
    return made if made.on_meta else made.apply_()


def _assignments(made: Plan) -> Iterator[Assignment]:
    """Every law of the scheme with the roles it governs, layer by layer, then what lies beyond them."""
    for layer in made.layers:
        functional = [(role, p) for role, p in layer.projections() if role in made.scheme.functional()]
        if functional:
            roles, projections = zip(*functional, strict=True)
            yield Assignment(layer.name, roles, None, projections)
        for roles, law in made.scheme.laws(layer).items():
            for role in roles:
                if role not in ROLES or getattr(layer, role) is None:
                    raise SchemeError(f"'{made.scheme}' sets {role!r}, which '{layer.name}' does not have")
            yield Assignment(layer.name, roles, law, tuple(getattr(layer, role) for role in roles))
    for target in made.scheme.beyond(made.layers):
        yield Assignment(target.scope, (target.role,), target.law, (target.projection,))


def _add(made: Plan, assignment: Assignment, owners: dict[tuple[int, object], str]) -> None:
    """List an assignment once per stored weight; refuse what cannot be written, or only in part."""
    tied = {}
    for role, projection in zip(assignment.roles, assignment.projections, strict=True):
        reason = projection.refusal()
        if reason:
            raise WeightError(reason)
        name = f"{assignment.scope} {role}"
        first = owners.setdefault((id(projection.parameter()), projection.weight.layout), name)
        if first != name:
            tied[role] = first
    made.tied += [(f"{assignment.scope} {role}", first) for role, first in tied.items()]
    if tied and assignment.law is not None and len(tied) < len(assignment.roles):
        free = next(role for role in assignment.roles if role not in tied)
        role, first = next(iter(tied.items()))
        raise InapplicableError(
            f"'{made.scheme}' sets {' and '.join(assignment.roles)} of '{assignment.scope}' together, but its {role} "
            f"is tied to {first} and its {free} is not; leave the layer out with layers=…"
        )
    rest = narrowed(assignment, lambda p: owners[id(p.parameter()), p.weight.layout].startswith(assignment.scope + " "))
    if rest.roles:
        made.assignments.append(rest)
