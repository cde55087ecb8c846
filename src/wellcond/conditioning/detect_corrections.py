"""Detect weights that hold W + C already: by a mark, or by the look of the entries that C changes.

Resuming in the natural order (build, load, condition) would add C a second time. A file of `wc.save_weights` says in
its header what its weights hold, and a copy of a conditioned model knows it. Elsewhere there are only the numbers:
entries where C is not zero have the mean of their neighbours in W, and another in W + λ I.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond._core.user_warnings import warn_user
from wellcond.attention.storage import full
from wellcond.conditioning.correction_marks import CorrectionRecord, held
from wellcond.conditioning.method import Correction, FixedCorrection
from wellcond.conditioning.safe_strength import CHOSEN
from wellcond.errors import SchemeError, WeightError

MIN_STANDARD_ERRORS = 5.0  # standard errors from which a difference of means is no accident
MIN_SHARE_OF_STRENGTH = 0.5  # of λ, from which a mean is nearer to W + λ I than to W


def settled(correction: Correction, safe: bool, as_original: bool | None) -> tuple[Correction, str, bool]:
    """Decide whether C is to be added: return the correction, how its strength was chosen if `safe`, and that."""
    record = None if as_original is True else known(correction)
    if record is not None and as_original is None:
        return _as_recorded(correction, record, safe), "", False
    if as_original is False:
        if safe and (record is None or record.method != correction.name):
            raise SchemeError(
                "as_original=False says that the weights hold W + C, so it takes the strength that they were trained "
                "with, strength=…; the largest safe one is a property of W"
            )
        return (correction.with_strength(record.strength) if safe and record is not None else correction), "", False
    if isinstance(correction, FixedCorrection):
        if as_original is None:
            _refuse_corrected(correction, safe)
        if safe:
            strength = dict.fromkeys(correction.strength, correction.safe_strength(held={}))
            return correction.with_strength(strength), CHOSEN, True
    return correction, "", True


def known(correction: Correction) -> CorrectionRecord | None:
    """Return what the weights are marked to hold: all of them the same, or it is refused; None if nothing is known."""
    records = {weight.path: held(weight.owner, weight.name) for weight in correction.weights}
    found = {path: record for path, record in records.items() if record is not None}
    if not found:
        return None
    path, record = next(iter(found.items()))
    other = next((name for name in records if records[name] != record), None)
    if other is not None:
        there = f"holds {records[other]}" if records[other] else "does not"
        raise WeightError(
            f"'{path}' holds W + C already ({record}) and '{other}' {there}: condition the layers and roles that were, "
            "with layers=… and roles=…, or add to all that is there with as_original=True"
        )
    return record


def _as_recorded(correction: Correction, record: CorrectionRecord, safe: bool) -> Correction:
    if safe and record.strength.keys() == correction.strength.keys():
        correction = correction.with_strength(record.strength)
    if record != correction.record:
        raise WeightError(
            f"'{correction.weights[0].path}' holds W + C already, of {record}, and {correction.record} was asked for: "
            "condition with the arguments of then, after which c.strength_(…) and c.remove_() change it, or say "
            "as_original=True to add to what is there"
        )
    warn_user(
        f"the weights hold W + C of {record} already, by the mark that their file or their original left, so nothing "
        "was added (as_original=True adds it all the same, as_original=False says that you know)"
    )
    return correction


@dataclass(frozen=True)
class Diagonal:
    """The entries of one role where C is not zero, beside the others.

    Attributes:
        mean: how far their mean is above that of the others.
        error: the standard error of that difference.
        spread: the standard deviation of the others.
    """

    mean: float
    error: float
    spread: float

    def shifted(self, strength: float | None) -> bool:
        """Return whether this is W + λ I: for a known λ, of its size; for an unknown one, above the noise."""
        if not abs(self.mean) > MIN_STANDARD_ERRORS * self.error:
            return False
        return abs(self.mean) > self.spread if strength is None else self.mean / strength > MIN_SHARE_OF_STRENGTH


def diagonal(heads: Tensor, correction: Tensor) -> Diagonal | None:
    """Compare the entries of `(heads, D, d)` where C is not zero with the rest; None where either is too small.

    >>> one = torch.eye(8, 4).expand(2, 8, 4)
    >>> weight = 0.1 * torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> diagonal(weight, one).shifted(1.0), diagonal(weight + one, one).shifted(1.0)
    (False, True)
    """
    mask = correction.to(heads.device) != 0
    inside, outside = heads[mask].double(), heads[~mask].double()
    if min(inside.numel(), outside.numel()) < 2:
        return None
    error = math.sqrt(float(inside.var()) / inside.numel() + float(outside.var()) / outside.numel())
    return Diagonal(float(inside.mean() - outside.mean()), error, float(outside.std()))


@torch.no_grad()
def _refuse_corrected(correction: FixedCorrection, safe: bool) -> None:
    """Raise where queries and keys look like W + λ I: a value may be an identity by its initialisation."""
    layers: dict[str, list[tuple[str, Diagonal | None, float | None]]] = {}
    for weight in correction.weights:
        whole = full(weight.parameter)
        for part in weight.parts:
            heads = part.layout.read(whole)
            found = diagonal(heads, correction.fixed(part))
            layers.setdefault(part.layer.name, []).append((part.role, found, None if safe else part.strength))
    for name, roles in layers.items():
        if all(role == "value" for role, _, _ in roles):
            continue
        if all(found is not None and found.shifted(strength) for _, found, strength in roles):
            role, found, _ = roles[0]
            assert found is not None
            ratio = found.mean / found.error if found.error else math.inf
            where = name or type(correction.model).__name__
            raise WeightError(
                f"'{where}' seems to hold W + C already: where C is not zero its {role} "
                f"weights are {found.mean:.3g} above the others on average, {ratio:.3g} standard errors. Say which it "
                "is: as_original=False (W + C, with the strength of then; nothing is added) or as_original=True (W; C "
                "is added)"
            )
