"""Text and records of the catalogue: what each table needs, what was published and what is confirmed."""

from __future__ import annotations

from typing import Any

from wellcond._core import terminal
from wellcond._core.text_tables import table
from wellcond.reproduce.catalogue import Item, item, items, published_rows, recipes_of
from wellcond.reproduce.published_numbers import number_text, published_numbers
from wellcond.reproduce.published_recipe import needed_folders

STATUSES = ("confirmed", "partly", "chosen")  # the last that any of its recipes has is that of the table


def listing() -> str:
    """Return a text with one line for each table and figure."""
    rows = []
    for each in items().values():
        found = recipes_of(each.id)
        status = max((entry.published.status for entry in found), key=STATUSES.index, default="")
        folders = dict.fromkeys(folder for entry in found for folder in needed_folders(entry))
        rows.append([each.id, _short(each.title, 42), _short(", ".join(folders), 24), _published(each), status])
    return (
        f"{table(['id', 'what it shows', 'needs', 'published', 'settings'], rows)}\n\n"
        "needs: folders in that of --data. settings: confirmed by paper or code, partly, or mostly chosen.\n"
        "`wellcond reproduce ID --list` says all of it."
    )


def _published(what: Item) -> str:
    """Return the range of the published numbers; else the form they are published in."""
    rows = [row for entry in recipes_of(what.id) for row in published_rows(entry, what.id)]
    found = [number for row in rows for number in published_numbers(row, {}) if "minutes" not in number.label]
    if numbers := [number.published for number in found]:
        return f"{min(numbers):.4g} to {max(numbers):.4g}"
    return {"ablation": "in words", "epochs": "bars", "analytic": "formulas"}.get(what.kind, what.kind)


def details(id: str, only: str | None = None) -> str:
    """Describe one table or figure: its data, its published numbers, and the settings that are not confirmed."""
    what = item(id)
    parts = [f"{what.id}: {what.title}", f"needs: {what.needs or 'nothing'}"]
    parts += [f"note: {what.note}"] if what.note else []
    parts += [f"in small, on data that are there: wellcond compare {name}" for name in what.small_versions]
    numbers = []
    for entry in recipes_of(id, only):
        said = entry.published
        folders = ", ".join(needed_folders(entry)) or "nothing"
        parts.append(f"\n{entry.name} (--only {said.only}): {said.parameters:,} parameters, settings {said.status}")
        parts.append(f"  in the folder of --data: {folders}")
        parts += [_filled(f"{key}: {why}") for key, why in said.unconfirmed.items()]
        for row in published_rows(entry, id):
            numbers += published_numbers(row, {})
            parts.append(_filled(f"{row.label}: {row.source}{f'; {row.note}' if row.note else ''}"))
    if numbers:
        cells = [[each.label, each.arm, number_text(each.published, each.spread)] for each in numbers]
        parts.append(f"\n{table(['row', 'arm', 'published'], cells)}")
    return "\n".join(parts)


def _filled(text: str) -> str:
    return terminal.filled(f"  {text}", terminal.columns() or terminal.WIDTH)


def listed(id: str | None = None, only: str | None = None) -> list[dict[str, Any]]:
    """Return the whole catalogue, or one table or figure, as plain records for JSON."""
    return [
        each.model_dump()
        | {
            "recipes": [
                {"name": entry.name, **entry.published.model_dump(exclude={"smoke", "rows"})}
                | {"rows": [row.model_dump() for row in published_rows(entry, each.id)]}
                for entry in recipes_of(each.id, only)
            ]
        }
        for each in ([item(id)] if id else items().values())
    ]


def _short(text: str, width: int) -> str:
    """Cut a text to a width; on a terminal the table wraps it instead."""
    return text if terminal.columns() or len(text) <= width else text[: width - 1] + "…"
