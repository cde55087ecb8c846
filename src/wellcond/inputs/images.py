"""Photographs as the tensor a vision model takes: from a folder, or the two that come with scikit-learn."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from wellcond._core.file_names import check_path
from wellcond._core.keyed_random import key, neutral
from wellcond.errors import WellcondError
from wellcond.inputs.arguments import ImageArgument
from wellcond.inputs.models import optional_library

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def folder_images(folder: Path, pixels: ImageArgument, *, batch: int, seed: int) -> Tensor:
    """Read images of a folder and the folders in it, `(B, C, H, W)`; more than a batch are chosen from by the seed.

    Each is converted to colour (grey if C = 1), resized to cover H × W, cropped at the centre and normalised:
    `(x − mean) / std`. Files of other kinds are passed over; a hidden image, or one that cannot be read, is an error.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (40, 30), 255).save(Path(folder, "white.png"))
    ...     folder_images(Path(folder), ImageArgument((3, 2, 2), (0.5,) * 3, (0.5,) * 3), batch=8, seed=0)[0, 0]
    tensor([[1., 1.],
            [1., 1.]])
    """
    paths = sorted(_image_files(folder))
    if not paths:
        raise WellcondError(f"{str(folder)!r} has no image: put {', '.join(SUFFIXES)} files there")
    with neutral():
        order = torch.randperm(len(paths), generator=_generator(seed, "files"))
        chosen = sorted(order[:batch].tolist())
        return torch.stack([_normalised(_fitted(_opened(paths[i]), pixels), pixels) for i in chosen])


def sample_images(pixels: ImageArgument, *, batch: int, seed: int) -> Tensor:
    """Return crops, keyed by the seed, of scikit-learn's two sample photographs in turn: `(B, C, H, W)`.

    A crop has the shape H : W and is 40 to 100 per cent as large as fits into the photograph.

    >>> sample_images(ImageArgument((3, 16, 24), mean=(0.5,) * 3, std=(0.5,) * 3), batch=4, seed=0).shape
    torch.Size([4, 3, 16, 24])
    """
    image, datasets = _library("PIL.Image"), _library("sklearn.datasets", "scikit-learn")
    with _reading("scikit-learn's sample photographs"):
        photographs = datasets.load_sample_images().images
    height, width = pixels.shape[-2:]
    generator = _generator(seed, "crops")
    crops = []
    with neutral():
        for index in range(batch):
            photograph = image.fromarray(photographs[index % len(photographs)])
            part, across, down = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
            scale = (0.4 + 0.6 * part) * min(photograph.width / width, photograph.height / height)
            left = across * (photograph.width - scale * width)
            top = down * (photograph.height - scale * height)
            box = (left, top, left + scale * width, top + scale * height)
            crop = photograph.resize((width, height), image.Resampling.BICUBIC, box=box)
            crops.append(_normalised(_converted(crop, pixels), pixels))
        return torch.stack(crops)


def _generator(seed: int, what: str) -> torch.Generator:
    return torch.Generator().manual_seed(key(seed, "images", what))


def _library(name: str, package: str = "pillow") -> Any:
    return optional_library(name, f"images need {package}", package, WellcondError)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turn whatever goes wrong while an image is read into one line that names it; even the warning of a bomb."""
    bomb = _library("PIL.Image").DecompressionBombWarning
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", bomb)
            yield
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error…
        unknown = isinstance(error, _library("PIL").UnidentifiedImageError)  # it only repeats the name
        reason = "" if unknown else f": {type(error).__name__}: {' '.join(str(error).split())}"
        raise WellcondError(f"{what} cannot be read as an image{reason}") from error


def _image_files(folder: Path) -> Iterator[Path]:
    """Every file named like an image; links are followed, each folder once."""
    if not check_path(folder).is_dir():
        raise WellcondError(f"{str(folder)!r} is not a folder")
    seen: set[str] = set()
    for parent, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()  # so that a folder reached by two ways is always found by the same
        for path in (Path(parent, name) for name in files if name.lower().endswith(SUFFIXES)):
            if any(part.startswith(".") for part in path.relative_to(folder).parts):
                raise WellcondError(f"{str(path)!r} is hidden: move it away, or rename it")
            if not path.is_file():  # a broken link, a pipe that would never end
                raise WellcondError(f"{str(path)!r} is not a file that can be read")
            yield path


def _refuse(error: OSError) -> None:
    raise WellcondError(f"{str(error.filename)!r} cannot be read: {error.strerror}") from error


def _opened(path: Path) -> Image:
    """Read an image, without what `convert` to colour gets wrong: 16 bits, which it cuts off; transparent palettes."""
    image = _library("PIL.Image")
    with _reading(repr(str(path))), image.open(path) as opened:
        opened.load()
        found: Image = opened.copy()
        if found.mode.startswith("I;16"):
            found = image.fromarray((np.asarray(found).astype(np.uint16) >> 8).astype(np.uint8))
        return found.convert("RGBA") if found.mode == "P" else found


def _fitted(opened: Image, pixels: ImageArgument) -> Image:
    """Shorter side to size, centre crop, bicubic."""
    height, width = pixels.shape[-2:]
    bicubic = _library("PIL.Image").Resampling.BICUBIC
    fitted: Image = _library("PIL.ImageOps").fit(_converted(opened, pixels), (width, height), bicubic)
    return fitted


def _converted(opened: Image, pixels: ImageArgument) -> Image:
    return opened.convert("L" if pixels.shape[-3] == 1 else "RGB")


def _normalised(fitted: Image, pixels: ImageArgument) -> Tensor:
    values = torch.from_numpy(np.array(fitted)).float() / 255
    values = values[None] if values.ndim == 2 else values.movedim(-1, 0)
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (pixels.mean, pixels.std))
    return (values - mean) / std
