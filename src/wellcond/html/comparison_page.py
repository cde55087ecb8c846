"""A comparison of training arms as one HTML file that needs no network: words, a table, figures, the recipe."""

from __future__ import annotations

from typing import Any

from wellcond.html.render import render

SCRIPTS = ("plot_look.js", "plot_intervals.js", "plot_diagram.js", "comparison_plots.js")


def comparison_page(data: dict[str, Any]) -> str:
    """Return one HTML file that shows a comparison, complete in itself.

    Args:
        data: what `lab.page` makes of a comparison's folder: `about`, `recipe`, `sentences`,
            `comparison`, `rows`, `headlines`, `contrasts`, `figures`, `seeds` and `lost`.
    """
    return render("comparison.html.j2", SCRIPTS, data, data["figures"])
