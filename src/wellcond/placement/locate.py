"""`wc.locate`: place a model's layers on its diagram, measured on a batch and predicted from their weights alone."""

from __future__ import annotations

from typing import Any

from torch import nn

from wellcond._core.checked import checked
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.ordinary import ordinary
from wellcond.diagnosis.measure.layers import with_conditioning
from wellcond.diagnosis.records import LayerRecord
from wellcond.diagnosis.verdicts import judge
from wellcond.placement.block_architecture import block_architecture
from wellcond.placement.expected_rows import expected_rows, harmonic_mean
from wellcond.placement.notes import notes_on
from wellcond.placement.placed_blocks import PlacedBlock, place_blocks
from wellcond.placement.result import LayerPlacement, Placement
from wellcond.placement.weight_estimates import Logits
from wellcond.propagation.thresholds import Thresholds


@checked
@ordinary()
def locate(model: nn.Module, batch: Any, *, thresholds: Thresholds | None = None) -> Placement:
    r"""Find each layer's β, self-bias, gains and similarity of tokens, measured on a batch and predicted from weights.

    The weights' numbers hold for tokens without direction; where the batch's differ, tokens align with the weights. One
    pass in evaluation mode; the model, its random numbers and its buffers stay the same.

    Args:
        model: a stack of self-attention and MLP blocks; other layers are left out, with the reason, in `skipped`.
        batch: a tensor, a tuple of positional or a dict of keyword arguments.
        thresholds: of the verdicts, and of the diagram.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> placement = locate(nn.TransformerEncoderLayer(64, 2, batch_first=True, norm_first=True), torch.randn(4, 32, 64))
    >>> abs(placement.layers[0].discrepancy) < 0.1, placement.skipped
    (True, {})
    """
    placed, skipped = place_blocks(model, batch)
    limits = thresholds or Thresholds()
    records = with_conditioning(model, AttentionLayers([one.layer for one in placed]), [one.record for one in placed])
    layers = tuple(_layer_placement(one, judge(record, limits)) for one, record in zip(placed, records, strict=True))
    tokens = max(2, round(sum(layer.tokens for layer in layers) / len(layers)))
    blocks = tuple(block_architecture(one, tokens) for one in placed)
    return Placement(layers, skipped, notes_on(placed), limits, blocks)


def _layer_placement(one: PlacedBlock, judged: LayerRecord) -> LayerPlacement:
    """One placed block as plain numbers, judged as `wc.diagnose` judges its heads and tokens on the batch."""
    seen, read = one.batch, one.batch.read
    beta = bias = shift = dim = None
    rows = expected_rows(one.heads, read, seen.columns)
    if isinstance(one.logits, Logits):
        traces = one.logits.trace
        beta, bias, dim = one.beta, sum(traces) / len(traces), harmonic_mean(one.logits.head_dim)
        shift = (read.size - read.overlap) * bias
    assert one.layer.block is not None
    return LayerPlacement(
        one.layer.name,
        one.layer.block.index,
        one.wiring.norm,
        seen.tokens,
        beta,
        one.beta_batch,
        bias,
        shift,
        seen.shift,
        (one.values.incoherent, one.values.coherent, one.values.trace),
        one.mlp.gains,
        one.mlp.up,
        (one.values.bias, one.mlp.hidden_bias, one.mlp.output_bias),
        dim,
        one.before.cosine,
        read.cosine,
        one.before.size,
        rows.entropy,
        seen.entropy,
        rows.participation,
        seen.participation,
        rows.own,
        seen.own,
        one.discrepancy,
        one.notes,
        ", ".join(concern.code for concern in judged.concerns),
        judged.severity,
        judged.concerns,
    )
