"""Average precision of boxes and masks, by COCO's own evaluation."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from wellcond.lab.tasks.checks import library

if TYPE_CHECKING:
    from wellcond.lab.tasks.metrics import Counts

Record: TypeAlias = Mapping[str, Any]  # of one image: boxes, labels, scores and image_id as tensors, masks as runs
PREFIXES = {"bbox": "", "segm": "mask_"}  # what COCO calls them, and how their figures are called here
THRESHOLDS = {"ap": slice(None), "ap50": slice(0, 1), "ap75": slice(5, 6)}  # of the ten from 0.50 to 0.95


def precisions(counts: Counts, kinds: Sequence[str] = tuple(PREFIXES)) -> dict[str, float]:
    """Return the six figures of a detector, from 0 to 1: ap, ap50 and ap75 of boxes, mask_ap, mask_ap50 and mask_ap75.

    T.-Y. Lin et al., Microsoft COCO, arXiv 1405.0312, by pycocotools: precision at 101 recalls, averaged over classes
    and over the ten overlaps (IoU) from 0.50 to 0.95, with at most 100 detections in an image and a class. All are 0
    where nothing was detected, and NaN where there was nothing to detect. An image that comes twice counts once.

    Args:
        counts: its `collected` has predictions beside targets, image by image. Targets may have `iscrowd` `(n,)`: what
            is detected inside of a crowd is neither right nor wrong.
        kinds: bbox, segm or both; masks are left out where a model has none.

    >>> import torch
    >>> from wellcond.lab.tasks.metrics import count
    >>> box = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0]]), "labels": torch.tensor([1])}
    >>> found = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 7.2]]), "labels": box["labels"], "scores": torch.tensor([0.9])}
    >>> found = precisions(count("ap", [found], [box]))  # an overlap of 0.72 is enough for five of the ten
    >>> {name: round(value, 6) for name, value in found.items()}
    {'ap': 0.5, 'ap50': 1.0, 'ap75': 0.0}
    """
    coco, collected = library("pycocotools.coco", "data"), counts.collected
    truths, guesses = _annotations(collected)
    if not all("segmentation" in each for each in (*truths, *guesses)):
        kinds = [kind for kind in kinds if kind != "segm"]
    if not truths or not guesses:
        value = 0.0 if truths else math.nan
        return {PREFIXES[kind] + name: value for kind in kinds for name in THRESHOLDS}
    labels = sorted({each["category_id"] for each in (*truths, *guesses)})
    # pycocotools asks for a size, but runs have their own.
    images = [{"id": image_id, "height": 0, "width": 0} for image_id in _by_image(collected)]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth = coco.COCO()
        truth.dataset = {"images": images, "annotations": truths, "categories": [{"id": label} for label in labels]}
        truth.createIndex()
        guess = truth.loadRes(guesses)
        return {PREFIXES[kind] + name: ap for kind in kinds for name, ap in _evaluated(truth, guess, kind).items()}


def runs(masks: Tensor) -> list[dict[str, Any]]:
    """Masks `(n, H, W)`, or probabilities `(n, 1, H, W)`, as COCO's compressed runs: some hundred bytes each.

    >>> import torch
    >>> runs(torch.zeros(1, 4, 2, dtype=torch.uint8))
    [{'size': [4, 2], 'counts': b'8'}]
    """
    if masks.is_floating_point():
        masks = masks[:, 0] > 0.5
    columns = np.asfortranarray(masks.permute(1, 2, 0).cpu().numpy().astype(np.uint8))
    return list(library("pycocotools.mask", "data").encode(columns))


def _evaluated(truth: Any, guess: Any, kind: str) -> dict[str, float]:
    """COCO's evaluation without its small, medium and large objects."""
    evaluation = library("pycocotools.cocoeval", "data").COCOeval(truth, guess, kind)
    evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
    evaluation.params.maxDets = [100]
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"]  # overlaps × recalls × classes × 1 × 1; -1 where a class has no object
    found = {name: precision[part] for name, part in THRESHOLDS.items()}
    return {name: float(p[p > -1].mean()) if (p > -1).any() else math.nan for name, p in found.items()}


def _by_image(collected: Sequence[tuple[Record, Record]]) -> dict[int, tuple[Record, Record]]:
    """Return pairs by `image_id`, so that the order of the images does not matter; by position where there is none."""
    return {int(pair[1].get("image_id", number)): pair for number, pair in enumerate(collected)}


def _annotations(collected: Sequence[tuple[Record, Record]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Objects and detections as COCO writes them."""
    truths: list[dict[str, Any]] = []
    guesses: list[dict[str, Any]] = []
    for image_id, (prediction, target) in _by_image(collected).items():
        guesses += _objects(prediction, image_id)
        truths += _objects(target, image_id)
    for number, each in enumerate(truths):
        # From 1 on: 0 means "no object" to COCOeval. No area is asked for, so any is right.
        each.update(id=number + 1, iscrowd=each.get("iscrowd", 0), area=each["bbox"][2] * each["bbox"][3])
    return truths, guesses


def _objects(record: Record, image_id: int) -> list[dict[str, Any]]:
    boxes = record["boxes"].double()
    columns = {
        "category_id": record["labels"].tolist(),
        "bbox": [*map(list, zip(*boxes[:, :2].T.tolist(), *(boxes[:, 2:] - boxes[:, :2]).T.tolist(), strict=True))],
    }
    columns |= {"score": record["scores"].tolist()} if "scores" in record else {}
    columns |= {"segmentation": record["masks"]} if "masks" in record else {}
    columns |= {"iscrowd": record["iscrowd"].tolist()} if "iscrowd" in record else {}
    return [
        {"image_id": image_id, **dict(zip(columns, row, strict=True))} for row in zip(*columns.values(), strict=True)
    ]
