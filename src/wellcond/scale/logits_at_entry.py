"""Queries, keys and logits of an attention layer at the moment its module is called, before it computes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from wellcond._core.safe_text import briefly
from wellcond.attention.capture import bound_arguments
from wellcond.attention.paths import resolve
from wellcond.attention.replay import Call, Softmax, project
from wellcond.attention.storage import split_path
from wellcond.attention.undisturbed import own_copy
from wellcond.attention.view import AttentionLayer
from wellcond.scale.mean_over_processes import mean_over_processes
from wellcond.scale.sharpness import sharpness


class _EnoughSeenError(Exception):
    """Raised to leave a module's forward once its projections have been given their tokens."""


@dataclass(frozen=True)
class EntryLogits:
    """Queries `(B, H, N, d)` and keys `(B, G, T, d)` of a call, and how the layer makes logits of them."""

    call: Call
    mixing: Softmax
    query: Tensor
    key: Tensor

    def sharpness(self, query: Sequence[float] | None = None, key: Sequence[float] | None = None) -> list[float | None]:
        """β of every head with its queries and keys multiplied by numbers, the mean over all processes."""
        logits = self.mixing.logits(_times(self.query, query), _times(self.key, key))
        return mean_over_processes(sharpness(logits, self.mixing.hidden))


def _times(x: Tensor, factors: Sequence[float] | None) -> Tensor:
    return x if factors is None else x * x.new_tensor(factors)[:, None, None]


def logits_at_entry(layer: AttentionLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> EntryLogits | str:
    """Return the logits that a layer is about to compute from its arguments, or why they are not known.

    The module runs only until its query and key projections have been called; arguments stay as they are.
    """
    if layer.query is None or layer.key is None:
        return f"{layer.kind} attention without queries and keys"
    if layer.replay is None:
        return "its class has no replay that tells its logits before it runs"
    try:
        call = _called(layer, own_copy(args), own_copy(kwargs))
        tokens = layer.replay.tokens(call)
        mixing = layer.replay.mixing(call)
        if not isinstance(mixing, Softmax):
            return f"{layer.kind}: no softmax over tokens"
        return EntryLogits(call, mixing, project(layer.query, tokens["query"]), project(layer.key, tokens["key"]))
    except (RuntimeError, LookupError, TypeError, ValueError) as problem:  # what does not fit may not even compute
        return f"its logits cannot be computed: {briefly(problem, 100)}"


def _called(layer: AttentionLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """A call with its arguments and what the projections of Q and K were given."""
    module = layer.module
    call = Call(layer, module, bound_arguments(module, args, kwargs), given=(args, kwargs))
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
