"""ListOps of the Long Range Arena, generated here: random nested list operations, their tokens and their value."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
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

# Id 0 is padding. "(" and ")" of the original files only mark their binary tree, and are left out of the sequence.
SYMBOLS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]")
IDS = {symbol: id for id, symbol in enumerate(SYMBOLS, start=1)}
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
NESTING_PROBABILITY = 0.25  # that an argument is an expression, not a digit
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


@dataclass(frozen=True)
class Grammar:
    """Expressions like `[MAX 2 9 [MIN 4 7 ] 0 ]` and their value, 0 to 9.

    N. Nangia and S. Bowman, ListOps, arXiv 1804.06028; Y. Tay et al., Long Range Arena, arXiv 2011.04006, whose
    parameters are depth 10, 10 arguments and 500 < length < 2000. An argument is an expression with probability 1/4
    while the depth allows it, else a digit; an expression has 2 to `arguments` arguments, all equally likely. MED is
    the median rounded down, SM the sum modulo 10.

    Args:
        depth: of nesting, the digit inside included.
        arguments: of an operator, at most.
        shortest: number of tokens, brackets included.
        longest: number of tokens.

    >>> tokens, value = Grammar(depth=3, arguments=3, shortest=6, longest=9).draw(random.Random(0))
    >>> " ".join(tokens), value
    ('[MAX [MAX 1 5 2 ] 8 0 ]', 8)
    """

    depth: int
    arguments: int
    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if self.depth < 2 or self.arguments < 2 or not 1 <= self.shortest <= self.longest:
            raise WellcondError(f"depth and arguments are at least 2, and 1 ≤ shortest ≤ longest; got {self}")

    def draw(self, source: random.Random) -> tuple[list[str], int]:
        """Draw an expression within the bounds; the first of as many tries as it takes.

        Only `source.random()` is called, the one method whose sequence Python guarantees between versions.
        """
        for _ in range(100_000):
            tokens: list[str] = []
            value = self._extend(tokens, 1, source)
            if value is not None and self.shortest <= len(tokens) <= self.longest:
                return tokens, value
        raise WellcondError(
            f"no expression in 100 000 fits {self}: widen the lengths, or allow more depth or arguments"
        )

    def _extend(self, tokens: list[str], depth: int, source: random.Random) -> int | None:
        """Append one argument and return its value; None as soon as it is too long."""
        if depth >= self.depth or source.random() >= NESTING_PROBABILITY:
            digit = int(source.random() * 10)
            tokens.append(SYMBOLS[digit])
            return digit
        operator = OPERATORS[int(source.random() * len(OPERATORS))]
        tokens.append(operator)
        values = []
        for _ in range(2 + int(source.random() * (self.arguments - 1))):
            value = self._extend(tokens, depth + 1, source)
            if value is None or len(tokens) > self.longest:
                return None
            values.append(value)
        tokens.append("]")
        return _value(operator, values)


def _value(operator: str, values: list[int]) -> int:
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2
