"""A recommendation as one HTML file that needs no network: what to do, the code, the evidence, all candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wellcond._core.numbers import memory_words
from wellcond.html.recommendation_figures import page_figures
from wellcond.html.render import render

SCRIPTS = ("plot_look.js", "plot_intervals.js", "plot_diagram.js", "recommendation_plots.js")


def recommendation_page(data: dict[str, Any]) -> str:
    """Return one HTML file that shows a recommendation, complete in itself.

    Args:
        data: what `Recommendation.to_dict` returns, with its `diagram` or, in `no_diagram`, why there is none.

    Raises:
        WellcondError: jinja2 or plotly is not installed.
    """
    advised = next((one for one in data["ranking"] if one["outcome"] == "advised"), None)
    figures = page_figures(data)
    shown = {
        "data": data,
        "headline": headline(data["summary"], data["best"]),
        "advised": advised,
        "state": _state(data, advised),
        "rows": [_row(one) for one in data["ranking"]],
        "measured": _measured(data),
        "figures": figures,
    }
    return render("recommendation.html.j2", SCRIPTS, shown, figures)


def headline(summary: str, best: str) -> tuple[str, str]:
    """Split a summary into what to do, in large letters, and the sentences that say why.

    >>> headline("Begin with fan_in: its loss is lower.", "fan_in")
    ('Begin with fan_in', 'Its loss is lower.')
    >>> headline("Begin with fan_in, which mends what is out of line.", "fan_in")
    ('Begin with fan_in', 'It mends what is out of line.')
    >>> headline("Nothing was probed.", "yours")
    ('Nothing was probed.', '')
    """
    begin = f"Begin with {best}"
    if summary.startswith(begin):
        what, why = begin, summary.removeprefix(begin).lstrip(" ,:;")
    else:
        what, _, why = summary.partition(": ")
    why = f"it {why.removeprefix('which ')}" if why.startswith("which ") else why
    return what, why[:1].upper() + why[1:]


def _state(data: Mapping[str, Any], advised: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """Tiles of what the model is now and, as predicted, with the advice; each with what to know of it."""
    state, own = data["state"], next(one for one in data["ranking"] if one["name"] == data["own"])
    now, then = own["prediction"], None if advised is None else advised["prediction"]
    ranges, much, entry = state["ranges"], state["much"], state["entry"]
    unknown = "not known, see below" if state["unknown"] else "not seen on this batch"
    tiles = [
        _tile("attention layers", str(len(state["layers"]) or "–"), "", ""),
        _tile(
            "sharpness β",
            ranges["beta"] and span(ranges["beta"]),
            then and span(then["beta"]),
            f"above {much['beta']:g}: few tokens" if ranges["beta"] else unknown,
        ),
        _tile(
            "attention’s gain g",
            ranges["branch"] and span(ranges["branch"]),
            then and span(then["branch"]),
            "what it adds ÷ the stream" if ranges["branch"] else unknown,
        ),
        _tile(
            "size of the stream",
            entry and _two_digits(entry["size"]),
            "",
            f"above {much['stream']:g} is much" if entry else "no block was given one",
        ),
    ]
    if now is not None:
        similar, after = (_two_digits(one["similarity"]) if one else "" for one in (now, then))
        tiles.append(_tile("similarity of tokens", similar, after, "at the end, predicted; 1: alike"))
        verdict = then["verdict"] if then and then["verdict"] != now["verdict"] else ""
        tiles.append(_tile("predicted to be", now["verdict"], verdict, ""))
    return tiles


def _tile(name: str, now: str | None, then: str | None, note: str) -> dict[str, str]:
    return {"name": name, "now": now or "–", "then": then or "", "note": note}


def span(values: Sequence[float]) -> str:
    """Write the least and the largest of some numbers, one number where they read the same.

    >>> span([0.412, 0.33, 0.5]), span([0.331, 0.333])
    ('0.33 – 0.5', '0.33')
    """
    low, high = _two_digits(min(values)), _two_digits(max(values))
    return low if low == high else f"{low} – {high}"


def _two_digits(value: Any) -> str:
    return f"{float(value):.2g}"


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    """One candidate as cells of text."""
    found, predicted = one["difference"], one["prediction"]
    interval = "" if found is None or found["interval"] is None else "[{:+.2g}, {:+.2g}]".format(*found["interval"])
    return {
        **{name: one[name] for name in ("name", "outcome", "reason", "citation", "code")},
        "loss": "" if one["loss"] is None else f"{float(one['loss']):.4g}",
        "steps": "" if one["steps"] is None else f"after {one['steps']} steps",
        "difference": "" if found is None else f"{float(found['mean']):+.2g}",
        "interval": interval,
        "p": "" if found is None or found["p_holm"] is None else f"{found['p_holm']:.2g}",
        "beta": "" if predicted is None else span(predicted["beta"]),
        "branch": "" if predicted is None else span(predicted["branch"]),
        "similarity": "" if predicted is None else _two_digits(predicted["similarity"]),
        "verdict": "" if predicted is None else predicted["verdict"],
    }


def _measured(data: Mapping[str, Any]) -> dict[str, str]:
    """How the evidence was come by, in words."""
    probe, asked = data["probe"], data["settings"]
    rounds = [f"{_rung(rung)} to choose among" for rung in probe["rungs"]]
    if probe["last"] is not None:
        rounds.append(f"{_rung(probe['last'])} to compare, on seeds of their own")
    return {
        "trainings": "; ".join(rounds) or "none",
        "time": f"{probe['seconds']:.3g} s of {asked['seconds']:g} s that were given",
        "optimizer": f"{asked['optimizer']}, learning rate {asked['lr']:g}",
        "loss": str(asked["loss"]),
        "batches": f"{asked['batches']}; {asked['judging']} of them judge",
        "memory": f"about {memory_words(data['memory'])}, estimated",
        "differences": "of equal seeds, which see the same batches in the same order; a lower loss before the first "
        "step, up to 5 %, is left out of them",
        "p": "of the paired t-test, corrected for the number of finalists (Holm)",
        "β": "deviation of the logits along a row ÷ √(2 log T), which is 0 where all tokens count alike; from the "
        "layer where it is least to that where it is largest",
        "g": "root mean square of what attention adds ÷ that of the stream, in the same way",
    }


def _rung(rung: Mapping[str, Any]) -> str:
    count, seeds = len(rung["losses"]), len(rung["seeds"])
    return f"{count} candidates × {seeds} seed{'s' * (seeds != 1)} × {rung['steps']} steps"
