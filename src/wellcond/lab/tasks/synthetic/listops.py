"""ListOps of the Long Range Arena, generated here."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wellcond._core.keyed_random import key
from wellcond._core.progress import bar
from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import choice, whole
from wellcond.lab.tasks.generated import Generated, GeneratedExamples
from wellcond.lab.tasks.registry import register_task
from wellcond.lab.tasks.sequences import Ragged
from wellcond.lab.tasks.synthetic.listops_grammar import IDS, SYMBOLS, Grammar

NUMBERS = ("depth", "arguments", "shortest", "longest", "tokens", "train_examples", "test_examples")
PRESETS = {  # numbers by size
    "tiny": (6, 5, 11, 128, 128, 4_000, 1_000),
    "full": (10, 10, 501, 1999, 2000, 96_000, 2_000),
}


@register_task("listops", "the value of nested list operations, generated as in the Long Range Arena")
def listops(
    *,
    size: str = "tiny",
    seed: int = 0,
    folder: str | Path | None = None,
    depth: int | None = None,
    arguments: int | None = None,
    shortest: int | None = None,
    longest: int | None = None,
    train_examples: int | None = None,
    test_examples: int | None = None,
    tokens: int | None = None,
    held_out: str = "test",
) -> Task:
    """Value of expressions like `[MAX 2 9 [MIN 4 7 ] 0 ]`, 10 classes; all distinct; see `Grammar`.

    Generated when an example is first asked for.

    Args:
        size: tiny (11 to 128 tokens, depth 6, 5 arguments, 4000 and 1000 examples), or full, as in the Long Range Arena
            (501 to 1999 tokens, depth 10, 10 arguments, 96 000 and 2000), which takes minutes and needs a folder.
        seed: of the expressions.
        folder: to keep them in a file.
        depth: instead of the size's own, and so on for the next five.
        arguments: of an operator, at most.
        shortest: number of tokens.
        longest: number of tokens.
        train_examples: how many.
        test_examples: how many, of the test and of the validation alike.
        tokens: padded to this length with id 0.
        held_out: test, or validation, which is as large and apart from it.

    >>> task = listops(train_examples=20, test_examples=10)
    >>> task.train[[0]].inputs["input_ids"].shape, task.shape["vocabulary"]
    (torch.Size([1, 128]), 16)
    """
    choice("held_out", held_out, ("test", "validation"))
    given = (depth, arguments, shortest, longest, tokens, train_examples, test_examples)
    p = dict(zip(NUMBERS, PRESETS[choice("size", size, PRESETS)], strict=True))
    p |= {name: whole(name, value) for name, value in zip(NUMBERS, given, strict=True) if value is not None}
    if longest is not None and tokens is None:
        p["tokens"] = p["longest"]
    if size == "full" and folder is None:
        raise WellcondError("listops of size 'full' takes minutes to generate: give folder=…, where it is then kept")
    if p["tokens"] < p["longest"]:
        raise WellcondError(f"tokens = {p['tokens']} would cut expressions of up to {p['longest']}: raise it")
    whole("seed", seed, least=0)
    bounds = {name: p[name] for name in NUMBERS[:4]}
    grammar, train, test = Grammar(**bounds), p["train_examples"], p["test_examples"]
    generated = Generated(
        "listops-1",
        {"seed": seed, "count": train + 2 * test, **bounds},
        lambda: _make(grammar, train + 2 * test, seed),
        None if folder is None else Path(folder),
    )
    view = partial(_expressions, p["tokens"])
    begin = train if held_out == "validation" else train + test
    made = f"ListOps of {p['shortest']} to {p['longest']} tokens, depth {p['depth']}, generated with seed {seed}"
    title = f"{made}: {train} to train on, {test} to {'test' if held_out == 'test' else 'validate'}"
    shape = {"tokens": p["tokens"], "vocabulary": len(SYMBOLS) + 1, "classes": 10}
    parts = [GeneratedExamples(generated, *part, view) for part in ((0, train), (begin, test))]
    return Task("listops", "sequence", shape, parts[0], parts[1], "accuracy", title)


def _expressions(tokens: int, made: Mapping[str, Tensor], part: slice) -> Ragged:
    return Ragged(made["ids"], made["starts"][part.start : part.stop + 1], made["values"][part], tokens)


def _make(grammar: Grammar, count: int, seed: int) -> dict[str, Tensor]:
    source = random.Random(key(seed, "listops"))
    seen: set[bytes] = set()
    pieces: list[bytes] = []
    values: list[int] = []
    duplicates = 0
    with bar(None, "listops", total=count) as progress:
        while len(pieces) < count:
            tokens, value = grammar.draw(source)
            ids = bytes(IDS[token] for token in tokens)
            if ids in seen:
                duplicates += 1
                if duplicates > 10 * count + 1000:
                    raise WellcondError(f"{grammar} has too few expressions for {count} distinct ones: raise longest")
                continue
            seen.add(ids)
            pieces.append(ids)
            values.append(value)
            progress.update()
    ends = np.cumsum([0, *map(len, pieces)])
    flat = np.frombuffer(b"".join(pieces), dtype=np.uint8).copy()
    return {"ids": torch.from_numpy(flat), "starts": torch.from_numpy(ends), "values": torch.tensor(values)}
