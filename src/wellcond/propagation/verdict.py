"""When a measured or predicted number is called wrong, and how grave that is: one set of limits for everything.

`wc.diagnose`, `wc.Monitor`, `wc.locate`, `wc.propagate` and `wc.trainability` all ask the same `Thresholds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from torch import Tensor

from wellcond.checked import Range, checked


class Severity(StrEnum):
    """How grave a concern is; a string, as in JSON.

    >>> [severity.value for severity in sorted(Severity, key=lambda severity: severity.rank, reverse=True)]
    ['alarm', 'warning', 'note']
    """

    NOTE = "note"  # worth knowing
    WARNING = "warning"  # training will suffer
    ALARM = "alarm"  # training will hardly work

    @property
    def rank(self) -> int:
        """A number to sort by, larger for the graver."""
        return list(Severity).index(self)


SEVERITIES = {
    "not finite": Severity.ALARM,
    "rank collapse": Severity.ALARM,
    "entropy collapse": Severity.ALARM,
    "gradients explode": Severity.ALARM,
    "gradients vanish": Severity.ALARM,
    "self-attending": Severity.WARNING,
    "saturated": Severity.WARNING,
    "rank deficient": Severity.WARNING,
    "ill conditioned": Severity.WARNING,
    "rank-deficient Jacobian": Severity.WARNING,
    "ill-conditioned Jacobian": Severity.NOTE,
    "uniform": Severity.NOTE,
}

RANK_COLLAPSED, ENTROPY_COLLAPSED, EXPLODING, VANISHING, SELF_ATTENDING = 1, 2, 4, 8, 16
WORDS = {
    RANK_COLLAPSED: "rank collapse",
    ENTROPY_COLLAPSED: "entropy collapse",
    EXPLODING: "gradients explode",
    VANISHING: "gradients vanish",
    SELF_ATTENDING: "self-attending",
}


Above = Annotated[float, Range(0, infinite=True)]
Limit = Annotated[float, Range(infinite=True)]  # 1.1 or infinity says that a cosine may be anything


@checked
@dataclass(frozen=True)
class Thresholds:
    """Where a quantity begins to be called wrong.

    The first two agree best with what trained (`docs/predict_training.py`, 24 cells): every cosine from 0.984 to 0.999
    with every entropy up to 0.166 agrees in 23 cells; a cosine of 0.95 in 17, an entropy of 0.25 in 19. The others are
    conventions.

    Args:
        cosine: mean cosine between different tokens, above which they have collapsed.
        entropy: of attention rows ÷ log of the number of keys, below which attention has.
        gradient: orders of magnitude that the squared gradient may grow or shrink on its way back.
        own: mean weight of the own token, above which attention is to itself.
        uniform: entropy ÷ log of the number of keys, above which queries and keys hardly matter.
        logit: largest |logit|; e^-100 is nothing in any floating-point format.
        weight: κ of a head's W_Q, W_K or W_V.
        jacobian: κ of a head's Jacobian.

    >>> import wellcond as wc
    >>> wc.propagate(6, 64, 1.0).verdict, wc.propagate(6, 64, 1.0, thresholds=Thresholds(entropy=0.8)).verdict
    ('trainable', 'entropy collapse')
    """

    cosine: Limit = 0.99
    entropy: Limit = 0.1
    gradient: Above = 6.0
    own: Limit = 0.5
    uniform: Limit = 0.999
    logit: Above = 100.0
    weight: Above = 1e4
    jacobian: Above = 1e8

    # Each takes a number or a tensor of them, so that a prediction and a measurement are judged by the same line.

    def rank_collapsed(self, cosine: Any) -> Any:
        """Whether tokens are too much alike."""
        return cosine > self.cosine

    def entropy_collapsed(self, entropy: Any) -> Any:
        """Whether rows of attention are too sharp."""
        return entropy < self.entropy

    def exploding(self, growth: Any) -> Any:
        """Whether gradients grow too much; NaN, a stream that overflows, counts."""
        return (growth > self.gradient) | (growth != growth)

    def vanishing(self, growth: Any) -> Any:
        """Whether gradients shrink too much."""
        return growth < -self.gradient

    def self_attending(self, own: Any) -> Any:
        """Whether tokens attend to themselves."""
        return own > self.own


def phases(cosine: Tensor, entropy: Tensor, own: Tensor, growth: Tensor, limits: Thresholds) -> Tensor:
    """The bit mask of what is wrong, element by element; a stream that overflows (NaN) explodes.

    >>> one = Tensor([1.0])
    >>> phases(0.995 * one, 0.9 * one, 0 * one, 0 * one, Thresholds())
    tensor([1])
    """
    bits: Tensor = (
        RANK_COLLAPSED * limits.rank_collapsed(cosine).long()
        | ENTROPY_COLLAPSED * limits.entropy_collapsed(entropy).long()
        | EXPLODING * limits.exploding(growth).long()
        | VANISHING * limits.vanishing(growth).long()
        | SELF_ATTENDING * limits.self_attending(own).long()
    )
    return bits


def words(mask: int) -> str:
    """A bit mask in words, the gravest first.

    >>> words(0), words(3)
    ('trainable', 'rank collapse, entropy collapse')
    """
    return ", ".join(word for bit, word in WORDS.items() if mask & bit) or "trainable"
