"""The model's own initialisation, for a part of a model while the rest is on the meta device.

On meta every initialiser is a no-op that draws nothing, so the numbers of a part do not depend on the order of parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wellcond._core.keyed_random import key
from wellcond.attention.paths import join
from wellcond.errors import CheckpointError

INSTEAD = (
    "Build the model on the CPU instead: wc.init_(model, …), then wc.save_weights(model, 'FILE.safetensors'); on the "
    "command line -o FILE.safetensors"
)


@torch.no_grad()
def initialise_part(root: nn.Module, owners: set[str], seed: int, part: str) -> None:
    """Run the model's own initialisation for some modules, keyed by `(seed, part, module)`.

    transformers models say it in `_init_weights`, timm models in `init_weights(needs_reset=True)`, the rest in each
    module's `reset_parameters`. A module that holds one of them runs too: GPT-2's blocks set their children.

    Args:
        root: the model; what is on the meta device stays as it is.
        owners: canonical paths of the modules to initialise.
        seed: the user's seed.
        part: a name for these modules; a parent that sets children in two parts draws different numbers for them.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> initialise_part(model, {"0"}, seed=0, part="first")
    >>> before = model[0].weight.clone()
    >>> initialise_part(model, {"1"}, seed=0, part="second")
    >>> initialise_part(model, {"0"}, seed=0, part="first")
    >>> torch.equal(model[0].weight, before), torch.equal(model[1].weight, before)
    (True, False)
    """
    with _IdleOnMeta():
        _run(root, owners, seed, part)


class _IdleOnMeta(TorchFunctionMode):
    """Skip what is set in place on the meta device: it has no effect, but some of it is slow."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and args and isinstance(args[0], Tensor) and args[0].is_meta:
            return args[0]
        return function(*args, **(kwargs or {}))


def _run(root: nn.Module, owners: set[str], seed: int, part: str) -> None:
    for path, initialise in _initialisers(root, owners) if owners else ():
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key(seed, part, path, "default"))
            try:
                initialise()
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                raise CheckpointError(
                    f"the initialisation of '{path}' does not work on one part of the model ({reason}). {INSTEAD}"
                ) from error


@torch.no_grad()
def check_repeatable(root: nn.Module) -> None:
    """Refuse a model on the meta device whose constructor sets weights in a way that cannot be repeated by parts.

    A tensor counts its changes, on meta too. A parameter that changed more often in the constructor than its modules'
    `reset_parameters` change it got something else there.

    >>> class Mine(nn.Linear):
    ...     def __init__(self):
    ...         super().__init__(2, 2)
    ...         nn.init.zeros_(self.weight)
    >>> with torch.device("meta"):
    ...     model = Mine()
    >>> check_repeatable(model)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    wellcond.errors.CheckpointError: the constructor of Mine sets 'weight' in its own way...
    """
    if _resets_as_a_whole(root):
        return
    modules = [(path, module) for path, module, rules in _children_first(root, "", None) if rules is None]
    for path, module in modules:
        hidden = next((name for name in ("init_weights", "_init_weights") if hasattr(module, name)), None)
        if hidden is not None:
            raise CheckpointError(_own_way(path, module, f"runs its own {hidden}()"))
    places = [(path, m, name, p) for path, m in modules for name, p in m.named_parameters(recurse=False) if p.is_meta]
    before = [parameter._version for *_, parameter in places]
    _run(root, {path for path, *_ in places}, seed=0, part="")
    for (path, module, name, parameter), version in zip(places, before, strict=True):
        if version > parameter._version - version:
            raise CheckpointError(_own_way(path, module, f"sets '{name}' in its own way"))


def _own_way(path: str, module: nn.Module, what: str) -> str:
    where = f" at '{path}'" if path else ""
    return (
        f"the constructor of {type(module).__name__}{where} {what}, which cannot be repeated block by block. {INSTEAD}"
    )


def _initialisers(root: nn.Module, owners: set[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what to call for these modules and those that hold them, children first, as transformers does."""
    if _resets_as_a_whole(root):
        whole: Any = root.init_weights
        yield "", partial(whole, needs_reset=True)
        return
    wanted = {""} | {".".join(parts[:n]) for parts in (o.split(".") for o in owners) for n in range(1, len(parts) + 1)}
    for path, module, rules in _children_first(root, "", None):
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if path not in wanted:
            continue
        if rules is not None:
            own: Any = rules._init_weights
            yield path, partial(own, module)
        elif callable(reset):
            yield path, reset


def _children_first(
    module: nn.Module, path: str, rules: nn.Module | None, above: frozenset[int] = frozenset()
) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
    """Yield `(path, module, the transformers model it is part of)`; the innermost such model has the say."""
    if any(cls.__name__ == "PreTrainedModel" for cls in type(module).__mro__):
        rules = module
    above = above | {id(module)}
    for name, child in module.named_children():
        if id(child) not in above:  # a module may contain itself
            yield from _children_first(child, join(path, name), rules, above)
    yield path, module, rules


def _resets_as_a_whole(root: nn.Module) -> bool:
    """Timm's convention."""
    method = getattr(root, "init_weights", None)
    return callable(method) and "needs_reset" in inspect.signature(method).parameters
