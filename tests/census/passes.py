"""One forward pass of a model, or of one of its modules, under the oracle, from the same state each time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.census.marks import Marks, mark, tensors_in
from tests.census.oracle import Watch
from tests.census.sites import Mixture, Place, Site
from tests.census.steer import Steer, Weights


@dataclass(frozen=True)
class Call:
    """A call of a module that can be made again: where the module is, what it was given, and the generator then."""

    module: nn.Module
    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    generator: Tensor


@dataclass(frozen=True)
class Pass:
    """What the oracle saw: sites, mixtures and softmaxes in order, and all numbers that the module returned."""

    sites: list[Site]
    mixtures: list[Mixture]
    weights: list[Weights]
    output: Tensor


class Finished(Exception):
    """Ends a forward pass once the module that is asked about is called."""


class Running:
    """The modules that are running, each with the number of softmaxes that its present call has made."""

    def __init__(self) -> None:
        self.modules: list[list[Any]] = [["", 0]]

    def place(self) -> Place:
        path, count = self.modules[-1]
        self.modules[-1][1] += 1
        return path, count

    def hooks(self, root: nn.Module, prefix: str) -> Iterator[Any]:
        for name, module in root.named_modules(prefix=prefix):
            yield module.register_forward_pre_hook(lambda *_, name=name: self.modules.append([name, 0]))
            yield module.register_forward_hook(self.leave(name))

    def leave(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if self.modules[-1][0] == name:
                self.modules.pop()

        return hook


def whole(model: nn.Module, inputs: dict[str, Any]) -> Call:
    """Return the call of a model on a batch; everything in it counts as input."""
    given = copy.deepcopy(inputs)
    for tensor in tensors_in(given):
        mark(tensor, Marks(depends=True))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Call(model, "", (), given, torch.get_rng_state())


def first_call(model: nn.Module, inputs: dict[str, Any], path: str) -> Call | None:
    """Run a model up to the first call of a module, and return that call; None where it is not called.

    What the module is given counts as input, also where it is learned, as the first queries of a decoder are.
    """
    module, found = model.get_submodule(path), []

    def take(_module: nn.Module, args: Any, kwargs: Any) -> None:
        given = kept((args, kwargs), model)
        for tensor in tensors_in(given):
            mark(tensor, Marks(depends=True))
        found.append(Call(module, path, *given, torch.get_rng_state()))
        raise Finished

    hook = module.register_forward_pre_hook(take, with_kwargs=True)
    try:
        run(whole(model, inputs))
    except Finished:
        pass
    finally:
        hook.remove()
    return found[0] if found else None


def kept(value: Any, model: nn.Module) -> Any:
    """Return a copy of arguments, in which modules and parameters of the model stay themselves."""
    own = {id(one): one for one in (*model.modules(), *model.parameters())}
    given: Any = copy.deepcopy(value, own)
    for old, new in zip(tensors_in(value), tensors_in(given), strict=True):
        before = getattr(old, "_census_marks", None) or Marks()
        mark(new, Marks(depends=before.depends, mapped=before.mapped))
    return given


@torch.no_grad()
def run(call: Call, steer: Steer | None = None) -> Pass:
    """Make a call and watch it; arguments, buffers and generator are as they were afterwards.

    Caches are the caller's: arguments hold `use_cache=False` where a model takes it.
    """
    running = Running()
    watcher = Watch(running.place, steer or Steer())
    state = {name: buffer.clone() for name, buffer in call.module.named_buffers()}
    args, kwargs = kept((call.args, call.kwargs), call.module)
    with ExitStack() as cleanup:
        for hook in running.hooks(call.module, call.path):
            cleanup.callback(hook.remove)
        cleanup.enter_context(torch.random.fork_rng(devices=[]))
        torch.set_rng_state(call.generator)
        cleanup.enter_context(seen_through())
        with watcher:
            output = call.module(*args, **kwargs)
    for name, buffer in call.module.named_buffers():
        if name in state and buffer.shape == state[name].shape:
            buffer.copy_(state[name])
    numbers = [t.flatten().float() for t in tensors_in(output) if t.is_floating_point()]
    return Pass(watcher.sites, watcher.mixtures, watcher.weights, torch.cat([torch.zeros(0), *numbers]))


def watch(model: nn.Module, inputs: dict[str, Any]) -> list[Site]:
    """Run a model once and return its sites in order."""
    return run(whole(model, inputs)).sites


@contextmanager
def seen_through() -> Iterator[None]:
    """Let the Python functions of torch.nn.functional run their own bodies, so that the calls inside are seen."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    kept = {name: getattr(F, name) for name in names}
    try:
        for name in names:
            setattr(F, name, lambda *_: False)
        yield
    finally:
        for name, function in kept.items():
            setattr(F, name, function)
