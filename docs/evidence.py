"""Put what `wellcond recommend --calibration` found into `docs/recommend.md`, and its numbers beside it.

Usage: `python docs/evidence.py [runs/calibration]`

Of a folder the records go to `docs/results/calibration/RECIPE.json`; the tables are written from what is kept there.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
KEPT = DOCS / "results" / "calibration"
PAGE = DOCS / "recommend.md"
BLOCK = re.compile(r"<!-- evidence -->\n.*?<!-- end -->", re.DOTALL)


def keep(folder: Path) -> None:
    """Keep the records of every recipe in a folder."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*/evidence.json")):
        (KEPT / f"{path.parent.name}.json").write_text(path.read_text())


def evidence() -> str:
    """Two tables in Markdown: of regret, a row a recipe, and of correlations, a row a predictor."""
    found = [json.loads(path.read_text()) for path in sorted(KEPT.glob("*.json"))]
    policies = [one["name"] for one in found[0]["regrets"]]
    rows = [["task", "steps", "seconds", "metric", *(f"regret, {name}" for name in policies), "recommended − yours"]]
    rows += [
        [
            one["recipe"],
            str(one["steps"]),
            f"{one['seconds']:g}",
            one["metric"],
            *(_words(_named(one["regrets"], name)) for name in policies),
            _words(one["gain"]),
        ]
        for one in found
    ]
    names = [one["name"] for one in found[0]["correlations"]]
    others = [["rank correlation with the final result", *(one["recipe"] for one in found)]]
    others += [[name, *(_words(_named(one["correlations"], name)) for one in found)] for name in names]
    seeds = len(found[0]["advised"])
    return f"{_table(rows)}\n\n{_table(others)}\n\nMeans over {seeds} seeds with their 95 % intervals."


def _named(scores: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in scores if one["name"] == name)


def _words(one: dict[str, Any]) -> str:
    if not isinstance(one["mean"], float | int):
        return "–"
    between = "" if one["interval"] is None else f" [{one['interval'][0]:+.2g}, {one['interval'][1]:+.2g}]"
    return f"{one['mean']:+.2g}{between}"


def _table(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def written(page: str) -> str:
    """The page with the tables of what is kept."""
    return BLOCK.sub(lambda _: f"<!-- evidence -->\n{evidence()}\n<!-- end -->", page, count=1)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        keep(Path(given))
    PAGE.write_text(written(PAGE.read_text()))
