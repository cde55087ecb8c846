"""From a model to its attention layers, and to what looked like attention and nobody claimed, with the reason."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, overload

from torch import nn

from wellcond.attention.adapters import ADAPTERS
from wellcond.attention.adapters.generic import looks_like_attention, why_not
from wellcond.attention.blocks import find_blocks
from wellcond.attention.paths import unwrap, walk
from wellcond.attention.storage import unmoved
from wellcond.attention.view import AttentionLayer, Block
from wellcond.checked import checked
from wellcond.errors import LayerFilterError, NoAttentionError, WellcondError
from wellcond.tables import span, table
from wellcond.tabular import ResultTable, Tabular

LayerFilter = Annotated[
    str | Sequence[str] | Callable[[AttentionLayer], bool] | None,
    "a shell pattern on the names of layers (a string), several of them, a predicate or None",
]
# A view; or, for a class it knows but cannot describe, the reason; or None: not mine, ask the next adapter.
Describe = Callable[[nn.Module, str], AttentionLayer | str | None]
_REGISTERED: dict[type[nn.Module], Describe] = {}


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
        """Keep the layers and what was left out."""
        self._layers = tuple(layers)
        self.unclaimed = tuple(unclaimed)
        self.filtered = filtered

    @overload
    def __getitem__(self, index: int) -> AttentionLayer: ...
    @overload
    def __getitem__(self, index: slice) -> AttentionLayers: ...
    def __getitem__(self, index: int | slice) -> AttentionLayer | AttentionLayers:
        """Return one layer, or a slice of them."""
        if isinstance(index, slice):
            return AttentionLayers(self._layers[index], self.unclaimed, filtered=True)
        return self._layers[index]

    def __len__(self) -> int:
        """Number of layers."""
        return len(self._layers)

    @property
    def blocks(self) -> list[Block]:
        """The residual blocks around the layers, each once, in order."""
        blocks = {layer.block.name: layer.block for layer in self._layers if layer.block is not None}
        return list(blocks.values())

    @checked
    def select(self, pattern: LayerFilter) -> AttentionLayers:
        """Return the layers a filter picks: a shell pattern on the name, a list of them, or a predicate.

        `None` keeps all and `[]` none; a pattern that matches nothing raises.
        """
        if pattern is None:
            return self
        if callable(pattern):
            chosen = [layer for layer in self if pattern(layer)]
            if not chosen:
                raise LayerFilterError(f"the layer filter picks none of the {len(self)} layers")
            return AttentionLayers(chosen, self.unclaimed, filtered=True)
        patterns = [pattern] if isinstance(pattern, str) else list(pattern)
        picked: set[str] = set()
        for each in patterns:
            names = [layer.name for layer in self if _matches(layer.name, each)]
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
                "replay": layer.replay is not None,
                "storage": layer.storage,
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
                layer.kind if layer.replay is not None else f"{layer.kind}, no replay",
                heads,
                str(layer.head_dim),
                str(layer.width),
                layer.storage,
            )
            if not runs or runs[-1][0] != shown:
                runs.append((shown, []))
            runs[-1][1].append(layer.name)
        rows = [[str(len(names)), span(names), *shown] for shown, names in runs]
        header = ["layers", "name", "class", "kind", "heads", "d", "D", "storage"]
        left = table(["name", "class", "reason"], _grouped(self.unclaimed)) if self.unclaimed else ""
        return ResultTable(header, rows, f"{len(self)} attention layers", ["not claimed", left] if left else [])


def _grouped(unclaimed: Iterable[Unclaimed]) -> list[list[str]]:
    """One row per class and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for item in unclaimed:
        groups.setdefault((item.cls, item.reason), []).append(item.name)
    return [[span(names), cls, reason] for (cls, reason), names in groups.items()]


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


