"""Gather the evidence for `wc.recommend`: train what it chooses from, ask it, and compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wellcond._core.atomic import write_text
from wellcond._core.json_safe import to_json
from wellcond._core.progress import bar
from wellcond.lab.comparison import Experiment, prepare_comparison
from wellcond.lab.engines.engine import Engine
from wellcond.lab.evidence.advised_seeds import advised_seed
from wellcond.lab.evidence.candidate_arms import SCHEMES, SEEDS, evidence_recipe
from wellcond.lab.evidence.scores import Evidence, evidence_of, together
from wellcond.lab.recipe.recipe import Recipe

__all__ = ["RECIPES", "gather_evidence", "together"]

RECIPES = ("digits", "fashion-mnist", "topics-text", "listops")  # with a task of their own


def gather_evidence(
    recipe: Recipe,
    name: str,
    out: Path,
    engine: Engine,
    *,
    seconds: float,
    schemes: Sequence[str] = SCHEMES,
    seeds: Sequence[int] = SEEDS,
) -> Evidence:
    """Ask `wc.recommend` on every seed, train every candidate to the end, and say how well it chose.

    `out` then holds the recommendations, the runs and `evidence.json`; what is there already is not made again.

    Args:
        recipe: whose task, model and training are taken.
        name: of it.
        out: the folder.
        engine: that makes the runs.
        seconds: of each recommendation's probe.
        schemes: to choose from.
        seeds: of runs and recommendations.
    """
    plain = Experiment.of(evidence_recipe(recipe, schemes, seeds), out)
    advice = {
        seed: advised_seed(plain.recipe, plain.task, seed, seconds, schemes, out / "advice" / f"seed-{seed}")
        for seed in bar(list(seeds), f"{name}: asking")
    }
    advised = [one["best"] for one in advice.values()]
    experiment = prepare_comparison(evidence_recipe(recipe, schemes, seeds, advised), out / "trained")
    engine.run(experiment)
    found = evidence_of(name, experiment.outcomes(), advice, experiment.recipe.train.steps)
    write_text(out / "evidence.json", to_json(found.to_dict()) + "\n")
    return found
