"""Every layer of a model either mapped to the theory's numbers, or left out for a reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wellcond.attention.find import AttentionLayers, attention_layers
from wellcond.attention.paths import resolve
from wellcond.attention.replay import evaluating
from wellcond.attention.view import AttentionLayer
from wellcond.diagnose.layers import layer_record
from wellcond.diagnose.probe import Seen, undisturbed
from wellcond.diagnose.records import LayerRecord
from wellcond.errors import WellcondError
from wellcond.mapping.activation import Hidden, hidden
from wellcond.mapping.estimates import Logits, Perceptron, Values, logits, perceptron, values
from wellcond.mapping.expected import TINY, implied
from wellcond.mapping.measured import Measured, measure
from wellcond.mapping.moments import Moments, arranged, moments
from wellcond.mapping.watch import Watched, watch
from wellcond.mapping.wiring import NotMapped, Wiring, wiring


@dataclass(frozen=True)
class Mapped:
    """One block in the theory's terms.

    Args:
        layer: the view of its attention.
        wiring: where its norms and scales stand.
        hidden: its MLP's activation.
        measured: its attention on the batch.
        logits: what the weights say of the logits, or why they say nothing.
        values, perceptron: what the weights say of the branches.
        before, after: size and overlap of the stream's tokens, before and after the block.
        follows: whether the block reads what the last mapped one gave.
        notes: what to know of it.
        record: its heads and tokens as `wc.diagnose` measures them.
    """

    layer: AttentionLayer
    wiring: Wiring
    hidden: Hidden
    measured: Measured
    logits: Logits | str
    values: Values
    perceptron: Perceptron
    before: Moments
    after: Moments
    follows: bool
    notes: tuple[str, ...]
    record: LayerRecord

    @property
    def heads(self) -> Logits:
        """The logits' numbers: the weights', or where these say nothing the batch's."""
        return implied(self.measured) if isinstance(self.logits, str) else self.logits

    @property
    def beta(self) -> float:
        """β, root mean square over heads; the query's bias counts as at the tokens' size."""
        heads, size = self.heads, max(self.measured.read.size, 1e-300)
        heat = sum(heads.variance) + sum(heads.bias) / size
        return math.sqrt(heat / len(heads.variance) / math.log(self.measured.tokens))

    @property
    def beta_batch(self) -> float | None:
        """β that the batch's logits show; None where tokens are alike, or too few."""
        read, variance = self.measured.read, self.measured.variance
        scale = read.size * (read.size - read.overlap) * math.log(self.measured.tokens)
        return None if variance is None or scale < TINY else math.sqrt(variance / scale)

    @property
    def discrepancy(self) -> float | None:
        """β on the batch ÷ β from weights − 1: how far tokens are from having no direction."""
        if isinstance(self.logits, str) or self.beta_batch is None or self.beta == 0:
            return None
        return self.beta_batch / self.beta - 1


@torch.no_grad()
def map_blocks(model: nn.Module, batch: Any) -> tuple[list[Mapped], dict[str, str]]:
    """Each layer that could be mapped, in order, and why the others were not.

    >>> mapped, skipped = map_blocks(nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.randn(2, 5, 8))
    >>> mapped[0].wiring.norm, skipped
    ('post', {})
    """
    layers = attention_layers(model)
    root = layers[0].root
    assert root is not None
    watched = watch(layers, batch)
    found: list[Mapped] = []
    skipped = {item.name: item.reason for item in layers.unclaimed}
    with undisturbed(root), evaluating(root):
        for seen in watched.seen:
            try:
                found.append(_mapped(seen, layers, watched, found[-1] if found else None))
            except NotMapped as reason:
                skipped[seen.layer.name] = str(reason)
    if not found:
        name, why = next(iter(skipped.items()))
        more = f" ({len(skipped)} layers were left out, for this or another reason)" if len(skipped) > 1 else ""
        raise WellcondError(
            f"no block of {type(root).__name__} is one that the theory maps. '{name}': {why}{more}. It maps stacks "
            "of softmax self-attention and an MLP, one after the other; wc.diagnose measures the others"
        )
    return found, skipped


def _mapped(seen: Seen, layers: AttentionLayers, watched: Watched, last: Mapped | None) -> Mapped:
    layer, call, block = seen.layer, seen.call, seen.layer.block
    if layer.kind != "softmax" or layer.query is None or layer.key is None or layer.value is None:
        raise NotMapped(f"{layer.kind}: not softmax attention of queries, keys and values")
    if block is None:
        raise NotMapped("there is no MLP beside it, so it is no block")
    if sum(other.block is not None and other.block.name == block.name for other in layers) > 1:
        raise NotMapped("its block holds more than one attention layer, such as cross-attention")
    if call is None:
        raise NotMapped("it was not called on this batch")
    if layer.replay is None:
        raise NotMapped("its attention cannot be replayed, so its rows cannot be measured")
    if block.name not in watched.streams:
        raise NotMapped("its block does not take and give a stream of tokens")
    found = wiring(seen, watched)
    assert layer.root is not None
    between = hidden(block, resolve(layer.root, block.name), watched)
    measured = measure(layer, call, found.attention.norm)
    streams = [arranged(stream, measured.transposed) for stream in watched.streams[block.name]]
    if any(stream.shape[:2] != measured.visible.shape for stream in streams):
        raise NotMapped("it attends within windows of the stream's tokens")
    before, after = (moments(stream, measured.visible) for stream in streams)
    if before.size == 0:
        raise NotMapped("its tokens are all zero on this batch")
    numbers = logits(layer, found.attention.norm)
    notes = measured.notes
    if isinstance(numbers, str):
        notes += (f"no β from weights: {numbers}; the batch's is used",)
    times = watched.traces[block.name].calls[0]
    if times > 1:
        notes += (f"its block is used {times} times; this is the first",)
    return Mapped(
        layer,
        found,
        between,
        measured,
        numbers,
        values(layer, found.attention),
        perceptron(block, between, found.mlp),
        before,
        after,
        last is not None and _joined(last, layer, watched),
        notes,
        layer_record(seen, weights=False),
    )


def _joined(last: Mapped, layer: AttentionLayer, watched: Watched) -> bool:
    assert last.layer.block is not None
    assert layer.block is not None
    gave, given = watched.traces[last.layer.block.name].gave, watched.traces[layer.block.name].given
    return gave is not None and given is not None and gave.same(given)
