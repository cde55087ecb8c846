"""What a prediction means: a bit mask, and the same in words. The thresholds are conventions, not calibrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from wellcond.checked import Range, checked

RANK_COLLAPSED, ENTROPY_COLLAPSED, EXPLODING, VANISHING, SELF_ATTENDING = 1, 2, 4, 8, 16
WORDS = {
    RANK_COLLAPSED: "rank-collapsed",
    ENTROPY_COLLAPSED: "entropy-collapsed",
    EXPLODING: "gradient exploding",
    VANISHING: "gradient vanishing",
    SELF_ATTENDING: "self-attending",
}


Limit = Annotated[float, Range(infinite=True)]  # 1.1 or infinity says that a cosine may be anything


@checked
@dataclass(frozen=True)
class Thresholds:
    """Where a quantity begins to be called wrong.

    Args:
        cosine: of the tokens after the last block, above which they have collapsed.
        entropy: ÷ log T of the sharpest layer, below which attention has.
        gradient: orders of magnitude that the squared gradient may grow or shrink on its way back.
        own: weight of the own token, above which a layer attends to itself.

    >>> import wellcond as wc
    >>> wc.propagate(6, 64, 1.0).verdict, wc.propagate(6, 64, 1.0, thresholds=Thresholds(entropy=0.8)).verdict
    ('trainable', 'entropy-collapsed')
    """

    cosine: Limit = 0.99
    entropy: Limit = 0.25
    gradient: Annotated[float, Range(0, infinite=True)] = 6.0
    own: Limit = 0.5


def phases(cosine: Tensor, entropy: Tensor, own: Tensor, growth: Tensor, limits: Thresholds) -> Tensor:
    """The bit mask of what is wrong, element by element; a stream that overflows (NaN) explodes.

    >>> one = Tensor([1.0])
    >>> phases(0.995 * one, 0.9 * one, 0 * one, 0 * one, Thresholds())
    tensor([1])
    """
    return (
        RANK_COLLAPSED * (cosine > limits.cosine).long()
        | ENTROPY_COLLAPSED * (entropy < limits.entropy).long()
        | EXPLODING * ((growth > limits.gradient) | growth.isnan()).long()
        | VANISHING * (growth < -limits.gradient).long()
        | SELF_ATTENDING * (own > limits.own).long()
    )


def words(mask: int) -> str:
    """A bit mask in words.

    >>> words(0), words(3)
    ('trainable', 'rank-collapsed, entropy-collapsed')
    """
    return ", ".join(word for bit, word in WORDS.items() if mask & bit) or "trainable"
