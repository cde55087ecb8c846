"""Which parameters Muon trains, and which AdamW does, with the reason for each."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.text_tables import numberless, span
from wellcond.attention.blocks import is_linear
from wellcond.attention.find import chosen_layers
from wellcond.attention.head_partition import is_matrix
from wellcond.attention.layers import AttentionLayers, LayerFilter
from wellcond.attention.paths import join, resolve, unwrap, walk
from wellcond.errors import ArgumentError

Algorithm = Literal["muon", "adamw"]
OUTSIDE: Final = "outside the blocks of attention: a stem, a pooler or a head"


@dataclass(frozen=True)
class Assigned:
    """One parameter, the algorithm that trains it, and why."""

    name: str
    parameter: Tensor
    algorithm: Algorithm
    reason: str


class Assignment(Tabular):
    """The algorithm of each trained parameter, in the model's order; prints as a table.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.TransformerEncoderLayer(8, 2, 16))
    >>> print(wc.optim.assign(model))
    13 parameters, 4 by Muon
    algorithm     parameters                               reason
    adamw      1  0.weight                                 an embedding
    muon       1  1.self_attn.in_proj_weight               a linear map of attention
    adamw      8  1.self_attn.in_proj_bias … 1.norm2.bias  a vector
    muon       1  1.self_attn.out_proj.weight              a linear map of attention
    muon       1  1.linear1.weight                         a linear map of a block
    muon       1  1.linear2.weight                         a linear map of a block
    """

    def __init__(self, parameters: tuple[Assigned, ...]) -> None:
        self.parameters = parameters

    def of(self, algorithm: Algorithm) -> list[Assigned]:
        """The parameters of one algorithm."""
        return [one for one in self.parameters if one.algorithm == algorithm]

    def records(self) -> list[dict[str, Any]]:
        """One row per parameter."""
        return [
            {"parameter": p.name, "shape": list(p.parameter.shape), "algorithm": p.algorithm, "reason": p.reason}
            for p in self.parameters
        ]

    def _result_table(self) -> ResultTable:
        rows: dict[tuple[str, str, str], list[str]] = {}
        for one in self.parameters:
            kind = numberless(one.name) if one.parameter.ndim > 1 else ""
            rows.setdefault((one.algorithm, one.reason, kind), []).append(one.name)
        title = f"{len(self.parameters)} parameters, {len(self.of('muon'))} by Muon"
        lines = [[key[0], str(len(names)), span(names), key[1]] for key, names in rows.items()]
        return ResultTable(["algorithm", "", "parameters", "reason"], lines, title)


@checked
def assign(
    model: nn.Module, overrides: Mapping[str, Algorithm] | None = None, layers: LayerFilter = None
) -> Assignment:
    """Return which parameters Muon is to train: linear maps of the blocks in the stacks that attention is in.

    AdamW has the rest: embeddings and what is tied to them, heads, stems and poolers, norms, biases, tables of
    positions, routers, convolutions. Parameters that are not trained are left out.

    Args:
        model: any model.
        overrides: an algorithm by shell patterns on names; the last pattern that fits decides.
        layers: of `wc.attention_layers(model, batch)`, for attention that no adapter knows.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16)
    >>> [one.name for one in wc.optim.assign(model, {"linear*": "adamw"}).of("muon")]
    ['self_attn.in_proj_weight', 'self_attn.out_proj.weight']
    """
    root = unwrap(model)
    views = chosen_layers(model, layers)
    places = _Places(root, views)
    unused, found = dict(overrides or {}), dict[int, Assigned]()
    for path, module in walk(root):
        for own, parameter in module._parameters.items():
            if parameter is None or not parameter.requires_grad or id(parameter) in found:
                continue
            name = join(path, own)
            algorithm, reason = places.rule(path, own, module, parameter)
            for pattern, wanted in (overrides or {}).items():
                if fnmatch.fnmatchcase(name, pattern):
                    algorithm, reason = wanted, f"by '{pattern}'"
                    unused.pop(pattern, None)
            if algorithm == "muon" and not is_matrix(module, parameter):
                raise ArgumentError(f"Muon trains matrices; '{name}' has shape {tuple(parameter.shape)}")
            found[id(parameter)] = Assigned(name, parameter, algorithm, reason)
    if unused:
        raise ArgumentError(f"overrides: '{next(iter(unused))}' fits no trained parameter")
    return Assignment(tuple(found.values()))


class _Places:
    """Where the parameters of a model lie: in attention, in the blocks of a stack, or outside."""

    def __init__(self, root: nn.Module, layers: AttentionLayers) -> None:
        self.root = root
        self.headed = {p.weight.path for layer in layers for _, p in layer.projections()}
        self.embeddings = {id(module.weight) for _, module in walk(root) if isinstance(module, nn.Embedding)}
        blocks = [_numbered(layer.path) or (layer.block.name if layer.block else layer.path) for layer in layers]
        self.blocks = {numberless(path) for path in blocks}

    def rule(self, path: str, own: str, module: nn.Module, parameter: Tensor) -> tuple[Algorithm, str]:
        """The algorithm of a parameter, and why."""
        name = join(path, own)
        if parameter.ndim < 2 or parameter.numel() == max(parameter.shape):
            return "adamw", "a vector"
        if id(parameter) in self.embeddings:
            return "adamw", "an embedding"
        if name in self.headed:
            return "muon", "a linear map of attention"
        if not self._in_a_block(path):
            return "adamw", OUTSIDE
        if self._routes(path):
            return "adamw", "a router of experts"
        if is_linear(module):
            return "muon", "a linear map of a block"
        if parameter.ndim == 3 and "expert" in name:
            return "muon", "linear maps of experts"
        return "adamw", "no linear map"

    def _in_a_block(self, path: str) -> bool:
        """Whether a module lies inside a block of a stack that attention is in, blocks without attention among them."""
        parts = numberless(path).split(".")
        # Not the block itself: a head may be a member of the same list.
        inner = (".".join(parts[:end]) for end in range(len(parts)))
        return "" in self.blocks or any(prefix in self.blocks for prefix in inner)

    def _routes(self, path: str) -> bool:
        """Whether a module is what a mixture chooses its experts by."""
        owner, _, name = path.rpartition(".")
        return (name in ("router", "gate") and hasattr(resolve(self.root, owner), "experts")) or ".router" in f".{path}"


def _numbered(path: str) -> str:
    """The innermost part of a path that is numbered, as the members of a stack are; empty if none is.

    >>> _numbered("encoder.block.0.layer.1.attention"), _numbered("self_attn")
    ('encoder.block.0.layer.1', '')
    """
    parts = path.split(".")
    last = max((index for index, part in enumerate(parts) if part.isdigit()), default=-1)
    return ".".join(parts[: last + 1])
