"""Put surfaces and contrasts of the study into `docs/study.md`, and what they found into the front pages.

Usage: `python docs/study.py [runs/study]`

Of a folder the records of every finished `NAME-surface` and `NAME` go to `docs/results/study/`: results, and of
surfaces what was measured before the first step. All that the page says is computed from what is kept there; the site
draws the pages of the surfaces from it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from hooks import unpack

from results import fitted
from wellcond.lab.analysis.common_targets import CommonTargets, common_targets
from wellcond.lab.analysis.contrasts import Contrasts, read_contrasts
from wellcond.lab.analysis.outcome import Outcome, read_outcomes, run_folders
from wellcond.lab.analysis.surface import Surface, share_text
from wellcond.lab.analysis.surface_runs import surface_of
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.recipe.recipe import load_recipe

DOCS = Path(__file__).parent
KEPT = DOCS / "results" / "study"
RECIPES = DOCS / "study"
PAGES = (DOCS / "study.md", DOCS / "index.md", DOCS.parent / "README.md")
SURFACE = "-surface"
FIRST = ("fashion-mnist", "text")  # of the surfaces, without which there is nothing to choose targets on
BLOCK = re.compile(r"<!-- (surface|contrasts|targets|cost|study) ?([\w-]*) -->\n.*?<!-- end -->", re.DOTALL)


def keep(folder: Path) -> None:
    """Keep the records of every comparison in a folder whose runs are all done."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for path in sorted(mark.parent for mark in folder.glob("*/comparison.json") if run_folders(mark.parent)):
        recipe, outcomes = load_recipe(path / "recipe.toml"), read_outcomes(path)
        done = sum(run.status in ("finished", "diverged", "crashed") for run in outcomes)
        if done == len(arms_of(recipe)) * len(recipe.seeds):
            (KEPT / f"{path.name}.json").write_text(json.dumps(records(path, outcomes), indent=0) + "\n")


def records(folder: Path, outcomes: list[Outcome]) -> dict[str, str]:
    """The files of a comparison, as short as what is made of them allows, with the seconds of its training."""
    about = json.loads((folder / "comparison.json").read_text())
    about["command"] = command(folder.name)
    tuning = read_outcomes(folder / "tuning") if (folder / "tuning").exists() else []
    about["runs"], about["seconds"] = len(outcomes) + len(tuning), sum(run.seconds for run in [*outcomes, *tuning])
    found = {"comparison.json": json.dumps(about), "recipe.toml": (folder / "recipe.toml").read_text()}
    for path in sorted(folder.glob("runs/*/*/run.json")):
        name = path.parent.relative_to(folder).as_posix()
        lines = map(json.loads, (path.parent / "metrics.jsonl").read_text().splitlines())
        kept = [line for line in lines if line["kind"] == "test" or _is_start(line, folder)]
        found[f"{name}/run.json"] = path.read_text()
        found[f"{name}/metrics.jsonl"] = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
    return found


def _is_start(line: dict[str, Any], folder: Path) -> bool:
    return folder.name.endswith(SURFACE) and line["kind"] == "monitor" and line["step"] == 0


def command(name: str) -> str:
    """The command that makes a folder of the study."""
    task = name.removesuffix(SURFACE)
    return f"wellcond {'compare' if task == name else 'surface'} docs/study/{task}.toml --out runs/study/{name}"


