"""Made-up data in the format of a published set, to try a recipe for a few steps before the real data are fetched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wellcond.draw import key
from wellcond.errors import StorageError, WellcondError
from wellcond.file_names import neighbour
from wellcond.reproduce.made_up_coco import write_coco
from wellcond.reproduce.made_up_glue import write_glue
from wellcond.reproduce.made_up_images import write_flowers, write_food101, write_imagenet, write_pets
from wellcond.reproduce.made_up_pixels import write_cifar10, write_cifar100, write_fashion_mnist
from wellcond.reproduce.made_up_text import (
    write_lra_retrieval,
    write_lra_text,
    write_pile,
    write_tinystories,
    write_wikitext103,
)
from wellcond.reproduce.made_up_tokenizer import TOKENIZER, vocabulary_of, write_tokenizer

Writer = Callable[[Path, Mapping[str, Any], np.random.Generator], None]


def write_nothing(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """For a task that makes its own data and keeps them in the folder: it is left empty."""


MADE_UP: dict[str, Writer] = {
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "coco": write_coco,
    "fashion-mnist": write_fashion_mnist,
    "flowers": write_flowers,
    "food101": write_food101,
    "glue": write_glue,
    "imagenet": write_imagenet,
    "listops": write_nothing,
    "lra-image": write_cifar10,
    "lra-retrieval": write_lra_retrieval,
    "lra-text": write_lra_text,
    "pathfinder": write_nothing,
    "pets": write_pets,
    "pile": write_pile,
    "tinystories": write_tinystories,
    "wikitext103": write_wikitext103,
}


def write_made_up(task: str, folder: Path, options: Mapping[str, Any], *, seed: int = 0) -> None:
    """Write a few made-up examples into a new folder, as the task reads the real ones.

    There are as many classes as in the real set, so that a model keeps its size; a class or a topic has colours or
    words of its own, so that a loss can fall. Whatever is measured on such data says nothing about the published
    result. The same seed writes the same bytes. All of it is written, or nothing.

    Where the options name a tokenizer, a made-up one is put into `folder / TOKENIZER`, for the task to be given as
    `tokenizer=`. It has as many tokens as the real one if that is known by its name, else 1024: see `vocabulary_of`.

    Args:
        task: a name in `MADE_UP`.
        folder: made if it is not there; one that holds anything is refused.
        options: of the task in its recipe: `length` and `tokens` say how long texts must be, `train` and `test` what
            the parts of COCO are called. All subsets of GLUE are written, whichever is named. Numbers of examples are
            fixed: `train_images` and `test_images` of a task are to be left out, or to be small.
        seed: of the examples.

    >>> import tempfile
    >>> from wellcond.lab.tasks import task
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_made_up("cifar10", Path(folder, "cifar10"), {})
    ...     task("cifar10", folder=Path(folder, "cifar10")).description
    'CIFAR-10, 32 × 32 colour, 10 classes: 100 to train on, 20 to test'
    """
    if task not in MADE_UP:
        raise WellcondError(f"there are no made-up data for task {task!r}; there are for {', '.join(sorted(MADE_UP))}")
    whole = Path(folder).expanduser().resolve()
    begun = neighbour(whole)
    try:
        if whole.exists() and (not whole.is_dir() or any(whole.iterdir())):
            raise WellcondError(f"{str(folder)!r} holds something already: made-up data go into a new folder, name one")
        begun.mkdir(parents=True)
        MADE_UP[task](begun, options, np.random.default_rng(key(seed, "made up", task)))
        if options.get("tokenizer") is not None:
            write_tokenizer(begun / TOKENIZER, vocabulary_of(str(options["tokenizer"])))
        if whole.exists():
            whole.rmdir()  # empty: not every system renames over it
        os.replace(begun, whole)
    except OSError as error:
        raise StorageError(f"made-up data cannot be written to {str(folder)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(begun, ignore_errors=True)
