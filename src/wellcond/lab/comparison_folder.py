"""The folder of a comparison, which belongs to one recipe: `comparison.json` and `recipe.toml`."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

import wellcond as wc
from wellcond._core.atomic import write_text
from wellcond._core.json_files import read_object
from wellcond._core.json_safe import to_json
from wellcond.errors import WellcondError
from wellcond.lab.recipe.recipe import Recipe, recipe_toml
from wellcond.lab.schema import SCHEMA, in_current_schema
from wellcond.lab.shown_layers import first_inputs
from wellcond.lab.tasks.base import Task
from wellcond.lab.versions_and_machine import versions_and_machine


def reserve_folder(
    out: Path, recipe: Recipe, task: Task, model: nn.Module, identity: Mapping[str, str] | None = None
) -> None:
    """Make a folder this recipe's, or refuse one that is another's: runs of two recipes are not mixed.

    `identity` has the hashes of what is the user's own, see `own_identity`.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WellcondError(f"the folder '{out}' cannot be made: {error}") from None
    mark, own = out / "comparison.json", _fingerprint(recipe)
    begun = _begun(mark)
    if begun and begun.get("fingerprint") != own:
        raise WellcondError(
            f"'{out}' holds the runs of another recipe (see {out / 'recipe.toml'}): give another --out, or delete it"
        )
    before = begun.get("identity", {})
    changed = [what for what, digest in (identity or {}).items() if before.get(what, digest) != digest]
    if changed:
        raise WellcondError(
            f"'{out}' holds runs from before {' and '.join(changed)} changed: give another --out, or delete it"
        )
    if not begun and any(out.iterdir()):
        raise WellcondError(f"'{out}' is not empty and holds no comparison: give another --out")
    write_text(out / "recipe.toml", recipe_toml(recipe))
    about = {
        "schema": SCHEMA,
        "fingerprint": own,
        **({"identity": dict(identity)} if identity else {}),
        "title": recipe.title or f"{recipe.model.name} on {task.name}",
        "started": begun.get("started") or datetime.now(UTC).isoformat(timespec="seconds"),
        "command": begun.get("command") or _command(),
        **versions_and_machine(),
        "task": {
            "name": task.name,
            "description": task.description,
            "metric": task.metric,
            "higher_is_better": task.higher_is_better,
        },
        "model": recipe.model.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "baseline": recipe.baseline,
        "epoch": len(task.train) / recipe.train.batch,  # in steps
        "diagram": _diagram(model, task),
    }
    write_text(mark, to_json(about) + "\n")


def _command() -> str:
    """As it was typed, if this is the command line."""
    known = Path(sys.argv[0]).stem in ("wellcond", "__main__")
    return shlex.join(["wellcond", *sys.argv[1:]]) if known else ""


def _fingerprint(recipe: Recipe) -> str:
    """Return a hash of all that decides what a run computes; more seeds or arms are still the same comparison."""
    # Each run knows its arm and its rate. Contrasts decide nothing of a run, but are not to be written after it.
    apart = {"title", "seeds", "arms", "baseline", "rates", "tuning", "surface"}
    kept = recipe.model_dump(mode="json", exclude=apart, exclude_defaults=True)
    if recipe.weights is not None:
        kept["weights"]["runs"] = str(Path(recipe.weights.runs).absolute())
    return hashlib.sha256(to_json(kept).encode()).hexdigest()[:16]


def same_recipe(recipe: Recipe, out: Path) -> bool:
    """Return whether a folder's runs are this recipe's, whatever seeds and arms there are."""
    return bool(_begun(out / "comparison.json").get("fingerprint") == _fingerprint(recipe))


def _begun(mark: Path) -> dict[str, Any]:
    """Return what an earlier call wrote, nothing if there was none."""
    found = in_current_schema(read_object(mark, "give another --out", missing={}), mark) if mark.exists() else {}
    for name in ("fingerprint", "started", "command"):
        if not isinstance(found.get(name, ""), str):
            raise WellcondError(f"'{mark}': {name} is {found[name]!r:.60}, not a text: give another --out")
    if not isinstance(found.get("identity", {}), dict):
        raise WellcondError(f"'{mark}': identity is {found['identity']!r:.60}, not a table: give another --out")
    return found


def _diagram(model: nn.Module, task: Task) -> dict[str, Any] | None:
    """The arguments of the model's own diagram, where the theory has it."""
    try:
        spot = wc.locate(model, first_inputs(model, task, 2))
    except WellcondError:
        return None
    first = spot.layers[0]
    return {
        "depth": len(spot.layers),
        "tokens": max(2, round(first.tokens)),
        "norm": first.norm,
        "mlp_gain": list(first.mlp_gain),
        "cosine": max(0.0, first.cosine_read),
    }
