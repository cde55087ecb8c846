"""From a comparison's numbers to words that claim no more than they show; the thresholds are here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wellcond.lab.analysis.paired_test import PairedTest
from wellcond.lab.analysis.statistics import Comparison

SEEDS_TO_RANK = 3
SIGNIFICANT = 0.05  # 1 − the level of the intervals

BETTER, WORSE, NOT_SHOWN, NOT_RANKED = "better", "worse", "no difference shown", "not ranked"
EXPLAINED, BEYOND, WOULD_DO_BETTER = "explained by scale", "beyond scale", "scale would do better"
NO_GAIN, UNCONFIRMED = "no gain shown", "unconfirmed "

LOST = {  # a run's status in words, where it gave no result
    "diverged": "diverged",
    "crashed": "crashed",
    "without result": "ended without a finite result",
    "running": "did not run to the end",
}


@dataclass(frozen=True)
class Verdict:
    """Result of a paired test in words."""

    kind: str  # in a word or three, one of this module's constants
    text: str  # in a sentence without its full stop

    def __str__(self) -> str:
        return self.text


def verdict(found: PairedTest, higher_is_better: bool) -> Verdict:
    """Better or worse where the interval leaves 0 out and three seeds or more are paired.

    >>> differences = {0: 0.1, 1: 0.2, 2: 0.3}
    >>> print(verdict(PairedTest("mimetic", "default", differences, 0.2, 0.1, (-0.05, 0.45)), higher_is_better=True))
    no difference to default shown: +0.2 [-0.05, +0.45], 3 seeds
    >>> two = PairedTest("mimetic", "default", {0: 0.1, 1: 0.2}, 0.15, 0.07, (-0.5, 0.8))
    >>> print(verdict(two, higher_is_better=True))
    not ranked against default: three seeds or more are needed to rank; there are 2
    """
    reason = _why_unranked(found)
    if reason:
        return Verdict(NOT_RANKED, f"not ranked against {found.against}: {reason}")
    count = len(found.differences)
    if found.interval is None:
        return Verdict(NOT_SHOWN, f"no difference to {found.against} shown: equal results in all {count} seeds")
    low, high = found.interval
    numbers = f"{found.mean:+.3g} [{low:+.3g}, {high:+.3g}], {count} seeds"
    if low <= 0 <= high:
        return Verdict(NOT_SHOWN, f"no difference to {found.against} shown: {numbers}")
    kind = BETTER if (low > 0) == higher_is_better else WORSE
    return Verdict(kind, f"{kind} than {found.against}: {numbers}{_caution(found)}")


def confirmed(found: PairedTest) -> bool:
    """Whether the paired t-test shows a difference after Holm's correction."""
    return found.p_holm is not None and found.p_holm < SIGNIFICANT


def scale_verdict(to_baseline: PairedTest, to_control: PairedTest, higher_is_better: bool) -> Verdict:
    """Whether an arm does more than weights of its scale would, as far as its scale-matched control can tell.

    The tests are of the arm minus the baseline, and of the arm minus its control.

    >>> gain = PairedTest("conditioned", "default", {0: 0.1, 1: 0.2, 2: 0.3}, 0.2, 0.1, (0.01, 0.39), 0.04, 0.04)
    >>> more = PairedTest("conditioned", "scaled", {0: 0.1, 1: -0.1, 2: 0.0}, 0.0, 0.1, (-0.25, 0.25))
    >>> scale_verdict(gain, more, higher_is_better=True).kind
    'explained by scale'
    """
    gain, more = verdict(to_baseline, higher_is_better).kind, verdict(to_control, higher_is_better).kind
    baseline, control = to_baseline.against, f"its scale-matched control {to_control.against}"
    none = f"no difference to {control} is shown with {len(to_control.differences)} seeds"
    if more == NOT_RANKED:
        return Verdict(NOT_RANKED, f"it is not ranked against {control}: {_why_unranked(to_control)}")
    if more == WORSE:
        return Verdict(WOULD_DO_BETTER, f"scale would do better: {control} is better than it{_caution(to_control)}")
    if more == BETTER and gain == BETTER:
        caution = _caution(to_control, to_baseline)
        return Verdict(BEYOND, f"the gain goes beyond scale: it is better than {control} as well{caution}")
    if more == BETTER:
        still = f"though it is better than {control}{_caution(to_control)}"
        return Verdict(NO_GAIN, f"no gain over {baseline} is shown, {still}")
    if gain in (BETTER, WORSE):
        change = "gain" if gain == BETTER else "loss"
        return Verdict(EXPLAINED, f"the {change} is explained by scale, as far as can be seen: {none}")
    return Verdict(EXPLAINED, f"nothing beyond scale is shown: {none}, and no gain over {baseline}")


