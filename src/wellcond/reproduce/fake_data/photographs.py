"""Fake photographs in the folders of ImageNet, Oxford's flowers and pets, and Food-101."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellcond.lab.tasks.checks import library
from wellcond.reproduce.fake_data import new_file
from wellcond.reproduce.fake_data.small_images import colours_of

CAT_BREEDS = 12  # of the 37 breeds of pets; the rest are dogs
MAT_HEADER_BYTES = 116  # bytes of free text at the beginning of a MATLAB 5 file


def write_imagenet(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`train/<class>/` and `val/<class>/` with one image of 8 × 8 in each of 1000 classes, named like WordNet's."""
    colours = colours_of(draw, 1000)
    for label, colour in enumerate(colours):
        name = f"n{label:08d}"
        for part, file in (("train", f"{name}_1.JPEG"), ("val", f"ILSVRC2012_val_{label + 1:08d}.JPEG")):
            write_photograph(folder / part / name / file, colour, draw, height=8, width=8)


def write_flowers(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`flowers-102/jpg`, `imagelabels.mat` and `setid.mat` as distributed; and `train/<class>/`, `test/<class>/`.

    Of each of the 102 classes one to train on, one to validate, one to test. torchvision takes only the published
    bytes of the two tables, which fake ones cannot have, so the same images are there by class too, for the task.
    """
    inside = folder / "flowers-102"
    colours = colours_of(draw, 102)
    labels = np.zeros((1, 3 * 102), np.uint8)
    parts = dict(zip(("trnid", "valid", "tstid"), draw.permutation(3 * 102).reshape(3, 102) + 1, strict=True))
    for part, numbers in parts.items():
        for label, number in enumerate(numbers):
            labels[0, number - 1] = label + 1
            path = inside / "jpg" / f"image_{number:05d}.jpg"
            write_photograph(path, colours[label], draw)
            again = folder / ("test" if part == "tstid" else "train") / f"{label + 1:03d}"
            new_file(again / path.name, path.read_bytes())
    write_mat(inside / "imagelabels.mat", {"labels": labels})
    write_mat(inside / "setid.mat", {name: numbers[None].astype(np.uint16) for name, numbers in parts.items()})


def write_pets(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`oxford-iiit-pet/images` and `annotations/trainval.txt`, `test.txt`: two images of each of 37 breeds in both.

    A line has the image, its breed from 1 on, 1 for a cat or 2 for a dog, and the breed among cats or dogs. The names
    of cats begin with a capital letter.
    """
    inside = folder / "oxford-iiit-pet"
    colours = colours_of(draw, 37)
    for part, first in (("trainval", 1), ("test", 101)):
        lines = []
        for label in range(37):
            cat = label < CAT_BREEDS
            for number in (first, first + 1):
                name = f"{'Cat' if cat else 'dog'}_breed_{label + 1}_{number}"
                write_photograph(inside / "images" / f"{name}.jpg", colours[label], draw)
                lines.append(f"{name} {label + 1} {1 if cat else 2} {label + 1 if cat else label + 1 - CAT_BREEDS}\n")
        new_file(inside / "annotations" / f"{part}.txt", "".join(lines))


def write_food101(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
    """`food-101/images/<class>/<number>.jpg` and `food-101/meta`: two images to train on and one to test of each."""
    inside = folder / "food-101"
    colours = colours_of(draw, 101)
    classes = [f"dish_{label:03d}" for label in range(101)]
    numbers = {name: draw.choice(4_000_000, size=3, replace=False).tolist() for name in classes}
    for label, name in enumerate(classes):
        for number in numbers[name]:
            write_photograph(inside / "images" / name / f"{number}.jpg", colours[label], draw)
    listed = {
        part: {name: [f"{name}/{number}" for number in numbers[name][which]] for name in classes}
        for part, which in (("train", slice(2)), ("test", slice(2, 3)))
    }
    lines = {part: [file for files in found.values() for file in files] for part, found in listed.items()}
    lines |= {"classes": classes, "labels": [name.replace("_", " ").capitalize() for name in classes]}
    for file, content in lines.items():
        new_file(inside / "meta" / f"{file}.txt", "\n".join(content) + "\n")
    for part, found in listed.items():
        new_file(inside / "meta" / f"{part}.json", json.dumps(found))


def write_photograph(
    path: Path, colour: NDArray[np.int64], draw: np.random.Generator, *, height: int = 24, width: int = 32
) -> None:
    """Write a JPEG file of one colour, `(3,)` from 30 to 219, with noise."""
    pixels = (colour + draw.integers(-30, 31, size=(height, width, 3))).astype(np.uint8)
    library("PIL.Image", "timm").fromarray(pixels).save(new_file(path), format="JPEG", quality=90)


def write_mat(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a MATLAB 5 file, with a text at its beginning that does not say when it was written, as scipy's does."""
    content = io.BytesIO()
    library("scipy.io", "lab").savemat(content, dict(arrays))
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(MAT_HEADER_BYTES) + content.getvalue()[MAT_HEADER_BYTES:])
