"""The blocks of all matrices of a model as one object: a mapping, a table, JSON, and what other optimizers ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from wellcond._core.argument_types import File
from wellcond._core.atomic import write_text
from wellcond._core.checked import checked
from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.safe_text import visible
from wellcond._core.text_tables import numberless, span
from wellcond.attention.layouts import AnyLayout, Layout, as_matrix
from wellcond.errors import ArgumentError, WeightError

ExportFormat = Literal["deepspeed", "dion", "megatron"]


@dataclass(frozen=True)
class HeadBlock:
    """The numbers of one head of one role in a stored parameter; of a whole matrix where there are no heads.

    Args:
        layer: name of the attention layer, empty for a matrix outside attention.
        role: `"query"`, `"key"`, `"value"` or `"output"`; empty for what belongs to no head.
        head: its number, None for what belongs to no head.
        layout: where the numbers lie; None for all of the parameter.

    >>> import torch, wellcond as wc
    >>> block = wc.head_blocks(torch.nn.MultiheadAttention(8, 2))["out_proj.weight"][1]
    >>> block.role, block.head, block.axis, block.indices
    ('output', 1, 1, range(4, 8))
    """

    layer: str = ""
    role: str = ""
    head: int | None = None
    layout: AnyLayout | None = None

    @property
    def axis(self) -> int | None:
        """The axis of the stored matrix along which it is cut out; None where it is not a set of rows or columns."""
        return self.layout.axis if isinstance(self.layout, Layout) else None

    @property
    def indices(self) -> range | None:
        """Its rows (axis 0) or columns (axis 1)."""
        if not isinstance(self.layout, Layout):
            return None
        start, width, step = self.layout.starts[0], self.layout.width, self.layout.step
        return range(start, start + width * step, step)

    def view(self, stored: Tensor) -> Tensor:
        """The block of a stored tensor, as a matrix that aliases it; several where the parameter is a bank of matrices.

        >>> import torch, wellcond as wc
        >>> attention = torch.nn.MultiheadAttention(6, 2)
        >>> block = wc.head_blocks(attention)["in_proj_weight"][3]
        >>> block.role, block.head, torch.equal(block.view(attention.in_proj_weight), attention.in_proj_weight[9:12])
        ('key', 1, True)
        """
        if self.layout is None:
            return stored if stored.ndim == 3 and 1 not in stored.shape[::2] else as_matrix(stored)
        view = self.layout.views(stored)[0]
        return view.T if self.axis == 0 else view


class HeadBlocks(Tabular, Mapping[str, tuple[HeadBlock, ...]]):
    """The blocks of every matrix of a model, by parameter, in the order in which they lie; prints as a table.

    Attributes:
        notes: `(parameter, reason)` for attention weights that are one block because heads cannot be cut out of them.

    >>> import torch, wellcond as wc
    >>> blocks = wc.head_blocks(torch.nn.TransformerEncoderLayer(12, 3, 20))
    >>> print(blocks)
    4 matrices, 2 with heads
    parameters                 blocks  width  axis  roles
    self_attn.in_proj_weight   9       4      0     query, key, value
    self_attn.out_proj.weight  3       4      1     output
    linear1.weight             1
    linear2.weight             1
    >>> blocks.split_sizes("self_attn.in_proj_weight")
    [4, 4, 4, 4, 4, 4, 4, 4, 4]
    """

    def __init__(self, blocks: Mapping[str, tuple[HeadBlock, ...]], notes: tuple[tuple[str, str], ...] = ()) -> None:
        self._blocks, self.notes = dict(blocks), notes

    def __getitem__(self, name: str) -> tuple[HeadBlock, ...]:
        return self._blocks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def split_sizes(self, name: str) -> list[int]:
        """Sizes of the blocks one after the other, for `torch.split(weight, sizes, dim=blocks[name][0].axis)`.

        Raises:
            WeightError: the parameter is not cut into runs of rows or of columns.
        """
        if name not in self:
            raise ArgumentError(f"'{name}' is no matrix of the model; blocks has {', '.join(list(self)[:3])}, …")
        layouts = [block.layout for block in self[name]]
        if any(not isinstance(layout, Layout) or layout.step != 1 for layout in layouts):
            raise WeightError(
                f"'{name}' is not cut into runs of rows or columns: use block.view(weight) for each block"
            )
        return [layout.width for layout in layouts if layout is not None]

    @checked
    def to_json(self, path: File | None = None) -> str:
        """All blocks as JSON, `{parameter: [{layer, role, head, axis, start, step, width}, …]}`; also to a file."""
        text = json.dumps({name: [_plain(block) for block in blocks] for name, blocks in self.items()}, indent=1)
        if path is not None:
            write_text(Path(path), text + "\n")
        return text

    @checked
    def export(self, to: ExportFormat) -> dict[str, dict[str, Any]]:
        """What other optimizers want to know of parameters whose heads are runs of rows, by parameter.

        Parameters whose heads are columns (output projections), or do not lie one after the other, are left out: none
        of these optimizers can cut them.

        - `"deepspeed"`: `muon_num_heads`, an attribute of the parameter, where all blocks are equally large;
        - `"dion"`: `split_sizes`, an option of a parameter group (`num_heads` where all blocks are equally large);
        - `"megatron"`: `qkv_split_shapes`, an attribute of the parameter: one query group's rows, a head each.

        >>> import torch, wellcond as wc
        >>> wc.head_blocks(torch.nn.MultiheadAttention(8, 2)).export("deepspeed")
        {'in_proj_weight': {'muon_num_heads': 6}}
        """
        found = {}
        for name, blocks in self.items():
            rows = all(isinstance(b.layout, Layout) and b.layout.axis == 0 and b.layout.step == 1 for b in blocks)
            if rows and len(blocks) > 1:
                entry = _exported(to, self.split_sizes(name), blocks)
                found.update({name: entry} if entry else {})
        return found

    def records(self) -> list[dict[str, Any]]:
        """One row per block."""
        return [{"parameter": name} | _plain(block) for name, blocks in self.items() for block in blocks]

    def _result_table(self) -> ResultTable:
        rows: dict[tuple[str, ...], list[str]] = {}
        for name, blocks in self.items():
            headed = [block for block in blocks if block.head is not None]
            widths = sorted({block.layout.width for block in headed if block.layout is not None})
            axes = sorted({str(block.axis) for block in headed})
            roles = dict.fromkeys(block.role for block in headed)
            row = (str(len(blocks)), ", ".join(map(str, widths)), ", ".join(axes), ", ".join(roles))
            rows.setdefault((numberless(name), *row), []).append(name)
        heads = sum(any(block.head is not None for block in blocks) for blocks in self.values())
        lines = [[span(names), *row] for (_, *row), names in rows.items()]
        notes = [visible(f"one block {name}: {reason}") for name, reason in self.notes]
        header = ["parameters", "blocks", "width", "axis", "roles"]
        return ResultTable(header, lines, f"{len(self)} matrices, {heads} with heads", notes)


def _plain(block: HeadBlock) -> dict[str, Any]:
    about: dict[str, Any] = {"layer": block.layer, "role": block.role, "head": block.head, "axis": block.axis}
    if isinstance(block.layout, Layout):
        return about | {"start": block.layout.starts[0], "step": block.layout.step, "width": block.layout.width}
    if block.layout is not None:
        flat = asdict(block.layout)
        return about | {"start": flat.pop("starts")[0]} | flat
    return about


def _exported(to: str, sizes: list[int], blocks: tuple[HeadBlock, ...]) -> dict[str, Any] | None:
    equal = len(set(sizes)) == 1
    if to == "deepspeed":
        return {"muon_num_heads": len(sizes)} if equal else None
    if to == "dion":
        return {"num_heads": len(sizes)} if equal else {"split_sizes": sizes}
    groups = len({block.head for block in blocks if block.role == "key"}) or 1
    period = len(sizes) // groups
    repeats = (
        sizes == sizes[:period] * groups and [b.role for b in blocks] == [b.role for b in blocks[:period]] * groups
    )
    return {"qkv_split_shapes": sizes[:period]} if repeats else None
