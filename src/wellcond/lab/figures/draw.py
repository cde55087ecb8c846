"""The papers' figures from run folders: σ and κ of W and W + C, κ_eq(J), κ(J) and its bound, entropy, loss, steps."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wellcond._core.atomic import write_bytes
from wellcond._core.file_names import check_path
from wellcond.diagnosis.quantities import BY_KEY, QUANTITIES
from wellcond.diagnosis.readings import ROLES
from wellcond.diagnosis.schema import SCHEMA
from wellcond.errors import WellcondError
from wellcond.lab.figures.averages import over_seeds, shared_value
from wellcond.lab.figures.compared_runs import Compared, is_comparison, read_comparison
from wellcond.lab.figures.panels import TRAINING, Grid, panel_figure
from wellcond.lab.figures.reaching import reaching, reaching_figure
from wellcond.lab.figures.runs import Series, distinct, read_run, told_apart
from wellcond.plots.figure_text import label_colours, printable, shortened, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: dict[str, dict[str, None]] = {
    "png": {},
    "svg": {"Date": None},  # equal records, equal files
    "pdf": {"CreationDate": None},
}
EXACT, AT_LEAST = "_exact", "_at_least"  # ends of the keys of a κ's two averages
BOUND_FAR_ABOVE = 1e3  # from the largest κ(J) to the smallest bound, above which they have panels of their own


def draw_figures(runs: Sequence[Path], output: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw what the papers plot through training, and write the same numbers to `figures.json`.

    Conditioned Initialization, Figures 1 to 7; Spectral Conditioning, Figures 2 to 21. Lines are plain averages over
    layers and heads, then means over the seeds of a label; bands are one sample standard deviation to either side.
    Entries without a finite value, and runs that did not finish, are left out and counted under the picture.

    Args:
        runs: folders that a monitor or a comparison wrote; monitors' runs of one label and seed go by their folders.
        output: folder for `weights`, `jacobian`, `entropy` and the other figures that `diagnosis.quantities` names, of
            a comparison also `loss`, `test` and `reaching` (how soon each arm is as good as the baseline ended),
            each if the records have it; made if it is not there.
        formats: any of `"png"`, `"svg"`, `"pdf"`.

    >>> import json, tempfile
    >>> line = {"schema": 2, "step": 5, "quantities": {"entropy": {"mean": 0.75, "count": 2}}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "metrics.jsonl").write_text(json.dumps(line))
    ...     [path.name for path in draw_figures([Path(folder)], Path(folder) / "figures")]
    ['figures.json', 'entropy.png']
    """
    try:
        import matplotlib
    except ImportError as error:
        raise WellcondError(f"figures need matplotlib ({error}): pip install 'wellcond[plot]'") from error
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise WellcondError(f"unknown format {unknown[0]!r}: there are {', '.join(FORMATS)}")
    if check_path(output).exists() and not output.is_dir():  # before the work, not after it
        raise WellcondError(f"'{output}' is a file; give the name of a folder for the figures")
    comparisons = {folder: read_comparison(folder) for folder in runs if is_comparison(folder)}
    compared = _of_one_metric(list(comparisons.values()))
    monitored = [folder for folder in runs if folder not in comparisons]
    single = iter(told_apart([(folder, read_run(folder)) for folder in monitored]))
    found = [(folder, comparisons[folder].runs if folder in comparisons else [next(single)]) for folder in runs]
    series = [
        one for one in over_seeds(distinct((folder, run) for folder, own in found for run in own)) if _figure(one)
    ]
    if not any(one.steps for one in series):
        unfinished = any(one.unfinished for one in compared)
        nothing = "no run has finished" if unfinished else "no record has weights, entropies or a Jacobian"
        raise WellcondError(f"there is nothing to draw: {'the seeds of a label share no step' if series else nothing}")
    files = {"figures.json": _json(series, compared)}
    style: Any = {"text.usetex": False, "svg.hashsalt": "wellcond", "font.size": 9, "axes.titlesize": 10}
    with matplotlib.rc_context(style), np.errstate(over="ignore"):  # a user's own style could hand labels to LaTeX
        for name, figure in _figures(series, compared).items():
            for suffix in formats:
                file = io.BytesIO()
                figure.savefig(file, format=suffix, dpi=150, metadata=FORMATS[suffix])
                files[f"{name}.{suffix}"] = file.getvalue()
    return [_write(output, name, content) for name, content in files.items()]


def _of_one_metric(comparisons: list[Compared]) -> list[Compared]:
    metrics = sorted({f"{one.metric}, {'more' if one.higher_is_better else 'less'} is better" for one in comparisons})
    if len(metrics) > 1:
        raise WellcondError(f"the comparisons measure different things ({'; '.join(metrics)}): draw them one at a time")
    return comparisons


