"""Thresholds beyond which a measured or predicted number is wrong, the kinds of concern, and how grave each is.

`wc.diagnose`, `wc.Monitor`, `wc.locate`, `wc.propagate` and `wc.trainability` all ask the same `Thresholds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self

from wellcond._core.argument_types import Range
from wellcond._core.checked import checked

if TYPE_CHECKING:
    from torch import Tensor


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
        """Return a number to sort by, larger for the graver."""
        return list(Severity).index(self)


class ConcernKind(StrEnum):
    """Everything that can be wrong with attention, each with how grave it is (else a note); a string, as in JSON.

    >>> ConcernKind("entropy collapse").severity
    <Severity.ALARM: 'alarm'>
    """

    severity: Severity

    NOT_FINITE = "not finite", Severity.ALARM
    RANK_COLLAPSE = "rank collapse", Severity.ALARM
    ENTROPY_COLLAPSE = "entropy collapse", Severity.ALARM
    GRADIENTS_EXPLODE = "gradients explode", Severity.ALARM
    GRADIENTS_VANISH = "gradients vanish", Severity.ALARM
    SELF_ATTENDING = "self-attending", Severity.WARNING
    SATURATED = "saturated", Severity.WARNING
    COLLAPSING_UPDATES = "collapsing updates", Severity.WARNING
    RANK_DEFICIENT = "rank deficient", Severity.WARNING
    ILL_CONDITIONED = "ill conditioned", Severity.WARNING
    RANK_DEFICIENT_JACOBIAN = "rank-deficient Jacobian", Severity.WARNING
    ILL_CONDITIONED_JACOBIAN = "ill-conditioned Jacobian"
    UNBALANCED = "unbalanced"
    UNIFORM = "uniform"

    def __new__(cls, word: str, severity: Severity = Severity.NOTE) -> Self:
        """Make a member of its word and its severity."""
        member = str.__new__(cls, word)
        member._value_, member.severity = word, severity
        return member

    def __repr__(self) -> str:
        return repr(self.value)


RANK_COLLAPSED, ENTROPY_COLLAPSED, EXPLODING, VANISHING, SELF_ATTENDING = 1, 2, 4, 8, 16
PHASE_WORDS = {
    RANK_COLLAPSED: ConcernKind.RANK_COLLAPSE,
    ENTROPY_COLLAPSED: ConcernKind.ENTROPY_COLLAPSE,
    EXPLODING: ConcernKind.GRADIENTS_EXPLODE,
    VANISHING: ConcernKind.GRADIENTS_VANISH,
    SELF_ATTENDING: ConcernKind.SELF_ATTENDING,
}


Above = Annotated[float, Range(0, infinite=True)]
Limit = Annotated[float, Range(infinite=True)]  # 1.1 or infinity says that a cosine may be anything


@checked
@dataclass(frozen=True)
class Thresholds:
    """Limits from which on quantities are called wrong.

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
        product: κ of a head's W_Q W_Kᵀ or W_V W_O; balanced factors have its root.
        weight: κ of a head's W_Q, W_K or W_V, which is a matter of coordinates.
        jacobian: κ_eq of a head's Jacobian.
        update: spectral entropy of a head's update ÷ its median over earlier records, below which updates collapse.

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
    product: Above = 1e8
    weight: Above = 1e4
    jacobian: Above = 1e8
    update: Limit = 0.5

    # Each takes a number or a tensor of them, so that a prediction and a measurement are judged by the same line.

    def rank_collapsed(self, cosine: Any) -> Any:
        """Return whether tokens are too much alike."""
        return cosine > self.cosine

    def entropy_collapsed(self, entropy: Any) -> Any:
        """Return whether rows of attention are too sharp."""
        return entropy < self.entropy

    def exploding(self, growth: Any) -> Any:
        """Return whether gradients grow too much; NaN, a stream that overflows, counts."""
        return (growth > self.gradient) | (growth != growth)

    def vanishing(self, growth: Any) -> Any:
        """Return whether gradients shrink too much."""
        return growth < -self.gradient

    def self_attending(self, own: Any) -> Any:
        """Return whether tokens attend to themselves."""
        return own > self.own


def phases(cosine: Tensor, entropy: Tensor, own: Tensor, growth: Tensor, limits: Thresholds) -> Tensor:
    """Return the bit mask of what is wrong, element by element; a stream that overflows (NaN) explodes.

    >>> import torch
    >>> one = torch.ones(1)
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


def phase_words(mask: int) -> str:
    """Return a bit mask in words, the gravest first.

    >>> phase_words(0), phase_words(3)
    ('trainable', 'rank collapse, entropy collapse')
    """
    return ", ".join(word for bit, word in PHASE_WORDS.items() if mask & bit) or "trainable"
