"""What control costs in training: steps of a ViT-Small with `wc.control_`, with naive SVDs, and plain, in turns.

Usage: `python benchmarks/control.py`

A round is as many steps as lie between two looks; the ratio is the median over rounds of a contestant's time ÷ that of
the plain round beside it, with the quartiles of plain rounds as the noise. Prints a table and writes
`benchmarks/results/control.json` with the machine.
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


def plain() -> Callable[[], None]:
    _, _, step = trainer()
    return lambda: [step() for _ in range(EVERY)] and None


def controlled() -> Callable[[], None]:
    model, optimizer, step = trainer()
    wc.control_(model, optimizer, beta=(0.01, 0.8), max_logit=100.0, kappa=10.0, every=EVERY, budget=0.01, alarms=False)
    return lambda: [step() for _ in range(EVERY)] and None


def naive() -> Callable[[], None]:
    model, _, step = trainer()

    def run() -> None:
        for _ in range(EVERY):
            step()
        clip_by_svd(model, 10.0)

    return run


def main() -> None:
    contestants = {"plain": plain(), "control_": controlled(), "naive SVD": naive()}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(ROUNDS + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if number:  # the first round meets cold caches, and views that are seen for the first time
                taken[name].append(time.perf_counter() - start)
    ratios = {
        name: statistics.median(a / b for a, b in zip(times, taken["plain"], strict=True))
        for name, times in taken.items()
        if name != "plain"
    }
    middle = statistics.median(taken["plain"])
    noise = [q / middle for q in statistics.quantiles(taken["plain"], n=4)[::2]]
    rows = [[name, f"{ratio:.4f}", f"{BAR:g}" if name == "control_" else ""] for name, ratio in ratios.items()]
    print(table([f"{EVERY} steps of ViT-S ÷ plain", "ratio", "at most"], rows))
    print(f"plain rounds: {middle:.1f} s, quartiles {noise[0]:.3f} to {noise[1]:.3f} of it")
    print("\nbars met" if ratios["control_"] <= BAR else "\nbars not met")
    record = {
        "machine": machine() | {"threads": torch.get_num_threads()},
        "seconds": taken,
        "ratios": ratios,
        "noise": noise,
    }
    RESULTS.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
