"""What looking costs: a diagnosis of ViT-B in forward passes, and a monitor's share of a real training run.

Usage: `python benchmarks/diagnose.py [--steps 6000]`

Prints two tables and writes `benchmarks/results/diagnose.json` with the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from sklearn.datasets import load_digits
from torch import nn

import wellcond as wc
from machine import machine
from wellcond._core.text_tables import table

RESULTS = Path(__file__).parent / "results" / "diagnose.json"
PASSES, BUDGET, OVERHEAD, RECORDS = 15.0, 0.01, 0.02, 20


def seconds(work: Callable[[], Any]) -> float:
    """Of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def of_vit_base(repeats: int = 3) -> dict[str, Any]:
    """The whole of ViT-B at batch 8, everything but κ(J) and κ(Λ), against forward passes of that batch."""
    model, batch = timm.create_model("vit_base_patch16_224").eval(), torch.randn(8, 3, 224, 224)
    with torch.no_grad():
        model(batch)
        wc.diagnose(model, batch[:1], jacobian=False, progress=False)
        passes, diagnoses = [], []
        for _ in range(repeats):  # in turns
            passes.append(seconds(lambda: model(batch)))
            diagnoses.append(seconds(lambda: wc.diagnose(model, batch, jacobian=False, progress=False)))
    forward, diagnosis = statistics.median(passes), statistics.median(diagnoses)
    return {"forward_seconds": forward, "diagnose_seconds": diagnosis, "passes": diagnosis / forward}


class Training:
    """A ViT on scikit-learn's handwritten digits, a batch of 64 a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        size: dict[str, Any] = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10}
        self.model = timm.create_model("vit_tiny_patch16_224", embed_dim=96, depth=4, num_heads=3, **size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        self.labels = torch.tensor(digits.target)
        self.generator = torch.Generator().manual_seed(0)

    def step(self) -> None:
        """Forward, backward, update."""
        chosen = torch.randint(len(self.images), (64,), generator=self.generator)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.images[chosen]), self.labels[chosen])
        loss.backward()
        self.optimizer.step()


def of_monitor(steps: int) -> dict[str, Any]:
    """A watched and an unwatched copy of one run take turns, step by step; the difference is what watching costs."""
    watched, plain = Training(), Training()
    warnings.simplefilter("ignore")
    times: dict[str, list[float]] = {"watched": [], "plain": []}
    with wc.Monitor(watched.model, watched.images[:16], budget=BUDGET) as monitor:
        counts = dict.fromkeys(monitor.schedule.tiers, 0)
        for _ in range(20):
            plain.step()
        monitor.schedule.started = time.perf_counter()
        for step in range(steps):
            if step % 2:  # whoever is second finds warm caches
                away = seconds(plain.step)
            start = time.perf_counter()
            watched.step()
            records = monitor.step()
            times["watched"].append(time.perf_counter() - start)
            if not step % 2:
                away = seconds(plain.step)
            times["plain"].append(away)
            monitor.schedule.started += away  # the other copy's time is not this run's
            for record in records:
                counts[record["tier"]] += 1
            if step >= 200 and min(counts.values()) >= RECORDS and step % 100 == 0:
                break
        reported = monitor.overhead
    overhead = sum(times["watched"]) / sum(times["plain"]) - 1
    return {
        "steps": len(times["plain"]),
        "records": counts,
        "seconds_per_step": statistics.median(times["plain"]),
        "overhead": overhead,
        "reported": reported,
        "reported_ratio": reported / overhead,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60_000)
    options = parser.parse_args()
    base, monitor = of_vit_base(), of_monitor(options.steps)
    record = {"machine": machine() | {"threads": torch.get_num_threads()}, "ViT-B batch 8": base, "monitor": monitor}
    row = [f"{base['forward_seconds']:.2f} s", f"{base['diagnose_seconds']:.2f} s", f"{base['passes']:.1f}"]
    print(table(["ViT-B, batch 8: forward", "diagnose", f"forward passes (at most {PASSES:.0f})"], [row]))
    fields = ("steps", "records", "overhead", "reported")
    shown = [[f"{monitor[f]:.3%}" if f in ("overhead", "reported") else str(monitor[f]) for f in fields]]
    print("\n" + table(["digits ViT: steps", "records", f"overhead (at most {OVERHEAD:.0%})", "its own report"], shown))
    met = base["passes"] <= PASSES and monitor["overhead"] <= OVERHEAD and min(monitor["records"].values()) >= RECORDS
    met = met and 0.5 <= monitor["reported_ratio"] <= 2
    print("\nbars met" if met else "\nbars not met")
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