def _json(series: Sequence[Series], comparisons: Sequence[Compared]) -> bytes:
    rows: dict[str, list[dict[str, Any]]] = {"series": [], "reaching": [], "unfinished": []}
    for one in series:
        quantity = BY_KEY.get(one.quantity)
        weight = "" if quantity is None or not quantity.role else "trained" if quantity.otherwise else "effective"
        rows["series"].append(asdict(one) | {"role": quantity.role if quantity else "", "weight": weight})
    for each in comparisons:
        rows["reaching"] += reaching(each)
        rows["unfinished"] += [
            {"label": label, "seed": seed, "status": status} for label, seed, status in each.unfinished
        ]
    lines = {name: ",\n".join(json.dumps(row, allow_nan=False) for row in own) for name, own in rows.items()}
    lists = (f'"{name}": [\n{own}\n]' if own else f'"{name}": []' for name, own in lines.items())
    return f'{{"schema": {SCHEMA}, {", ".join(lists)}}}\n'.encode()


def _write(folder: Path, name: str, content: bytes) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WellcondError(f"'{folder / name}' cannot be written: {error}") from error
    write_bytes(folder / name, content)
    return folder / name


def _figures(series: Sequence[Series], comparisons: Sequence[Compared]) -> dict[str, Figure]:
    keys = dict.fromkeys(one.figure for one in QUANTITIES if one.figure)
    named = {name: [one for one in series if _figure(one) == name] for name in (*keys, *TRAINING)}
    every: dict[str, Grid] = {"weights": _by_role(named.pop("weights")), "jacobian": _apart(named.pop("jacobian"))}
    every |= {name: [[own]] for name, own in named.items()}
    grids = {name: [row for row in grid if any(row)] for name, grid in every.items()}
    arms = [arm for one in comparisons for arm in one.arms]
    colours = label_colours(list(dict.fromkeys([*(one.label for one in series), *arms])))
    unit = unit_of({one.epoch for one in series}, max(step for one in series for step in one.steps))
    lost = [line for one in comparisons for line in _lost(one)]
    log = {name: shared_value({one.log for one in QUANTITIES if one.figure == name}) for name in keys}
    name_of_test = ""
    if comparisons:
        name_of_test = f"{shortened(comparisons[0].metric)} on test data"
        log |= {"test": False} if comparisons[0].higher_is_better else {}  # an accuracy has limits, a perplexity not
    drawn = {
        name: panel_figure(
            grid,
            colours,
            log=log.get(name),
            unit=unit,
            name=name_of_test if name == "test" else "",
            more=lost,
        )
        for name, grid in grids.items()
        if grid
    }
    bars = [rows for rows in map(reaching, comparisons) if rows]
    return drawn | ({"reaching": reaching_figure(bars, colours, lost)} if bars else {})


def _figure(one: Series) -> str:
    """Return the name of the figure that a series is drawn in; empty if in none."""
    if one.quantity in TRAINING:
        return one.quantity
    return BY_KEY[one.quantity].figure if one.quantity in BY_KEY else ""


def _by_role(series: Sequence[Series]) -> Grid:
    """A row for each symbol, a panel for each role, W and W + C in one."""
    drawn = sorted((one for one in QUANTITIES if one.figure == "weights"), key=lambda one: one.log is True)
    symbols = dict.fromkeys(one.axis for one in drawn)  # σ, and below it their ratio κ
    own = [(BY_KEY[one.quantity].axis, BY_KEY[one.quantity].role, one) for one in series]
    return [[[one for at, of, one in own if (at, of) == (symbol, role)] for role in ROLES] for symbol in symbols]


def _apart(series: Sequence[Series]) -> Grid:
    """κ_eq(J) in a panel; κ(J) and its bound in another, or in two where nothing lies between that an axis should show.

    Lower bounds have a line of their own only where there are any.
    """
    exact = {(one.label, one.quantity): one.averaged for one in series if one.quantity.endswith(EXACT)}
    pairs = [(one, (one.label, one.quantity.removesuffix(AT_LEAST) + EXACT)) for one in series]
    series = [one for one, own in pairs if not one.quantity.endswith(AT_LEAST) or one.averaged != exact.get(own)]
    invariant = [one for one in series if one.quantity.startswith("kappa_equilibrated")]
    bounds = [one for one in series if one.quantity == "bound"]
    others = [one for one in series if one not in (*invariant, *bounds)]
    known = [[value for one in part for value in one.mean if value is not None] for part in (others, bounds)]
    far = all(known) and min(known[1]) > BOUND_FAR_ABOVE * max(known[0])
    return [[invariant], *([[bounds], [others]] if far else [[[*others, *bounds]]])]


def _lost(compared: Compared) -> Iterator[str]:
    """Tell which runs did not finish, a line for each arm."""
    for arm in compared.arms:
        statuses = Counter(status for label, _, status in compared.unfinished if label == arm)
        if statuses:
            runs = statuses.total() + sum(run.label == arm for run in compared.runs)
            parts = ", ".join(f"{count} {printable(status)}" for status, count in statuses.items())
            yield f"{shortened(arm)}: {statuses.total()} of {runs} runs left out, not having finished: {parts}"
