"""What makes a model's stream too large: an embedding, a matrix or a convolution, or the batch itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from wellcond.advice.stream_entry import StreamEntry, rms
from wellcond.advice.weight_sizes import median_size
from wellcond.attention.capture import evaluating, run_model
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.undisturbed import undisturbed
from wellcond.placement.watched_pass import first_tensor

TABLE = 10.0  # times the weights of the blocks, from which on a table of embeddings is large: libraries differ in these
LARGE_STREAM = 4.0  # root mean square of the stream's entries; 0.02 to 1 are usual
LARGE_MAP = 2.0  # what a map multiplies unit inputs by; 0.58 is torch's law, 1 Lecun's, √2 Kaiming's
LARGE_INPUTS = 2.0  # root mean square of a batch of numbers; normalised images have 1
LARGE_LOGITS = 4.0  # deviation of the output's logits where its matrix is the embedding


def embedding_factors(
    trial: nn.Module, inputs: Any, entry: StreamEntry | None, layers: AttentionLayers, limit: float
) -> dict[str, float]:
    """Return factors that bring what makes a stream above a limit into line; empty where nothing is out of it."""
    if entry is None or all(trial.get_parameter(path).ndim < 2 for path in entry.makers):  # of norms alone, or none
        return {}
    usual = median_size(layers, by_inputs=False)
    found = dict[str, float]()
    for path, table in _tables(trial).items():
        size = rms(table.weight)
        if path not in entry.makers or not usual or size < TABLE * usual:
            continue
        as_drawn = abs(size - 1) < 5 / math.sqrt(2 * table.weight.numel())  # by nn.Embedding, to five standard errors
        if not as_drawn or _logits(trial, inputs, table) > LARGE_LOGITS:
            found[path] = usual / size
    if not entry.parts:
        return found | _maps(trial, entry, 0.0)
    by_data = _usual_maps(trial, entry) if large_inputs(trial, inputs, entry, limit) else {}
    left = {path: part for path, part in entry.parts.items() if path not in found and path not in by_data}
    rest = math.hypot(*left.values())
    if rest > limit:
        return found | {path: 1 / rest for path, part in left.items() if part > 1}
    return found | _maps(trial, entry, median_size(layers, by_inputs=True))


def _maps(trial: nn.Module, entry: StreamEntry, usual: float) -> dict[str, float]:
    """Factors of the matrix or the convolution that makes the stream, where it multiplies unit inputs by too much.

    Before a norm (`usual` is 0 then) that is what would be too large a stream, though the norm hides it from all but
    the optimizer; else what is beyond every usual law, and `TABLE` times what the blocks' weights multiply theirs by.
    """
    gains = _gains(trial, entry)
    if len(gains) != 1:  # a stem of several, whose sizes do not say that of the stream
        return {}
    ((name, gain),) = gains.items()
    if gain <= (max(LARGE_MAP, TABLE * usual) if usual else LARGE_STREAM):
        return {}
    return {f"{name}.{part}": 1 / gain for part in ("weight", "bias") if f"{name}.{part}" in entry.makers}


def _gains(trial: nn.Module, entry: StreamEntry) -> dict[str, float]:
    """What each matrix or convolution that makes the stream multiplies independent unit inputs by, by module."""
    return {
        name: rms(module.weight) * math.sqrt(module.weight[0].numel())
        for name, module in trial.named_modules()
        if isinstance(module, (nn.Linear, _ConvNd)) and f"{name}.weight" in entry.makers
    }


def _usual_maps(trial: nn.Module, entry: StreamEntry) -> dict[str, float]:
    """Parts of the stream by parameters of maps of a usual size: a large one is by the data."""
    usual = {name for name, gain in _gains(trial, entry).items() if gain <= LARGE_MAP}
    return {path: part for path, part in entry.parts.items() if path.rpartition(".")[0] in usual}


def large_inputs(trial: nn.Module, inputs: Any, entry: StreamEntry | None, limit: float) -> float:
    """Return the root mean square of a batch that makes a stream above a limit, as no weight does; else 0."""
    given = numbers_of(inputs)
    if entry is None or given is None or rms(given) <= LARGE_INPUTS:
        return 0.0
    return rms(given) * (math.hypot(entry.batch, *_usual_maps(trial, entry).values()) > limit)


def numbers_of(inputs: Any) -> Tensor | None:
    """Return the first tensor of real numbers in a batch, with tokens and a width."""
    return first_tensor(tree_leaves(dict(inputs) if isinstance(inputs, Mapping) else inputs))


def embedding_words(
    trial: nn.Module, inputs: Any, entry: StreamEntry, factors: Mapping[str, float], layers: AttentionLayers, then: str
) -> str:
    """Say how large the embedding is whose factors these are, and what follows from it."""
    tables, usual = _tables(trial), median_size(layers, by_inputs=False)
    names = " and ".join(f"'{path}'" for path in factors)
    hidden = ", though a norm hides it" if not entry.parts else ""
    size = f"the stream enters the first block with a size of {entry.size:.2g}{then}"
    said = [f"the embedding is large ({names}){hidden}: {size}"]
    times = [rms(tables[path].weight) / usual for path in factors if path in tables and usual]
    if times:
        said.append(f"its entries are {max(times):.2g} × those of the blocks' weights")
    for path in factors:
        logits = _logits(trial, inputs, tables[path]) if path in tables else 0.0
        if logits > LARGE_LOGITS:
            said.append(f"and it is the output's matrix, too, whose logits begin with a deviation of {logits:.2g}")
    return "; ".join(said)


def _tables(trial: nn.Module) -> dict[str, nn.Embedding]:
    """Tables of embeddings by the path of their weight."""
    return {
        f"{name}.weight" if name else "weight": module
        for name, module in trial.named_modules()
        if isinstance(module, nn.Embedding)
    }


def _logits(trial: nn.Module, inputs: Any, table: nn.Embedding) -> float:
    """Deviation of what a module other than a table makes with a table's weight; 0 where none has it, or runs."""
    found = list[float]()
    others = [module for module in trial.modules() if not isinstance(module, nn.Embedding)]
    readers = [m for m in others if any(p is table.weight for p in m._parameters.values())]
    with ExitStack() as stack:
        for context in (undisturbed(trial), evaluating(trial), torch.no_grad()):
            stack.enter_context(context)
        for module in readers:
            hook = module.register_forward_hook(lambda _, args, logits: found.append(float(logits.double().std())))
            stack.callback(hook.remove)
        if readers:
            run_model(trial, inputs)
    return max(found, default=0.0)
