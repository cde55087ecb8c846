"""`wc.optim.check_blocks`: does each block of a model's attention weights move one head, and no other?

A copy of each attention module in float64, with random weights, is run on what the model gives it. With all columns of
W_O zero but the block of one head, blocks of other heads must not change the output, and blocks of this one must.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.safe_text import briefly, visible
from wellcond.attention.find import from_structure, require_layers
from wellcond.attention.head_blocks import HeadBlock
from wellcond.attention.head_partition import head_blocks
from wellcond.attention.observe import observe
from wellcond.attention.paths import unwrap
from wellcond.attention.replay import Call
from wellcond.attention.view import AttentionLayer
from wellcond.scale.module_alone import OUTSIDE, is_whole
from wellcond.scale.random_twin import RandomTwin, same_output


@dataclass(frozen=True)
class CheckedLayer:
    """One layer's blocks on a batch.

    Args:
        layer: its name.
        blocks: how many there are.
        reason: what is wrong with them, or why they could not be checked; empty if each moves its own head alone.
        checked: whether they could be.
    """

    layer: str
    blocks: int
    reason: str = ""
    checked: bool = True


class BlockCheck(Tabular):
    """The outcome of `check_blocks`; true if every layer that could be checked has the right blocks.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> print(wc.optim.check_blocks(model, torch.randn(1, 5, 8)))
    1 of 1 layers: each block moves its own head alone
    layer      blocks
    self_attn  8
    """

    def __init__(self, layers: tuple[CheckedLayer, ...]) -> None:
        self.layers = layers

    def __bool__(self) -> bool:
        return all(not layer.reason for layer in self.layers if layer.checked)

    def records(self) -> list[dict[str, Any]]:
        """One row per layer."""
        return [asdict(layer) for layer in self.layers]

    def _result_table(self) -> ResultTable:
        right = sum(layer.checked and not layer.reason for layer in self.layers)
        rows = [[visible(layer.layer), str(layer.blocks), visible(layer.reason)] for layer in self.layers]
        title = f"{right} of {len(self.layers)} layers: each block moves its own head alone"
        return ResultTable(["layer", "blocks", ""], rows, title)


@checked
@torch.no_grad()
def check_blocks(model: nn.Module, inputs: Any) -> BlockCheck:
    """Change the blocks of `wc.head_blocks(model, inputs)` one at a time, and see whether one head moves.

    Args:
        model: any model; it is not touched.
        inputs: a batch for it: a tensor, a tuple of positional or a dict of keyword arguments.

    >>> import torch, wellcond as wc
    >>> bool(wc.optim.check_blocks(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.randn(1, 5, 8)))
    True
    """
    root = unwrap(model)
    observed = observe(root, from_structure(model), inputs)
    blocks = head_blocks(model, layers=list(require_layers(root, observed.layers)))
    found = []
    for layer, call in zip(observed.layers, observed.calls, strict=True):
        own = {projection.weight.path for _, projection in layer.projections()}  # two layers may have one name
        mine = [(name, block) for name in blocks if name in own for block in blocks[name] if block.role]
        found.append(_checked(layer, call, [(name, block) for name, block in mine if block.layer == layer.name]))
    return BlockCheck(tuple(found))


def _checked(layer: AttentionLayer, call: Call | None, blocks: list[tuple[str, HeadBlock]]) -> CheckedLayer:
    def unchecked(reason: str) -> CheckedLayer:
        return CheckedLayer(layer.name, 0, reason, checked=False)

    if call is None:
        return unchecked("it was not called on this batch")
    if layer.standing == "refused":
        return unchecked(f"refused: {layer.reason}")
    if layer.output is None or not is_whole(layer):
        return unchecked("it has no output projection" if layer.output is None else OUTSIDE)
    roles = {role for role, p in layer.projections() if any(name == p.weight.path for name, _ in blocks)}
    if roles != {role for role, _ in layer.projections()}:
        return unchecked("its weights are shared, or are one block")
    try:
        return _tried(layer, RandomTwin(layer, call), [block for _, block in blocks])
    except (RuntimeError, TypeError, ValueError, LookupError) as problem:
        return unchecked(f"its module cannot be tried alone, on other weights: {briefly(problem, 100)}")


def _tried(layer: AttentionLayer, twin: RandomTwin, blocks: list[HeadBlock]) -> CheckedLayer:
    if not bool(torch.isfinite(twin.run()).any()):  # which writes the random weights
        return CheckedLayer(layer.name, 0, "its module gives no numbers in float64", checked=False)
    stored = twin.projections["output"].parameter()
    whole = stored.clone()
    inputs = [block for block in blocks if block.role != "output"]
    for output in (block for block in blocks if block.role == "output"):
        assert output.head is not None
        stored.zero_()
        output.view(stored).copy_(output.view(whole))
        base = twin.run_as_it_is()
        for block in inputs:
            assert block.head is not None
            moved = not same_output(_with_changed(twin, block), base)
            own = block.head == output.head // (layer.num_heads // getattr(layer, block.role).heads)
            together = [other for other in inputs if other.role == block.role]
            if own and not moved and same_output(_with_changed(twin, *together), base):
                words = f"on this batch its {block.role} does not move head {output.head}, whatever its weights are"
                return CheckedLayer(layer.name, 0, words, checked=False)
            if moved != own:
                text = "does not move its own head" if own else f"moves head {output.head}, too"
                words = f"{block.role} {block.head} {text}: heads are mixed, or it lies elsewhere"
                return CheckedLayer(layer.name, len(blocks), words)
    return CheckedLayer(layer.name, len(blocks))


def _with_changed(twin: RandomTwin, *blocks: HeadBlock) -> Tensor:
    """The output with some blocks of the copy's stored parameters negated and doubled."""
    views = [block.view(twin.projections[block.role].parameter()) for block in blocks]
    for view in views:
        view.mul_(-2.0)
    out = twin.run_as_it_is()
    for view in views:
        view.mul_(-0.5)
    return out
