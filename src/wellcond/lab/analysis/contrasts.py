"""Contrasts that were written down before the runs, judged after them: supported, refuted or not decided."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wellcond._core.json_safe import plain
from wellcond._core.numbers import three_digits
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.lab.analysis.outcome import Outcome, read_outcomes
from wellcond.lab.analysis.paired_test import PairedTest, paired_test, with_holm
from wellcond.lab.analysis.verdicts import SIGNIFICANT
from wellcond.lab.recipe.contrasts import Contrast
from wellcond.lab.recipe.recipe import parse_recipe

SUPPORTED, REFUTED, NOT_DECIDED = "supported", "refuted", "not decided"


@dataclass(frozen=True)
class Judged:
    """One contrast with its outcome.

    Args:
        contrast: as it was written down.
        test: paired by seed, positive where the arm is better, Holm's correction over all contrasts of the recipe.
        outcome: `"supported"`, `"refuted"` or `"not decided"`.
        lost: runs of either arm that have no result, with which nothing is decided.
    """

    contrast: Contrast
    test: PairedTest
    outcome: str
    lost: int

    @property
    def sentence(self) -> str:
        """The outcome in a sentence."""
        one = self.contrast
        if self.test.mean is None:
            return f"{one.question}: not decided, as no seed has a result in both arms."
        lost = f"; {self.lost} run{'' if self.lost == 1 else 's'} lost, so nothing is decided" if self.lost else ""
        ends = self.test.interval
        between = "" if ends is None else f" [{ends[0]:+.3g}, {ends[1]:+.3g}]"
        p = "" if self.test.p_holm is None else f", p {three_digits(self.test.p_holm)} after Holm"
        seeds = len(self.test.differences)
        return (
            f"{one.question}: {self.outcome}. {one.arm} − {one.against} is {self.test.mean:+.3g}{between} over "
            f"{seeds} seed{'' if seeds == 1 else 's'}{p}; the margin was {one.margin:g}{lost}."
        )


@dataclass(frozen=True)
class Contrasts(Tabular):
    """All contrasts of a recipe; prints as a table."""

    metric: str
    judged: tuple[Judged, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dictionaries."""
        rows = [
            {"contrast": one.contrast.model_dump(), "test": asdict(one.test), "outcome": one.outcome, "lost": one.lost}
            | {"sentence": one.sentence}
            for one in self.judged
        ]
        data: dict[str, Any] = plain({"metric": self.metric, "contrasts": rows})
        return data

    def records(self) -> list[dict[str, Any]]:
        """Return one row per contrast."""
        return [
            {"question": one.contrast.question, "arm": one.contrast.arm, "against": one.contrast.against}
            | {"mean": one.test.mean, "interval": one.test.interval, "p_holm": one.test.p_holm, "outcome": one.outcome}
            for one in self.judged
        ]

    def _result_table(self) -> ResultTable:
        rows = [
            [one.contrast.question, one.outcome, *_numbers(one.test), f"{one.contrast.margin:g}", f"{one.lost or ''}"]
            for one in self.judged
        ]
        lines = [f"{one.contrast.question}: {one.contrast.hypothesis}" for one in self.judged]
        header = ["contrast", "outcome", f"Δ {self.metric}", "95 %", "p (Holm)", "margin", "lost"]
        return ResultTable(header, rows, "Written down before the runs:", ["", *lines])


def read_contrasts(folder: Path) -> Contrasts | None:
    """Judge the contrasts of a comparison's folder by its runs; None if its recipe has none, or there are no runs."""
    path = folder / "recipe.toml"
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    try:
        written = tomllib.loads(text).get("contrasts")
    except tomllib.TOMLDecodeError:  # the page of a folder shows its recipe as it is
        return None
    outcomes = read_outcomes(folder) if written else []
    return contrasts_of(parse_recipe(text, str(path)).contrasts, outcomes) if outcomes else None


def contrasts_of(contrasts: Sequence[Contrast], outcomes: Iterable[Outcome]) -> Contrasts:
    """Judge contrasts by the runs of their arms, with Holm's correction over all of them.

    Differences are of what is better: of a metric of which less is better their sign is changed, and a perplexity is
    taken in its logarithm.
    """
    runs = list(outcomes)
    in_logarithm = runs[0].metric == "perplexity"
    sign = 1 if runs[0].higher_is_better else -1
    results: dict[str, dict[int, float]] = {}
    lost: dict[str, int] = {}
    for run in runs:
        if run.result is None:
            lost[run.arm] = lost.get(run.arm, 0) + 1
        else:
            results.setdefault(run.arm, {})[run.seed] = sign * (_log(run.result) if in_logarithm else run.result)
    tests = with_holm([_tested(one, results) for one in contrasts])
    judged = [
        _judged(one, test, lost.get(one.arm, 0) + lost.get(one.against, 0))
        for one, test in zip(contrasts, tests, strict=True)
    ]
    return Contrasts(f"log {runs[0].metric}" if in_logarithm else runs[0].metric, tuple(judged))


def _judged(contrast: Contrast, test: PairedTest, lost: int) -> Judged:
    """Judge a contrast; where an arm was lost, those seeds that are left are not a fair sample."""
    return Judged(contrast, test, NOT_DECIDED if lost else judge(contrast, test), lost)


def judge(contrast: Contrast, test: PairedTest) -> str:
    """Say what a paired test decides. Differences that are all equal are their own interval.

    `better` is refuted where the whole interval is below the margin, so that what there may be is too little to matter,
    and else supported where the difference is positive with Holm's p below 0.05. `alike` is supported where the whole
    interval is within the margin, and refuted where Holm's p is below 0.05 and the mean beyond it. All else is not
    decided.

    >>> about = {"question": "spectrum", "hypothesis": "…", "arm": "a", "against": "b", "margin": 0.1}
    >>> found = PairedTest("a", "b", {0: 0.01, 1: 0.02, 2: 0.03}, 0.02, 0.01, (-0.005, 0.045), 0.07, 0.07)
    >>> judge(Contrast(**about, claim="better"), found), judge(Contrast(**about, claim="alike"), found)
    ('refuted', 'supported')
    """
    if test.mean is None or len(test.differences) < 2:
        return NOT_DECIDED
    shown = test.p_holm is not None and test.p_holm < SIGNIFICANT
    low, high = test.interval or (test.mean, test.mean)
    if contrast.claim == "better":
        if high < contrast.margin:
            return REFUTED
        return SUPPORTED if shown and test.mean > 0 else NOT_DECIDED
    if -contrast.margin < low and high < contrast.margin:
        return SUPPORTED
    return REFUTED if shown and abs(test.mean) > contrast.margin else NOT_DECIDED


def _log(perplexity: float) -> float:
    return math.log(perplexity) if perplexity > 0 else -math.inf


def _tested(contrast: Contrast, results: Mapping[str, Mapping[int, float]]) -> PairedTest:
    return paired_test(contrast.arm, results.get(contrast.arm, {}), contrast.against, results.get(contrast.against, {}))


def _numbers(test: PairedTest) -> Sequence[str]:
    ends = "" if test.interval is None else f"[{test.interval[0]:+.3g}, {test.interval[1]:+.3g}]"
    return ["–" if test.mean is None else f"{test.mean:+.3g}", ends, three_digits(test.p_holm)]
