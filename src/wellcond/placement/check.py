"""`wc.check_propagation`: compare the theory's prediction from weights with a model's own batch, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from wellcond._core.argument_types import File
from wellcond._core.checked import checked
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.attention.capture import evaluating
from wellcond.attention.paths import unwrap
from wellcond.attention.undisturbed import undisturbed
from wellcond.placement.batch_statistics import BatchStatistics
from wellcond.placement.block_architecture import behind_norm, block_architecture, stream_before
from wellcond.placement.expected_rows import ExpectedRows, expected_rows, harmonic_mean
from wellcond.placement.notes import closing_notes, notes_on
from wellcond.placement.placed_blocks import PlacedBlock, place_blocks
from wellcond.placement.result import shorten_name
from wellcond.placement.token_moments import TokenMoments
from wellcond.propagation.attention_statistics import ragged_statistics
from wellcond.propagation.stack import propagate_blocks

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
    """Consecutive blocks, predicted from the tokens that enter the first of them."""

    layers: tuple[str, ...]  # names of their attention layers
    predicted: Course  # from the weights of each block, and the size and similarity of the first one's tokens
    measured: Course  # on the batch


@dataclass(frozen=True)
class PropagationCheck(Tabular):
    """The theory on a model, predicted against measured.

    Args:
        stretches: runs of consecutive blocks that could be placed; one, unless others lie between.
        skipped: why other layers could not be placed, by name.
        notes: what to know, in words.

    >>> import wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> block = nn.TransformerEncoderLayer(64, 2, 256, batch_first=True, norm_first=True)
    >>> check = wc.check_propagation(block, torch.randn(4, 32, 64))
    >>> [record["quantity"] for record in check.records()]
    ['cosine', 'entropy', 'participation', 'own']
    """

    stretches: tuple[Stretch, ...]
    skipped: dict[str, str] = field(hash=False)
    notes: tuple[str, ...]

    def records(self) -> list[dict[str, Any]]:
        """Return one row per block and quantity: `layer`, `block`, `quantity`, `predicted`, `measured`.

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
        """Return the mean absolute error of each quantity over blocks."""
        gaps: dict[str, list[float]] = {name: [] for name in QUANTITIES}
        for record in self.records():
            gaps[record["quantity"]].append(abs(record["predicted"] - record["measured"]))
        return {name: sum(each) / len(each) for name, each in gaps.items()}

    @checked
    def plot(self, path: File | None = None) -> Any:
        """Draw similarity, entropy and participation by block, predicted and measured, as a matplotlib figure."""
        from wellcond.plots.propagation import propagation_check_figure

        return propagation_check_figure(self, path)

    def _result_table(self) -> ResultTable:
        """Predicted / measured, block by block, then the mean errors and what to know."""
        by_layer: dict[tuple[int, str], list[str]] = {}
        for record in self.records():
            cell = f"{record['predicted']:.3f} / {record['measured']:.3f}"
            by_layer.setdefault((record["block"], shorten_name(record["layer"])), []).append(cell)
        header = ["layer", "cosine behind", "entropy", "Σ p²", "own weight"]
        rows = [[name, *cells] for (_, name), cells in by_layer.items()]
        errors = "mean absolute error: " + ", ".join(f"{name} {error:.3f}" for name, error in self.errors.items())
        end = closing_notes((errors, *self.notes), self.skipped)
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
    placed, skipped = place_blocks(model, batch)
    notes = [*notes_on(placed)]
    if any(len(one.batch.columns) > 1 for one in placed):
        notes.append("rows see different numbers of columns: the stream is predicted for all positions alike")
    if any(_copies(a, b) for a, b in pairwise(placed)):
        notes.append(
            "blocks hold equal weights, as nn.TransformerEncoder's copies do: the theory takes independent ones"
        )
    stretches, root = [], unwrap(model)
    with undisturbed(root), evaluating(root):
        while placed:
            length = next((i for i, one in enumerate(placed) if i and not one.follows), len(placed))
            stretches.append(_stretch(placed[:length]))
            placed = placed[length:]
    if len(stretches) > 1:
        notes.append(f"the prediction starts anew {len(stretches) - 1} times, where blocks do not follow one another")
    return PropagationCheck(tuple(stretches), skipped, tuple(notes))


def _stretch(blocks: list[PlacedBlock]) -> Stretch:
    tokens = max(2, round(sum(one.batch.tokens for one in blocks) / len(blocks)))
    dims = harmonic_mean([d for one in blocks for d in one.heads.head_dim])
    first = stream_before(blocks[0])
    found = propagate_blocks(
        [block_architecture(one, tokens) for one in blocks],
        cosine=first.cosine,
        size=first.size,
        statistics=ragged_statistics(
            harmonic_mean([one.batch.alone for one in blocks]),
            harmonic_mean([one.batch.together for one in blocks]),
            None if dims == float("inf") else dims,
        ),
    )
    streams = [TokenMoments(q, c * q) for q, c in zip(found.size.tolist(), found.cosine.tolist(), strict=True)]
    rows = [
        expected_rows(one.heads, _read(one, stream), one.batch.columns)
        for one, stream in zip(blocks, streams[:-1], strict=True)
    ]
    predicted = Course(
        tuple(
            behind_norm(norm, blocks[0].layer.width, stream).cosine
            for norm, stream in zip(_norms_behind(blocks), streams, strict=True)
        ),
        *_by_quantity(rows),
    )
    measured = Course(
        (*(one.before.cosine for one in blocks), blocks[-1].after.cosine),
        *_by_quantity([one.batch for one in blocks]),
    )
    return Stretch(tuple(one.layer.name for one in blocks), predicted, measured)


def _by_quantity(rows: Sequence[ExpectedRows | BatchStatistics]) -> list[tuple[float, ...]]:
    return [tuple(getattr(row, name) for row in rows) for name in QUANTITIES[1:]]


def _copies(a: PlacedBlock, b: PlacedBlock) -> bool:
    assert a.layer.query is not None
    assert b.layer.query is not None
    return torch.equal(a.layer.query.read(), b.layer.query.read())


def _read(one: PlacedBlock, stream: TokenMoments) -> TokenMoments:
    """The moments of what attention reads of the recursion's stream, before a norm's gain."""
    return TokenMoments(1.0, stream.cosine) if one.wiring.norm == "pre" else stream


def _norms_behind(blocks: list[PlacedBlock]) -> list[nn.Module | None]:
    """The post-norm that makes the stream before each block, and behind the last."""
    firsts = [one.wiring.attention.norm if one.wiring.norm == "post" else None for one in blocks]
    return [*firsts, blocks[-1].wiring.last]