@contextmanager
def unpacked(name: str) -> Iterator[Path]:
    """The kept records as the folder that they are of."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(KEPT / f"{name}.json", Path(folder))
        yield Path(folder)


def about_of(name: str) -> dict[str, Any]:
    """What is kept of a comparison as a whole."""
    found: dict[str, Any] = json.loads(json.loads((KEPT / f"{name}.json").read_text())["comparison.json"])
    return found


@cache
def surface(task: str, left_out: tuple[str, ...] = ()) -> Surface:
    """The surface of a task, perhaps without some of its arms."""
    with unpacked(task + SURFACE) as folder:
        recipe = load_recipe(folder / "recipe.toml")
        arms = {name: one for name, one in recipe.arms.items() if name not in left_out}
        return surface_of(recipe.model_copy(update={"arms": arms}), read_outcomes(folder))


def moved(task: str) -> tuple[str, ...]:
    """The arms of a task that begin as another one in other coordinates."""
    arms = load_recipe(RECIPES / f"{task}.toml").arms
    return tuple(name for name, one in arms.items() if one.coordinates != 1 or one.balance)


def contrasts(task: str) -> Contrasts:
    """The contrasts of a task."""
    with unpacked(task) as folder:
        found = read_contrasts(folder)
        assert found is not None
        return found


def targets() -> CommonTargets:
    """The targets of all surfaces of models without QK-norm that AdamW trained: what `calibrate_` has defaults for."""
    tasks = [path.stem.removesuffix(SURFACE) for path in sorted(KEPT.glob(f"*{SURFACE}.json"))]
    plain = [task for task in tasks if not task.endswith(("-qk-norm", "-muon"))]
    return common_targets({task: (surface(task), about_of(task + SURFACE)["diagram"]["depth"]) for task in plain})


def surface_block(task: str) -> str:
    """Table, picture and command of a surface."""
    name, more = task + SURFACE, ""
    others = (*moved(task), *(one.arm for one in surface(task).arms if one.uneven))
    if others:
        rows = [f"| {one.predictor} | {share_text(one)} |" for one in surface(task, others).shares]
        words = "share of the variance between arms that have the coordinates and the even gains of the grid (post hoc)"
        header = f"| known at the start | {words} |\n|---|---|"
        more = "\n".join([header, *rows]) + "\n\n"
    return (
        f"![Results of {task} over β and g](img/{name}.png)\n\n"
        f"<!-- not run: trains for minutes -->\n```console\n$ {command(name)}\n{fitted(surface(task))}\n```\n\n"
        f"{more}{_cost(name)} [The page](results/study/{name}.html)."
    )


def contrasts_block(task: str) -> str:
    """A row a contrast, with its sentence."""
    found = contrasts(task)
    sentences = "\n".join(f"- {one.sentence}" for one in found.judged)
    return f"<!-- not run: trains for minutes -->\n```console\n$ {command(task)}\n```\n\n{sentences}\n\n{_cost(task)}"


def targets_block(_: str) -> str:
    """The targets as the command prints them."""
    found = targets()
    folders = " ".join(f"runs/study/{task}{SURFACE}" for task in found.layers)
    return f"<!-- not run: reads runs of hours -->\n```console\n$ wellcond targets {folders}\n{fitted(found)}\n```"


def cost_block(_: str) -> str:
    """Hours of training in all."""
    names = sorted(path.stem for path in KEPT.glob("*.json"))
    rows = ["| runs of | hours of training |", "|---|---|"]
    hours = {name: about_of(name)["seconds"] / 3600 for name in names}
    rows += [f"| `{name}` | {value:.2f} |" for name, value in hours.items()]
    return "\n".join([*rows, f"| together | {sum(hours.values()):.2f} |"])


def study_block(_: str) -> str:
    """A row a surface: where training went best, and what the model's own weights fall short of it by."""
    header = ["task", "metric", "best β", "best g", "default falls short by"]
    rows = [header, ["---"] * len(header)]
    for path in sorted(KEPT.glob(f"*{SURFACE}.json")):
        found = surface(path.stem.removesuffix(SURFACE))
        (beta, branch), (b, g) = found.best.place, (found.best.first, found.best.second)
        short = abs(found.best.value - fmean(found["default"].results.values()))
        metric = f"{found.metric} {'↑' if found.higher_is_better else '↓'}"
        places = [f"{at:.2g} [{low:.2g}, {high:.2g}]" for at, (low, high) in ((beta, b), (branch, g))]
        rows.append([about_of(path.stem)["title"], metric, *places, f"{short:.2g}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cost(name: str) -> str:
    about = about_of(name)
    return (
        f"{about['runs']} runs, {about['seconds'] / 60:.0f} minutes of training, each on one thread; "
        f"{about['machine']['processor']}, torch {about['versions']['torch']}."
    )


BLOCKS: dict[str, Callable[[str], str]] = {
    "surface": surface_block,
    "contrasts": contrasts_block,
    "targets": targets_block,
    "cost": cost_block,
    "study": study_block,
}


def written(page: str) -> str:
    """The page with its blocks made anew; of what is not kept a block says so."""

    def block(found: re.Match[str]) -> str:
        kind, task = found[1], found[2]
        needed = {"surface": [task + SURFACE], "contrasts": [task], "targets": [f"{name}{SURFACE}" for name in FIRST]}
        there = all((KEPT / f"{name}.json").exists() for name in needed.get(kind, []))
        made = BLOCKS[kind](task) if there else "Not run yet, or left out: see above."
        return f"<!-- {kind}{' ' if task else ''}{task} -->\n{made}\n<!-- end -->"

    return BLOCK.sub(block, page)


def draw() -> None:
    """Draw every surface that is kept."""
    for path in sorted(KEPT.glob(f"*{SURFACE}.json")):
        from wellcond.lab.figures.surface import surface_figure

        surface_figure(surface(path.stem.removesuffix(SURFACE)), DOCS / "img" / f"{path.stem}.png", about_of(path.stem))


if __name__ == "__main__":
    for given in sys.argv[1:]:
        keep(Path(given))
    draw()
    for page in PAGES:
        page.write_text(written(page.read_text()))
