"""The mean block of a stack as arguments of `wc.trainability`: what a model's own diagram is drawn for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from wellcond.propagation.block import Architecture

FAINTEST_SELF_BIAS = 0.5  # one that moves the own logit by less changes nothing worth drawing


def mean_block(blocks: Sequence[Architecture], cosine: float) -> dict[str, Any]:
    """Return all arguments of `wc.trainability` but the two axes, β and the gain of the branch.

    Args:
        blocks: of one stack, in order; what is not a number is taken from the first.
        cosine: similarity of the tokens that the first attention reads; a negative one counts as 0.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> block = torch.nn.TransformerEncoderLayer(64, 2, batch_first=True)
    >>> found = mean_block(wc.locate(block, torch.randn(4, 32, 64)).blocks, cosine=0.1)
    >>> found["depth"], found["tokens"], found["norm"], found["cosine"]
    (1, 32, 'post', 0.1)
    """
    self_bias = _mean(block.self_bias for block in blocks)
    return {
        "depth": len(blocks),
        "tokens": blocks[0].tokens,
        "norm": blocks[0].norm,
        "activation": blocks[0].kernel,
        "mlp_gain": (_mean(block.mlp[0] for block in blocks), _mean(block.mlp[1] for block in blocks)),
        "bias": _mean(block.bias[2] for block in blocks),
        "residual_attention": _mean(block.skip_attention for block in blocks),
        "residual_mlp": _mean(block.skip_mlp for block in blocks),
        "cosine": max(cosine, 0.0),
        "self_bias": self_bias if abs(self_bias) > FAINTEST_SELF_BIAS else 0.0,
    }


def _mean(values: Iterable[Any]) -> float:
    found = [float(value) for value in values]
    return sum(found) / len(found)
