"""A comparison of training schemes as one HTML file that needs no network: words, a table, figures, the recipe."""

from __future__ import annotations

import hashlib
import json
import shlex
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellcond.errors import WellcondError
from wellcond.file_names import check_path
from wellcond.report.atomic import write_text
from wellcond.report.compared_runs import read_about
from wellcond.report.comparison_figures import figures
from wellcond.report.comparison_table import table_rows
from wellcond.report.diagnosis_page import plain_number, script_json

if TYPE_CHECKING:
    from wellcond.lab.outcome import Outcome
    from wellcond.lab.statistics import Comparison

SCRIPTS = ("comparison_look.js", "comparison_plots.js")


def write_comparison_page(folder: Path, target: Path | None = None) -> Path:
    """Write the page of a comparison's folder, whole or not at all; return where (`report.html` in the folder)."""
    path = check_path(Path(folder) / "report.html" if target is None else target)
    write_text(path, comparison_page(folder))
    return path


def comparison_page(folder: Path) -> str:
    """One HTML file that shows a comparison, complete in itself.

    Args:
        folder: of a comparison: `comparison.json`, `recipe.toml` and `runs/`.

    Returns:
        The page; write it as UTF-8.

    Raises:
        WellcondError: the folder holds no comparison; jinja2 or plotly is not installed.
    """
    # Statistics want scipy, which only those need who compare.
    from wellcond.lab.outcome import read_outcomes
    from wellcond.lab.statistics import compare
    from wellcond.lab.verdicts import plain_words

    about, recipe = _read(Path(folder))
    outcomes = read_outcomes(Path(folder))
    found = compare(outcomes, about["baseline"])
    comparison = found.to_dict()
    return _rendered(
        {
            "about": about,
            "recipe": recipe,
            "sentences": [plain_words(found)],
            "comparison": comparison,
            "rows": table_rows(comparison, _verdicts(found)),
            "figures": figures(comparison, outcomes, about["diagram"]),
            "seeds": sorted({run.seed for run in outcomes}),
            "lost": [
                {"scheme": run.scheme, "seed": run.seed, "status": run.status, "error": run.error, "at": _reached(run)}
                for run in outcomes
                if run.status != "finished"
            ],
        }
    )


def _verdicts(found: Comparison) -> dict[str, tuple[str, str, str]]:
    """Of each scheme against the baseline: in a word or three, in a sentence, and what it does not say."""
    from wellcond.lab.verdicts import BETTER, WORSE, corrected, verdict

    judged = {}
    for record in found.schemes:
        if record.to_baseline is not None:
            one = verdict(record.to_baseline, found.higher_is_better)
            alone = one.kind in (BETTER, WORSE) and not corrected(record.to_baseline)
            judged[record.scheme] = (one.kind, one.text, "by its interval alone" if alone else "")
    return judged


def _reached(run: Outcome) -> str:
    """How far a run came."""
    last = max([step for step, _ in (*run.train, *run.test)], default=0)
    return f"step {last} of {run.steps}"


def _read(folder: Path) -> tuple[dict[str, Any], str]:
    """What is known of the comparison as a whole, and the recipe as it was written."""
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


def _rendered(shown: dict[str, Any]) -> str:
    """The same comparison gives the same page, whose scripts are named by a digest of all that is shown."""
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise WellcondError(f"The HTML page cannot be made ({error}): pip install 'wellcond[report]'") from error

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wellcond.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = plain_number
    source = resources.files("wellcond.report")
    return environment.get_template("comparison.html.j2").render(
        **shown,
        payload=script_json(shown["figures"]),
        nonce=hashlib.sha256(json.dumps(shown, default=str).encode()).hexdigest(),
        plotly=get_plotlyjs(),
        script="\n".join((source / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )
