"""Canonical names: the path of a module or parameter with every wrapper left out.

`DistributedDataParallel`, `torch.compile`, activation checkpointing and their like insert a level such as
`module.` or `_orig_mod.` into every name. A view must survive being wrapped afterwards, and the same layer must
draw the same random numbers with and without a wrapper, so the library only ever speaks canonical paths.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

# Class name -> the attribute holding what it wraps. By class, because a model may own a child called "module".
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "ActivationWrapper": "_checkpoint_wrapped_module",
    "AveragedModel": "module",
    "DeepSpeedEngine": "module",
    "_FabricModule": "_forward_module",
}


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside any stack of wrappers.

    >>> import torch
    >>> inner = torch.nn.Linear(2, 2)
    >>> unwrap(torch.nn.DataParallel(inner)) is inner
    True
    """
    while True:
        for cls in type(module).__mro__:
            inner = module._modules.get(_WRAPPERS.get(cls.__name__, ""))
            if inner is not None:
                module = inner
                break
        else:
            return module


def join(*parts: str) -> str:
    """Join path pieces with dots, leaving out empty ones.

    >>> join("", "blocks.0", "attn")
    'blocks.0.attn'
    """
    return ".".join(part for part in parts if part)


def inside(path: str, outer: str) -> bool:
    """Return whether a module is another one, or within it.

    >>> inside("blocks.0.attn", "blocks.0"), inside("blocks.0", "blocks.0"), inside("blocks.01", "blocks.0")
    (True, True, False)
    """
    return not outer or path == outer or path.startswith(outer + ".")


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the unwrapped children of an unwrapped module with their names."""
    for name, child in module._modules.items():
        if child is not None:
            yield name, unwrap(child)


def walk(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module once, parents first, as `(canonical path, module)`."""
    seen: set[int] = set()
    stack = [("", unwrap(root))]
    while stack:
        path, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        stack.extend((join(path, name), child) for name, child in reversed(list(children(module))))


def resolve(root: nn.Module, path: str) -> nn.Module:
    """Return the module at a canonical path, whatever wraps it now.

    >>> model = nn.Sequential(nn.Sequential(nn.Linear(1, 2)))
    >>> resolve(nn.DataParallel(model), "0.0")
    Linear(in_features=1, out_features=2, bias=True)
    """
    module = unwrap(root)
    for name in filter(None, path.split(".")):
        child = module._modules.get(name)
        if child is None:
            raise KeyError(f"no module '{path}': {type(module).__name__} has no child '{name}'")
        module = unwrap(child)
    return module
