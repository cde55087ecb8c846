"""Does the diagram predict training? Small post-norm Transformers over a grid, each trained, laid over the prediction.

Usage: `python docs/predict_training.py docs/img/prediction.png [--steps 150] [--jobs 2]`

Twelve blocks, width 48, sixteen tokens (patches of the handwritten digits), six β and four strengths of the skip around
attention, two seeds. A cell trained if its test accuracy is above one half (chance is a tenth) in both seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

import wellcond as wc
from wellcond.lab.tasks import task
from wellcond.lab.training.data_order import indices, learning_rate
from wellcond.plots.diagram import criteria, draw_diagram
from wellcond.plots.figure_files import new_figure, save

WIDTH, DEPTH, TOKENS, GAIN, MLP = 48, 12, 16, 0.8, (1.5, 1.5)
BETAS = (0.3, 0.8, 1.4, 2.2, 3.2, 4.5)
SKIPS = (0.3, 0.7, 1.2, 2.0)
SEEDS = (0, 1)
TRAINED = 0.5


class Block(nn.Module):
    """Post-norm: the norm of α x + attention, then of x + MLP; β and the gains are those of the theory."""

    def __init__(self, beta: float, skip: float) -> None:
        super().__init__()
        self.skip = skip
        scale = math.sqrt(beta * math.sqrt(math.log(TOKENS)) / WIDTH)
        self.query, self.key, self.value, self.output = (
            nn.Parameter(std * torch.randn(WIDTH, WIDTH))
            for std in (scale, scale, math.sqrt(GAIN / WIDTH), math.sqrt(1 / WIDTH))
        )
        self.first = nn.Parameter(math.sqrt(MLP[0] / WIDTH) * torch.randn(WIDTH, 4 * WIDTH))
        self.second = nn.Parameter(math.sqrt(MLP[1] / (4 * WIDTH)) * torch.randn(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D)` to the same."""
        a = torch.softmax((x @ self.query) @ (x @ self.key).mT / math.sqrt(WIDTH), dim=-1)
        x = self.norms[0](self.skip * x + a @ x @ self.value @ self.output)
        y: Tensor = self.norms[1](x + nn.functional.gelu(x @ self.first) @ self.second)
        return y


class Classifier(nn.Module):
    """Patches of 2 × 2 pixels with learned positions, the blocks, the mean token, ten classes."""

    def __init__(self, beta: float, skip: float) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, WIDTH, 2, 2)
        self.positions = nn.Parameter(0.5 * torch.randn(TOKENS, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.blocks = nn.Sequential(*(Block(beta, skip) for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, 10)

    def tokens(self, images: Tensor) -> Tensor:
        """What enters the first block."""
        x: Tensor = self.norm(self.embed(images).flatten(2).mT + self.positions)
        return x

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        x: Tensor = self.head(self.blocks(self.tokens(images)).mean(1))
        return x


def accuracy(cell: tuple[float, float, int, int]) -> float:
    """Train one cell; the accuracy on the test set."""
    beta, skip, seed, steps = cell
    torch.set_num_threads(1)
    digits = task("digits")
    torch.manual_seed(seed)
    model = Classifier(beta, skip)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps, 1e-3, 0.0, 0.1, "cosine")
        batch = digits.train[indices(seed, step, 32, len(digits.train))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.inputs), batch.targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        test = digits.test[torch.arange(len(digits.test))]
        return float((model(test.inputs).argmax(-1) == test.targets).double().mean())


def similarity() -> float:
    """Mean cosine of the tokens that enter the first block."""
    torch.manual_seed(0)
    x = Classifier(1.0, 1.0).tokens(task("digits").test[torch.arange(64)].inputs).detach()
    gram = nn.functional.normalize(x, dim=-1) @ nn.functional.normalize(x, dim=-1).mT
    return float((gram.sum((1, 2)) - TOKENS).mean() / (TOKENS * (TOKENS - 1)))


def diagram(theory: str, cosine: float) -> wc.Diagram:
    """The prediction for these blocks."""
    return wc.trainability(
        ("beta", 0.1, 5.0),
        ("residual_attention", 0.2, 2.5),
        resolution=100,
        depth=DEPTH,
        tokens=TOKENS,
        value_gain=GAIN,
        mlp_gain=MLP,
        norm="post",
        activation="gelu",
        cosine=cosine,
        theory=theory,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--redraw", action="store_true", help="from the .json beside the picture, without training")
    options = parser.parse_args()
    kept = options.picture.with_suffix(".json")
    results: dict[tuple[float, float], list[float]] = {}
    if options.redraw:
        results = {(cell["beta"], cell["skip"]): cell["seeds"] for cell in json.loads(kept.read_text())["accuracy"]}
    else:
        cells = [(b, s, seed, options.steps) for b in BETAS for s in SKIPS for seed in SEEDS]
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            found = list(tqdm(pool.imap(accuracy, cells), total=len(cells), desc="cells", leave=False, disable=None))
        for (beta, skip, _, _), value in zip(cells, found, strict=True):
            results.setdefault((beta, skip), []).append(value)
    cosine = similarity()
    figure = new_figure(12.5, 5.6)
    counted: dict[str, Any] = {"cosine at the input": cosine, "cells": len(results)}
    for axes, theory in zip(figure.subplots(1, 2), ("finite", "asymptotic"), strict=True):
        dia = diagram(theory, cosine)
        draw_diagram(axes, dia)
        agree = 0
        for (beta, skip), values in results.items():
            trained = min(values) > TRAINED
            said = dia.verdict(beta=beta, residual_attention=skip) == "trainable"
            agree += trained == said
            shape, colour = ("o", "#1b7837") if trained else ("X", "#b2182b")
            axes.plot(beta, skip, shape, color=colour, markersize=8, zorder=5)
            label = f"{100 * sum(values) / len(values):.0f}"
            axes.annotate(label, (beta, skip), (0, 7), textcoords="offset points", ha="center", fontsize=7, zorder=5)
        counted[theory] = agree
        title = "exact for 16 tokens" if theory == "finite" else "infinitely many tokens"
        axes.set_title(f"{title}: agrees in {agree} of {len(results)} cells", fontsize=10)
    note = (
        f"Green: trained (test accuracy above {TRAINED:.0%} in both seeds; the number is the mean). Red cross: not.\n"
    )
    figure.supxlabel(note + criteria(dia.thresholds, DEPTH), fontsize=7.5, color="#555555")
    save(figure, options.picture)
    counted["accuracy"] = [{"beta": b, "skip": s, "seeds": v} for (b, s), v in results.items()]
    kept.write_text(json.dumps(counted, indent=1) + "\n")
    print(json.dumps({name: value for name, value in counted.items() if name != "accuracy"}))


if __name__ == "__main__":
    main()
