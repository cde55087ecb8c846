"""What control costs in training: steps of a ViT-Small with `wc.control_`, with naive SVDs, and plain, in turns.

Usage: `python benchmarks/control.py`

One model and one optimizer for all, as two copies of a model can differ by a per cent by where they lie in memory. A
round is a few plain steps, as many under control, the last of them with a look, and as many with SVDs after the last.
From these follows what 20 steps with one look take, ÷ 20 plain ones of the same round; the table has medians over
rounds and their quartiles, and as the noise the plain steps of a round against those of the round before. Writes
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
ROUNDS, STEPS, EVERY, IMAGES = 10, 4, 20, 8


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

    def controlled() -> list[float]:
        bands = {"beta": (0.01, 0.8), "max_logit": 100.0, "kappa": 10.0, "every": STEPS, "alarms": False}
        with wc.control_(model, optimizer, **bands) as control:
            taken = [timed(step) for _ in range(STEPS)]
        assert control.looks == 1
        return taken

    def naive() -> list[float]:
        taken = [timed(step) for _ in range(STEPS)]
        return [*taken[:-1], taken[-1] + timed(lambda: clip_by_svd(model, 10.0))]

    controlled()  # cold caches, and views that are seen for the first time
    plain = [statistics.median(timed(step) for _ in range(STEPS))]
    ratios: dict[str, list[float]] = {"control_": [], "naive SVD": [], "plain": []}
    for _ in range(ROUNDS):
        plain.append(statistics.median(timed(step) for _ in range(STEPS)))
        ratios["plain"].append(plain[-1] / plain[-2])
        for name, run in {"control_": controlled, "naive SVD": naive}.items():
            *ordinary, last = run()
            ratios[name].append(((EVERY - 1) * statistics.median(ordinary) + last) / (EVERY * plain[-1]))
    medians = {name: statistics.median(own) for name, own in ratios.items()}
    quartiles = {name: statistics.quantiles(own, n=4)[::2] for name, own in ratios.items()}
    rows = [
        [name, f"{median:.4f}", " … ".join(f"{q:.4f}" for q in quartiles[name]), f"{BAR:g}" * (name == "control_")]
        for name, median in medians.items()
    ]
    print(table([f"{EVERY} steps of ViT-S, {IMAGES} images ÷ plain", "median", "quartiles", "at most"], rows))
    print("\nbars met" if medians["control_"] <= BAR else "\nbars not met")
    record = {"machine": machine() | {"threads": torch.get_num_threads()}, "medians": medians, "rounds": ratios}
    RESULTS.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
