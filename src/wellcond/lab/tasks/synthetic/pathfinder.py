"""Pathfinder of the Long Range Arena, drawn here: do two discs lie on the same dashed curve?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from wellcond._core.keyed_random import key
from wellcond._core.progress import bar
from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import choice, whole
from wellcond.lab.tasks.generated import Generated, GeneratedExamples
from wellcond.lab.tasks.images.pixels import PixelExamples, PixelTokens
from wellcond.lab.tasks.registry import register_task
from wellcond.lab.tasks.synthetic.dashed_curves import Scene, draw_scene, grow_curves

CHUNK_IMAGES = 128  # images that share a generator, so that the first so many are the same however many are asked for
SCENES_BEGUN = 448  # scenes begun at once: about a third succeeds, so one round mostly is enough


@register_task("pathfinder", "whether two discs lie on one dashed curve, drawn as in the Long Range Arena")
def pathfinder(
    *,
    size: int = 32,
    paddles: int = 14,
    distractors: int = 5,
    kind: str = "sequence",
    train_examples: int = 4_000,
    test_examples: int = 1_000,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Task:
    """Two long dashed curves and up to five short ones; discs at both ends of one (1), or one end of each (0).

    D. Linsley et al., arXiv 1805.08315; Y. Tay et al., Long Range Arena, arXiv 2011.04006, which has 160 000 images of
    32 × 32 to train on. Drawn when an example is first asked for, about 5 ms each.

    Args:
        size: side of the image.
        paddles: of each long curve.
        distractors: short curves of 4 paddles, as many of them as there is room for.
        kind: sequence, of pixels as ids 0 to 255; or image, of mean 0.1 and deviation 0.2.
        train_examples: how many.
        test_examples: how many.
        seed: of the drawing.
        folder: to keep the images in a file.

    >>> task = pathfinder(train_examples=3, test_examples=2)
    >>> task.train[[0, 1]].inputs.shape
    torch.Size([2, 1024])
    """
    choice("kind", kind, ("sequence", "image"))
    given = {"size": (size, 16), "paddles": (paddles, 2), "distractors": (distractors, 0), "seed": (seed, 0)}
    parameters = {name: whole(name, value, least) for name, (value, least) in given.items()}
    count = whole("train_examples", train_examples) + whole("test_examples", test_examples)
    generated = Generated(
        "pathfinder-1",
        {**parameters, "count": count},
        lambda: _make(count, size, paddles, distractors, seed),
        None if folder is None else Path(folder),
    )
    as_image = kind == "image"
    shape = {"channels": 1, "size": size} if as_image else {"tokens": size * size, "vocabulary": 256}
    train, test = (
        GeneratedExamples(generated, begin, part, _as_images if as_image else _as_tokens)
        for begin, part in ((0, train_examples), (train_examples, test_examples))
    )
    drawn = f"Pathfinder, {size} × {size} grey, curves of {paddles} paddles, drawn with seed {seed}"
    title = f"{drawn}: {train_examples} to train on, {test_examples} to test"
    return Task("pathfinder", kind, shape | {"classes": 2}, train, test, "accuracy", title)


def _as_images(made: Mapping[str, Tensor], part: slice) -> PixelExamples:
    return PixelExamples(made["images"][part, None], made["labels"][part], (0.1,), (0.2,))


def _as_tokens(made: Mapping[str, Tensor], part: slice) -> PixelTokens:
    return PixelTokens(made["images"][part], made["labels"][part])


def scenes(chunk: int, size: int, paddles: int, distractors: int, seed: int) -> tuple[Scene, Tensor, Tensor]:
    """Return one chunk: curves, places of the two discs `(B, 2, 2)`, labels.

    >>> scene, marks, labels = scenes(0, 32, 6, 2, seed=0)
    >>> len(scene.paddles) == len(marks) == len(labels) == CHUNK_IMAGES
    True
    """
    generator = torch.Generator().manual_seed(key(seed, "pathfinder", chunk))
    found: list[Tensor] = []
    for _ in range(12):
        scene = grow_curves(SCENES_BEGUN, generator, size=size, paddles=paddles, distractors=distractors, short=4)
        found.append(scene.paddles)
        if sum(map(len, found)) >= CHUNK_IMAGES:
            break
    else:
        raise WellcondError(f"curves of {paddles} paddles get stuck in {size} × {size} pixels: fewer, or a larger size")
    scene = Scene(torch.cat(found)[:CHUNK_IMAGES], scene.curves)
    labels, which = torch.randint(2, (2, CHUNK_IMAGES), generator=generator)
    ends = torch.stack([scene.ends(0), scene.ends(1)], 1)  # (B, curve, begin or end, xy)
    rows = torch.arange(CHUNK_IMAGES)
    other = torch.where(labels == 1, which, 1 - which)
    return scene, torch.stack([ends[rows, which, 0], ends[rows, other, 1]], 1), labels


def _make(count: int, size: int, paddles: int, distractors: int, seed: int) -> dict[str, Tensor]:
    images, labels = [], []
    chunks = range(-(-count // CHUNK_IMAGES))
    for chunk in bar(chunks, "pathfinder"):
        scene, marks, truth = scenes(chunk, size, paddles, distractors, seed)
        images.append(draw_scene(scene, marks, size=size))
        labels.append(truth)
    return {"images": torch.cat(images)[:count], "labels": torch.cat(labels)[:count]}
