"""What the command line does with the laboratory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wellcond.lab.arms import Scheme
from wellcond.lab.compare import first_process, prepare, run_all
from wellcond.lab.display import Display
from wellcond.lab.jobs import run_jobs
from wellcond.lab.recipe import shipped
from wellcond.lab.statistics import Comparison
from wellcond.lab.statistics import compare as judge
from wellcond.lab.summary import table_text
from wellcond.lab.train import Report
from wellcond.report.comparison_page import write_comparison_page

__all__ = ["compare_recipe", "first_process", "shipped", "table_text", "write_comparison_page"]


def compare_recipe(source: str, out: Path, *, seeds: int | None = None, jobs: int = 1) -> Comparison:
    """Make all runs of a recipe that are not made yet, and compare them.

    Args:
        source: a file or the name of a recipe.
        out: where its runs are kept.
        seeds: how many, in place of the recipe's.
        jobs: runs side by side.
    """
    changes: dict[str, Any] = {} if seeds is None else {"seeds": tuple(range(seeds))}
    experiment = prepare(source, out, **changes)
    with Display(experiment) as display:

        def watch(scheme: Scheme, seed: int) -> Report:
            return lambda step, loss: display.said(scheme.name, seed, step, loss)

        if jobs > 1:
            run_jobs(experiment, source, changes, jobs, display.said)
        else:
            run_all(experiment, watch)
    return judge(experiment.outcomes(), experiment.recipe.baseline)
