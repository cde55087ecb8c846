"""What the laboratory costs over a bare training loop: the same model, data, order, optimizer and schedule.

Usage: `python benchmarks/laboratory.py [--steps 200] [--rounds 5]`

The two take turns, and the ratio of each round is taken by itself. Both sides train with the monitor off, write no
checkpoint and do not test, so what remains is the laboratory's own work in a step: reading and dividing the batch,
seeding, steering, recording. Prints a table and writes `benchmarks/results/laboratory.json` with the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from machine import machine
from wellcond._core.text_tables import table
from wellcond.lab.comparison import Experiment, run_one
from wellcond.lab.models import lab_model
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.recipe.recipe import Recipe, load_recipe
from wellcond.lab.training.data_order import indices, learning_rate

RESULTS = Path(__file__).parent / "results" / "laboratory.json"
BAR = 1.05


def in_the_laboratory(recipe: Recipe) -> float:
    """Seconds of its steps, as it times them itself: what a run takes before and after is the same for both."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment.of(recipe, Path(folder))
        status = run_one(experiment, arms_of(recipe)[0], 0)
        assert status == "finished", experiment.outcomes()[0].error
        return experiment.outcomes()[0].seconds


def bare(recipe: Recipe) -> float:
    """Seconds of a loop that anybody would write."""
    experiment, settings = Experiment.of(recipe, Path("unused")), recipe.train
    task = experiment.task
    model = lab_model(recipe.model.name, recipe.model.options, task, 0)
    own = list(model.parameters())
    groups = [
        {"params": [p for p in own if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in own if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas)
    model.train()
    start = time.perf_counter()
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings.lr, settings)
        batch = task.train[indices(0, step, settings.batch, len(task.train))]
        output = model(**batch.inputs) if isinstance(batch.inputs, dict) else model(batch.inputs)
        task.loss(output, batch).backward()
        if settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(own, settings.clip)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - start


def quiet(name: str, steps: int) -> Recipe:
    recipe = load_recipe(name)
    train = recipe.train.model_copy(update={"steps": steps, "test_every": 10**9, "checkpoint_every": 10**9})
    return recipe.model_copy(update={"train": train, "monitor": None, "seeds": (0,)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, found = [], {}
    for name in ("digits", "fashion-mnist", "topics-text"):
        recipe = quiet(name, arguments.steps)
        bare(recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 5})}))  # warm
        pairs = [(in_the_laboratory(recipe), bare(recipe)) for _ in range(arguments.rounds)]
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        step = statistics.median(theirs for _, theirs in pairs) / arguments.steps
        found[name] = {"ratio": ratio, "bare_step_seconds": step, "pairs": pairs}
        rows.append([name, f"{1e3 * step:.1f} ms", f"{ratio:.3f}", "yes" if ratio <= BAR else "no"])
    print(table(["recipe", "bare step", "laboratory ÷ bare", f"≤ {BAR}"], rows))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"bar": BAR, "recipes": found, "machine": machine()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
