"""The exact condition number of one head's Jacobian: time and memory against automatic differentiation, in one run.

Usage: `python benchmarks/jacobian.py [--quick]`

Each measurement is a process of its own, so that its peak memory is its own. Prints a table and writes
`benchmarks/results/jacobian.json` with the machine. `--quick` leaves out the ViT-B head and the strengths.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from machine import machine
from wellcond import jacobian
from wellcond._core.text_tables import table

RESULTS = Path(__file__).parent / "results" / "jacobian.json"
BARS = {"gram": 50.0, "factor": 25.0}
MEMORY_BAR = 1 / 5
SMALL, BASE = (65, 192, 64), (197, 768, 64)


def head(n: int, d_model: int, d: int) -> jacobian.Head:
    """Normalised random tokens, and weights with the default scale of a ViT."""
    torch.manual_seed(0)
    x = torch.nn.functional.layer_norm(torch.randn(n, d_model, dtype=torch.float64), (d_model,))
    return jacobian.softmax_head(x, *torch.randn(3, d_model, d, dtype=torch.float64) * 0.02)


def by_autograd(n: int, d_model: int, d: int) -> float:
    """What a user would do: `jacrev`, then all singular values."""
    given = head(n, d_model, d)
    x, weights = given.tokens["query"][0], tuple(given.weights.values())

    def attend(w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x @ w_q) @ (x @ w_k).T / math.sqrt(d), -1) @ (x @ w_v)

    blocks = torch.func.jacrev(attend, argnums=(0, 1, 2))(*weights)
    sigma = torch.linalg.svdvals(torch.cat([block.reshape(n * d, -1) for block in blocks], 1))
    return float(sigma[0] / sigma[-1])


def measure(method: str, n: int, d_model: int, d: int) -> dict[str, Any]:
    """Seconds, peak memory above what the process had before, and κ."""
    warm = torch.randn(256, 256, dtype=torch.float64)
    torch.linalg.eigvalsh(warm @ warm.T)
    jacobian.spectrum(head(8, 12, 4), method="auto")
    before = _resident()
    peak = _Peak()
    start = time.perf_counter()
    kappa = by_autograd(n, d_model, d) if method == "autograd" else _kappa(method, n, d_model, d)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": peak.stop() - before, "kappa": kappa}


def _kappa(method: str, n: int, d_model: int, d: int) -> float | None:
    return jacobian.spectrum(head(n, d_model, d), method=method).value


class _Peak:
    """The largest resident memory while it runs, looked at every few milliseconds."""

    def __init__(self) -> None:
        self.largest, self.running = _resident(), True
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        while self.running:
            self.largest = max(self.largest, _resident())
            time.sleep(0.003)

    def stop(self) -> int:
        self.running = False
        self.thread.join()
        return self.largest


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def in_process(method: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--measure", method, *map(str, shape)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def median_of(method: str, shape: tuple[int, int, int], repeats: int) -> dict[str, Any]:
    """The median time of several processes."""
    runs = [in_process(method, shape) for _ in range(repeats)]
    return runs[0] | {"seconds": statistics.median(run["seconds"] for run in runs), "runs": repeats}


def exponents(method: str) -> dict[str, Any]:
    """Growth of the time with N (at d = 32) and with d (at N = 64): slopes between the largest two sizes and a fit."""
    by_n = {n: median_of(method, (n, 192, 32), 3)["seconds"] for n in (32, 64, 96, 128)}
    by_d = {d: median_of(method, (64, 192, d), 3)["seconds"] for d in (16, 32, 48, 64)}
    return {
        "N": {"seconds": by_n, "exponent": _slope(by_n)},
        "d": {"seconds": by_d, "exponent": _slope(by_d)},
    }


def _slope(points: dict[int, float]) -> float:
    """Least squares in logarithms."""
    x, y = [math.log(k) for k in points], [math.log(v) for v in points.values()]
    return statistics.covariance(x, y) / statistics.variance(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", nargs=4)
    options = parser.parse_args()
    if options.measure:
        method, *shape = options.measure
        print(json.dumps(measure(method, *map(int, shape))))
        return
    methods = ("autograd", "gram", "factor")
    small = {method: median_of(method, SMALL, 1 if method == "autograd" else 3) for method in methods}
    speed = {m: small["autograd"]["seconds"] / small[m]["seconds"] for m in BARS}
    memory = {m: small[m]["bytes"] / small["autograd"]["bytes"] for m in BARS}
    record: dict[str, Any] = {
        "machine": machine() | {"threads": torch.get_num_threads()},
        "head": dict(zip("NDd", SMALL, strict=True)) | {"measured": small, "speed-up": speed, "memory ratio": memory},
    }
    rows = [
        ["autograd", f"{small['autograd']['seconds']:.1f} s", f"{small['autograd']['bytes'] / 2**30:.2f} GiB", "", ""]
    ]
    rows += [
        [
            m,
            f"{small[m]['seconds']:.2f} s",
            f"{small[m]['bytes'] / 2**30:.2f} GiB",
            f"{speed[m]:.0f}",
            f"{memory[m]:.2f}",
        ]
        for m in BARS
    ]
    print(table([f"N, D, d = {SMALL}", "time", "memory", "times faster", "memory ratio"], rows))
    if not options.quick:
        base = {method: in_process(method, BASE) for method in BARS}
        record["ViT-B head"] = dict(zip("NDd", BASE, strict=True)) | {"measured": base}
        shown = [[m, f"{r['seconds']:.0f} s", f"{r['bytes'] / 2**30:.1f} GiB"] for m, r in base.items()]
        print("\n" + table([f"N, D, d = {BASE}", "time", "memory"], shown))
        record["growth"] = {method: exponents(method) for method in BARS}
        grown = [[m, f"N^{g['N']['exponent']:.1f}", f"d^{g['d']['exponent']:.1f}"] for m, g in record["growth"].items()]
        print("\n" + table(["growth", "", ""], grown))
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")
    met = all(speed[m] >= bar for m, bar in BARS.items()) and all(ratio <= MEMORY_BAR for ratio in memory.values())
    print("\nbars met" if met else f"\nbars not met: {BARS} times faster with {MEMORY_BAR} of the memory")


if __name__ == "__main__":
    main()
