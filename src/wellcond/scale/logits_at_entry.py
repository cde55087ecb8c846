"""Queries, keys and logits of an attention layer at the moment its module is called, before it computes anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from wellcond._core.safe_text import briefly
from wellcond.attention.capture import bound_arguments
from wellcond.attention.higher_precision import wide_enough
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.observe import observe
from wellcond.attention.own_code import has_hooks
from wellcond.attention.paths import resolve
from wellcond.attention.replay import Call
from wellcond.attention.storage import split_path
from wellcond.attention.undisturbed import own_copy
from wellcond.attention.view import AttentionLayer
from wellcond.errors import WellcondError
from wellcond.scale.module_alone import OUTSIDE, Given, is_whole, module_alone
from wellcond.scale.queries_and_keys import QueriesAndKeys, queries_and_keys


class _EnoughSeenError(Exception):
    """Raised to leave a module's forward once its projections have been given their tokens."""


def logits_at_entry(layer: AttentionLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> QueriesAndKeys | str:
    """Return the queries and keys that a layer is about to compute from its arguments, or why they are not known.

    A module of a known class runs only until its query and key projections have been called; of another one a copy runs
    whole, and what rebuilds its output is asked. Arguments stay as they are.
    """
    if layer.standing == "refused":
        return f"refused: {layer.reason}"
    if layer.query is None or layer.key is None:
        return f"{layer.kind} attention without queries and keys"
    given = own_copy(args), own_copy(kwargs)
    try:
        known = layer.replay is not None and not layer.replay.guess
        found = _replayed(layer, given) if known else _rebuilt(layer, given)
    except (RuntimeError, LookupError, TypeError, ValueError, WellcondError) as problem:
        return f"its logits cannot be computed: {briefly(problem, 100)}"  # what does not fit may not even compute
    return f"{layer.kind}: no softmax over tokens" if found is None else found


def _rebuilt(layer: AttentionLayer, given: Given) -> QueriesAndKeys | str | None:
    """Queries and keys by what rebuilds the output of a copy: a guess that it bears out, or its own recorded steps."""
    if not is_whole(layer):
        return OUTSIDE
    if has_hooks(layer.module):
        return "somebody hooks into its module, which cannot be tried alone"
    view, (args, kwargs) = module_alone(layer, given)
    assert view.root is not None
    inputs = bound_arguments(view.root, args, kwargs) if kwargs else args
    (call,) = observe(view.root, AttentionLayers([view]), inputs, complete=False).calls
    assert call is not None
    found = None if call.replay is None else queries_and_keys(view, call, call.replay)
    return call.refusal if call.replay is None else found and replace(found, layer=layer)


def _replayed(layer: AttentionLayer, given: Given) -> QueriesAndKeys | None:
    """Queries and keys by the replay of a known class."""
    assert layer.replay is not None
    return queries_and_keys(layer, wide_enough(_called(layer, given), layer.replay), layer.replay)


def _called(layer: AttentionLayer, given: Given) -> Call:
    """A call with its arguments and what the projections of Q and K were given."""
    module, (args, kwargs) = layer.module, given
    call = Call(layer, module, bound_arguments(module, args, kwargs), given=given)
    owners: dict[str, list[str]] = {}
    for role, projection in layer.projections():
        owners.setdefault(split_path(projection.weight.path)[0], []).append(role)
    assert layer.root is not None
    modules = {path: resolve(layer.root, path) for path in owners}
    waiting = {path for path, roles in owners.items() if modules[path] is not module and roles != ["output"]}

    def reader(path: str) -> Any:
        def hook(_: nn.Module, given: tuple[Any, ...]) -> None:
            for role in owners[path]:
                call.reads.setdefault(role, given[0])
            waiting.discard(path)
            if not waiting:
                raise _EnoughSeenError

        return hook

    handles = [modules[path].register_forward_pre_hook(reader(path)) for path in sorted(waiting)]
    try:
        if waiting:
            module.forward(*args, **kwargs)
    except _EnoughSeenError:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return call
