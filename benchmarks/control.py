"""What control costs in training: steps of a ViT-Small with a look of `wc.control_` behind them, with SVDs, and plain.

Usage: `python benchmarks/control.py`

One model and one optimizer for all, as two copies of a model can differ by a per cent by where they lie in memory. A
round has its steps in an order of its own: plain ones, one with a look behind it and the step after that, which finds
other things in the caches, and one with SVDs behind it. What a look costs is how much longer those two steps take than
two plain ones of the round; medians over rounds with their 95 % intervals (of order statistics), and, as the noise,
what two plain steps of a round differ by. What control adds to steps without a look is two hooks, timed on a model of
one number, where nothing else takes time. The bar is for a run with a budget: what its looks took, as it counted.
Writes `benchmarks/results/control.json` with the machine.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from scipy.stats import binom
from torch import nn

import wellcond as wc
from machine import machine
from wellcond._core.text_tables import table

RESULTS = Path(__file__).parent / "results" / "control.json"
BAR, BUDGET = 1.01, 0.01
ROUNDS, EVERY, BUDGETED, IMAGES = 40, 20, 100, 8
BANDS: dict[str, Any] = {"beta": (0.01, 0.8), "max_logit": 100.0, "kappa": 10.0, "alarms": False}
NEVER = 10**9


def trainer(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return optimizer, step


@torch.no_grad()
def clip_by_svd(model: nn.Module, kappa: float) -> None:
    """What one writes first: every head's weight decomposed, and its small singular values raised."""
    for block in model.blocks:
        for weight in block.attn.qkv.weight.view(3 * block.attn.num_heads, -1, model.embed_dim):
            u, s, vt = torch.linalg.svd(weight, full_matrices=False)
            weight.copy_(u @ torch.diag(s.clamp_min(float(s[0]) / kappa)) @ vt)


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def hooks() -> float:
    """Seconds that control adds to a step without a look."""
    model = nn.TransformerEncoderLayer(2, 1, 2, batch_first=True)
    optimizer, step = trainer(model, torch.ones(1, 1, 2), torch.zeros(1, 2, dtype=torch.long))
    differences = []
    for _ in range(20):
        plain = statistics.median(timed(step) for _ in range(200))
        with wc.control_(model, optimizer, **BANDS, every=NEVER):
            differences.append(statistics.median(timed(step) for _ in range(200)) - plain)
    return statistics.median(differences)


def within_budget(model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], None]) -> float:
    """Seconds of looks beside those of steps, where as many looks are made as the budget has room for."""
    with wc.control_(model, optimizer, **BANDS, every=5, budget=BUDGET) as control:
        total = sum(timed(step) for _ in range(BUDGETED))
    assert control.looks > 1
    return control.seconds / (total - control.seconds)


def interval(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of a median that holds for any distribution."""
    ordered, n = sorted(values), len(values)
    low = max(int(binom.ppf(0.025, n, 0.5)) - 1, 0)
    return ordered[low], ordered[n - 1 - low]


def main() -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch16_224")
    optimizer, step = trainer(model, torch.randn(IMAGES, 3, 224, 224), torch.randint(1000, (IMAGES,)))

    def looked() -> float:
        with wc.control_(model, optimizer, **BANDS, every=1) as control:
            taken = timed(step)
        assert control.looks == 1
        return taken

    def naive() -> float:
        return timed(step) + timed(lambda: clip_by_svd(model, 10.0))

    _ = looked(), naive()  # cold caches, and views that are seen for the first time
    kinds = ["plain", "plain", "control_", "naive SVD"]
    order, rounds = random.Random(0), dict[str, list[float]]()
    for _ in range(ROUNDS):
        plain, longer = list[float](), dict[str, float]()
        for kind in order.sample(kinds, len(kinds)):
            if kind == "plain":
                plain.append(timed(step))
            else:
                longer[kind] = (looked() if kind == "control_" else naive()) + timed(step)
        usual = statistics.mean(plain)
        for kind, seconds in longer.items():
            rounds.setdefault(kind, []).append(seconds / usual - 2)
        rounds.setdefault("plain", []).append((plain[1] - plain[0]) / usual)
        rounds.setdefault("seconds of a step", []).append(usual)
    usual, added = statistics.median(rounds.pop("seconds of a step")), hooks()
    medians = {kind: statistics.median(own) for kind, own in rounds.items()}
    intervals = {kind: interval(own) for kind, own in rounds.items()}
    each = {
        kind: 1 + medians[kind] / EVERY + added / usual * (kind == "control_") for kind in ("control_", "naive SVD")
    }
    budgeted = 1 + within_budget(model, optimizer, step) + added / usual
    rows = [
        [f"{kind}, beside a step", f"{medians[kind]:.3f}", " … ".join(f"{q:.3f}" for q in intervals[kind]), ""]
        for kind in medians
    ]
    rows.append(["control_ without a look, beside a step", f"{added / usual:.6f}", "", ""])
    rows += [[f"{EVERY} steps with {kind} ÷ plain", f"{value:.4f}", "", ""] for kind, value in each.items()]
    rows.append([f"{BUDGETED} steps with budget={BUDGET:g} ÷ plain", f"{budgeted:.4f}", "", f"{BAR:g}"])
    print(table([f"ViT-S, {IMAGES} images", "median", "95 %", "at most"], rows))
    print("\nbars met" if budgeted <= BAR else "\nbars not met")
    record = {"machine": machine() | {"threads": torch.get_num_threads()}, "rounds": rounds, "hooks": added}
    record |= {"seconds of a step": usual, "ratios": each | {"control_ within its budget": budgeted}}
    RESULTS.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
