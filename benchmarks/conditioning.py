"""Training steps with and without spectral conditioning: time and peak memory as ratios, measured in one run.

Usage: `python benchmarks/conditioning.py [--only vit|gpt2] [--repeats 9]`

Prints a table and writes `benchmarks/results/conditioning.json` with the machine. Contestants take turns, in another
order each round; a ratio is a median time ÷ the unmodified model's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.profiler import ProfilerActivity, profile

import wellcond as wc
from bench import _rounded as rounded
from machine import machine
from wellcond._core.text_tables import table
from wellcond.conditioning.storage.live_parameter import live_owners

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "conditioning.json"
BARS = {"folded shift": 1.02, "live shift": 1.03, "live polar": 1.05}
PLAIN, NAIVE = "unmodified", "naive SVD per step"
Record = dict[str, Any]


class Contestant:
    """A model, its optimizer and its batch; `step` is one training step."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], Tensor], condition: Record | None) -> None:
        self.model, self.loss = model, loss
        handle = wc.condition_(model, **condition) if condition else None
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
        if handle is not None:
            handle.attach(self.optimizer)

    def step(self) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad()
        self.loss(self.model).backward()
        self.optimizer.step()

    def seconds(self) -> float:
        """Of one step."""
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start

    def peak(self) -> int:
        """Bytes of tensors at the worst moment of a step: what is there before it, plus what the allocator reports."""
        self.optimizer.zero_grad()
        states = [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
        kept = [live.kept for _, _, _, live in live_owners(self.model) if live.kept is not None]
        there = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in [*self.model.parameters(), *self.model.buffers(), *states, *kept]
        }
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            self.step()
        now = highest = 0
        events = profiler.profiler.kineto_results.events()
        for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
            now += event.nbytes()
            highest = max(highest, now)
        return sum(there.values()) + highest


class Svd(nn.Module):
    """The paper's Theorem 3.5 as one would write it: an SVD of every head at every forward pass."""

    def __init__(self, heads: int, transposed: bool) -> None:
        super().__init__()
        self.heads, self.transposed = heads, transposed

    def forward(self, weight: Tensor) -> Tensor:
        """W + C."""
        with torch.no_grad():
            rows = weight.T if self.transposed else weight
            u, s, vt = torch.linalg.svd(rows.reshape(3 * self.heads, -1, rows.shape[1]), full_matrices=False)
            correction = (s[:, :1, None] * (u @ vt)).reshape(rows.shape)
        return weight + (correction.T if self.transposed else correction)


def naive(model: nn.Module) -> nn.Module:
    for layer in wc.attention_layers(model):
        owner = model.get_submodule(layer.query.weight.path.rpartition(".")[0])
        parametrize.register_parametrization(owner, "weight", Svd(layer.num_heads, layer.query.weight.layout.axis == 1))
    return model


def vit() -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor], str]:
    images, labels = torch.randn(8, 3, 224, 224), torch.randint(1000, (8,))
    model = "vit_small_patch16_224"
    return lambda: timm.create_model(model), lambda m: functional.cross_entropy(m(images), labels), f"{model}, batch 8"


def gpt2() -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor], str]:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = torch.randint(50257, (4, 256))
    config = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    return lambda: GPT2LMHeadModel(config), lambda m: m(tokens, labels=tokens).loss, "GPT-2 small, length 256, batch 4"


def race(build: Callable[[], nn.Module], loss: Callable[[nn.Module], Tensor], title: str, repeats: int) -> Record:
    conditions: dict[str, Record | None] = {
        PLAIN: None,
        "folded shift": {"method": "shift", "strength": 1},
        "live shift": {"method": "shift", "strength": 1, "mode": "live"},
        "live polar": {"method": "polar"},
        NAIVE: None,
    }
    contestants = {}
    for name, condition in conditions.items():
        torch.manual_seed(0)
        contestants[name] = Contestant(naive(build()) if name == NAIVE else build(), loss, condition)
    for contestant in contestants.values():
        contestant.step()  # the optimizer's state, and warm caches
        contestant.step()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for turn in range(repeats):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            times[name].append(contestants[name].seconds())
    peaks = {name: contestant.peak() for name, contestant in contestants.items()}
    seconds = {name: statistics.median(values) for name, values in times.items()}
    ratio = {name: seconds[name] / seconds[PLAIN] for name in contestants}
    memory = {name: peaks[name] / peaks[PLAIN] for name in contestants}
    rows = [
        [
            name,
            f"{seconds[name]:.3f} s",
            f"{ratio[name]:.3f}",
            f"{peaks[name] / 2**20:.0f} MB",
            f"{memory[name]:.3f}",
            f"≤ {BARS[name]}" if name in BARS else "",
        ]
        for name in contestants
    ]
    print(f"\n{title}: a training step, {torch.get_num_threads()} threads, median of {repeats}")
    print(table(["", "time", "÷ unmodified", "peak memory", "÷ unmodified", "bar"], rows))
    passed = all(ratio[name] <= bar and memory[name] <= bar for name, bar in BARS.items())
    return {
        "title": title,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "time": ratio,
        "memory": memory,
        "passed": passed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["vit", "gpt2"], help="one model; the other keeps its last record")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    results: Record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    chosen = {"vit": vit, "gpt2": gpt2}
    names = [arguments.only] if arguments.only else list(chosen)
    for name in names:
        results[name] = race(*chosen[name](), arguments.repeats) | {"machine": machine()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rounded(results), indent=2, sort_keys=True) + "\n")
    print(f"\nwrote {RESULTS.relative_to(ROOT)}")
    missed = [name for name in names if not results[name]["passed"]]
    if missed:
        print(f"missed its bar: {', '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
