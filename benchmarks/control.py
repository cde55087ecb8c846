"""What control costs in training: steps of a ViT-Small with `wc.control_`, with naive SVDs, and plain, in turns.

Usage: `python benchmarks/control.py`

One model and one optimizer for all, as two copies of a model can differ by a per cent by where they lie in memory. A
round is as many steps as lie between two looks, and has one. The ratio is the median over rounds of a contestant's time
÷ the mean of the two plain rounds around it; that of a plain round in the same place is the noise. Prints a table and
writes `benchmarks/results/control.json` with the machine.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch import nn

import wellcond as wc
from machine import machine
from wellcond._core.text_tables import table

RESULTS = Path(__file__).parent / "results" / "control.json"
BAR = 1.01
ROUNDS, EVERY, IMAGES = 3, 20, 8


def trainer() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch16_224")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images, labels = torch.randn(IMAGES, 3, 224, 224), torch.randint(1000, (IMAGES,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return model, optimizer, step


@torch.no_grad()
def clip_by_svd(model: nn.Module, kappa: float) -> None:
    """What one writes first: every head's weight decomposed, and its small singular values raised."""
    for block in model.blocks:
        for weight in block.attn.qkv.weight.view(3 * block.attn.num_heads, -1, model.embed_dim):
            u, s, vt = torch.linalg.svd(weight, full_matrices=False)
            weight.copy_(u @ torch.diag(s.clamp_min(float(s[0]) / kappa)) @ vt)


def main() -> None:
    model, optimizer, step = trainer()

    def plain() -> None:
        for _ in range(EVERY):
            step()

    def controlled() -> None:
        bands = {"beta": (0.01, 0.8), "max_logit": 100.0, "kappa": 10.0, "every": EVERY, "budget": 0.01}
        with wc.control_(model, optimizer, **bands, alarms=False) as control:
            plain()
        assert control.looks == 1

    def naive() -> None:
        plain()
        clip_by_svd(model, 10.0)

    contestants = {"control_": controlled, "naive SVD": naive, "plain": plain}
    ratios: dict[str, list[float]] = {name: [] for name in contestants}
    plain()  # cold caches, and views that are seen for the first time
    controlled()
    before = timed(plain)
    for _ in range(ROUNDS):
        for name, run in contestants.items():
            taken, after = timed(run), timed(plain)
            ratios[name].append(2 * taken / (before + after))
            before = after
    medians = {name: statistics.median(own) for name, own in ratios.items()}
    rows = [
        [name, f"{median:.4f}", f"{min(ratios[name]):.4f} … {max(ratios[name]):.4f}", f"{BAR:g}" * (name == "control_")]
        for name, median in medians.items()
    ]
    print(table([f"{EVERY} steps of ViT-S, {IMAGES} images ÷ plain", "median", "rounds", "at most"], rows))
    print("\nbars met" if medians["control_"] <= BAR else "\nbars not met")
    record = {"machine": machine() | {"threads": torch.get_num_threads()}, "medians": medians, "rounds": ratios}
    RESULTS.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
