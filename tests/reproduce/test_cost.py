"""What a recipe costs: counted without weights, and the same as in a real pass with them; every recipe has a cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.reproduce.test_entries import NAMES, stages, stand_in
from wellcond.errors import WellcondError
from wellcond.lab.models import lab_model
from wellcond.lab.recipe.recipe import Recipe, load_recipe
from wellcond.lab.recipe.settings import Named
from wellcond.lab.tasks import task
from wellcond.reproduce.cost import RecipeCost, cost_of
from wellcond.reproduce.published_recipe import load_published

XCIT = {"backbone": "xcit_small_12_p16_224", "options": {"embed_dim": 16, "depth": 3, "num_heads": 2}}
SWIN = {
    "backbone": "swin_tiny_patch4_window7_224",
    "options": {"embed_dim": 8, "depths": [1, 1, 2, 2], "num_heads": [1, 2, 2, 2]},
}
FEW = {
    "fpn": 16, "max_size": 96, "anchors": [8, 12, 16, 24, 32], "proposals": [200, 100], "samples": [16, 20],
    "drop_path": 0.1,
}  # fmt: skip


def measured(model: nn.Module, run: Callable[[], Any]) -> tuple[int, int]:
    """Operations, and bytes that autograd keeps, of a pass with weights; memory is told apart by its address."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}
    held: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)
        return tensor

    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return counter.get_total_flops(), sum(kept.values())


def with_model(recipe: str, name: str, **options: Any) -> Recipe:
    return load_recipe(recipe).model_copy(update={"model": Named(name=name, **options)})


@pytest.mark.parametrize("backbone", [XCIT, SWIN], ids=["xcit", "swin"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (480, 640)])
def test_a_detector_costs_what_its_whole_pass_with_targets_takes(
    backbone: dict[str, Any], height: int, width: int
) -> None:
    """Ten objects give the five positives of 20 samples, and the rest of the image enough negatives."""
    shapes = task("shapes", size=64)
    if height != width:  # each image has its own size, as in COCO
        shapes = dataclasses.replace(shapes, shape={**shapes.shape, "size": 0})
    cost = cost_of(with_model("shapes", "mask-rcnn", **FEW, **backbone, min_size=[32, 64]), shapes, runs=1)
    model = lab_model("mask-rcnn", {**FEW, **backbone, "min_size": 64}, shapes, seed=0).train()
    across = torch.arange(10.0)[:, None] * width / 40
    boxes = torch.cat([across, across * 0, across + width / 8, across * 0 + height / 8], 1)
    target = {"boxes": boxes, "labels": torch.ones(10, dtype=torch.int64), "masks": torch.zeros(10, height, width)}
    given: list[int] = []
    for head in (model.roi_heads.box_head, model.roi_heads.mask_head):
        head.register_forward_hook(lambda part, inputs, output: given.append(len(inputs[0])))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        operations, kept = measured(model, lambda: model([torch.rand(3, height, width)], [target]))
    assert given == [20, 5]
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert cost.forward == operations
    assert cost.saved <= kept <= 1.05 * cost.saved  # the losses, and which boxes were chosen


def test_the_branches_of_a_detector_take_the_operations_of_their_layers() -> None:
    """By hand: 256 boxes more, a quarter of them with masks, at torchvision's widths; 2 operations a weight."""
    coco = dataclasses.replace(task("shapes"), shape={"channels": 3, "size": 0, "classes": 91})
    more, less = (
        cost_of(with_model("shapes", "mask-rcnn", **XCIT, samples=[256, boxes]), coco, runs=1) for boxes in (512, 256)
    )
    box = 256 * 7 * 7 * 1024 + 1024 * 1024 + 1024 * (91 + 4 * 91)
    convolutions = 4 * (3 * 3 * 256 * 256) * 14 * 14
    mask = convolutions + 256 * 256 * 28 * 28 + 256 * 91 * 28 * 28  # doubled, each pixel from one; then classes
    assert more.forward - less.forward == 2 * (256 * box + 64 * mask)
    assert more.parameters == less.parameters


NYSTROM = {"width": 16, "heads": 2, "mlp": 32, "landmarks": 16, "kernel": 3}


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        (load_recipe("digits"), lambda: {"x": torch.zeros(1, 1, 8, 8)}),
        # The model pads 100 tokens to 128.
        (
            with_model("listops", "nystromformer", **NYSTROM),
            lambda: {"input_ids": torch.zeros(1, 100, dtype=torch.int64)},
        ),
    ],
    ids=["vit", "nystromformer"],
)
def test_bytes_are_those_that_a_pass_with_weights_keeps(recipe: Recipe, given: Callable[[], dict[str, Tensor]]) -> None:
    """Attention by its matrices, as on the meta device; what is seen in several ways is kept once."""
    own = task(recipe.task.name, **recipe.task.options)
    if "tokens" in own.shape:
        own = dataclasses.replace(own, shape={**own.shape, "tokens": 100})
    model = lab_model(recipe.model.name, recipe.model.options, own, seed=0).train()
    with sdpa_kernel(SDPBackend.MATH), torch.random.fork_rng(devices=[]):
        operations, kept = measured(model, lambda: model(**given()))
    cost = cost_of(recipe, own, runs=1)
    assert (cost.forward, cost.saved) == (operations, kept)


def test_the_device_with_the_most_examples_has_whole_ones() -> None:
    """16 images on 8 devices are 2 each, 4 on 8 one each; a third part of 5 on each of 2 is one of 2, 2 and 1."""

    def kept(batch: int, accumulate: int, devices: int) -> float:
        cost = RecipeCost(0, forward=1.0, saved=1e9, steps=1, batch=batch, accumulate=accumulate, runs=1)
        return cost.gigabytes(devices, sharded=False, half=False)

    assert [kept(16, 1, 8), kept(4, 1, 8), kept(10, 3, 2), kept(96, 2, 8)] == [2, 1, 2, 6]


def test_a_model_that_does_not_fit_its_task_is_one_line() -> None:
    recipe = with_model("digits", "timm:vit_tiny_patch16_224", img_size=64, depth=1)
    with pytest.raises(
        WellcondError, match=r"'timm:vit_tiny_patch16_224' costs .* 'digits'.* 'size': 8.* fails with"
    ) as error:
        cost_of(recipe, task("digits"), runs=1)
    assert "\n" not in str(error.value)


KINDS = ["ci-vit-t-cifar10", "ci-gpt2-tinystories", "sc-nystromformer-retrieval", "ci-xcit-s-coco", "sc-swin-b-coco"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in KINDS else pytest.mark.long) for n in NAMES])
def test_every_entry_has_a_cost_that_fits_its_devices(name: str) -> None:
    entry = load_published(name)
    for stage in stages(entry.recipe):
        cost = cost_of(stage, stand_in(stage.task), runs=1)
        # Every weight but those of tables of words multiplies at least one number, mostly one for each of many tokens.
        assert cost.forward > 2 * cost.parameters
        # A number that is kept is the input of some product, so it takes part in many operations.
        assert 0 < cost.saved < cost.forward
        half, sharded = stage.train.precision != "no", stage.train.sharding == "fsdp2"
        memory = cost.gigabytes(entry.published.gpus, sharded=sharded, half=half)
        assert 0 < memory < 80, f"{name}: {memory} GB on a device of at most 80"
