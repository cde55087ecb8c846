"""Every published number with ours, and those of the offline twins: what the documentation's table is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wellcond.lab.claim import same_recipe
from wellcond.lab.outcome import Outcome, read_outcomes, run_folders
from wellcond.lab.recipe import Recipe, load_recipe
from wellcond.lab.settings import Arm
from wellcond.lab.stages import stages_of
from wellcond.reproduce.catalogue import CURVES, Item, entries_of, item, items, rows_of
from wellcond.reproduce.made import how_made
from wellcond.reproduce.measured import Beside, beside, lost_of, number_text, ours_of, ours_text
from wellcond.tables import markdown

MOST = 5  # schemes that have room beside each other
PUBLISHED, OURS, TWIN = "published", "ours", "twin"


@dataclass(frozen=True)
class Line:
    """Numbers of one row, by scheme.

    Args:
        of: whose they are: published, ours by the recipe of the paper, or those of an offline twin.
        label: of the row; of ours with the recipe, of a twin with its name.
        values: one number that was published; of the others one for each seed, in the paper's unit.
        spread: standard deviations that were published.
        lost: how the runs ended that did not finish.
    """

    of: str
    label: str
    values: Mapping[str, tuple[float, ...]]
    spread: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def cell(self, scheme: str) -> str:
        """What the table says of a scheme."""
        values, lost = self.values.get(scheme, ()), self.lost.get(scheme, ())
        if not values and not lost:
            return ""
        return number_text(values[0], self.spread.get(scheme)) if self.of == PUBLISHED else ours_text(values, lost)


@dataclass(frozen=True)
class Result:
    """A table or a figure.

    Args:
        id: as in `ci-table2`.
        title: what it shows.
        kind: what is compared in it.
        lines: its numbers.
        not_run: recipes of the paper that were not run, by their short names.
        twins: offline twins that were.
    """

    id: str
    title: str
    kind: str
    lines: tuple[Line, ...]
    not_run: tuple[str, ...]
    twins: tuple[str, ...]


def results(runs: Path, id: str | None = None, only: str | None = None) -> list[Result]:
    """What is published, and what was run.

    Args:
        runs: where `wellcond reproduce` and `wellcond compare` put their folders, by recipe.
        id: one table or figure; else all.
        only: with `id`, one of its recipes, by data or model.

    >>> found = results(Path("nowhere"), "ci-table7")[0]
    >>> found.lines[0].values["default"], found.not_run
    ((2.47,), ('tinystories/gpt2',))
    """
    return [_result(item(id), runs, only)] if id else [_result(each, runs, None) for each in items().values()]


def results_text(found: Sequence[Result]) -> str:
    """A Markdown table for each that has numbers, and one for the rest.

    >>> print(results_text(results(Path("nowhere"), "ci-table7")))
    ## ci-table7: GPT-2 on TinyStories: three initialisations
    <BLANKLINE>
    | row   | numbers   | default | mimetic | conditioned |
    |-------|-----------|---------|---------|-------------|
    | GPT-2 | published | 2.47    | 2.4     | 2.29        |
    <BLANKLINE>
    Not run: tinystories/gpt2.
    """
    parts, rest = [], []
    for each in found:
        if not each.lines:
            rest.append([each.id, each.title, _instead(each)])
            continue
        parts += [f"## {each.id}: {each.title}", _table(each.lines)]
        parts += [f"Not run: {', '.join(each.not_run)}."] if each.not_run else []
    if rest:
        parts += ["## Without numbers"] if parts else []
        parts.append(markdown(["id", "what it shows", "here"], rest))
    return "\n\n".join(parts)


def _table(lines: Sequence[Line]) -> str:
    """A row for each line; where there are many schemes, a row for each of them."""
    schemes = list(dict.fromkeys(scheme for line in lines for scheme in line.values))
    rows = [["row", "numbers", *schemes]]
    rows += [[line.label, line.of, *(line.cell(scheme) for scheme in schemes)] for line in lines]
    header, *body = rows if len(schemes) <= MOST else [list(column) for column in zip(*rows, strict=True)]
    return markdown(header, body)


def _instead(result: Result) -> str:
    if result.kind == "analytic":
        return f"computed: `wellcond reproduce {result.id}`"
    if result.kind == "diagram":
        return "a drawing"
    done = [f"{TWIN}: {name}" for name in result.twins]
    return ", ".join([*done, f"not run: {', '.join(result.not_run)}"] if result.not_run else [OURS, *done])


def _result(what: Item, runs: Path, only: str | None) -> Result:
    published, not_run = _published(what.id, runs, only)
    recipes = {name: load_recipe(name) for name in what.twins}
    made = {name: found for name, recipe in recipes.items() if (found := _outcomes(recipe, runs / name))}
    twins = [line for name, found in made.items() for line in _twin(what, recipes[name], runs / name, found)]
    return Result(what.id, what.title, what.kind, (*published, *twins), tuple(not_run), tuple(made))


def _published(id: str, runs: Path, only: str | None) -> tuple[list[Line], list[str]]:
    """Each row once, though several readings of the paper may give it; ours by reading."""
    found: list[Line] = []
    not_run: dict[str, None] = {}
    for entry in entries_of(id, only):
        made = how_made(runs / entry.name)
        outcomes = {} if made.smoke else _outcomes(entry.recipe, runs / entry.name / "runs")
        not_run |= {} if outcomes else {entry.published.only: None}
        for row in rows_of(entry, id):
            for label, numbers in _by_label(beside(row, outcomes)):
                spread = {n.scheme: n.spread for n in numbers if n.spread is not None}
                line = Line(PUBLISHED, label, {n.scheme: (n.published,) for n in numbers}, spread)
                found += [] if line in found else [line]
                ours, lost = {n.scheme: n.ours for n in numbers}, {n.scheme: n.lost for n in numbers}
                if any((*ours.values(), *lost.values())):
                    found.append(Line(OURS, f"{label}, {entry.name}{made.changed}", ours, lost=lost))
    return found, list(not_run)


def _by_label(numbers: Sequence[Beside]) -> Iterator[tuple[str, list[Beside]]]:
    for label in dict.fromkeys(number.label for number in numbers):
        yield label, [number for number in numbers if number.label == label]


def _outcomes(recipe: Recipe, folder: Path) -> dict[str, list[Outcome]]:
    """By stage; nothing where none was begun."""
    begun = [stage for _, stage in stages_of(recipe, folder) if run_folders(stage)]
    return {stage.name: read_outcomes(stage) for stage in begun}


def _twin(what: Item, recipe: Recipe, folder: Path, outcomes: dict[str, list[Outcome]]) -> Iterator[Line]:
    """What a twin has of the table's schemes and metrics."""
    if what.kind in CURVES:
        return
    entries = entries_of(what.id)
    rows = [row for entry in entries for row in rows_of(entry, what.id)]
    forms = [(metric, row.scale) for row in rows for value in row.values.values() for metric in _metrics(value)]
    changed = "" if same_recipe(recipe, folder) else ", changed"
    same = _same_schemes([pair for entry in entries for pair in entry.recipe.arms()], recipe)
    for metric, scale in dict(forms or [("", 100.0)]).items():
        ours = {scheme: ours_of(metric, theirs, outcomes).values() for scheme, theirs in same.items()}
        values = {scheme: tuple(scale * value for value in found) for scheme, found in ours.items() if found}
        lost = {scheme: lost_of(theirs, outcomes) for scheme, theirs in same.items()}
        if values or any(lost.values()):
            yield Line(TWIN, f"{folder.name}{f', {metric}' if metric else ''}{changed}", values, lost=lost)


def _metrics(value: float | dict[str, float]) -> list[str]:
    return list(value) if isinstance(value, dict) else [""]


def _same_schemes(arms: Sequence[tuple[str, Arm]], twin: Recipe) -> dict[str, str]:
    """The twin's name for each scheme that it has: the one that begins and conditions alike."""

    def alike(arm: Arm) -> Arm:
        return arm.model_copy(update={"control": False, "lr": None})

    own = [(alike(arm), name) for name, arm in twin.arms()]
    return {scheme: name for scheme, arm in arms for theirs, name in own if theirs == alike(arm)}
