"""The papers' figures from run folders: spectra of W and W + C, κ(J) with its bound, entropy, through training."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wellcond.diagnose.records import ROLES, SCHEMA
from wellcond.errors import WellcondError
from wellcond.report.atomic import write_bytes
from wellcond.report.averages import over_seeds
from wellcond.report.panels import NAMES, Grid, label_colours, panel_figure
from wellcond.report.runs import Series, read_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: dict[str, dict[str, None]] = {
    "png": {},
    "svg": {"Date": None},  # equal records, equal files
    "pdf": {"CreationDate": None},
}


def draw_figures(runs: Sequence[Path], output: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw what the papers plot through training, and write the same numbers to `figures.json`.

    Conditioned Initialization, Figures 1 and 3; Spectral Conditioning, Figures 2 to 21. Lines are plain averages over
    layers and heads, then means over the seeds of a label; bands are one sample standard deviation to either side.
    Entries without a finite value are left out, and counted under the picture.

    Args:
        runs: folders that a monitor wrote.
        output: folder for `weights`, `jacobian` and `entropy`, each if the records have it; made if it is not there.
        formats: any of `"png"`, `"svg"`, `"pdf"`.

    >>> import json, tempfile
    >>> line = {"schema": 1, "step": 5, "tier": "attention", "layers": [{"heads": [{"entropy": 0.5}, {"entropy": 1}]}]}
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
    if output.exists() and not output.is_dir():  # before the work, not after it
        raise WellcondError(f"'{output}' is a file; give the name of a folder for the figures")
    series = over_seeds(read_runs(runs))
    if not any(one.steps for one in series):
        why = "the seeds of a label share no step" if series else "no record has weights, entropies or a Jacobian"
        raise WellcondError(f"there is nothing to draw: {why}")
    files = {"figures.json": _json(series)}
    style: Any = {"text.usetex": False, "svg.hashsalt": "wellcond", "font.size": 9, "axes.titlesize": 10}
    with matplotlib.rc_context(style), np.errstate(over="ignore"):  # a user's own style could hand labels to LaTeX
        for name, figure in _figures(series).items():
            for suffix in formats:
                file = io.BytesIO()
                figure.savefig(file, format=suffix, dpi=150, metadata=FORMATS[suffix])
                files[f"{name}.{suffix}"] = file.getvalue()
    return [_write(output, name, content) for name, content in files.items()]


def _json(series: Sequence[Series]) -> bytes:
    rows = []
    for one in series:
        row = asdict(one) | one.quantity._asdict()
        rows.append(json.dumps(row | {"quantity": row.pop("name")}, allow_nan=False))
    text = ",\n".join(rows)
    return f'{{"schema": {SCHEMA}, "series": [\n{text}\n]}}\n'.encode()


def _write(folder: Path, name: str, content: bytes) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WellcondError(f"'{folder / name}' cannot be written: {error}") from error
    write_bytes(folder / name, content)
    return folder / name


def _figures(series: Sequence[Series]) -> dict[str, Figure]:
    named = {name: [one for one in series if one.quantity.name == name] for name in NAMES}
    exact = {one.label: one for one in named["jacobian"]}
    at_least = [one for one in named["jacobian_at_least"] if one.averaged != exact[one.label].averaged]
    grids: dict[str, Grid] = {
        "weights": [
            [[one for one in named[name] if one.quantity.role == role] for role in ROLES]
            for name in ("sigma_min", "sigma_max", "condition")
        ],
        "jacobian": [[[*named["jacobian"], *at_least, *named["jacobian_vertical"], *named["bound"]]]],
        "entropy": [[named["entropy"]]],
    }
    colours = label_colours(list(dict.fromkeys(one.label for one in series)))
    return {
        name: panel_figure(grid, colours, log={"jacobian": True, "entropy": False}.get(name))
        for name, grid in grids.items()
        if any(panel for row in grid for panel in row)
    }
