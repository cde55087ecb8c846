"""Fake data in the format of a published set, to try a recipe for a few steps before the real data are fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wellcond._core.atomic import replacing
from wellcond._core.keyed_random import key
from wellcond.errors import WellcondError
from wellcond.reproduce.fake_data.coco import write_coco
from wellcond.reproduce.fake_data.glue import write_glue
from wellcond.reproduce.fake_data.photographs import write_flowers, write_food101, write_imagenet, write_pets
from wellcond.reproduce.fake_data.small_images import write_cifar10, write_cifar100, write_fashion_mnist
from wellcond.reproduce.fake_data.text import (
    write_lra_retrieval,
    write_lra_text,
    write_pile,
    write_tinystories,
    write_wikitext103,
)
from wellcond.reproduce.fake_data.tokenizer import TOKENIZER_FOLDER, tokenizer_size, write_tokenizer

Writer = Callable[[Path, Mapping[str, Any], np.random.Generator], None]


def write_nothing(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """For a task that makes its own data and keeps them in the folder: it is left empty."""


WRITERS: dict[str, Writer] = {
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


def write_fake_data(task: str, folder: Path, options: Mapping[str, Any], *, seed: int = 0) -> None:
    """Write a few fake examples into a new folder, as the task reads the real ones.

    There are as many classes as in the real set, so that a model keeps its size; a class or a topic has colours or
    words of its own, so that a loss can fall. Whatever is measured on such data says nothing about the published
    result. The same seed writes the same bytes. All of it is written, or nothing.

    Where the options name a tokenizer, a fake one is put into `folder / TOKENIZER_FOLDER`, for the task to be given as
    `tokenizer=`. It has as many tokens as the real one if that is known by its name, else 1024: see `tokenizer_size`.

    Args:
        task: a name in `WRITERS`.
        folder: made if it is not there; one that holds anything is refused.
        options: of the task in its recipe: `length` and `tokens` say how long texts must be, `train` and `test` what
            the parts of COCO are called. All subsets of GLUE are written, whichever is named. Numbers of examples are
            fixed: `train_images` and `test_images` of a task are to be left out, or to be small.
        seed: of the examples.

    >>> import tempfile
    >>> from wellcond.lab.tasks import task
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_fake_data("cifar10", Path(folder, "cifar10"), {})
    ...     task("cifar10", folder=Path(folder, "cifar10")).description
    'CIFAR-10, 32 × 32 colour, 10 classes: 100 to train on, 20 to test'
    """
    if task not in WRITERS:
        raise WellcondError(f"there are no fake data for task {task!r}; there are for {', '.join(sorted(WRITERS))}")
    whole = Path(folder).expanduser().resolve()
    with replacing(whole) as begun:
        if whole.exists() and (not whole.is_dir() or any(whole.iterdir())):
            raise WellcondError(f"{str(folder)!r} holds something already: fake data go into a new folder, name one")
        begun.mkdir(parents=True)
        # "made up" is only a key of the generator: another would write other bytes.
        WRITERS[task](begun, options, np.random.default_rng(key(seed, "made up", task)))
        if options.get("tokenizer") is not None:
            write_tokenizer(begun / TOKENIZER_FOLDER, tokenizer_size(str(options["tokenizer"])))
