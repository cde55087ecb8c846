"""What trust costs: views of ViT-B from structure, verified by a pass, and found by what the model does.

Usage: `python benchmarks/views.py`

Prints a table and writes `benchmarks/results/views.json` with the machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import timm
import torch

import wellcond as wc
from bench import interleaved
from machine import machine
from wellcond._core.text_tables import table
from wellcond.attention.capture import capture
from wellcond.attention.recorded.discover import discover

RESULTS = Path(__file__).parent / "results" / "views.json"
BARS = {"verified": 1.0, "found": 5.0}  # forward passes: beyond the one that is made anyway, and in all
REPEATS = 5


@torch.no_grad()
def main() -> None:
    model, batch = timm.create_model("vit_base_patch16_224").eval(), torch.randn(1, 3, 224, 224)
    layers = wc.attention_layers(model)
    taken = interleaved(
        {
            "forward": lambda: model(batch),
            "captured": lambda: capture(layers, batch),
            "structure": lambda: wc.attention_layers(model),
            "verified": lambda: wc.attention_layers(model, batch),
            "found": lambda: discover(model, batch),
        },
        REPEATS,
    )
    passes = {
        "structure": taken["structure"] / taken["forward"],
        "verified": (taken["verified"] - taken["captured"]) / taken["forward"],
        "found": taken["found"] / taken["forward"],
    }
    rows = [
        ["from structure", f"{passes['structure']:.3f}", ""],
        ["verification, beside the pass that a diagnosis makes", f"{passes['verified']:.2f}", f"{BARS['verified']:g}"],
        ["found by what the model does", f"{passes['found']:.2f}", f"{BARS['found']:g}"],
    ]
    print(table(["views of ViT-B, one image", "forward passes", "at most"], rows))
    print("\nbars met" if all(passes[name] <= bar for name, bar in BARS.items()) else "\nbars not met")
    record = {"machine": machine() | {"threads": torch.get_num_threads()}, "seconds": taken, "passes": passes}
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
