"""Find how many tokens a language model of the user's own, such as nanoGPT, knows, and how many positions it has."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

SETTINGS = ("config", "cfg", "args", "params", "hparams")  # where a model keeps what it was built with
LENGTH_SETTINGS = (
    "block_size", "max_seq_len", "max_seq_length", "seq_len", "context_length", "context_size", "n_ctx",
    "n_positions", "max_position_embeddings", "max_len",
)  # fmt: skip
NOT_TOKENS = ("pos", "wpe", "type", "segment")  # in the name of an embedding of something else


def vocabulary_size(model: nn.Module) -> int | None:
    """Return the size of the table of token embeddings, if one tensor of ids is what the model takes; else None.

    It takes one argument, all others have defaults; it has no convolution of images; and its first `nn.Embedding` that
    is not one of positions or types is the table, or that of the size its settings call `vocab_size`.

    >>> class Bigram(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.position_table, self.token_table = nn.Embedding(8, 4), nn.Embedding(65, 4)
    ...     def forward(self, idx, targets=None):
    ...         return self.token_table(idx)
    >>> vocabulary_size(Bigram()), longest_sequence(Bigram())
    (65, 8)
    """
    if len(needed_arguments(model)) != 1 or any(isinstance(part, nn.Conv2d | nn.Conv3d) for part in model.modules()):
        return None
    sizes = [table.num_embeddings for name, table in _tables(model) if not any(word in name for word in NOT_TOKENS)]
    said = [size for size in _numbers(model, ("vocab_size",)) if size in sizes]
    return next(iter((*said, *sizes)), None)


def longest_sequence(model: nn.Module) -> int | None:
    """Return the longest sequence that a model's settings or its table of positions have room for; None if any."""
    tables = [table.num_embeddings for name, table in _tables(model) if "pos" in name or "wpe" in name]
    own = [(name.rpartition(".")[2], p) for name, p in model.named_parameters()]  # not the weight of a `pos_ffn`
    learned = [p.shape[-2] for name, p in own if "pos" in name.lower() and p.ndim in (2, 3)]
    return min((*tables, *learned, *_numbers(model, LENGTH_SETTINGS)), default=None)


def needed_arguments(model: nn.Module) -> list[str]:
    """Return the arguments of `forward` that have no default."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    takes = inspect.signature(model.forward).parameters.items()
    return [name for name, argument in takes if argument.default is argument.empty and argument.kind not in variadic]


def _tables(model: nn.Module) -> Iterator[tuple[str, nn.Embedding]]:
    for name, part in model.named_modules():
        if isinstance(part, nn.Embedding):
            yield name.lower(), part


def _numbers(model: nn.Module, names: tuple[str, ...]) -> Iterator[int]:
    """Whole numbers of these names, on the model or in its settings."""
    for holder in (model, *(getattr(model, name, None) for name in SETTINGS)):
        for name in names:
            value: Any = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                yield value
