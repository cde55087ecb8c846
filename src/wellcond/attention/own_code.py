"""Code of somebody's in a module of a known class, after which the class's replay is a guess."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from wellcond.attention.paths import children
from wellcond.attention.view import AttentionLayer

LIBRARIES = ("torch", "timm", "transformers", "torchvision")  # whose classes the adapters know


def runs_own_code(module: nn.Module) -> bool:
    """Return whether what a module runs is not its library's: a sub-class's own forward, or one put in its place.

    >>> class Mine(nn.MultiheadAttention):
    ...     def forward(self, query, key, value):
    ...         return super().forward(query, key.roll(1, 1), value)
    >>> runs_own_code(nn.MultiheadAttention(4, 2)), runs_own_code(Mine(4, 2))
    (False, True)
    """
    parts = [module, *(child for _, child in children(module) if child._modules)]  # BERT's score in a child
    return any(getattr(part.forward, "__module__", "").partition(".")[0] not in LIBRARIES for part in parts)


def has_hooks(module: nn.Module) -> bool:
    """Return whether anybody but torch, whose hooks make weights or gather them, and this library hooks into a module.

    >>> linear = nn.Linear(2, 2)
    >>> before, _ = has_hooks(linear), linear.register_forward_hook(print)
    >>> before, has_hooks(linear)
    (False, True)
    """
    hooks = [
        hook for part in module.modules() for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]
    origins = {str(getattr(getattr(hook, "func", hook), "__module__", "")).partition(".")[0] for hook in hooks}
    return not origins <= {"torch", "wellcond"}


def as_guess(layer: AttentionLayer) -> AttentionLayer:
    """Return a layer whose replay, if it has one, is a guess, so that more is asked of it."""
    return layer if layer.replay is None else replace(layer, replay=replace(layer.replay, guess=True))
