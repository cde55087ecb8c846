"""Try the blocks of `wc.head_blocks` on every model of the census: `python -m tests.optim.block_census`.

Each layer's blocks are held to what its module computes by `wc.optim.check_blocks`, and to the arithmetic of storage:
the blocks of a parameter hold each of its numbers once, and each block is its head of the view. A line a model is kept
in `build/census-blocks.jsonl`; stopped, it goes on where it was.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

import wellcond as wc
from tests.census.__main__ import TooSlow, at_most, members
from tests.census.record import ROOT
from tests.census.transformers_models import CannotBuild
from wellcond._core.progress import bar
from wellcond.attention.find import from_structure
from wellcond.attention.observe import observe
from wellcond.errors import WellcondError

CACHE = ROOT / "build" / "census-blocks.jsonl"
LIMIT = 120  # seconds for one model


def examine(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return how many layers of a model have the right blocks, what is wrong, and what could not be tried."""
    check = wc.optim.check_blocks(model, inputs)
    wrong = [f"{one.layer}: {one.reason}" for one in check.layers if one.checked and one.reason]
    layers = list(observe(model, from_structure(model), inputs).layers)
    blocks = wc.head_blocks(model, layers=layers)
    owners = {(layer.name, p.weight.path): layer for layer in layers for _, p in layer.projections()}
    for name, parameter in model.named_parameters():
        parts = blocks.get(name, ())
        if any(part.layout is not None for part in parts):
            wrong += [] if once(parts, parameter) else [f"{name}: a number is in no block, or in two"]
            wrong += [
                f"{name}: {p.role} {p.head}" for p in parts if p.role and not same(p, parameter, owners[p.layer, name])
            ]
    return {
        "layers": len(check.layers),
        "right": sum(one.checked and not one.reason for one in check.layers),
        "wrong": wrong,
        "untried": [one.reason for one in check.layers if not one.checked],
    }


def once(parts: tuple[Any, ...], parameter: Tensor) -> bool:
    """Whether every number of a parameter is in one block."""
    count = torch.zeros(parameter.shape, dtype=torch.int32)
    for part in parts:
        part.view(count).add_(1)
    return bool((count == 1).all())


def same(part: Any, parameter: Tensor, layer: Any) -> bool:
    """Whether a block is its head of the view, in either orientation."""
    view = part.view(parameter.detach()).flatten().sort().values
    return torch.equal(view, getattr(layer, part.role).read()[part.head].flatten().sort().values)


def main() -> None:
    warnings.simplefilter("ignore")
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.loads(line) for line in CACHE.read_text().splitlines()] if CACHE.exists() else []
    done = {(line["library"], line["name"]) for line in kept}
    with CACHE.open("a") as lines:
        for (library, name), build in bar(list(members().items()), "blocks", unit="model"):
            if (library, name) in done:
                continue
            found: dict[str, Any] = {}
            try:
                with at_most(LIMIT):
                    found = examine(*build(name))
            except (CannotBuild, WellcondError) as problem:
                found = {"error": f"{problem}"[:200]}
            except TooSlow:
                found = {"error": f"takes more than {LIMIT} s"}
            except Exception as problem:  # a crash is a finding
                found = {"crash": f"{type(problem).__name__}: {problem}"[:200]}
            kept.append({"library": library, "name": name, **found})
            lines.write(json.dumps(kept[-1]) + "\n")
            lines.flush()
    for library in ("transformers", "timm"):
        own = [line for line in kept if line["library"] == library]
        ran = [line for line in own if "layers" in line]
        total, right = (sum(line[key] for line in ran) for key in ("layers", "right"))
        print(f"{library}: {len(ran)} models, {total} layers, blocks right in {right}")
        for key in ("wrong", "untried"):
            for words, count in Counter(text.split(": ")[-1][:90] for line in ran for text in line[key]).most_common(
                12
            ):
                print(f"  {key}: {count} × {words}")
        for line in own:
            if "crash" in line or line.get("wrong"):
                print(f"  {line['name']}: {line.get('crash') or line['wrong'][0]}")


if __name__ == "__main__":
    main()
