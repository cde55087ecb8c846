"""Batches with targets for a model by name: images whose folder is their class, and text whose next token is wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.file_names import check_path
from wellcond._core.keyed_random import key
from wellcond.errors import BatchError, WellcondError
from wellcond.inputs.example_inputs import image_inputs, text_inputs

BATCHES = 64  # that are read at most


@dataclass(frozen=True)
class LabelledBatches:
    """Batches as `wc.recommend` takes them.

    Args:
        batches: pairs `(input, target)`, or dicts.
        loss: of output and target; None where the model has its own.
        description: what they are, in words.
    """

    batches: list[Any]
    loss: Callable[[Any, Any], Tensor] | None
    description: str


def image_batches(model: nn.Module, folder: Path, *, batch: int = 8, seed: int = 0) -> LabelledBatches:
    """Read images whose class is the folder that they are in, the same share of each class, in random order.

    >>> import tempfile, wellcond as wc
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("cat", "dog"):
    ...         Path(folder, name).mkdir()
    ...         Image.new("RGB", (8, 8)).save(Path(folder, name, "1.png"))
    ...     model = wc.build_model("timm:vit_tiny_patch16_224", depth=1, num_classes=2)
    ...     found = image_batches(model, Path(folder), batch=2)
    >>> sorted(found.batches[0][1].tolist()), found.description
    ([0, 1], '2 images of 2 classes')
    """
    classes = sorted(path for path in check_path(folder).iterdir() if path.is_dir()) if folder.is_dir() else []
    if len(classes) < 2:
        raise WellcondError(
            f"'{folder}' has no classes: put the images of each class into a folder of their own there, or give "
            "--data path/to/file.py:function"
        )
    each = max(1, BATCHES * batch // len(classes))
    images, labels, given = list[Tensor](), list[int](), "inputs"
    for label, path in enumerate(classes):
        found: Any = image_inputs(model, path, batch=each, seed=seed).batch
        if isinstance(found, dict):
            given, found = next((name, x) for name, x in found.items() if name.startswith("pixel"))
        images.append(found)
        labels += [label] * len(found)
    every, targets = torch.cat(images), torch.tensor(labels)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(key(seed, "order of images")))
    parts = [part for part in torch.split(order, batch) if len(part) == batch] or [order]
    named = "pixel_values" in signature(model.forward).parameters
    pairs = [({given: every[part]} if named else every[part], targets[part].to(every.device)) for part in parts]
    return LabelledBatches(pairs, class_loss, f"{len(every)} images of {len(classes)} classes")


def text_batches(
    model: nn.Module, text: str, *, batch: int = 8, tokens: int | None = None, seed: int = 0
) -> LabelledBatches:
    """Cut a text into sequences whose next tokens are to be predicted.

    >>> import wellcond as wc
    >>> model = wc.build_model("hf:gpt2", architectures=["GPT2LMHeadModel"], n_layer=1, n_embd=8, n_head=2)
    >>> found = text_batches(model, "the cat sat on the mat " * 8, batch=2, tokens=16)
    >>> sorted(found.batches[0]), found.loss
    (['input_ids', 'labels'], None)
    """
    fed = text_inputs(model, text, batch=BATCHES * batch, seed=seed, tokens=tokens)
    names = signature(model.forward).parameters
    found = fed.batch["input_ids"] if isinstance(fed.batch, dict) else fed.batch
    if not isinstance(found, Tensor):
        raise WellcondError(f"{type(model).__name__} takes more than token ids: give --data path/to/file.py:function")
    parts = [part for part in torch.split(found, batch) if len(part) == batch] or [found]
    if "labels" in names:
        return LabelledBatches([{"input_ids": part, "labels": part} for part in parts], None, fed.description)
    if isinstance(fed.batch, dict):
        raise WellcondError(
            f"{type(model).__name__} has no output of its own to learn by (no labels): name a class that has, as with "
            "architectures in a configuration, or give --data path/to/file.py:function"
        )
    return LabelledBatches([(part, part) for part in parts], next_token_loss, fed.description)


def class_loss(output: Any, target: Tensor) -> Tensor:
    """Return the cross entropy of classes.

    >>> class_loss(torch.zeros(1, 2), torch.tensor([1])).round(decimals=4)
    tensor(0.6931)
    """
    logits = _logits(output)
    if logits.ndim != 2 or logits.shape[1] <= int(target.max()):
        raise BatchError(
            f"the model gives {tuple(logits.shape)} numbers for {int(target.max()) + 1} classes or more: build it with "
            "as many classes as there are folders"
        )
    return nn.functional.cross_entropy(logits.float(), target)


def next_token_loss(output: Any, ids: Tensor) -> Tensor:
    """Return the cross entropy of every token's next one, for logits `(B, T, vocabulary)`.

    >>> next_token_loss(torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]])).round(decimals=4)
    tensor(1.3863)
    """
    logits = _logits(output)
    if logits.ndim != 3 or logits.shape[:2] != ids.shape:
        raise BatchError(f"the model gives {tuple(logits.shape)} for token ids {tuple(ids.shape)}, not logits of each")
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def _logits(output: Any) -> Tensor:
    found: Any = getattr(output, "logits", output)
    found = found[0] if isinstance(found, (tuple, list)) and found else found
    if not isinstance(found, Tensor):
        raise BatchError(f"the model gives a {type(output).__name__} without logits: name a class with a head")
    return found
