"""What an optimizer step costs: Muon per head, and whole, against `torch.optim.Muon` with AdamW beside it.

Usage: `python benchmarks/optimizers.py`

Prints a table and writes `benchmarks/results/optimizers.json` with the machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import wellcond as wc
from bench import interleaved
from machine import machine
from wellcond._core.text_tables import table

RESULTS = Path(__file__).parent / "results" / "optimizers.json"
MODELS: dict[str, Callable[[], nn.Module]] = {
    "ViT-B": lambda: timm.create_model("vit_base_patch16_224"),
    "GPT-2 small": lambda: GPT2LMHeadModel(GPT2Config()),
}
BARS = {"per head ÷ torch": 1.0}
REPEATS = 5


def torch_pair(model: nn.Module) -> Callable[[], None]:
    """The two optimizers that a user has today."""
    chosen = wc.optim.assign(model)
    muon = torch.optim.Muon([one.parameter for one in chosen.of("muon")], lr=1e-4)
    adamw = torch.optim.AdamW([one.parameter for one in chosen.of("adamw")], lr=1e-4)

    def step() -> None:
        muon.step()
        adamw.step()

    return step


def main() -> None:
    found = {}
    for name, build in MODELS.items():
        model = build()
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        contestants: dict[str, Callable[[], object]] = {
            "torch": torch_pair(model),
            "whole": wc.optim.Muon(model, lr=1e-4).step,
            "per head": wc.optim.Muon(model, lr=1e-4, per_head=True).step,
        }
        for step in contestants.values():  # which makes the moments
            step()
        found[name] = interleaved(contestants, REPEATS)
    ratios = {
        name: {f"{kind} ÷ torch": taken[kind] / taken["torch"] for kind in ("whole", "per head")}
        for name, taken in found.items()
    }
    rows = [[name, *(f"{ratio[kind]:.2f}" for kind in ratio)] for name, ratio in ratios.items()]
    print(table(["optimizer step", "whole ÷ torch", "per head ÷ torch (at most 1)"], rows))
    met = all(ratio[bar] <= most for ratio in ratios.values() for bar, most in BARS.items())
    print("\nbars met" if met else "\nbars not met")
    record = {"machine": machine() | {"threads": torch.get_num_threads()}, "seconds": found, "ratios": ratios}
    RESULTS.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
