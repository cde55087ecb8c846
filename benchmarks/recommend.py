"""What `wc.recommend` costs before its probe, in forward passes of ViT-B, and how well the probe keeps its time.

Usage: `python benchmarks/recommend.py`

The first is processor time of `seconds=0`, which measures and predicts, ÷ that of a forward pass of one judging batch,
interleaved; the second the seconds of a call ÷ those that it was given, of a ViT-Tiny. The peak of resident memory is
that of a process of its own, beside the estimate. Writes `benchmarks/results/recommend.json` with the machine.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch.nn import functional

import wellcond as wc
from machine import machine
from wellcond._core.text_tables import table

RESULTS = Path(__file__).parent / "results" / "recommend.json"
PASSES, OFF = 20.0, 0.1
IMAGES, BATCHES, REPEATS, SECONDS = 4, 12, 3, 120.0  # of fewer a probe of this size says that they are too few


def given(name: str) -> tuple[torch.nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    images, labels = torch.randn(BATCHES, IMAGES, 3, 224, 224), torch.randint(1000, (BATCHES, IMAGES))
    return timm.create_model(name), list(zip(images, labels, strict=True))


def processor(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def stages() -> dict[str, float]:
    """Processor seconds of a forward pass, and of all that comes before the probe."""
    model, batches = given("vit_base_patch16_224")
    taken: dict[str, list[float]] = {"forward": [], "stages": []}
    for _ in range(REPEATS + 1):  # the first finds cold caches
        with torch.no_grad():
            taken["forward"].append(processor(lambda: model(batches[0][0])))
        taken["stages"].append(
            processor(lambda: wc.recommend(model, batches, loss=functional.cross_entropy, seconds=0))
        )
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def in_memory(what: str) -> int:
    """Bytes that this process has in memory (`VmRSS`), or had at most since its peak was reset (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(what)).split()[1])


def probed(line: object = None) -> tuple[float, int, int]:
    """Seconds of a probe, the peak of resident memory that it added, and the estimate of that."""
    torch.set_num_threads(1)
    model, batches = given("vit_tiny_patch16_224")
    functional.cross_entropy(model(batches[0][0]), batches[0][1])  # libraries that load on the way
    Path("/proc/self/clear_refs").write_text(
        "5"
    )  # the peak of what was imported, or of the process before, is not asked
    before = in_memory("VmRSS")
    found = wc.recommend(model, batches, loss=functional.cross_entropy, seconds=SECONDS)
    peak = in_memory("VmHWM")
    assert found.probe.last is not None, found.probe.note
    return found.probe.seconds, peak - before, found.memory


def main() -> None:
    torch.set_num_threads(1)
    taken = stages()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, peak, estimate = pool.apply(probed)
    passes = taken["stages"] / taken["forward"]
    rows = [
        ["measuring and predicting ÷ a forward pass of ViT-B", f"{passes:.1f}", f"{PASSES:g}"],
        ["probe's seconds ÷ those given, ViT-Tiny", f"{seconds / SECONDS:.3f}", f"{1 - OFF:g} to {1 + OFF:g}"],
        ["peak memory ÷ its estimate, ViT-Tiny", f"{peak / estimate:.2f}", "1"],
    ]
    print(table(["recommend", "ratio", "bar"], rows))
    met = passes <= PASSES and abs(seconds / SECONDS - 1) <= OFF and peak <= estimate
    print("\nbars met" if met else "\nbars not met")
    record = {"machine": machine() | {"threads": 1}, "seconds": taken, "passes": passes}
    record |= {"probe": {"given": SECONDS, "taken": seconds, "peak": peak, "estimate": estimate}}
    RESULTS.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
