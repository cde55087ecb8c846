"""A comparison on a terminal: a table that fits, and the words below it."""

from __future__ import annotations

import textwrap

from wellcond._core import terminal
from wellcond._core.result_table import ResultTable
from wellcond._core.safe_text import visible
from wellcond._core.text_tables import table
from wellcond.diagnosis.quantities import HEADLINES
from wellcond.lab.analysis.paragraph import plain_words
from wellcond.lab.analysis.statistics import ArmRecord, Comparison
from wellcond.lab.analysis.verdicts import attribution, verdict

NO_NUMBER = "—"  # where a number has no meaning
LONGEST_BASELINE = 12  # characters of a baseline's name that a header has room for


def table_text(comparison: Comparison, width: int | None = None) -> str:
    """Return the table, in as many parts as the width asks for, each arm's verdicts, and the paragraph.

    Args:
        comparison: of `compare_outcomes`.
        width: of a line; columns that do not fit are set below, under the arms' names again. None: that of the
            terminal, 100 where stdout is none.

    >>> from wellcond.lab.analysis.outcome import Outcome
    >>> from wellcond.lab.analysis.statistics import compare_outcomes
    >>> def run(arm, seed, result):
    ...     return Outcome(arm, None, seed, "finished", "", "accuracy", True, 9, (), ((9, result),), (), 1.0, {})
    >>> runs = [run("default", s, r) for s, r in enumerate([0.5, 0.6, 0.7])]
    >>> runs += [run("scaled", s, r) for s, r in enumerate([0.6, 0.8, 1.0])]
    >>> print(table_text(compare_outcomes(runs), width=76))
    arm      accuracy   − default               steps to default's final
    default  0.6 ± 0.1                          9 (3/3)
    scaled   0.8 ± 0.2  +0.2 [-0.0484, +0.448]  9 (3/3)
    <BLANKLINE>
    arm      time ÷ default  diverged
    default  1.00            0/3
    scaled   1.00            0/3
    <BLANKLINE>
    scaled: no difference to default shown: +0.2 [-0.0484, +0.448], 3 seeds
    <BLANKLINE>
    In this setting, by accuracy, with 3 seeds, no difference to default is
    shown for scaled, which is not to say that there is none.
    """
    width = width or terminal.columns() or terminal.WIDTH
    whole = comparison_table(comparison)
    head = table(whole.header, whole.rows, width=width, keys=1)
    verdicts = [_filled(line, width, indent="  ") for line in _verdicts(comparison)]
    paragraph = _filled(plain_words(comparison), width)
    return "\n\n".join(part for part in (head, "\n".join(verdicts), paragraph) if part)


def comparison_table(comparison: Comparison) -> ResultTable:
    """Return the whole table, with the verdicts and the paragraph as its notes."""
    names = [record.arm for record in comparison.arms]
    shown = [column for column in _columns(comparison) if not set(column[1:]) <= {NO_NUMBER, ""}]
    columns = [["arm", *names], *shown]
    header, *rows = ([column[i] for column in columns] for i in range(len(names) + 1))
    return ResultTable(header, rows, notes=["", *_verdicts(comparison), "", plain_words(comparison)])


def _columns(comparison: Comparison) -> list[list[str]]:
    """Header and cells of each column but the arms' names."""
    baseline = comparison.baseline if len(comparison.baseline) <= LONGEST_BASELINE else "baseline"
    headers = [comparison.metric, f"− {baseline}", "gain", f"steps to {baseline}'s final", f"time ÷ {baseline}"]
    headers += [*(one.label for one in HEADLINES), "diverged"]
    rows = [_cells(record, comparison) for record in comparison.arms]
    return [[header, *(row[i] for row in rows)] for i, header in enumerate(headers)]


def _cells(record: ArmRecord, comparison: Comparison) -> list[str]:
    found, total, crashed = record.to_baseline, sum(record.runs.values()), record.runs["crashed"]
    result = NO_NUMBER if record.mean is None else f"{record.mean:.4g}"
    result += "" if record.sd is None else f" ± {record.sd:.2g}"
    difference = "" if found is None else NO_NUMBER if found.mean is None else f"{found.mean:+.3g}"
    if found is not None and found.interval is not None:
        difference += f" [{found.interval[0]:+.3g}, {found.interval[1]:+.3g}]"
    cause = attribution(record, comparison)
    steps = NO_NUMBER if record.median_steps is None else f"{record.median_steps:.10g}"
    return [
        result,
        difference,
        "" if cause is None else cause.kind,
        f"{steps} ({record.reached}/{len(record.steps_to_reach)})" if record.steps_to_reach else NO_NUMBER,
        NO_NUMBER if record.time_ratio is None else f"{record.time_ratio:.2f}",
        *(_change(record, one.key) for one in HEADLINES),
        f"{record.runs['diverged']}/{total}" + (f", {crashed} crashed" if crashed else ""),
    ]


def _change(record: ArmRecord, quantity: str) -> str:
    """First → last; a quantity that nobody monitored has no column."""
    if quantity not in record.monitored:
        return NO_NUMBER
    return " → ".join(NO_NUMBER if value is None else f"{value:.3g}" for value in record.monitored[quantity])


def _verdicts(comparison: Comparison) -> list[str]:
    """One line for each arm against the baseline and each of its controls, and what its gain is due to."""
    lines = []
    for record in comparison.arms:
        if record.to_baseline is None:
            continue
        lines.append(f"{record.arm}: {verdict(record.to_baseline, comparison.higher_is_better)}")
        lines += [f"{record.arm}: {verdict(found, comparison.higher_is_better)}" for found in record.to_controls]
        cause = attribution(record, comparison)
        lines += [] if cause is None else [f"{record.arm}: {cause}"]
    return lines


def _filled(text: str, width: int, indent: str = "") -> str:
    """Lines of a width; a name with hyphens stays whole, so that it can be searched for."""
    return textwrap.fill(visible(text), width, subsequent_indent=indent, break_on_hyphens=False)
