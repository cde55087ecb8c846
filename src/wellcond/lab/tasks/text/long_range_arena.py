"""Long texts, byte by byte, of the Long Range Arena: film reviews, and pairs of papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.tasks.checks import checked_indices, choice, first_of, folder_of, read_bytes, whole
from wellcond.lab.tasks.registry import register_task
from wellcond.lab.tasks.sequences import Pairs, packed

IMDB_SOURCE = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz, unpacked"
AAN_SOURCE = (
    "https://github.com/google-research/long-range-arena: lra_release.gz, unpacked, its folder tsv_data with "
    "new_aan_pairs.train.tsv, .eval.tsv and .test.tsv"
)


@register_task("lra-text", "film reviews, good or bad, byte by byte, as in the Long Range Arena", IMDB_SOURCE)
def lra_text(*, folder: str | Path, tokens: int = 4000) -> Task:
    """25 000 reviews to train on and 25 000 to test, each cut or padded to 4000 bytes.

    A. Maas et al., Learning Word Vectors for Sentiment Analysis (2011); Y. Tay et al., Long Range Arena, arXiv
    2011.04006. Files are read when they are asked for.

    Args:
        folder: `aclImdb`, or the one above.
        tokens: bytes of a review, at most.
    """
    path = folder_of(folder, IMDB_SOURCE, "aclImdb")
    train, test = (_reviews(path / part, whole("tokens", tokens)) for part in ("train", "test"))
    title = f"IMDB film reviews, {tokens} bytes: {len(train)} to train on, {len(test)} to test"
    return Task("lra-text", "sequence", _shape(tokens), train, test, "accuracy", title)


@register_task(
    "lra-retrieval", "whether one of two papers cites the other, byte by byte, as in the Long Range Arena", AAN_SOURCE
)
def lra_retrieval(*, folder: str | Path, tokens: int = 4000, held_out: str = "test") -> Task:
    """Pairs of papers of the ACL Anthology Network: 147 086 to train on, 18 090 to validate, 17 437 to test.

    D. Radev et al., The ACL Anthology Network Corpus (2009); Y. Tay et al., Long Range Arena, arXiv 2011.04006. Lines
    are read when they are asked for. Format: label (0.0 or 1.0), two ids and two texts, parted by tabs.

    Args:
        folder: of the three tsv files.
        tokens: bytes of a paper, at most.
        held_out: test, or validation, to choose a checkpoint by.
    """
    path = folder_of(folder, AAN_SOURCE)
    choice("held_out", held_out, ("test", "validation"))
    names = ("train", "eval" if held_out == "validation" else "test")
    files = [
        first_of(path, (f"new_aan_pairs.{name}.tsv", f"tsv_data/new_aan_pairs.{name}.tsv"), AAN_SOURCE)
        for name in names
    ]
    train, test = (_paper_pairs(file, whole("tokens", tokens)) for file in files)
    title = f"pairs of papers of the ACL Anthology Network, {tokens} bytes each"
    counted = f"{len(train)} to train on, {len(test)} for the {held_out}"
    return Task("lra-retrieval", "pair", _shape(tokens), train, test, "accuracy", f"{title}: {counted}")


@dataclass(frozen=True)
class Reviews:
    """Film reviews in text files, and their classes."""

    files: Sequence[Path]
    labels: Tensor
    tokens: int

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, indices: Tensor) -> Batch:
        chosen = checked_indices(indices, len(self))
        read = [_ids(read_bytes(self.files[number]), self.tokens) for number in chosen.tolist()]
        return packed(read, self.labels[chosen], self.tokens)[torch.arange(len(read), device="cpu")]


@dataclass(frozen=True)
class PaperPairs:
    """Pairs of papers in the lines of a tsv file, found by where each line begins and the last ends."""

    file: Path
    starts: Tensor
    tokens: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, indices: Tensor) -> Batch:
        chosen = checked_indices(indices, len(self))
        labels: list[int] = []
        sides: tuple[list[Tensor], list[Tensor]] = ([], [])
        with self.file.open("rb") as lines:
            for number in chosen.tolist():
                lines.seek(int(self.starts[number]))
                columns = lines.readline().rstrip(b"\r\n").split(b"\t")
                if len(columns) != 5 or columns[0] not in (b"0.0", b"1.0", b"0", b"1"):
                    raise WellcondError(
                        f"{str(self.file)!r}, line {number + 1}: expected a label 0.0 or 1.0, two ids and two texts, "
                        f"found {len(columns)} columns beginning with {columns[0][:20]!r}. The data: {AAN_SOURCE}"
                    )
                labels.append(int(float(columns[0])))
                for side, text in zip(sides, columns[3:], strict=True):
                    side.append(_ids(text, self.tokens))
        truth = torch.tensor(labels, dtype=torch.int64, device="cpu")
        first, second = (packed(side, truth, self.tokens) for side in sides)
        return Pairs(first, second)[torch.arange(len(truth), device="cpu")]


def _reviews(folder: Path, tokens: int) -> Reviews:
    files, labels = [], []
    for label, name in enumerate(("neg", "pos")):
        found = sorted((folder / name).glob("*.txt"))
        if not found:
            raise WellcondError(f"there is no text file in {str(folder / name)!r}. The data: {IMDB_SOURCE}")
        files += found
        labels += [label] * len(found)
    return Reviews(files, torch.tensor(labels, device="cpu"), tokens)


def _paper_pairs(file: Path, tokens: int) -> PaperPairs:
    with file.open("rb") as lines:
        lengths = [0, *map(len, lines)]
    if len(lengths) == 1:
        raise WellcondError(f"{str(file)!r} is empty. The data: {AAN_SOURCE}")
    return PaperPairs(file, torch.tensor(lengths, device="cpu").cumsum(0), tokens)


def _shape(tokens: int) -> dict[str, int]:
    return {"tokens": tokens, "vocabulary": 257, "classes": 2}


def _ids(text: bytes, tokens: int) -> Tensor:
    """Return a byte b as b + 1: id 0 is padding."""
    return torch.from_numpy(np.frombuffer(text[:tokens], dtype=np.uint8).astype(np.int64) + 1)
