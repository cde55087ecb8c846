"""Pathfinder: do two discs lie on the same dashed curve?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from wellcond.draw import key
from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Batch, Task
from wellcond.lab.tasks.checks import choice, whole
from wellcond.lab.tasks.examples import Pixels, PixelTokens
from wellcond.lab.tasks.generated import Generated
from wellcond.lab.tasks.registry import register
from wellcond.lab.tasks.snakes import Scene, draw, grow
from wellcond.progress import bar

CHUNK = 128  # images that share a generator, so that the first so many are the same however many are asked for
GROWN = 448  # scenes begun at once: about a third succeeds, so one round mostly is enough


@register("pathfinder", "whether two discs lie on one dashed curve, drawn as in the Long Range Arena")
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
    sequence = {"tokens": size * size, "vocabulary": 256, "classes": 2}
    return Task(
        name="pathfinder",
        kind=kind,
        shape={"channels": 1, "size": size, "classes": 2} if as_image else sequence,
        train=Drawn(generated, 0, train_examples, as_image),
        test=Drawn(generated, train_examples, test_examples, as_image),
        metric="accuracy",
        description=f"Pathfinder, {size} × {size} grey, curves of {paddles} paddles, drawn with seed {seed}: "
        f"{train_examples} to train on, {test_examples} to test",
    )


@dataclass(frozen=True)
class Drawn:
    """Some of the drawn images, from number `begin` on."""

    generated: Generated
    begin: int
    count: int
    as_image: bool

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, indices: Tensor) -> Batch:
        part = slice(self.begin, self.begin + self.count)
        images, labels = (self.generated.tensors[name][part] for name in ("images", "labels"))
        if self.as_image:
            return Pixels(images[:, None], labels, (0.1,), (0.2,))[indices]
        return PixelTokens(images, labels)[indices]


def scenes(chunk: int, size: int, paddles: int, distractors: int, seed: int) -> tuple[Scene, Tensor, Tensor]:
    """One chunk: curves, places of the two discs `(B, 2, 2)`, labels.

    >>> scene, marks, labels = scenes(0, 32, 6, 2, seed=0)
    >>> len(scene.paddles) == len(marks) == len(labels) == CHUNK
    True
    """
    generator = torch.Generator().manual_seed(key(seed, "pathfinder", chunk))
    found: list[Tensor] = []
    for _ in range(12):
        scene = grow(GROWN, generator, size=size, paddles=paddles, distractors=distractors, short=4)
        found.append(scene.paddles)
        if sum(map(len, found)) >= CHUNK:
            break
    else:
        raise WellcondError(f"curves of {paddles} paddles get stuck in {size} × {size} pixels: fewer, or a larger size")
    scene = Scene(torch.cat(found)[:CHUNK], scene.curves)
    labels, which = torch.randint(2, (2, CHUNK), generator=generator)
    ends = torch.stack([scene.ends(0), scene.ends(1)], 1)  # (B, curve, begin or end, xy)
    rows = torch.arange(CHUNK)
    other = torch.where(labels == 1, which, 1 - which)
    return scene, torch.stack([ends[rows, which, 0], ends[rows, other, 1]], 1), labels


def _make(count: int, size: int, paddles: int, distractors: int, seed: int) -> dict[str, Tensor]:
    images, labels = [], []
    chunks = range(-(-count // CHUNK))
    for chunk in bar(chunks, "pathfinder"):
        scene, marks, truth = scenes(chunk, size, paddles, distractors, seed)
        images.append(draw(scene, marks, size=size))
        labels.append(truth)
    return {"images": torch.cat(images)[:count], "labels": torch.cat(labels)[:count]}