@checked
def attention_layers(model: nn.Module) -> AttentionLayers:
    """Return a view of every attention layer of a model, in the one convention `(heads, D, d)`.

    Registered classes are asked first, then the adapters for torch, timm and transformers (recognised by class
    origin, never imported), then the structural adapter. Wrapping, sharding or compiling the model later keeps the
    views valid.

    >>> import torch, wellcond as wc
    >>> layers = wc.attention_layers(torch.nn.TransformerDecoderLayer(12, 3))
    >>> [(layer.name, layer.cross, layer.query.shape) for layer in layers]
    [('self_attn', False, (3, 12, 4)), ('multihead_attn', True, (3, 12, 4))]
    """
    root = unwrap(model)
    with unmoved(model.modules()):
        return _found(root)


def _found(root: nn.Module) -> AttentionLayers:
    layers: list[AttentionLayer] = []
    lookalikes: list[Unclaimed] = []
    for name, module in walk(root):
        if any(name == layer.name or name.startswith(layer.name + ".") or not layer.name for layer in layers):
            continue
        found = describe(module, name)
        if isinstance(found, AttentionLayer):
            layers.append(found.bind(root))
        elif found is not None or looks_like_attention(module):
            lookalikes.append(Unclaimed(name, type(module).__name__, found or why_not(module)))
    bound = [layer.bind(root, block) for layer, block in zip(layers, find_blocks(root, layers), strict=True)]
    # What merely contains a layer, or a closer look-alike, is not missed itself.
    inner = [layer.name for layer in layers] + [item.name for item in lookalikes]
    unclaimed = [item for item in lookalikes if not any(_inside(name, item.name) for name in inner)]
    if not bound:
        raise NoAttentionError(_nothing_found(root, unclaimed))
    return AttentionLayers(bound, unclaimed)


def _inside(name: str, outer: str) -> bool:
    return name != outer and (not outer or name.startswith(outer + "."))


def describe(module: nn.Module, name: str) -> AttentionLayer | str | None:
    """Ask the registered classes, then each adapter; the first answer wins."""
    for cls in type(module).__mro__:
        if cls in _REGISTERED:
            found = _REGISTERED[cls](module, name)
            if found is not None and not isinstance(found, (AttentionLayer, str)):
                raise WellcondError(
                    f"describe of {cls.__name__} returned {type(found).__name__} for '{name}'; it returns an "
                    "AttentionLayer, a reason (a string), or None"
                )
            return found
    return next((found for adapter in ADAPTERS if (found := adapter(module, name)) is not None), None)


@checked
def register_attention(cls: type[nn.Module], describe: Describe) -> None:
    """Teach wellcond your own attention class.

    Args:
        cls: the class; sub-classes count.
        describe: `describe(module, name) -> AttentionLayer | str | None`; None leaves the module unclaimed, a string
            does so for that reason. The helpers of `wellcond.attention.adapters.build` make the projections.

    >>> import torch, wellcond as wc
    >>> from wellcond.attention.adapters import build
    >>> class Mine(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.mix = torch.nn.Linear(8, 24)                          # q, k, v of 2 heads of 4
    >>> def describe(module, name):
    ...     q, k, v = build.fused(module, name, "mix", heads=2, width=4)
    ...     return wc.AttentionLayer(name, "softmax", q, k, v, scale=0.5)
    >>> wc.register_attention(Mine, describe)
    >>> wc.attention_layers(Mine())[0].query.shape
    (2, 8, 4)
    """
    _REGISTERED[cls] = describe


def _nothing_found(root: nn.Module, unclaimed: list[Unclaimed]) -> str:
    text = (
        f"{type(root).__name__} has no attention layer. Looked for: torch, timm and transformers attention classes; a "
        "fused qkv / in_proj / c_attn / query_key_value, q with kv, or q, k, v (q_proj, to_q, query, wq…) projection "
        "with a head count. For a class of your own: wc.register_attention(Class, describe)."
    )
    if unclaimed:
        alike = (f"'{names}' ({cls}): {reason}" for names, cls, reason in _grouped(unclaimed)[:5])
        text += " Looked alike: " + "; ".join(alike)
    return text
