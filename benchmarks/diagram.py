"""A trainability diagram of 200 × 200 cells and 100 layers, on one thread, against a loop over scalar updates.

Usage: `python benchmarks/diagram.py [--cells 2000]`

Prints a table and writes `benchmarks/results/diagram.json` with the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import wellcond as wc
from machine import machine
from wellcond._core.text_tables import table
from wellcond.propagation import lookup_tables as tables
from wellcond.propagation.gaussian_lattice import upper_end

RESULTS = Path(__file__).parent / "results" / "diagram.json"
SECONDS, FASTER, AGREES = 1.5, 50.0, 2e-4
AXES: dict[str, Any] = {"x": ("beta", 0.05, 4), "y": ("residual_attention", 0.1, 2)}
STACK: dict[str, Any] = {"depth": 100, "tokens": 256, "norm": "post"}


def seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """The least of some calls, each with nothing remembered."""
    best = math.inf
    for _ in range(repeats):
        for memory in (tables._both, tables._planted, upper_end):
            memory.cache_clear()
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def update(
    p: float, beta: float, tokens: int, alpha: float, gain: float, mlp: tuple[float, float], bias: float
) -> float:
    """One asymptotic post-norm ReLU block in plain Python: the cosine after it."""
    heat, critical = beta * beta * math.log(tokens), math.sqrt(2 * math.log(tokens))
    spread = max(1 - p, 0.0)
    deviation = math.sqrt(heat * spread)
    y = 1 - critical / deviation if deviation > critical else 0.0
    q_mid = alpha * alpha + gain * (p + spread * y) + bias
    p_mid = (alpha * alpha + gain) * p + bias
    c_mid = min(p_mid / q_mid, 1.0)
    q_hidden, p_hidden = mlp[0] + bias, mlp[0] * c_mid + bias
    c = min(p_hidden / q_hidden, 1.0)
    kernel = q_hidden / (2 * math.pi) * (math.sqrt(1 - c * c) + c * (math.pi - math.acos(c)))
    return min((c_mid + mlp[1] * kernel + bias) / (1 + mlp[1] * q_hidden / 2 + bias), 1.0)


def scalar(beta: float, alpha: float) -> float:
    """All of a stack's updates, one after the other."""
    p = 0.2
    for _ in range(STACK["depth"]):
        p = update(p, beta, STACK["tokens"], alpha, 1.0, (1.0, 1.0), 0.0)
    return p


def agreement(dia: wc.Diagram, count: int) -> float:
    """The largest difference of the final cosine from `wc.propagate`, over random cells."""
    chosen, worst = random.Random(0), 0.0
    for _ in range(count):
        i, j = (chosen.randrange(n) for n in dia.phase.shape)
        at = {dia.names[0]: float(dia.x[j]), dia.names[1]: float(dia.y[i])}
        exact = wc.propagate(**{**dia.parameters, **at}).cosine[-1]
        worst = max(worst, abs(float(dia.cosine[i, j] - exact)))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=2000, help="Cells of the scalar loop, scaled to all.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    finite = {name: seconds(lambda n=name: wc.trainability(**AXES, **STACK, activation=n)) for name in ("relu", "tanh")}
    asymptotic: dict[str, Any] = {**STACK, "activation": "relu", "theory": "asymptotic"}
    forward = seconds(lambda: wc.trainability(**AXES, **asymptotic, gradients=False))
    dia = wc.trainability(**AXES, **asymptotic, gradients=False)
    cells = [(i % 200, (7 * i) % 200) for i in range(options.cells)]
    points = [(float(dia.x[j]), float(dia.y[i])) for i, j in cells]
    start = time.perf_counter()
    looped = [scalar(beta, alpha) for beta, alpha in points]
    loop = (time.perf_counter() - start) * dia.phase.numel() / len(cells)
    difference = max(abs(float(dia.cosine[i, j]) - p) for (i, j), p in zip(cells, looped, strict=True))
    exact = agreement(wc.trainability(**AXES, **STACK, activation="tanh"), 6)
    record = {
        "machine": machine() | {"threads": 1},
        "finite_seconds": finite,
        "asymptotic_seconds": forward,
        "loop_seconds": loop,
        "faster": loop / forward,
        "difference_from_loop": difference,
        "difference_from_recursion": exact,
    }
    rows = [
        ["finite, forward and backward, relu", f"{finite['relu']:.2f} s", f"at most {SECONDS} s"],
        ["finite, forward and backward, tanh", f"{finite['tanh']:.2f} s", f"at most {SECONDS} s"],
        ["asymptotic, forward, relu", f"{forward:.3f} s", ""],
        ["the same in a loop over scalar updates", f"{loop:.1f} s", f"{loop / forward:.0f} ×, at least {FASTER:.0f} ×"],
        ["difference from that loop", f"{difference:.0e}", ""],
        ["difference from the exact recursion", f"{exact:.0e}", f"at most {AGREES:.0e}"],
    ]
    print(table(["200 × 200 cells, 100 layers, one thread", "measured", "bar"], rows))
    met = max(finite.values()) <= SECONDS and loop / forward >= FASTER and max(exact, difference) <= AGREES
    print("\nbars met" if met else "\nbars not met")
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
