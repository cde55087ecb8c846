"""Detection in the laboratory: average precision, Mask R-CNN on transformers, and a recipe of drawn shapes."""

import contextlib
import copy
import dataclasses
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN

import wellcond as wc
from wellcond.errors import WellcondError
from wellcond.lab.comparison import prepare_comparison, run_one
from wellcond.lab.models import check_fits, feed, lab_model
from wellcond.lab.models.build import monitor_inputs
from wellcond.lab.models.detector import Pyramid, mask_rcnn
from wellcond.lab.recipe.arms import arms_of
from wellcond.lab.recipe.recipe import load_recipe
from wellcond.lab.tasks import Batch, Counts, task
from wellcond.lab.tasks.detection.average_precision import precisions, runs

SHAPE = {"channels": 3, "size": 64, "classes": 4}
XCIT = {"embed_dim": 16, "depth": 3, "num_heads": 2}
SWIN = {"embed_dim": 8, "depths": [1, 1, 2, 2], "num_heads": [1, 2, 2, 2]}
FEW: dict[str, Any] = {
    "fpn": 16, "min_size": 64, "max_size": 96, "anchors": [8, 12, 16, 24, 32], "proposals": [30, 20],
    "test_proposals": [20, 10], "samples": [16, 8], "detections": 5,
}  # fmt: skip
SIX = ["ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"]


def detector(backbone: str = "xcit_small_12_p16_224", seed: int = 0, **options: Any) -> nn.Module:
    own = SWIN if backbone.startswith("swin") else XCIT
    return lab_model("mask-rcnn", {"backbone": backbone, "options": own, **FEW, **options}, SHAPES, seed)


SHAPES = task("shapes", train_images=8, test_images=4)


def target(
    *boxes: list[float], labels: list[int] | None = None, image_id: int = 1, size: int = 32
) -> dict[str, Tensor]:
    """Boxes x₁ y₁ x₂ y₂ in whole pixels, with the same as masks."""
    masks = torch.zeros(len(boxes), size, size, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes, strict=True):
        mask[int(top) : int(bottom), int(left) : int(right)] = 1
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor(labels or [1] * len(boxes)),
        "masks": masks,
        "image_id": torch.tensor(image_id),
    }


def found(*boxes: list[float], scores: list[float] | None = None, **options: Any) -> dict[str, Tensor]:
    """The same as a detector gives it, its masks as probabilities `(n, 1, H, W)`."""
    made = target(*boxes, **options)
    made["masks"] = made["masks"][:, None] * 0.9
    return {**made, "scores": torch.tensor(scores or [0.9] * len(boxes))}


def score(predictions: list[dict[str, Tensor]], targets: list[dict[str, Tensor]]) -> Counts:
    return SHAPES.score(predictions, Batch((), tuple(targets)))


# ------------------------------------------------------------------------------------------- average precision


def test_a_perfect_box_and_mask_have_precision_one():
    counts = score([found([2, 3, 12, 17])], [target([2, 3, 12, 17])])
    assert SHAPES.metric_of(counts) == pytest.approx(1, abs=1e-12)
    assert precisions(counts) == pytest.approx(dict.fromkeys(SIX, 1.0), abs=1e-12)
    assert list(SHAPES.extras(counts)) == SIX[1:]


@pytest.mark.parametrize("height", [10, 11, 13, 16, 18, 20])
def test_an_overlap_counts_at_the_thresholds_that_it_reaches(height: int):
    # A box of 20 × 20 of which `height` rows are found has IoU = height / 20, and the thresholds are 0.50, 0.55, …
    counts = score([found([5, 5, 25, 5 + height])], [target([5, 5, 25, 25])])
    met = sum(100 * height >= 20 * threshold for threshold in range(50, 100, 5)) / 10
    values = {"ap": met, "ap50": 1.0, "ap75": float(height >= 15)}
    values |= {f"mask_{name}": value for name, value in values.items()}
    assert precisions(counts) == pytest.approx(values, abs=1e-12)


def test_a_wrong_box_above_the_right_one_halves_the_precision():
    counts = score([found([20, 20, 30, 30], [2, 3, 12, 17], scores=[0.9, 0.8])], [target([2, 3, 12, 17])])
    assert SHAPES.metric_of(counts) == pytest.approx(0.5, abs=1e-12)
    counts = score([found([20, 20, 30, 30], [2, 3, 12, 17], scores=[0.8, 0.9])], [target([2, 3, 12, 17])])
    assert SHAPES.metric_of(counts) == pytest.approx(1, abs=1e-12)


