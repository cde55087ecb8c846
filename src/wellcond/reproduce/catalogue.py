"""Catalogue of every table and figure of the two papers, and of the recipes that make it again."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from importlib import resources
from typing import Literal

from wellcond.errors import WellcondError
from wellcond.lab.recipe.settings import RecipeTable
from wellcond.reproduce.published_recipe import PublishedRecipe, PublishedRow, load_published, published_names

Kind = Literal["accuracy", "perplexity", "precision", "ablation", "time", "analytic", "curves", "epochs", "diagram"]
CURVES = ("curves", "epochs")  # kinds that are drawn


class Item(RecipeTable):
    """A table, a figure, or an appendix that tells of runs.

    Args:
        id: as in `ci-table2`.
        title: what it shows.
        kind: what is compared in it; `analytic` is computed, `diagram` has no numbers.
        needs: the data.
        note: what is odd about it.
        small_versions: comparisons that come with the library and ask the same of a small model on small data.
    """

    id: str
    title: str
    kind: Kind
    needs: str = ""
    note: str = ""
    small_versions: tuple[str, ...] = ()


@cache
def items() -> dict[str, Item]:
    """Return every table and figure by id, in the papers' order.

    >>> items()["ci-table2"].kind
    'accuracy'
    """
    text = (resources.files("wellcond.reproduce") / "catalogue.toml").read_text(encoding="utf-8")
    found = [Item.model_validate(item) for item in tomllib.loads(text)["item"]]
    return {item.id: item for item in found}


def item(name: str) -> Item:
    """Return a table or figure by its id; an unknown one is an error that names the closest.

    >>> item("ci-tabel2")
    Traceback (most recent call last):
    wellcond.errors.WellcondError: there is no 'ci-tabel2'; the closest is ci-table2 (see reproduce --list)
    """
    if name not in items():
        close = difflib.get_close_matches(name, items(), n=1)
        hint = f"; the closest is {close[0]}" if close else ""
        raise WellcondError(f"there is no '{name}'{hint} (see reproduce --list)")
    return items()[name]


@cache
def published_recipes() -> dict[str, PublishedRecipe]:
    """Return every published recipe by name."""
    return {name: load_published(name) for name in published_names()}


def recipes_of(id: str, only: str | None = None) -> list[PublishedRecipe]:
    """Return the recipes that a table or figure needs.

    Args:
        id: of the table or figure.
        only: a part of their short names: `cifar10` of `cifar10/vit-t`; or how one begins, if no part is that.

    >>> [entry.published.only for entry in recipes_of("ci-table2", "cifar10")]
    ['cifar10/vit-t']
    >>> [entry.published.only for entry in recipes_of("sc-table7", "vit-b")]
    ['imagenet/vit-b-svd']
    """
    found = [entry for entry in published_recipes().values() if published_rows(entry, id)]
    if only is None:
        return found
    names = {e.name: (e.name, e.published.only, *e.published.only.split("/")) for e in found}
    exact = [e for e in found if only in names[e.name]]
    chosen = exact or [e for e in found if any(name.startswith(f"{only}-") for name in names[e.name])]
    if not chosen:
        known = ", ".join(entry.published.only for entry in found) or "nothing: it is computed"
        raise WellcondError(f"{id} has no '{only}'; there is {known}")
    return chosen


def published_rows(entry: PublishedRecipe, id: str) -> list[PublishedRow]:
    """Return the rows of a table or figure that a recipe is published in."""
    return [row for row in entry.published.rows if row.where == id]
