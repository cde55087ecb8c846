"""A comparison in one paragraph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wellcond.lab.analysis.paired_test import PairedTest
from wellcond.lab.analysis.statistics import Comparison
from wellcond.lab.analysis.verdicts import (
    BETTER,
    NOT_RANKED,
    NOT_SHOWN,
    WORSE,
    attribution,
    confirmed,
    listed,
    verdict,
    why_unranked,
)

UNCONFIRMED = "unconfirmed "

LOST = {  # a run's status in words, where it gave no result
    "diverged": "diverged",
    "crashed": "crashed",
    "without result": "ended without a finite result",
    "running": "did not run to the end",
}


def plain_words(comparison: Comparison) -> str:
    """One paragraph: who is better than the baseline, who is not, what gains are due to, what did not finish."""
    against = [record.to_baseline for record in comparison.arms if record.to_baseline is not None]
    sentences = [*_ranking(comparison, against), *_unranked(against), *_attributions(comparison), *_losses(comparison)]
    return " ".join(f"{sentence}." for sentence in sentences)


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
        which = f"for {_arms(groups[NOT_SHOWN])}, which is not to say that there is none"
        clauses.append(f"no difference to {baseline} is shown {which}")
    family = f" and Holm's correction for {len(against)} comparisons" if len(against) > 1 else ""
    seeds = f"{min(counts)} seeds" if len(counts) == 1 else f"{min(counts)} to {max(counts)} seeds"
    yield f"In this setting, by {comparison.metric}, with {seeds}{family}, {'; '.join(clauses)}"


def _unranked(against: Sequence[PairedTest]) -> Iterator[str]:
    """One sentence for each reason."""
    reasons: dict[str, list[str]] = {}
    for found in against:
        reasons.setdefault(why_unranked(found), []).append(found.arm)
    for reason, arms in reasons.items():
        if reason:
            yield f"Against {against[0].against}, {_names(arms)} not ranked: {reason}"


def _attributions(comparison: Comparison) -> Iterator[str]:
    """One sentence for each arm with controls."""
    for record in comparison.arms:
        found = attribution(record, comparison)
        if found is not None:
            yield f"For {record.arm}, {found}"


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
            yield f"Of the {total} runs of {record.arm}, {listed(parts)}{rest}"


def _names(arms: Sequence[str]) -> str:
    return f"{_arms(arms)} {'is' if len(arms) == 1 else 'are'}"


def _arms(names: Sequence[str]) -> str:
    """Names in a row; one with a comma in it, as a control's, is set in quotes."""
    return listed([f"'{name}'" if "," in name else name for name in names])