def test_half_of_the_objects_found_gives_the_recalls_up_to_a_half():
    counts = score([found([2, 3, 12, 17])], [target([2, 3, 12, 17], [20, 20, 30, 30])])
    assert SHAPES.metric_of(counts) == pytest.approx(51 / 101, abs=1e-12)  # recalls 0.00, 0.01, …, 0.50 of 101


def test_a_wrong_class_is_wrong_and_classes_are_averaged():
    counts = score([found([2, 3, 12, 17], labels=[2])], [target([2, 3, 12, 17])])
    assert SHAPES.metric_of(counts) == 0
    both = [[2.0, 3, 12, 17], [20.0, 20, 30, 30]]
    counts = score([found(*both, labels=[1, 3])], [target(*both, labels=[1, 2])])
    assert SHAPES.metric_of(counts) == pytest.approx(0.5, abs=1e-12)  # class 3 has no object, and is not averaged


def test_nothing_found_is_zero_and_nothing_to_find_is_no_number():
    assert precisions(score([found()], [target([2, 3, 12, 17])])) == dict.fromkeys(SIX, 0.0)
    assert math.isnan(SHAPES.metric_of(score([found([2, 3, 12, 17])], [target()])))
    assert math.isnan(SHAPES.metric_of(Counts()))


def test_what_is_found_in_a_crowd_is_not_wrong():
    crowded = {**target([0, 0, 10, 10], [16, 16, 32, 32]), "iscrowd": torch.tensor([0, 1])}
    guess = found([18, 18, 24, 24], [0, 0, 10, 10], scores=[0.9, 0.8])
    assert SHAPES.metric_of(score([guess], [crowded])) == pytest.approx(1, abs=1e-12)
    assert SHAPES.metric_of(score([guess], [{**crowded, "iscrowd": torch.tensor([0, 0])}])) < 0.5


def test_a_model_without_masks_has_the_three_of_its_boxes():
    guess = found([2, 3, 12, 17])
    del guess["masks"]
    assert list(precisions(score([guess], [target([2, 3, 12, 17])]))) == SIX[:3]


