"""The strange modules as models: built in float64 with seeded weights, and a batch for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.attention.strange import (
    arranged,
    deceptive,
    grouped,
    latent,
    mixed_heads,
    positions,
    rotary,
    separate,
    stored,
    streams,
    windows,
)


class Block(nn.Module):
    """Pre-norm residual attention."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(12), attention

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attention(self.norm(x))
        return x + mixed if mixed.shape == x.shape else mixed


def two_blocks(make: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(Block(make()), Block(make()))


@dataclass(frozen=True)
class Case:
    """A model and its batch.

    Args:
        make: the module.
        tokens: how many a sequence has.
        named: whether the issue names it: to be verified, or refused with a reason, and never wrong.
        distribution: whether what averages the values sums to one, so that it has an entropy.
        logits: whether there are logits, whose largest is asked for.
        wrap: the model around the module.
        calls: how often the model was called before.
        again: whether those calls were on the same batch.
    """

    make: Callable[[], nn.Module]
    tokens: int = 6
    named: bool = False
    distribution: bool = True
    logits: bool = True
    wrap: Callable[[Callable[[], nn.Module]], nn.Module] = two_blocks
    calls: int = 0
    again: bool = False

    def model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = self.wrap(self.make).double().eval()
            with torch.no_grad():
                for parameter in model.parameters():  # biases and gains that are not zero and one
                    parameter.add_(0.2 * torch.randn_like(parameter))
            for _ in range(self.calls):
                with torch.no_grad():
                    model(*(x if self.again else x.flip(0, 1) for x in self.batch()))
        return model

    def batch(self) -> tuple[Any, ...]:
        x = torch.randn(2, self.tokens, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return (x, x[:, :4, :5].tanh()) if self.make is streams.Cross else (x,)


def alone(make: Callable[[], nn.Module]) -> nn.Module:
    return make()


CASES: dict[str, Case] = {
    "plain": Case(separate.Separate),
    "sdpa, causal, own scale": Case(separate.Fast),
    "sdpa, own choice of kernel": Case(separate.OwnKernel),
    "padding": Case(separate.Padded),
    "cosine": Case(separate.Cosine, named=True),
    "cosine of queries alone": Case(separate.CosineQueries, named=True),
    "causal": Case(separate.Causal),
    "alibi": Case(separate.Alibi),
    "soft-cap": Case(separate.SoftCap),
    "log_softmax().exp()": Case(separate.LogSoftmax),
    "exponentials over their sum": Case(separate.ByHand),
    "logsumexp": Case(separate.LogSumExp),
    "softmax plus one": Case(separate.OffByOne),
    "sinks": Case(separate.Sinks),
    "sigmoid": Case(separate.Sigmoid, distribution=False),
    "three best keys": Case(separate.TopKeys),
    "linear, elu + 1": Case(separate.LinearElu, logits=False),
    "linear, two softmaxes": Case(separate.LinearSoftmax, logits=False),
    "slots": Case(separate.Slots),
    "rotary, halves": Case(rotary.HalfRotary, named=True),
    "rotary, halves, one head": Case(lambda: rotary.HalfRotary(heads=1), named=True),
    "rotary, interleaved": Case(rotary.InterleavedRotary, named=True),
    "rotary, complex": Case(rotary.ComplexRotary, named=True),
    "rotary, in place": Case(rotary.InPlaceRotary, named=True),
    "rotary, partial": Case(rotary.PartialRotary, named=True),
    "rotary, values too": Case(rotary.RotaryValues, named=True),
    "RMSNorm per head, rotary": Case(rotary.RmsHeads),
    "RMSNorm over all heads": Case(rotary.RmsAll),
    "gains of their own by head": Case(rotary.GainsByHead),
    "LayerNorm per head": Case(rotary.LayerNormHeads),
    "BatchNorm": Case(rotary.BatchNormHeads),
    "dropout": Case(rotary.Dropped),
    "gated output": Case(mixed_heads.Gated, named=True),
    "gated heads": Case(mixed_heads.GatedHeads, named=True),
    "gate in the query projection": Case(mixed_heads.GateInQuery, named=True),
    "talking heads, before": Case(mixed_heads.TalkingBefore, named=True),
    "talking heads, after": Case(mixed_heads.TalkingAfter, named=True),
    "talking heads, both": Case(mixed_heads.TalkingBoth, named=True),
    "merged with heads fastest": Case(mixed_heads.HeadsFastest),
    "differential": Case(mixed_heads.Differential),
    "output as queries": Case(mixed_heads.Recurrent),
    "thrown away": Case(mixed_heads.DeadAttention),
    "not normalised": Case(mixed_heads.Unnormalised, distribution=False),
    "grouped": Case(grouped.Grouped),
    "one key head": Case(grouped.OneKey),
    "keys modulo": Case(grouped.KeysModulo),
    "grouped by reshape": Case(grouped.ByReshape, named=True),
    "grouped, folded into tokens": Case(grouped.FoldedIntoTokens, named=True),
    "grouped fusion": Case(grouped.GroupedFusion),
    "fused": Case(grouped.Fused),
    "fused, head-major": Case(grouped.HeadMajor),
    "fused, channel-major": Case(grouped.ChannelMajor),
    "fused, value first": Case(grouped.ValueFirst),
    "fused, scattered": Case(grouped.Scattered),
    "q and fused kv": Case(grouped.QueryAndFusedKeys),
    "bank at the root": Case(stored.Bank, wrap=alone),
    "einsum, (D, H, d)": Case(stored.EinsumModelFirst),
    "einsum, (H, D, d)": Case(stored.EinsumHeadsFirst),
    "transposed": Case(stored.Transposed),
    "1×1 convolutions": Case(stored.Convolved),
    "non-local": Case(stored.NonLocal),
    "LoRA": Case(stored.Lora),
    "weight times a constant": Case(stored.Gained),
    "weight standardised": Case(stored.Standardised),
    "latent": Case(latent.Latent),
    "latent, shared rotary part": Case(latent.LatentRotary),
    "latent, two query weights": Case(latent.LatentTwoQueries),
    "windows that roll": Case(windows.Windows, tokens=16, named=True),
    "windows": Case(windows.StillWindows, tokens=16),
    "padded windows": Case(windows.PaddedWindows, tokens=15),
    "neighbours": Case(windows.Neighbours),
    "bias by distance": Case(positions.BiasTable),
    "Transformer-XL": Case(positions.TransformerXL),
    "Shaw": Case(positions.Shaw),
    "gated positions": Case(positions.GatedPositions),
    "learned keys and values": Case(positions.Registers),
    "joint streams": Case(streams.Joint),
    "two sites": Case(streams.TwoSites),
    "called twice": Case(streams.Twice, wrap=alone),
    "cross": Case(streams.Cross, wrap=alone),
    "shared query and key": Case(streams.SharedQueryKey),
    "learned queries": Case(streams.LearnedQueries),
    "queries without a weight": Case(streams.RawQueries),
    "a module for each head": Case(arranged.HeadModules),
    "a loop over heads": Case(arranged.Loop),
    "vmap over heads": Case(arranged.Mapped),
    "queries in chunks": Case(arranged.QueryChunks),
    "keys in chunks": Case(arranged.OnlineSoftmax),
    "tokens first, baddbmm": Case(arranged.SequenceFirst),
    "along columns": Case(arranged.Axial),
    "a loop over sequences": Case(arranged.Unbatched),
    "pruned heads of other temperatures": Case(arranged.Temperatures),
    "key is value": Case(arranged.KeyIsValue),
    "scaled in place": Case(arranged.ScaledInPlace),
    "a hook on the queries": Case(arranged.Hooked),
    "tied query and key": Case(deceptive.Tied),
    "crossed groups": Case(deceptive.CrossedGroups),
    "temperatures by head": Case(deceptive.HeadTemperatures),
    "keys times queries": Case(deceptive.Turned),
    "the same queries twice": Case(deceptive.SameQueries),
    "keys of products": Case(deceptive.ProductKeys),
    "masked after the softmax": Case(deceptive.MaskedAfter),
    "dropout in evaluation": Case(deceptive.Drawn, distribution=False),
    "linear, one number wide": Case(deceptive.NarrowLinear, distribution=False, logits=False),
    "growing cache": Case(streams.Cached, calls=1),
    "growing cache, the same batch": Case(streams.Cached, calls=1, again=True),
    "static cache": Case(streams.Buffered, calls=1),
    "static cache, the same batch": Case(streams.Buffered, calls=1, again=True),
}
