"""`wc.check_propagation`: the theory's prediction from weights alone against a model's own batch, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from wellcond.attention.paths import unwrap
from wellcond.attention.replay import evaluating
from wellcond.checked import File, checked
from wellcond.diagnose.probe import undisturbed
from wellcond.mapping.architecture import architecture, behind, start
from wellcond.mapping.expected import expected_rows, harmonic
from wellcond.mapping.locate import short
from wellcond.mapping.mapped import Mapped, map_blocks
from wellcond.mapping.moments import Moments
from wellcond.mapping.notes import closing, notes_on
from wellcond.mapping.ragged import ragged
from wellcond.propagation.stack import run
from wellcond.tabular import ResultTable, Tabular

QUANTITIES = ("cosine", "entropy", "participation", "own")


@dataclass(frozen=True)
class Course:
    """A quantity through consecutive blocks: `cosine` before each and after the last, the others in each."""

    cosine: tuple[float, ...]
    entropy: tuple[float, ...]
    participation: tuple[float, ...]
    own: tuple[float, ...]


@dataclass(frozen=True)
class Stretch:
    """Consecutive blocks, predicted from the tokens that enter the first of them.

    Args:
        layers: names of their attention layers.
        predicted: from the weights of each block, and the size and similarity of the first one's tokens.
        measured: on the batch.
    """

    layers: tuple[str, ...]
    predicted: Course
    measured: Course


@dataclass(frozen=True)
class PropagationCheck(Tabular):
    """Predicted against measured.

    Args:
        stretches: runs of blocks that could be mapped; one, unless others lie between.
        skipped: why other layers could not be mapped, by name.
        notes: what to know, in words.

    >>> import wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> block = nn.TransformerEncoderLayer(64, 2, 256, batch_first=True, norm_first=True)
    >>> check = wc.check_propagation(block, torch.randn(4, 32, 64))
    >>> [record["quantity"] for record in check.records()]
    ['cosine', 'entropy', 'participation', 'own']
    """

    stretches: tuple[Stretch, ...]
    skipped: dict[str, str]
    notes: tuple[str, ...]

    def records(self) -> list[dict[str, Any]]:
        """One row per block and quantity: `layer`, `block`, `quantity`, `predicted`, `measured`.

        The cosine is that behind the block.
        """
        found, block = [], 0
        for stretch in self.stretches:
            for index, layer in enumerate(stretch.layers):
                for name in QUANTITIES:
                    at = index + 1 if name == "cosine" else index
                    predicted, measured = getattr(stretch.predicted, name)[at], getattr(stretch.measured, name)[at]
                    found.append(
                        {"layer": layer, "block": block, "quantity": name, "predicted": predicted, "measured": measured}
                    )
                block += 1
        return found

    @property
    def errors(self) -> dict[str, float]:
        """Mean absolute error of each quantity over blocks."""
        gaps: dict[str, list[float]] = {name: [] for name in QUANTITIES}
        for record in self.records():
            gaps[record["quantity"]].append(abs(record["predicted"] - record["measured"]))
        return {name: sum(each) / len(each) for name, each in gaps.items()}

    @checked
    def plot(self, path: File | None = None) -> Any:
        """Similarity, entropy and participation against the block, predicted and measured, as a matplotlib figure."""
        from wellcond.report.propagation_check import propagation_check_figure

        return propagation_check_figure(self, path)

    def _result_table(self) -> ResultTable:
        """Predicted / measured, block by block, then the mean errors and what to know."""
        by_layer: dict[tuple[int, str], list[str]] = {}
        for record in self.records():
            cell = f"{record['predicted']:.3f} / {record['measured']:.3f}"
            by_layer.setdefault((record["block"], short(record["layer"])), []).append(cell)
        header = ["layer", "cosine behind", "entropy", "Σ p²", "own weight"]
        rows = [[name, *cells] for (_, name), cells in by_layer.items()]
        errors = "mean absolute error: " + ", ".join(f"{name} {error:.3f}" for name, error in self.errors.items())
        end = closing((errors, *self.notes), self.skipped)
        return ResultTable(header, rows, "predicted from weights / measured", [end])


@checked
@torch.no_grad()
def check_propagation(model: nn.Module, batch: Any) -> PropagationCheck:
    """Test the theory on a model and a batch of one's own.

    Only the size and similarity of the tokens that enter the first block are measured; what follows is predicted from
    each block's weights, and compared with what the batch does.

    Args:
        model: a stack of self-attention and MLP blocks, on any batch that `wc.locate` takes.
        batch: a tensor, a tuple of positional or a dict of keyword arguments.

    >>> _ = torch.manual_seed(0)
    >>> blocks = [nn.TransformerEncoderLayer(64, 2, 256, batch_first=True, norm_first=True) for _ in range(3)]
    >>> check = check_propagation(nn.Sequential(*blocks), torch.randn(4, 32, 64))
    >>> check.errors["cosine"] < 0.1, check.errors["entropy"] < 0.01
    (True, True)
    """
    mapped, skipped = map_blocks(model, batch)
    notes = [*notes_on(mapped)]
    if any(len(one.measured.columns) > 1 for one in mapped):
        notes.append("rows see different numbers of columns: the stream is predicted for all positions alike")
    if any(_copies(a, b) for a, b in pairwise(mapped)):
        notes.append(
            "blocks hold equal weights, as nn.TransformerEncoder's copies do: the theory takes independent ones"
        )
    stretches, root = [], unwrap(model)
    with undisturbed(root), evaluating(root):
        while mapped:
            length = next((i for i, one in enumerate(mapped) if i and not one.follows), len(mapped))
            stretches.append(_stretch(mapped[:length]))
            mapped = mapped[length:]
    if len(stretches) > 1:
        notes.append(f"the prediction starts anew {len(stretches) - 1} times, where blocks do not follow one another")
    return PropagationCheck(tuple(stretches), skipped, tuple(notes))


def _stretch(blocks: list[Mapped]) -> Stretch:
    tokens = max(2, round(sum(one.measured.tokens for one in blocks) / len(blocks)))
    dims = harmonic([d for one in blocks for d in one.heads.head_dim])
    first = start(blocks[0])
    found = run(
        [architecture(one, tokens) for one in blocks],
        cosine=first.cosine,
        size=first.size,
        statistics=ragged(
            harmonic([one.measured.alone for one in blocks]),
            harmonic([one.measured.together for one in blocks]),
            None if dims == float("inf") else dims,
        ),
    )
    streams = [Moments(q, c * q) for q, c in zip(found.size.tolist(), found.cosine.tolist(), strict=True)]
    rows = [
        expected_rows(one.heads, _read(one, stream), one.measured.columns)
        for one, stream in zip(blocks, streams[:-1], strict=True)
    ]
    predicted = Course(
        tuple(
            behind(norm, blocks[0].layer.width, stream).cosine
            for norm, stream in zip(_norms_behind(blocks), streams, strict=True)
        ),
        tuple(row.entropy for row in rows),
        tuple(row.participation for row in rows),
        tuple(row.own for row in rows),
    )
    seen = [one.measured for one in blocks]
    measured = Course(
        (*(one.before.cosine for one in blocks), blocks[-1].after.cosine),
        tuple(one.entropy for one in seen),
        tuple(one.participation for one in seen),
        tuple(one.own for one in seen),
    )
    return Stretch(tuple(one.layer.name for one in blocks), predicted, measured)


def _copies(a: Mapped, b: Mapped) -> bool:
    assert a.layer.query is not None
    assert b.layer.query is not None
    return torch.equal(a.layer.query.read(), b.layer.query.read())


def _read(one: Mapped, stream: Moments) -> Moments:
    """What attention reads of the recursion's stream, before a norm's gain."""
    return Moments(1.0, stream.cosine) if one.wiring.norm == "pre" else stream


def _norms_behind(blocks: list[Mapped]) -> list[nn.Module | None]:
    """The post-norm that makes the stream before each block, and behind the last."""
    firsts = [one.wiring.attention.norm if one.wiring.norm == "post" else None for one in blocks]
    return [*firsts, blocks[-1].wiring.last]