def scattered(seed: int, images: int = 12) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Objects at random and detections near them, some of the wrong class, some of nothing."""
    source = torch.Generator().manual_seed(seed)

    def integers(least: int, below: int, *shape: int) -> Tensor:
        return torch.randint(least, below, shape, generator=source)

    predictions, targets = [], []
    for image_id in range(1, images + 1):
        corners = integers(0, 18, int(integers(0, 5)), 2)
        boxes = torch.cat([corners, corners + integers(6, 13, len(corners), 2)], 1)
        labels = integers(1, 4, len(boxes))
        near = (boxes.repeat(2, 1) + integers(-2, 3, 2 * len(boxes), 4)).clamp(0, 32)
        guessed = torch.where(torch.rand(len(near), generator=source) < 0.7, labels.repeat(2), 1)
        scores = torch.rand(len(near), generator=source)
        targets.append(target(*boxes.tolist(), labels=labels.tolist(), image_id=image_id))
        predictions.append(found(*near.tolist(), labels=guessed.tolist(), scores=scores.tolist(), image_id=image_id))
    return predictions, targets


def from_files(
    predictions: list[dict[str, Tensor]], targets: list[dict[str, Tensor]], folder: Path
) -> dict[str, float]:
    """COCO's six figures as people get them: two JSON files, and the summary that COCOeval prints."""
    images = [{"id": int(t["image_id"]), "height": 32, "width": 32} for t in targets]
    objects, results = [], []
    for guess, true in zip(predictions, targets, strict=True):
        for box, label in zip(true["boxes"].tolist(), true["labels"].tolist(), strict=True):
            x, y, w, h = box[0], box[1], box[2] - box[0], box[3] - box[1]
            runs_of = [x * 32 + y] + [h, 32 - h] * int(w)  # columns of one after the other
            runs_of[-1] = 32 * 32 - sum(runs_of[:-1])
            objects.append(
                {
                    "id": len(objects) + 1, "image_id": int(true["image_id"]), "category_id": label, "iscrowd": 0,
                    "bbox": [x, y, w, h], "area": w * h, "segmentation": {"size": [32, 32], "counts": runs_of},
                }
            )  # fmt: skip
        for box, label, value in zip(*(guess[name].tolist() for name in ("boxes", "labels", "scores")), strict=True):
            x, y, w, h = (int(part) for part in (box[0], box[1], box[2] - box[0], box[3] - box[1]))
            outline = coco_masks.frPyObjects(
                {"size": [32, 32], "counts": [x * 32 + y, *([h, 32 - h] * w)[:-1], 32 * 32 - (x + w - 1) * 32 - y - h]},
                32, 32,
            )  # fmt: skip
            results.append(
                {
                    "image_id": int(guess["image_id"]), "category_id": label, "score": value, "bbox": [x, y, w, h],
                    "segmentation": {"size": [32, 32], "counts": outline["counts"].decode()},
                }
            )  # fmt: skip
    categories = [{"id": label, "name": str(label)} for label in (1, 2, 3)]
    truth = {"images": images, "annotations": objects, "categories": categories}
    (folder / "truth.json").write_text(json.dumps(truth))
    (folder / "results.json").write_text(json.dumps(results))
    values: list[float] = []
    with contextlib.redirect_stdout(io.StringIO()):
        for kind in ("bbox", "segm"):
            coco = COCO(str(folder / "truth.json"))
            evaluation = COCOeval(coco, coco.loadRes(str(folder / "results.json")), kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            values += evaluation.stats[:3].tolist()
    return dict(zip(SIX, values, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_the_six_figures_are_those_of_coco_from_files(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    predictions, targets = scattered(seed)
    expected = from_files(predictions, targets, tmp_path)
    assert 0.02 < expected["mask_ap"] < expected["ap50"] < 0.98
    parts = [score(predictions[part], targets[part]) for part in (slice(5, None), slice(0, 5))]
    assert precisions(parts[0] + parts[1]) == pytest.approx(expected, abs=1e-12)
    assert SHAPES.metric_of(parts[0] + parts[1]) == pytest.approx(expected["ap"], abs=1e-12)
    assert precisions(parts[0] + parts[1] + parts[1]) == pytest.approx(expected, abs=1e-12)  # an image counts once
    assert capsys.readouterr().out == ""


def test_collected_masks_are_small_and_exact():
    masks = torch.rand(3, 1, 40, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.from_numpy(coco_masks.decode(runs(masks))).permute(2, 0, 1), (masks[:, 0] > 0.5).byte())
    blob = torch.zeros(100, 480, 640, dtype=torch.uint8)
    blob[:, 100:300, 50:400] = 1
    kept = SHAPES.score([], Batch((), ())) + score([], [])
    assert kept.collected == ()
    assert sum(len(run["counts"]) for run in runs(blob)) < 100 * 3000  # of 307 200 pixels each
    assert runs(torch.zeros(0, 8, 9, dtype=torch.uint8)) == []


def test_without_pycocotools_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(WellcondError, match=r"needs pycocotools .*: pip install 'wellcond\[data\]'$"):
        check_fits(detector(), SHAPES, SHAPES.test[torch.arange(2)])


def test_only_detection_has_extras():
    other = dataclasses.replace(SHAPES, kind="image", metric="accuracy")
    assert other.extras(Counts({"right": 1, "count": 2})) == {}


# ----------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("backbone", ["xcit_small_12_p16_224", "xcit_small_12_p8_224", "swin_tiny_patch4_window7_224"])
def test_the_pyramid_has_five_levels_at_doubling_strides(backbone: str):
    pyramid = Pyramid(backbone, SWIN if "swin" in backbone else XCIT, 16).eval()
    maps = pyramid(torch.randn(2, 3, 64, 96))
    assert {name: tuple(each.shape) for name, each in maps.items()} == {
        "0": (2, 16, 16, 24), "1": (2, 16, 8, 12), "2": (2, 16, 4, 6), "3": (2, 16, 2, 3), "pool": (2, 16, 1, 2)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("depth", "taps"), [(12, [3, 5, 7, 11]), (24, [7, 11, 15, 23]), (4, [0, 1, 2, 3]), (2, [0, 0, 0, 1])]
)
def test_an_xcit_is_tapped_after_the_blocks_of_its_authors(depth: int, taps: list[int]):
    pyramid = Pyramid("xcit_nano_12_p16_224", {**XCIT, "depth": depth}, 8).eval()
    assert pyramid.taps == taps
    seen: dict[int, Tensor] = {}
    for number, block in enumerate(pyramid.body.blocks):
        block.register_forward_hook(lambda *call, number=number: seen.update({number: call[2]}))
    given: list[Tensor] = []
    for scale in pyramid.scales:
        scale.register_forward_hook(lambda *call: given.append(call[1][0]))
    pyramid(torch.randn(1, 3, 64, 96))
    assert len(given) == 4
    for tap, each in zip(taps, given, strict=True):
        assert torch.equal(each.flatten(2).transpose(1, 2), seen[tap])  # tokens in their places, row by row


def test_the_scales_of_an_xcit_are_those_of_its_authors():
    scales = Pyramid("xcit_small_12_p16_224", XCIT, 8).scales
    assert [type(part) for part in scales[0]] == [nn.ConvTranspose2d, nn.BatchNorm2d, nn.GELU, nn.ConvTranspose2d]
    assert [type(part) for part in scales[1:]] == [nn.ConvTranspose2d, nn.Identity, nn.MaxPool2d]


@pytest.mark.parametrize("backbone", ["xcit_small_12_p16_224", "swin_tiny_patch4_window7_224"])
def test_weights_of_a_classifier_load_by_their_own_names(backbone: str):
    options = SWIN if "swin" in backbone else XCIT
    classifier = timm.create_model(backbone, **options)
    model = detector(backbone)
    lacking, others = model.backbone.body.load_state_dict(classifier.state_dict(), strict=False)
    assert lacking == []
    assert {name.split(".")[0] for name in others} <= {"head", "norm", "cls_token", "cls_attn_blocks"}
    theirs = classifier.state_dict()
    blocks = [name for name in theirs if name.startswith(("blocks.", "layers.", "patch_embed."))]
    assert len(blocks) > 40
    own = model.state_dict()
    assert all(torch.equal(own[f"backbone.body.{name}"], theirs[name]) for name in blocks)


def test_the_maps_of_a_swin_are_those_of_timm_with_a_norm():
    options = {**SWIN, "img_size": 224}
    pyramid = Pyramid("swin_tiny_patch4_window7_224", options, 8).eval()
    classifier = timm.create_model("swin_tiny_patch4_window7_224", **options, always_partition=True).eval()
    classifier.load_state_dict(pyramid.body.state_dict(), strict=False)
    given: list[Tensor] = []
    for scale in pyramid.scales:
        scale.register_forward_hook(lambda *call: given.append(call[2]))
    images = torch.randn(1, 3, 224, 224)
    pyramid(images)
    stages = classifier.forward_intermediates(images, intermediates_only=True)
    for each, stage in zip(given, stages, strict=True):
        centred = stage - stage.mean(1, keepdim=True)
        expected = centred / (stage.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        assert torch.allclose(each, expected, atol=1e-5)  # some ten roundings of float32 numbers near 3


@pytest.mark.parametrize("backbone", ["xcit_small_12_p16_224", "swin_tiny_patch4_window7_224"])
def test_every_weight_has_a_gradient_and_images_may_have_any_size(backbone: str):
    model = detector(backbone).train()
    images = (torch.rand(3, 40, 50), torch.rand(3, 70, 33))
    targets = (target([2, 3, 12, 17], [20, 20, 30, 30], size=70), target([4, 4, 20, 20], size=70))
    for image, true in zip(images, targets, strict=True):
        true["masks"] = true["masks"][:, : image.shape[1], : image.shape[2]]
    batch = Batch(images, targets)
    SHAPES.loss(feed(model, batch), batch).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    with torch.no_grad():
        output = feed(model.eval(), batch)
    assert [each["masks"].shape[1:] for each in output] == [(1, 40, 50), (1, 70, 33)]
    assert all(len(each["boxes"]) <= 5 for each in output)


def test_at_256_channels_the_heads_are_those_of_torchvision():
    ours = mask_rcnn({"channels": 3, "classes": 91}, options=XCIT)
    theirs = MaskRCNN(Pyramid("xcit_small_12_p16_224", XCIT, 256), 91)
    shapes = [{name: tuple(p.shape) for name, p in model.named_parameters()} for model in (ours, theirs)]
    assert shapes[0] == shapes[1]
    boring = (int, float, tuple, str, dict, bool)
    for part in ("rpn", "roi_heads", "transform", "rpn.anchor_generator"):
        a, b = (
            {n: v for n, v in vars(m.get_submodule(part)).items() if isinstance(v, boring) and n[0] != "_"}
            for m in (ours, theirs)
        )
        assert {n: str(v) for n, v in a.items()} == {n: str(v) for n, v in b.items()}


def test_a_detector_of_the_papers_is_the_default():
    model = mask_rcnn({"channels": 3, "classes": 91})
    assert len(model.backbone.body.blocks) == 12
    assert model.backbone.body.embed_dim == 384
    assert model.backbone.out_channels == 256
    heads = wc.attention_layers(model)
    assert [layer.name for layer in heads] == [f"backbone.body.blocks.{n}.attn" for n in range(12)]
    assert heads[0].num_heads == 8


@pytest.mark.parametrize("backbone", ["xcit_small_12_p16_224", "swin_tiny_patch4_window7_224"])
def test_schemes_reach_the_heads_of_the_backbone_and_nothing_else(backbone: str):
    model = detector(backbone)
    before = copy.deepcopy(model.state_dict())
    wc.init_(model, "conditioned", seed=0)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("backbone.body.") and ".attn." in name for name in changed)
    weight = next(p for name, p in model.named_parameters() if name.endswith("attn.qkv.weight"))
    was = weight.detach().clone()
    wc.condition_(model, "shift", strength=1.0)
    assert not torch.equal(weight, was)


def test_drop_path_reaches_the_backbone():
    rates = {m.drop_prob for m in detector(drop_path=0.25).modules() if type(m).__name__ == "DropPath"}
    assert rates == {0.25}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "resnet18"}, "XCiT or a Swin here, and 'resnet18' is ResNet"),
        ({"backbone": "xcit_small_13"}, "timm has no model 'xcit_small_13'"),
        ({"anchors": [8]}, r"five sides.* got \[8\]"),
        ({"colour": 1}, "it takes backbone, options, drop_path, fpn"),
    ],
)
def test_options_that_do_not_fit_are_said(options: dict[str, Any], message: str):
    with pytest.raises(WellcondError, match=message):
        lab_model("mask-rcnn", options, SHAPES, 0)