def plain_words(comparison: Comparison) -> str:
    """One paragraph: who is better than the baseline, who is not, what is due to scale, what did not finish."""
    against = [record.to_baseline for record in comparison.arms if record.to_baseline is not None]
    sentences = [*_ranking(comparison, against), *_unranked(against), *_scale(comparison), *_losses(comparison)]
    return " ".join(f"{sentence}." for sentence in sentences)


def _why_unranked(found: PairedTest) -> str:
    """The reason not to rank; empty if there is none."""
    count = len(found.differences)
    if count < SEEDS_TO_RANK:
        have = "there is 1" if count == 1 else f"there are {count}" if count else "none finished in both"
        return f"three seeds or more are needed to rank; {have}"
    if found.interval is not None or found.mean == 0:
        return ""
    if found.sd == 0 and found.mean is not None:
        return f"the difference is {found.mean:+.3g} in all {count} seeds, and without spread there is no interval"
    return "the differences are too large for an interval"


def _caution(*found: PairedTest) -> str:
    """Say that intervals leave 0 out where the corrected p-values do not confirm it."""
    return "" if all(map(confirmed, found)) else "; the corrected t-test does not confirm it"


def _ranking(comparison: Comparison, against: Sequence[PairedTest]) -> Iterator[str]:
    """One sentence on all that can be ranked."""
    baseline = comparison.baseline
    groups: dict[str, list[str]] = {}
    counts = set()
    for found in against:
        kind = verdict(found, comparison.higher_is_better).kind
        if kind != NOT_RANKED:
            counts.add(len(found.differences))
            unconfirmed = kind in (BETTER, WORSE) and not confirmed(found)
            groups.setdefault(UNCONFIRMED + kind if unconfirmed else kind, []).append(found.arm)
    if not against:
        yield f"Only {baseline} was run: there is nothing to compare it with"
    if not counts:
        return
    alone = "by the interval alone, not by the corrected t-test"
    phrases = {kind: f"{kind} than {baseline}" for kind in (BETTER, WORSE)}
    phrases |= {UNCONFIRMED + kind: f"{phrase} {alone}" for kind, phrase in phrases.items()}
    clauses = [f"{_names(groups[kind])} {phrase}" for kind, phrase in phrases.items() if kind in groups]
    if NOT_SHOWN in groups:
        which = f"for {_listed(groups[NOT_SHOWN])}, which is not to say that there is none"
        clauses.append(f"no difference to {baseline} is shown {which}")
    family = f" and Holm's correction for {len(against)} comparisons" if len(against) > 1 else ""
    seeds = f"{min(counts)} seeds" if len(counts) == 1 else f"{min(counts)} to {max(counts)} seeds"
    yield f"In this setting, by {comparison.metric}, with {seeds}{family}, {'; '.join(clauses)}"


def _unranked(against: Sequence[PairedTest]) -> Iterator[str]:
    """One sentence for each reason."""
    reasons: dict[str, list[str]] = {}
    for found in against:
        reasons.setdefault(_why_unranked(found), []).append(found.arm)
    for reason, arms in reasons.items():
        if reason:
            yield f"Against {against[0].against}, {_names(arms)} not ranked: {reason}"


def _scale(comparison: Comparison) -> Iterator[str]:
    """One sentence for each arm and control; the baseline has no gain to explain."""
    for record in comparison.arms:
        if record.to_baseline is not None:
            for found in record.to_controls:
                yield f"For {record.arm}, {scale_verdict(record.to_baseline, found, comparison.higher_is_better)}"


def _losses(comparison: Comparison) -> Iterator[str]:
    """One sentence for each arm with runs that gave no result."""
    for record in comparison.arms:
        lost = {said: record.runs.get(status, 0) for status, said in LOST.items()}
        parts = [f"{count} {said}" for said, count in lost.items() if count]
        total, gone = sum(record.runs.values()), sum(lost.values())
        if gone == total and len(parts) == 1:
            runs = "The only run" if total == 1 else f"All {total} runs"
            yield f"{runs} of {record.arm} {parts[0].split(' ', 1)[1]}"
        elif parts:
            rest = "" if gone == total else f"; its numbers are of the other{'' if total - gone == 1 else 's'} only"
            yield f"Of the {total} runs of {record.arm}, {_listed(parts)}{rest}"


def _names(arms: Sequence[str]) -> str:
    return f"{_listed(arms)} {'is' if len(arms) == 1 else 'are'}"


def _listed(items: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
