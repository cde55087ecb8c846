"""The adapters in the order in which they are asked; the first that claims a module wins."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from wellcond.attention.view import AttentionLayer

# A view; or, for a class it knows but cannot describe, the reason; or None: not mine, ask the next adapter.
Describe = Callable[[nn.Module, str], AttentionLayer | str | None]
_ADAPTERS: list[tuple[int, Describe]] = []


def adapter(priority: int) -> Callable[[Describe], Describe]:
    """Register a function `describe(module, name)` where it is defined; the lowest priority is asked first."""

    def register_adapter(describe: Describe) -> Describe:
        _ADAPTERS.append((priority, describe))
        return describe

    return register_adapter


def adapters() -> list[Describe]:
    """Return the registered adapters, lowest priority first."""
    return [describe for _, describe in sorted(_ADAPTERS, key=lambda pair: pair[0])]
