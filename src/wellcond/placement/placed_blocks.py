"""Place every block of a model: its weights and a batch as the numbers of the theory, or the reason why not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wellcond.attention.capture import evaluating
from wellcond.attention.find import attention_layers
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.paths import resolve
from wellcond.attention.undisturbed import undisturbed
from wellcond.attention.view import AttentionLayer
from wellcond.diagnosis.measure.layers import layer_record
from wellcond.diagnosis.measure.probe import Seen
from wellcond.diagnosis.records import LayerRecord
from wellcond.errors import WellcondError
from wellcond.placement.activation import MLPActivation, find_activation
from wellcond.placement.batch_statistics import BatchStatistics, measure_attention
from wellcond.placement.expected_rows import SMALLEST_SPREAD, logits_from_batch
from wellcond.placement.token_moments import TokenMoments, stream_as_sequences, token_moments
from wellcond.placement.watched_pass import Watched, watch
from wellcond.placement.weight_estimates import (
    Logits,
    MLPGains,
    Values,
    logits_from_weights,
    mlp_from_weights,
    values_from_weights,
)
from wellcond.placement.wiring import NotPlaced, Wiring, find_wiring


@dataclass(frozen=True)
class PlacedBlock:
    """One block of a model in the theory's terms."""

    layer: AttentionLayer  # the view of its attention
    wiring: Wiring  # where its norms and scales stand
    activation: MLPActivation  # between the matrices of its MLP
    batch: BatchStatistics  # its attention on the batch
    logits: Logits | str  # what the weights say of the logits, or why they say nothing
    values: Values  # what the weights say of the branches
    mlp: MLPGains
    before: TokenMoments  # size and overlap of the stream's tokens, before and after the block
    after: TokenMoments
    follows: bool  # whether the block reads what the last placed one gave
    notes: tuple[str, ...]  # what to know of it
    record: LayerRecord  # its heads and tokens as `wc.diagnose` measures them

    @property
    def heads(self) -> Logits:
        """Return the logits' numbers: the weights', or where these say nothing the batch's."""
        return logits_from_batch(self.batch) if isinstance(self.logits, str) else self.logits

    @property
    def beta(self) -> float:
        """Return β, root mean square over heads; the query's bias counts as at the tokens' size."""
        heads, size = self.heads, max(self.batch.read.size, 1e-300)
        heat = sum(heads.variance) + sum(heads.bias) / size
        return math.sqrt(heat / len(heads.variance) / math.log(self.batch.tokens))

    @property
    def beta_batch(self) -> float | None:
        """Return the β that the batch's logits show; None where tokens are alike, or too few."""
        read, variance = self.batch.read, self.batch.variance
        scale = read.size * (read.size - read.overlap) * math.log(self.batch.tokens)
        return None if variance is None or scale < SMALLEST_SPREAD else math.sqrt(variance / scale)

    @property
    def discrepancy(self) -> float | None:
        """Return β on the batch ÷ β from weights − 1: how far tokens are from having no direction."""
        if isinstance(self.logits, str) or self.beta_batch is None or self.beta == 0:
            return None
        return self.beta_batch / self.beta - 1


@torch.no_grad()
def place_blocks(model: nn.Module, batch: Any) -> tuple[list[PlacedBlock], dict[str, str]]:
    """Place every block of a model that the theory covers, in order; for the other layers, say why it does not.

    >>> placed, skipped = place_blocks(nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.randn(2, 5, 8))
    >>> placed[0].wiring.norm, skipped
    ('post', {})
    """
    layers = attention_layers(model, batch)
    root = layers[0].root
    assert root is not None
    watched = watch(layers, batch)
    found: list[PlacedBlock] = []
    skipped = {item.name: item.reason for item in layers.unclaimed}
    with undisturbed(root), evaluating(root):
        for seen in watched.seen:
            try:
                found.append(_placed(seen, layers, watched, found[-1] if found else None))
            except NotPlaced as reason:
                skipped[seen.layer.name] = str(reason)
    if not found:
        name, why = next(iter(skipped.items()))
        more = f" ({len(skipped)} layers were left out, for this or another reason)" if len(skipped) > 1 else ""
        raise WellcondError(
            f"no block of {type(root).__name__} is one that the theory covers. '{name}': {why}{more}. It covers stacks "
            "of softmax self-attention and an MLP, one after the other; wc.diagnose measures the others"
        )
    return found, skipped


def _placed(seen: Seen, layers: AttentionLayers, watched: Watched, last: PlacedBlock | None) -> PlacedBlock:
    layer, call, block = seen.layer, seen.call, seen.layer.block
    if layer.kind != "softmax" or layer.query is None or layer.key is None or layer.value is None:
        raise NotPlaced(f"{layer.kind}: not softmax attention of queries, keys and values")
    if block is None:
        raise NotPlaced("there is no MLP beside it, so it is no block")
    if sum(other.block is not None and other.block.name == block.name for other in layers) > 1:
        raise NotPlaced("its block holds more than one attention layer, such as cross-attention")
    if call is None:
        raise NotPlaced("it was not called on this batch")
    if call.replay is None:
        raise NotPlaced(f"its attention is refused: {call.refusal}")
    if block.name not in watched.streams:
        raise NotPlaced("its block does not take and give a stream of tokens")
    wiring = find_wiring(seen, watched)
    assert layer.root is not None
    activation = find_activation(block, resolve(layer.root, block.name), watched)
    measured = measure_attention(layer, call, wiring.attention.norm)
    streams = [stream_as_sequences(stream, measured.transposed) for stream in watched.streams[block.name]]
    if any(stream.shape[:2] != measured.visible.shape for stream in streams):
        raise NotPlaced("it attends within windows of the stream's tokens")
    before, after = (token_moments(stream, measured.visible) for stream in streams)
    if before.size == 0:
        raise NotPlaced("its tokens are all zero on this batch")
    logits = logits_from_weights(layer, wiring.attention.norm)
    notes = measured.notes
    if isinstance(logits, str):
        notes += (f"no β from weights: {logits}; the batch's is used",)
    times = watched.traces[block.name].calls[0]
    if times > 1:
        notes += (f"its block is used {times} times; this is the first",)
    return PlacedBlock(
        layer,
        wiring,
        activation,
        measured,
        logits,
        values_from_weights(layer, wiring.attention),
        mlp_from_weights(block, activation, wiring.mlp),
        before,
        after,
        last is not None and _joined(last, layer, watched),
        notes,
        layer_record(seen, weights=False),
    )


def _joined(last: PlacedBlock, layer: AttentionLayer, watched: Watched) -> bool:
    assert last.layer.block is not None
    assert layer.block is not None
    gave, given = watched.traces[last.layer.block.name].gave, watched.traces[layer.block.name].given
    return gave is not None and given is not None and gave.same(given)
