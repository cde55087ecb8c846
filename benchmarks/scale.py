"""What invariants cost: κ_eq(J) against κ(J), `balance_` against `init_`, `calibrate_` against a forward pass.

Usage: `python benchmarks/scale.py`

Prints a table and writes `benchmarks/results/scale.json` with the machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import timm
import torch

import wellcond as wc
from bench import interleaved
from jacobian import SMALL, head
from machine import machine
from wellcond._core.text_tables import table
from wellcond.jacobian.gram_and_qr import by_gram
from wellcond.jacobian.head_jacobian import choose_rows, operator_of
from wellcond.jacobian.operator import Blocks

RESULTS = Path(__file__).parent / "results" / "scale.json"
BARS = {"κ_eq(J) ÷ κ(J)": 1.1, "balance_ ÷ init_ orthogonal": 2.0, "calibrate_ ÷ forward": 3.0}
REPEATS = 5
IMAGES = 4


def kappa() -> None:
    """κ(J) of a head of 65 tokens, by its Gram matrix."""
    given = head(*SMALL)
    by_gram(operator_of(given, choose_rows(given, None), "side-by-side"))


def kappa_equilibrated() -> None:
    """κ_eq(J) of the same head, its norms included."""
    given = head(*SMALL)
    j = operator_of(given, choose_rows(given, None), "side-by-side")
    assert isinstance(j, Blocks)
    by_gram(j.weighted([1 / norm for norm in j.norms()]), all_values=False)


@torch.no_grad()
def main() -> None:
    model, batch = timm.create_model("vit_base_patch16_224").eval(), torch.randn(IMAGES, 3, 224, 224)
    taken = interleaved(
        {
            "kappa": kappa,
            "kappa_eq": kappa_equilibrated,
            "init": lambda: wc.init_(model, "orthogonal", seed=0),
            "balance": lambda: wc.balance_(model),
            "forward": lambda: model(batch),
            "calibrate": lambda: wc.calibrate_(model, batch),
        },
        REPEATS,
    )
    ratios = {
        "κ_eq(J) ÷ κ(J)": taken["kappa_eq"] / taken["kappa"],
        "balance_ ÷ init_ orthogonal": taken["balance"] / taken["init"],
        "calibrate_ ÷ forward": taken["calibrate"] / taken["forward"],
    }
    print(
        table(
            ["ViT-B, and a head of 65 tokens", "ratio", "at most"],
            [[name, f"{ratio:.2f}", f"{BARS[name]:g}"] for name, ratio in ratios.items()],
        )
    )
    print("\nbars met" if all(ratio <= BARS[name] for name, ratio in ratios.items()) else "\nbars not met")
    record = {"machine": machine() | {"threads": torch.get_num_threads()}, "seconds": taken, "ratios": ratios}
    RESULTS.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
