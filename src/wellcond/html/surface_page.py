"""A response surface as one HTML file that needs no network: what it shows in words, the picture, the table."""

from __future__ import annotations

from typing import Any

from wellcond._core.numbers import three_digits
from wellcond.html.render import render

SCRIPTS = ("plot_look.js", "plot_diagram.js", "surface_plots.js")


def surface_page(data: dict[str, Any]) -> str:
    """Return one HTML file that shows a response surface, complete in itself.

    Args:
        data: what `lab.page.surface_data` returns.
    """
    shown = {"data": data, "sentences": sentences(data), "rows": [_row(one) for one in data["arms"]]}
    return render("surface.html.j2", SCRIPTS, shown | {"shares": [_share(one) for one in data["shares"]]}, data)


def sentences(data: dict[str, Any]) -> list[str]:
    """Say what the surface shows, for somebody who has read nothing else."""
    best, metric, seeds = data["best"], data["metric"], data["seeds"]
    better = "higher" if data["higher"] else "lower"
    found = [
        f"The same model was trained {len(data['grid'])} times over {seeds} seed{'' if seeds == 1 else 's'}, from "
        "weights that differ by two numbers alone: how sharply attention looks (β) and how much it adds (g).",
        f"Training went best from β {best['place'][0]:.2g} and g {best['place'][1]:.2g}, with {metric} "
        f"{best['value']:.4g}; 95 % of the surfaces that fit have their best between β {best['first'][0]:.2g} and "
        f"{best['first'][1]:.2g}, and between g {best['second'][0]:.2g} and {best['second'][1]:.2g}{best['edge']}.",
    ]
    judged = [one for one in data["arms"] if one["interval"] is not None]
    apart = [one for one in judged if one["interval"][0] > 0 or one["interval"][1] < 0]
    if judged:
        named = ", ".join(f"{one['name']} ({one['residual']:+.2g})" for one in apart) or "none of them"
        found.append(
            f"Of {len(judged)} starts by schemes and controls, β and g alone do not explain, each by its own interval: "
            f"{named}. {better.capitalize()} {metric} is better."
        )
    return found


def _row(one: dict[str, Any]) -> dict[str, str]:
    ends = one["interval"]
    return {
        "name": one["name"],
        "beta": three_digits(one["beta"]),
        "branch": three_digits(one["branch"]),
        "uneven": one["uneven"],
        "mean": f"{one['mean']:.4g}" + (f" ({one['lost']} lost)" if one["lost"] else ""),
        "predicted": "outside the grid" if one["predicted"] is None else f"{one['predicted']:.4g}",
        "residual": "" if one["residual"] is None else f"{one['residual']:+.2g}",
        "interval": "" if ends is None else f"[{ends[0]:+.2g}, {ends[1]:+.2g}]",
        "apart": "" if ends is None or ends[0] <= 0 <= ends[1] else "yes",
    }


def _share(one: dict[str, Any]) -> dict[str, str]:
    ends = one["interval"]
    share = "–" if one["share"] is None else f"{one['share']:.2f}"
    return {
        "predictor": one["predictor"],
        "share": share,
        "interval": "" if ends is None or one["share"] is None else f"[{ends[0]:.2f}, {ends[1]:.2f}]",
        "arms": str(one["arms"]),
    }