def test_a_check_changes_neither_the_detector_nor_the_random_numbers():
    model = detector(drop_path=0.5).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    check_fits(model, SHAPES, SHAPES.test[torch.arange(2)])
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    with pytest.raises(WellcondError, match=r"does not fit the task 'shapes'.*image 3 \(3, 64, 64\) it fails"):
        check_fits(mask_rcnn({**SHAPE, "classes": 2}, options=XCIT, **FEW), SHAPES, SHAPES.train[torch.arange(4)])


def test_a_detector_can_be_watched_and_is_not_disturbed():
    model = detector().train()
    before = copy.deepcopy(model.state_dict())
    inputs = monitor_inputs(SHAPES.test[torch.arange(2)])
    records = wc.Monitor(model, inputs, every=1, heads=2, alarms=False).step(0)
    assert [record["tier"] for record in records] == ["weights", "attention", "jacobian"]
    assert [layer["name"] for layer in records[1]["layers"]] == [f"backbone.body.blocks.{n}.attn" for n in range(3)]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    images = torch.zeros(2, 1, 8, 8)
    assert monitor_inputs(Batch(images, torch.zeros(2))) is images


# ----------------------------------------------------------------------------------------------------- recipe


def test_the_recipe_of_shapes_builds_trains_and_is_scored():
    recipe = load_recipe("shapes")
    assert list(recipe.arms) == ["default", "mimetic", "conditioned", "shift"]
    shapes = task(recipe.task.name, **recipe.task.options)
    model = lab_model(recipe.model.name, recipe.model.options, shapes, 0)
    check_fits(model, shapes, shapes.test[torch.arange(2)])
    batch = shapes.train[torch.arange(2)]
    loss = shapes.loss(feed(model.train(), batch), batch)
    loss.backward()
    assert 0 < loss < 20
    model.eval()
    with torch.no_grad():
        counts = shapes.score(feed(model, batch), batch)
    assert 0 <= shapes.metric_of(counts) < 0.5
    assert list(shapes.extras(counts)) == SIX[1:]


@pytest.mark.long
def test_the_recipe_of_shapes_learns_to_find_them(tmp_path: Path):
    recipe = load_recipe("shapes")
    experiment = prepare_comparison(recipe, tmp_path / "out")
    arm = arms_of(recipe)[0]
    assert run_one(experiment, arm, 0) == "finished"
    lines = (experiment.folder(arm, 0) / "metrics.jsonl").read_text().splitlines()
    last = [values for values in map(json.loads, lines) if "ap" in values][-1]
    assert last["ap"] > 0.05
    assert set(SIX) <= set(last)
