"""The attention layers of a model as one object: a sequence, a table, filters, and what was not claimed."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from glob import escape as glob_escape
from typing import Annotated, Any, overload

from wellcond._core.checked import checked
from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.text_tables import span, table
from wellcond.attention.view import AttentionLayer, ResidualBlock
from wellcond.errors import LayerFilterError

LayerFilter = Annotated[
    str | Sequence[str] | Sequence[AttentionLayer] | Callable[[AttentionLayer], bool] | None,
    "a shell pattern on the names of layers (a string), several of them, a predicate, layers of the model or None",
]


@dataclass(frozen=True)
class Unclaimed:
    """A module that looks like attention but has no view, and why."""

    name: str
    cls: str
    reason: str


class AttentionLayers(Tabular, Sequence[AttentionLayer]):
    """The attention layers of a model, in the order of its modules; prints as a table.

    Attributes:
        unclaimed: modules that look like attention and have no view, with the reason.
        filtered: whether these are only some of the model's layers.

    >>> import torch, wellcond as wc
    >>> layers = wc.attention_layers(torch.nn.Transformer(12, 2, 1, 1, 20, batch_first=True))
    >>> [layer.name for layer in layers.select("decoder.*")]
    ['decoder.layers.0.self_attn', 'decoder.layers.0.multihead_attn']
    >>> len(layers), len(layers.blocks), layers.unclaimed
    (3, 2, ())
    """

    def __init__(
        self, layers: Iterable[AttentionLayer], unclaimed: Iterable[Unclaimed] = (), *, filtered: bool = False
    ) -> None:
        self._layers = tuple(layers)
        self.unclaimed = tuple(unclaimed)
        self.filtered = filtered

    @overload
    def __getitem__(self, index: int) -> AttentionLayer: ...
    @overload
    def __getitem__(self, index: slice) -> AttentionLayers: ...
    def __getitem__(self, index: int | slice) -> AttentionLayer | AttentionLayers:
        if isinstance(index, slice):
            return AttentionLayers(self._layers[index], self.unclaimed, filtered=True)
        return self._layers[index]

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def blocks(self) -> list[ResidualBlock]:
        """The residual blocks around the layers, each once, in order."""
        blocks = {layer.block.name: layer.block for layer in self._layers if layer.block is not None}
        return list(blocks.values())

    @checked
    def select(self, pattern: LayerFilter) -> AttentionLayers:
        """Return the layers a filter picks: a shell pattern on the name, a list of them, a predicate, or layers.

        `None` keeps all and `[]` none; a pattern that matches nothing raises.
        """
        if pattern is None:
            return self
        if callable(pattern):
            chosen = [layer for layer in self if pattern(layer)]
            if not chosen:
                raise LayerFilterError(f"the layer filter picks none of the {len(self)} layers")
            return AttentionLayers(chosen, self.unclaimed, filtered=True)
        several = [pattern] if isinstance(pattern, str) else pattern
        patterns = [glob_escape(each.name) if isinstance(each, AttentionLayer) else each for each in several]
        picked: set[str] = set()
        for each in patterns:
            names = [layer.name for layer in self if fnmatch.fnmatchcase(layer.name, each)]
            if not names:
                known = ", ".join(layer.name for layer in self[:3])
                raise LayerFilterError(f"no attention layer matches '{each}'; the names look like: {known}")
            picked.update(names)
        return AttentionLayers([layer for layer in self if layer.name in picked], self.unclaimed, filtered=True)

    def records(self) -> list[dict[str, Any]]:
        """One row per layer: what it is, where, and the shapes of its heads.

        >>> import torch, wellcond as wc
        >>> (row,) = wc.attention_layers(torch.nn.TransformerEncoderLayer(12, 3)).records()
        >>> row["layer"], row["class"], row["heads"], row["head_dim"]
        ('self_attn', 'MultiheadAttention', 3, 4)
        """
        return [
            {
                "layer": layer.name,
                "class": type(layer.module).__name__,
                "kind": layer.kind,
                "heads": layer.num_heads,
                "kv_heads": layer.num_kv_heads,
                "head_dim": layer.head_dim,
                "width": layer.width,
                "scale": layer.scale,
                "cross": layer.cross,
                "storage": layer.storage,
                "standing": layer.standing,
                "reason": layer.reason,
            }
            for layer in self
        ]

    def _result_table(self) -> ResultTable:
        """One row per run of equal layers, then what was not claimed."""
        runs: list[tuple[tuple[str, ...], list[str]]] = []
        for layer in self:
            heads = f"{layer.num_heads}" + (f"/{layer.num_kv_heads}" if layer.num_kv_heads != layer.num_heads else "")
            shown = (
                type(layer.module).__name__,
                layer.kind,
                heads,
                str(layer.head_dim),
                str(layer.width),
                layer.storage,
                layer.standing,
            )
            if not runs or runs[-1][0] != shown:
                runs.append((shown, []))
            runs[-1][1].append(layer.name)
        rows = [[str(len(names)), span(names), *shown] for shown, names in runs]
        header = ["layers", "name", "class", "kind", "heads", "d", "D", "storage", "standing"]
        refused = [Unclaimed(one.name, type(one.module).__name__, one.reason) for one in self if one.reason]
        notes = []
        for title, items in (("refused", refused), ("not claimed", self.unclaimed)):
            if items:
                notes += [title, table(["name", "class", "reason"], unclaimed_rows(items))]
        return ResultTable(header, rows, f"{len(self)} attention layers", notes)


def unclaimed_rows(unclaimed: Iterable[Unclaimed]) -> list[list[str]]:
    """Return a row per class and reason: names, class, reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for item in unclaimed:
        groups.setdefault((item.cls, item.reason), []).append(item.name)
    return [[span(names), cls, reason] for (cls, reason), names in groups.items()]
