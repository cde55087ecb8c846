"""Run a detector at the limits of its training without numbers: everything but the choice of boxes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from wellcond.lab.tasks.base import Task

TYPICAL_SIZE = (480, 640)  # height and width of an image where each has its own; a common one in COCO


def run_at_limits(model: nn.Module, task: Task) -> None:
    """Run the parts of torchvision's Mask R-CNN on one image, with as many boxes as training ever takes.

    A forward chooses boxes by their scores, which tensors without content do not have. How many it chooses is bounded:
    the box branch is given all that are sampled, and the mask branch those of them that may be positive, a quarter.
    RoIAlign, the matching of boxes and the losses have no matrix product, and keep next to nothing.
    Where the task's images have sizes of their own, one of 480 × 640 stands for them.

    >>> from wellcond.lab.models import lab_model
    >>> from wellcond.lab.tasks import task
    >>> with torch.device("meta"):
    ...     model = lab_model("mask-rcnn", {"fpn": 16, "samples": [256, 64]}, task("shapes"), seed=0)
    >>> seen = []
    >>> hook = model.roi_heads.mask_head.register_forward_hook(lambda part, inputs, _: seen.append(inputs[0].shape))
    >>> run_at_limits(model, task("shapes"))
    >>> seen
    [torch.Size([16, 16, 14, 14])]
    """
    detector: Any = model  # its parts are modules of torchvision's
    size, device = task.shape["size"], next(model.parameters()).device
    sides = padded_size(detector.transform, *((size, size) if size else TYPICAL_SIZE))
    maps = detector.backbone(torch.zeros(1, task.shape["channels"], *sides, device=device))
    detector.rpn.head(list(maps.values()))
    heads, channels = detector.roi_heads, detector.backbone.out_channels
    boxes = heads.fg_bg_sampler.batch_size_per_image
    positive = int(boxes * heads.fg_bg_sampler.positive_fraction)
    for count, pool, head, predictor in (
        (boxes, heads.box_roi_pool, heads.box_head, heads.box_predictor),
        (positive, heads.mask_roi_pool, heads.mask_head, heads.mask_predictor),
    ):
        predictor(head(torch.zeros(count, channels, *pool.output_size, device=device)))


def padded_size(transform: Any, height: int, width: int) -> tuple[int, int]:
    """Return height and width of an image in the model: resized, then padded to a multiple of 32.

    Of several sizes for the shorter side the largest counts. Training draws one for each image, and pads the images of
    a device to the largest of them; so this bounds the memory, and is some 20 % above the mean area of two.

    >>> from torchvision.models.detection.transform import GeneralizedRCNNTransform
    >>> padded_size(GeneralizedRCNNTransform([640, 800], 1333, [0.0], [1.0]), 480, 640)
    (800, 1088)
    """
    scale = min(max(transform.min_size) / min(height, width), transform.max_size / max(height, width))
    step = transform.size_divisible
    down, across = (step * math.ceil(math.floor(side * scale) / step) for side in (height, width))
    return down, across
