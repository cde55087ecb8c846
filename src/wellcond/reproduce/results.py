"""Tables of every published number with ours, and with those of the small versions that come with the library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wellcond._core.text_tables import markdown
from wellcond.lab.analysis.outcome import Outcome, read_outcomes, run_folders
from wellcond.lab.comparison_folder import same_recipe
from wellcond.lab.recipe.recipe import Recipe, load_recipe
from wellcond.lab.recipe.settings import ArmSettings
from wellcond.lab.recipe.stages import stages_of
from wellcond.reproduce.catalogue import CURVES, Item, item, items, published_rows, recipes_of
from wellcond.reproduce.provenance import read_provenance
from wellcond.reproduce.published_numbers import lost_of, number_text, ours_of, ours_text, published_numbers

MAX_COLUMNS = 5  # arms that have room beside each other
PUBLISHED, OURS, IN_SMALL = "published", "ours", "in small"


@dataclass(frozen=True)
class Line:
    """The numbers of one row of a table, by arm.

    Args:
        of: whose they are: published, ours by the recipe of the paper, or those of a small version.
        label: of the row; of ours with the recipe, of a small version its name.
        values: one number that was published; of the others one for each seed, in the paper's unit.
        spread: standard deviations that were published.
        lost: how the runs ended that did not finish.
    """

    of: str
    label: str
    values: Mapping[str, tuple[float, ...]]
    spread: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def cell(self, arm: str) -> str:
        """Return the text of an arm's cell."""
        values, lost = self.values.get(arm, ()), self.lost.get(arm, ())
        if not values and not lost:
            return ""
        return number_text(values[0], self.spread.get(arm)) if self.of == PUBLISHED else ours_text(values, lost)


@dataclass(frozen=True)
class Result:
    """An `Item` of the catalogue, a table or a figure, with the numbers that were published and run.

    Args:
        lines: its numbers.
        not_run: recipes of the paper that were not run, by their short names.
        small_versions: names of those that were run.
    """

    id: str
    title: str
    kind: str
    lines: tuple[Line, ...]
    not_run: tuple[str, ...]
    small_versions: tuple[str, ...]


def results(runs: Path, id: str | None = None, only: str | None = None) -> list[Result]:
    """Collect what is published, and what was run.

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
    """Write results as Markdown: a table for each that has numbers, and one for the rest.

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
    """Write a row for each line; where there are many arms, a row for each of them."""
    arms = list(dict.fromkeys(arm for line in lines for arm in line.values))
    rows = [["row", "numbers", *arms]]
    rows += [[line.label, line.of, *(line.cell(arm) for arm in arms)] for line in lines]
    header, *body = rows if len(arms) <= MAX_COLUMNS else [list(column) for column in zip(*rows, strict=True)]
    return markdown(header, body)


def _instead(result: Result) -> str:
    if result.kind == "analytic":
        return f"computed: `wellcond reproduce {result.id}`"
    if result.kind == "diagram":
        return "a drawing"
    done = [f"{IN_SMALL}: {name}" for name in result.small_versions]
    return ", ".join([*done, f"not run: {', '.join(result.not_run)}"] if result.not_run else [OURS, *done])


def _result(what: Item, runs: Path, only: str | None) -> Result:
    published, not_run = _published(what.id, runs, only)
    recipes = {name: load_recipe(name) for name in what.small_versions}
    made = {name: found for name, recipe in recipes.items() if (found := _outcomes(recipe, runs / name))}
    small = [line for name, found in made.items() for line in _small_version(what, recipes[name], runs / name, found)]
    return Result(what.id, what.title, what.kind, (*published, *small), tuple(not_run), tuple(made))


def _published(id: str, runs: Path, only: str | None) -> tuple[list[Line], list[str]]:
    """Return each row once, though several readings of the paper may give it; ours by reading."""
    found: list[Line] = []
    not_run: dict[str, None] = {}
    for entry in recipes_of(id, only):
        made = read_provenance(runs / entry.name)
        outcomes = {} if made.smoke else _outcomes(entry.recipe, runs / entry.name / "runs")
        not_run |= {} if outcomes else {entry.published.only: None}
        for row in published_rows(entry, id):
            known = published_numbers(row, outcomes)
            for label in dict.fromkeys(number.label for number in known):
                numbers = [number for number in known if number.label == label]
                spread = {n.arm: n.spread for n in numbers if n.spread is not None}
                line = Line(PUBLISHED, label, {n.arm: (n.published,) for n in numbers}, spread)
                found += [] if line in found else [line]
                ours, lost = {n.arm: n.ours for n in numbers}, {n.arm: n.lost for n in numbers}
                if any((*ours.values(), *lost.values())):
                    found.append(Line(OURS, f"{label}, {entry.name}{made.changed}", ours, lost=lost))
    return found, list(not_run)


def _outcomes(recipe: Recipe, folder: Path) -> dict[str, list[Outcome]]:
    """Return outcomes by stage; nothing where none was begun."""
    begun = [stage for _, stage in stages_of(recipe, folder) if run_folders(stage)]
    return {stage.name: read_outcomes(stage) for stage in begun}


def _small_version(what: Item, recipe: Recipe, folder: Path, outcomes: dict[str, list[Outcome]]) -> Iterator[Line]:
    """Return the lines that a small version has of the table's arms and metrics."""
    if what.kind in CURVES:
        return
    entries = recipes_of(what.id)
    rows = [row for entry in entries for row in published_rows(entry, what.id)]
    values_of = [(row, value) for row in rows for value in row.values.values()]
    forms = [(name, row.scale) for row, value in values_of for name in (value if isinstance(value, dict) else [""])]
    changed = "" if same_recipe(recipe, folder) else ", changed"
    same = _same_arms([pair for entry in entries for pair in entry.recipe.arm_settings()], recipe)
    for metric, scale in dict(forms or [("", 100.0)]).items():
        ours = {arm: ours_of(metric, theirs, outcomes).values() for arm, theirs in same.items()}
        values = {arm: tuple(scale * value for value in found) for arm, found in ours.items() if found}
        lost = {arm: lost_of(theirs, outcomes) for arm, theirs in same.items()}
        if values or any(lost.values()):
            yield Line(IN_SMALL, f"{folder.name}{f', {metric}' if metric else ''}{changed}", values, lost=lost)


def _same_arms(arms: Sequence[tuple[str, ArmSettings]], small: Recipe) -> dict[str, str]:
    """Return the small version's name for each arm that it has: the one that begins and conditions alike."""

    def alike(settings: ArmSettings) -> ArmSettings:
        return settings.model_copy(update={"control": (), "lr": None})

    own = [(alike(settings), name) for name, settings in small.arm_settings()]
    return {arm: name for arm, settings in arms for theirs, name in own if theirs == alike(settings)}
