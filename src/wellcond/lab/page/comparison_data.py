"""The page of a comparison: from its folder to the plain data that `html.comparison_page` shows."""

from __future__ import annotations

import shlex
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellcond._core.atomic import write_text
from wellcond._core.file_names import check_path
from wellcond._core.numbers import three_digits
from wellcond.html.comparison_page import comparison_page
from wellcond.lab.figures.compared_runs import read_about
from wellcond.lab.page.comparison_figures import figure_data
from wellcond.lab.page.comparison_table import difference_cell, headlines, table_rows

if TYPE_CHECKING:
    from wellcond.lab.analysis.outcome import Outcome
    from wellcond.lab.analysis.statistics import Comparison


def write_comparison_page(folder: Path, target: Path | None = None) -> Path:
    """Write the page of a comparison's folder, whole or not at all; return where (`report.html` in the folder)."""
    path = check_path(Path(folder) / "report.html" if target is None else target)
    write_text(path, comparison_page(comparison_data(folder)))
    return path


def comparison_data(folder: Path) -> dict[str, Any]:
    """Return all that the page of a comparison shows, as plain data.

    Args:
        folder: of a comparison: `comparison.json`, `recipe.toml` and `runs/`.

    Raises:
        WellcondError: the folder holds no comparison.
    """
    # Statistics want scipy, which only those need who compare_outcomes.
    from wellcond.lab.analysis.contrasts import read_contrasts
    from wellcond.lab.analysis.outcome import read_outcomes
    from wellcond.lab.analysis.paragraph import plain_words
    from wellcond.lab.analysis.statistics import compare_outcomes

    about, recipe = _read(Path(folder))
    outcomes = read_outcomes(Path(folder))
    found = compare_outcomes(outcomes, about["baseline"])
    comparison, contrasts = found.to_dict(), read_contrasts(Path(folder))
    return {
        "about": about,
        "recipe": recipe,
        "sentences": [plain_words(found)],
        "comparison": comparison,
        "headlines": headlines(comparison),
        "rows": table_rows(comparison, _verdicts(found)),
        "controlled": _controlled(found),
        "contrasts": contrasts and contrasts.to_dict(),
        "figures": figure_data(comparison, outcomes, about["diagram"]),
        "seeds": sorted({run.seed for run in outcomes}),
        "lost": [
            {"arm": run.arm, "seed": run.seed, "status": run.status, "error": run.error, "at": _reached(run)}
            for run in outcomes
            if run.status != "finished"
        ],
    }


def _verdicts(found: Comparison) -> dict[str, tuple[str, str, str]]:
    """Judge each arm against the baseline: in a word or three, in a sentence, and what it does not say."""
    from wellcond.lab.analysis.verdicts import verdict

    against = {record.arm: record.to_baseline for record in found.arms if record.to_baseline is not None}
    return {arm: astuple(verdict(pair, found.higher_is_better)) for arm, pair in against.items()}


def _controlled(found: Comparison) -> list[dict[str, Any]]:
    """Return each arm that has controls: what its gain is due to, and the test against each of them."""
    from wellcond.lab.analysis.verdicts import attribution, verdict

    return [
        {
            "arm": record.arm,
            "gain": astuple(cause),
            "tests": [
                {
                    "control": pair.against,
                    "difference": difference_cell(asdict(pair)),
                    "p_holm": three_digits(pair.p_holm),
                    "verdict": astuple(verdict(pair, found.higher_is_better)),
                }
                for pair in record.to_controls
            ],
        }
        for record in found.arms
        if (cause := attribution(record, found)) is not None
    ]


def _reached(run: Outcome) -> str:
    """Tell how far a run came."""
    last = max([step for step, _ in (*run.train, *run.test)], default=0)
    return f"step {last} of {run.steps}"


def _read(folder: Path) -> tuple[dict[str, Any], str]:
    """Read what is known of the comparison as a whole, and the recipe as it was written."""
    about = read_about(folder)
    task = {"name": "", "description": "", "metric": "", **about.get("task", {})}
    defaults: dict[str, Any] = {
        "title": "",
        "command": "",
        "versions": {},
        "machine": {},
        "model": "",
        "parameters": None,
    }
    about = {**defaults, "baseline": "default", "diagram": None, **about, "task": task}
    if isinstance(about["command"], list):
        about["command"] = shlex.join(map(str, about["command"]))
    recipe = folder / "recipe.toml"
    return about, recipe.read_text(encoding="utf-8", errors="replace") if recipe.exists() else ""
