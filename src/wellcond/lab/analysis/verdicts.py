"""From a comparison's numbers to words that claim no more than they show; the thresholds are here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wellcond.lab.analysis.paired_test import PairedTest
from wellcond.lab.analysis.statistics import ArmRecord, Comparison

SEEDS_TO_RANK = 3
SIGNIFICANT = 0.05  # 1 − the level of the intervals

BETTER, WORSE, NOT_SHOWN, NOT_RANKED = "better", "worse", "no difference shown", "not ranked"
NO_GAIN, BEYOND_BOTH = "not shown", "beyond both"
# What a control shares with its arm, in the order of the questions; either control of its scale will do.
CAUSES = {"scale": "scale", "calibrated": "scale", "rotation": "spectrum"}
ALONE = "by its interval alone"


@dataclass(frozen=True)
class Verdict:
    """Result of a paired test in words."""

    kind: str  # in a word or three, one of this module's constants
    text: str  # in a sentence without its full stop
    limit: str = ""  # in a few words, how far the kind can be trusted

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
    reason = why_unranked(found)
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
    return Verdict(kind, f"{kind} than {found.against}: {numbers}{_caution(found)}", _limit(found))


def confirmed(found: PairedTest) -> bool:
    """Whether the paired t-test shows a difference after Holm's correction."""
    return found.p_holm is not None and found.p_holm < SIGNIFICANT


def attribution(record: ArmRecord, comparison: Comparison) -> Verdict | None:
    """What an arm's gain over the baseline is due to, as far as its controls can tell; None for an arm without any.

    One question after the other, each answered by the `verdict` of a paired test:

    - not better than the baseline: a gain is `not shown`;
    - not better than a control of its scale, Gaussian or calibrated: it is `explained by scale`;
    - not better than the control of its spectrum, the rotation: it is `explained by spectrum`;
    - better than all of them: it goes `beyond both`.

    A question without its control is the last, and the verdict says so. For `beyond both` three tests have to agree, so
    for one arm it is no likelier by chance than one of them is; that there are many arms is what Holm's correction is
    for, and the verdict says where that does not confirm a test that it builds on.

    >>> from wellcond.lab.analysis.outcome import Outcome
    >>> from wellcond.lab.analysis.statistics import compare_outcomes
    >>> def run(arm, seed, result, of=None):
    ...     return Outcome(arm, of, seed, "finished", "", "accuracy", True, 9, (), ((9, result),), (), 1.0, {})
    >>> runs = [run("default", s, r) for s, r in enumerate([0.5, 0.6, 0.7])]
    >>> runs += [run("conditioned", s, r) for s, r in enumerate([0.7, 0.81, 0.9])]
    >>> runs += [run("scaled", s, r, of="conditioned") for s, r in enumerate([0.72, 0.8, 0.89])]
    >>> found = compare_outcomes(runs)
    >>> attribution(found["conditioned"], found).kind
    'explained by scale'
    """
    if record.to_baseline is None or not record.to_controls:
        return None
    higher, tests = comparison.higher_is_better, {comparison[t.against].control: t for t in record.to_controls}
    if verdict(record.to_baseline, higher).kind != BETTER:
        return Verdict(NO_GAIN, f"no gain over {comparison.baseline} is shown for its controls to explain")
    ahead = [record.to_baseline]  # tests that it is better in
    answered = {CAUSES[control] for control in CAUSES if control in tests}
    beaten: dict[str, None] = {}
    for control, cause in CAUSES.items():
        if cause not in answered:
            break
        if control not in tests:
            continue
        found, more = tests[control], verdict(tests[control], higher).kind
        if more == NOT_RANKED:
            return Verdict(NOT_RANKED, f"it is not ranked against its control {found.against}: {why_unranked(found)}")
        if more != BETTER:
            none = f"no difference to its control {found.against} is shown with {len(found.differences)} seeds"
            why = none if more == NOT_SHOWN else f"its control {found.against} is better than it"
            limit = _limit(*ahead)
            gain = f"the gain, {limit}," if limit else "the gain"
            return Verdict(
                f"explained by {cause}", f"{gain} is explained by {cause}, as far as can be seen: {why}", limit
            )
        ahead.append(found)
        beaten[cause] = None
    missing = [f"no control of its {cause}" for cause in dict.fromkeys(CAUSES.values()) if cause not in beaten]
    if not beaten:
        return Verdict(missing[0], f"what the gain is due to is not known: there is {missing[0]}")
    better = f"it is better than {listed([found.against for found in ahead[1:]])} as well{_caution(*ahead)}"
    text = f"the gain goes beyond {listed(list(beaten))}: {better}"
    if missing:
        return Verdict(f"beyond {next(iter(beaten))}, {missing[0]}", f"{text}; there is {missing[0]}", _limit(*ahead))
    return Verdict(BEYOND_BOTH, text, _limit(*ahead))


def why_unranked(found: PairedTest) -> str:
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


def _limit(*found: PairedTest) -> str:
    """Say the same in a few words."""
    return "" if all(map(confirmed, found)) else ALONE


def listed(items: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
