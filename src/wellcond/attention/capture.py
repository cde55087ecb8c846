"""Run a model once, and record what each attention layer was given and what it returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.safe_text import briefly
from wellcond._core.short_repr import short_repr
from wellcond.attention.ordinary import as_called
from wellcond.attention.paths import resolve
from wellcond.attention.replay import Call
from wellcond.attention.storage import split_path
from wellcond.attention.undisturbed import own_copy
from wellcond.attention.view import AttentionLayer
from wellcond.errors import BatchError, WellcondError

MAX_ARGUMENTS_SHOWN = 5


def run_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a tuple of positional or a mapping of keyword arguments, which stay as they are."""
    inputs = own_copy(inputs)
    try:
        with as_called():
            if isinstance(inputs, Mapping):
                return model(**inputs)
            return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
    except (WellcondError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise BatchError(
            f"{type(model).__name__} cannot be run on {batch_words(inputs)}: {briefly(error, 200)}; give a tensor, a "
            "tuple of positional or a dict of keyword arguments that its forward takes"
        ) from error


def batch_words(inputs: Any) -> str:
    """Return a batch in words: names, shapes and dtypes.

    >>> batch_words({"input_ids": torch.zeros(2, 7, dtype=torch.long)})
    'input_ids: Tensor (2, 7) of int64'
    >>> batch_words(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged))
    'nested Tensor of float32'
    """
    if isinstance(inputs, Tensor):
        if inputs.is_nested:  # which has no shape
            return f"nested Tensor of {str(inputs.dtype).removeprefix('torch.')}"
        return f"Tensor {tuple(inputs.shape)} of {str(inputs.dtype).removeprefix('torch.')}"
    if isinstance(inputs, Mapping) and inputs:
        return ", ".join(f"{name}: {batch_words(value)}" for name, value in list(inputs.items())[:MAX_ARGUMENTS_SHOWN])
    if isinstance(inputs, (tuple, list)) and 0 < len(inputs) <= MAX_ARGUMENTS_SHOWN:
        return f"({', '.join(map(batch_words, inputs))})"
    return short_repr(inputs)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode and back, each sub-module to its own mode.

    Without gradients torch's encoder then fuses its layers and packs padded tokens, which no hook could read: not here.
    """
    modes = [(module, module.training) for module in model.modules()]
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for module, _ in modes:  # not model.eval(), which a module that contains itself would never end
            module.training = False
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, training in modes:
            module.training = training


@torch.no_grad()
def capture(layers: Sequence[AttentionLayer], inputs: Any, root: nn.Module | None = None) -> list[Call | None]:
    """Run the model once and return the first call of each layer, None for a layer that was not called.

    Hooks are always removed, train/eval modes restored, and no gradient is recorded.
    """
    root = layers[0].root if root is None else root
    assert root is not None
    with evaluating(root), _watching(layers) as calls:
        run_model(root, inputs)
    return [calls.get(index) for index in range(len(layers))]


@contextmanager
def _watching(layers: Sequence[AttentionLayer]) -> Iterator[dict[int, Call]]:
    """Record the first call of each layer, by its index; hooks are always removed."""
    calls: dict[int, Call] = {}
    handles: list[Any] = []
    try:
        for index, layer in enumerate(layers):
            handles += _watch(index, layer, calls)
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def bound_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a module's arguments by parameter name, surplus keyword arguments among them."""
    signature = inspect.signature(module.forward)
    bound = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound.update(bound.pop(name, {}))
    return bound


def _watch(index: int, layer: AttentionLayer, calls: dict[int, Call]) -> list[Any]:
    """Hook one attention module and the modules of its projections."""
    module = layer.module
    depth = [0]  # calls under way or finished; only the first is recorded

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        depth[0] += 1
        if depth[0] > 1:
            return
        calls[index] = Call(layer, module, bound_arguments(module, args, kwargs), given=(args, kwargs))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if depth[0] == 1:
            calls[index].output = output

    def reader(roles: list[str]) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if index not in calls or depth[0] > 1:
                return
            call = calls[index]
            for role in roles:
                call.repeats = call.repeats or role in call.reads
                if role not in call.reads:
                    call.reads[role] = args[0]
                    if role == "output":
                        call.written = output

        return hook

    handles: list[Any] = [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave),
    ]
    owners: dict[str, list[str]] = {}
    for role, projection in layer.projections():
        owners.setdefault(split_path(projection.weight.path)[0], []).append(role)
    assert layer.root is not None
    for path, roles in owners.items():
        owner = resolve(layer.root, path)
        if owner is not module:
            handles.append(owner.register_forward_hook(reader(roles)))
    return handles
