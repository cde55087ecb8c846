"""Tasks that are generated: ListOps against a parser, Pathfinder against a flood fill, shapes against their pixels."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import matplotlib.path
import numpy as np
import pytest
import scipy.ndimage
import torch
import torchvision
from PIL import Image

from tests.lab.tasks.test_tasks import same
from wellcond.errors import WellcondError
from wellcond.lab.tasks import Task, task
from wellcond.lab.tasks.detection.coco_format import outline_mask, run_mask, write_instances
from wellcond.lab.tasks.detection.shapes import SHAPE_NAMES, Shapes
from wellcond.lab.tasks.synthetic.dashed_curves import Scene, draw_scene
from wellcond.lab.tasks.synthetic.listops import SYMBOLS
from wellcond.lab.tasks.synthetic.pathfinder import scenes


def evaluated(words: list[str]) -> int:
    """The value of an expression, from its text alone; uses it up."""
    word = words.pop(0)
    if not word.startswith("["):
        return int(word)
    arguments = []
    while words[0] != "]":
        arguments.append(evaluated(words))
    words.pop(0)
    apply = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(statistics.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }
    return apply[word](arguments)


def text_of(ids, mask) -> list[str]:
    return [SYMBOLS[id - 1] for id in ids[mask.bool()].tolist()]


def depth_of(words: list[str]) -> int:
    depths = np.cumsum([word.startswith("[") - (word == "]") for word in words])
    return int(depths.max()) + 1


@pytest.mark.parametrize(
    "options",
    [{}, {"depth": 10, "arguments": 10, "shortest": 501, "longest": 1999, "train_examples": 60, "test_examples": 20}],
)
def test_listops_values_are_those_of_an_independent_parser(options):
    listops = task("listops", **options)
    seen = set()
    for part in (listops.train, listops.test):
        batch = part[torch.arange(len(part))]
        for ids, mask, value in zip(*batch.inputs.values(), batch.targets.tolist(), strict=True):
            words = text_of(ids, mask)
            assert ids[len(words) :].eq(0).all()
            assert options.get("shortest", 11) <= len(words) <= options.get("longest", 128)
            assert depth_of(words) <= options.get("depth", 6)
            seen.add(" ".join(words))
            assert evaluated(words) == value
            assert not words
    assert len(seen) == len(listops.train) + len(listops.test)
    assert listops.shape["vocabulary"] == 16


def test_listops_has_all_classes_and_a_validation_apart_from_the_test():
    parts = [task("listops", held_out=name).test for name in ("test", "validation")]
    batches = [part[torch.arange(1000)] for part in parts]
    texts = [{ids.numpy().tobytes() for ids in batch.inputs["input_ids"]} for batch in batches]
    assert not texts[0] & texts[1]
    assert torch.bincount(batches[0].targets, minlength=10).min() > 50


def test_listops_is_kept_in_a_file_whole_and_checked(tmp_path):
    options = {"train_examples": 30, "test_examples": 10, "folder": tmp_path / "new"}
    first = task("listops", **options).train[torch.arange(30)]
    (file,) = (tmp_path / "new").iterdir()
    stamp = file.stat().st_mtime_ns
    assert same(first, task("listops", **options).train[torch.arange(30)])
    assert file.stat().st_mtime_ns == stamp
    task("listops", **options, seed=1).train[torch.arange(1)]
    assert len(list(file.parent.iterdir())) == 2
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(WellcondError, match=r"listops-1-.* is damaged .*delete it"):
        task("listops", **options).train[torch.arange(1)]


def test_listops_refuses_what_it_cannot_do(tmp_path):
    with pytest.raises(WellcondError, match="give folder="):
        task("listops", size="full")
    full = task("listops", size="full", folder=tmp_path)  # nothing is generated before it is needed
    assert (len(full.train), len(full.test), full.shape["tokens"]) == (96_000, 2_000, 2000)
    assert not list(tmp_path.iterdir())
    with pytest.raises(WellcondError, match="size is one of tiny, full"):
        task("listops", size="huge")
    with pytest.raises(WellcondError, match="would cut expressions"):
        task("listops", tokens=64)
    with pytest.raises(WellcondError, match="shortest ≤ longest"):
        task("listops", shortest=200)
    with pytest.raises(WellcondError, match="too few expressions"):
        task("listops", shortest=4, longest=4, depth=2, train_examples=3000).train[torch.arange(1)]


def connected(image, mark) -> int:
    """The component that a place is in, once gaps within a curve are closed; scale 8."""
    grown = scipy.ndimage.distance_transform_edt(image.numpy() < 96) <= 0.3 * 8
    components, _ = scipy.ndimage.label(grown)
    x, y = (int(value * 8) for value in mark)
    return components[y, x]


def test_pathfinder_labels_are_those_of_a_flood_fill():
    scene, marks, labels = scenes(0, 32, 14, 5, seed=0)
    large = draw_scene(Scene(scene.paddles[:40], scene.curves), torch.zeros(40, 0, 2), size=32, scale=8)
    for image, (first, second), label in zip(large, marks[:40], labels[:40].tolist(), strict=True):
        found = connected(image, first), connected(image, second)
        assert all(found)
        assert (found[0] == found[1]) == bool(label)
    assert 40 < int(labels.sum()) < 88


def test_pathfinder_gives_the_same_images_as_a_sequence_and_as_an_image():
    options = {"train_examples": 6, "test_examples": 4}
    sequence, image = (task("pathfinder", **options, kind=kind) for kind in ("sequence", "image"))
    everything = torch.arange(6)
    pixels = sequence.train[everything].inputs
    assert pixels.shape == (6, 1024)
    as_image = image.train[everything].inputs
    assert torch.allclose((pixels.view(6, 1, 32, 32) / 255 - 0.1) / 0.2, as_image, atol=1e-6)
    assert pixels.max() == 255  # a disc
    longer = task("pathfinder", train_examples=8, test_examples=4).train
    assert torch.equal(longer[everything].inputs, pixels)
    with pytest.raises(WellcondError, match="get stuck"):
        task("pathfinder", size=16, paddles=30, **options).train[everything]
    with pytest.raises(WellcondError, match="kind is one of"):
        task("pathfinder", kind="video")


def test_shapes_have_boxes_around_their_masks_and_masks_of_one_colour():
    shapes = task("shapes", train_images=40)
    batch = shapes.train[torch.arange(40)]
    counts = torch.zeros(4)
    for image, target in zip(batch.inputs, batch.targets, strict=True):
        assert 1 <= len(target["labels"]) <= 4
        assert target["masks"].sum(0).max() == 1  # nothing overlaps
        tight = torchvision.ops.masks_to_boxes(target["masks"])
        assert (tight - target["boxes"]).abs().max() <= 2.5  # the tip of a triangle may meet no pixel's centre
        for mask, label in zip(target["masks"].bool(), target["labels"].tolist(), strict=True):
            counts[label] += 1
            assert image[:, mask].std(1).max() == 0
    assert counts[1:].min() > 5


def test_mask_rcnn_of_torchvision_takes_the_shapes():
    shapes = task("shapes", train_images=2, test_images=2, size=32)
    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 7, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, 2, 1))
    backbone.out_channels = 8
    few = {f"rpn_{which}_nms_top_n_{mode}": 10 for which in ("pre", "post") for mode in ("train", "test")}
    model = torchvision.models.detection.MaskRCNN(
        backbone,
        min_size=32,
        max_size=32,
        rpn_anchor_generator=torchvision.models.detection.rpn.AnchorGenerator(((8, 16),), ((1.0,),)),
        box_roi_pool=torchvision.ops.MultiScaleRoIAlign(["0"], 3, 2),
        mask_roi_pool=torchvision.ops.MultiScaleRoIAlign(["0"], 4, 2),
        box_head=torchvision.models.detection.faster_rcnn.TwoMLPHead(8 * 9, 16),
        box_predictor=torchvision.models.detection.faster_rcnn.FastRCNNPredictor(16, shapes.shape["classes"]),
        mask_head=torchvision.models.detection.mask_rcnn.MaskRCNNHeads(8, (8,), 1),
        mask_predictor=torchvision.models.detection.mask_rcnn.MaskRCNNPredictor(8, 8, shapes.shape["classes"]),
        **few,
    )
    batch = shapes.train[torch.tensor([0, 1])]
    loss = shapes.loss(model.train()(batch.inputs, batch.targets), batch)
    loss.backward()
    assert loss.isfinite()
    batch = shapes.test[torch.tensor([0, 1])]
    with torch.no_grad():
        counts = shapes.score(model.eval()(batch.inputs), batch) + shapes.score(
            [], shapes.test[torch.tensor([]).long()]
        )
    (prediction, target), _ = counts.collected
    assert all(mask["size"] == [32, 32] for mask in prediction["masks"])
    assert target["image_id"] == 1
    assert 0 <= shapes.metric_of(counts) <= 1
    with pytest.raises(WellcondError, match="only in training"):
        shapes.loss([], batch)


def write_coco_folder(drawn: Task, folder: Path) -> None:
    """Write the shapes as people have COCO: `train2017/`, `val2017/`, `annotations/instances_*.json`."""
    (folder / "annotations").mkdir()
    for part, name in ((drawn.train, "train2017"), (drawn.test, "val2017")):
        assert isinstance(part, Shapes)
        (folder / name).mkdir()
        images, annotations = [], []
        for number in range(len(part)):
            pixels, found = part.drawn(number)
            file = f"{number + 1:012d}.png"
            Image.fromarray(pixels.numpy()).save(folder / name / file)
            images.append({"id": number + 1, "file_name": file, "height": part.size, "width": part.size})
            annotations += found
        write_instances(folder / "annotations" / f"instances_{name}.json", images, annotations, SHAPE_NAMES)


def test_shapes_written_as_coco_are_read_back_alike(tmp_path):
    shapes = task("shapes", train_images=6, test_images=3)
    write_coco_folder(shapes, tmp_path)
    coco = task("coco", folder=tmp_path)
    assert coco.shape["classes"] == 4
    for part, other in ((shapes.train, coco.train), (shapes.test, coco.test)):
        assert len(part) == len(other)
        batch, back = part[torch.arange(len(part))], other[torch.arange(len(part))]
        assert same(batch, back)
    found = json.loads((tmp_path / "annotations" / "instances_train2017.json").read_text())
    ids = [annotation["id"] for annotation in found["annotations"]]
    assert len(set(ids)) == len(ids)
    for annotation in found["annotations"]:
        mask = outline_mask(annotation["segmentation"], 64, 64)
        assert abs(int(mask.sum()) - annotation["area"]) < 0.06 * annotation["area"] + 3


def test_coco_by_hand_with_a_crowd_runs_and_an_empty_image(tmp_path):
    for part in ("train2017", "val2017"):
        (tmp_path / part).mkdir()
        for number in (1, 2):
            Image.new("L", (5, 4), 51 * number).save(tmp_path / part / f"{number}.png")
    box = {"image_id": 1, "category_id": 7, "iscrowd": 0, "area": 4}
    content = {
        "images": [{"id": n, "file_name": f"{n}.png", "height": 4, "width": 5} for n in (1, 2)],
        "categories": [{"id": 7, "name": "thing"}],
        "annotations": [
            {**box, "id": 1, "bbox": [1, 0, 2, 2], "segmentation": {"counts": [4, 2, 2, 2, 10], "size": [4, 5]}},
            {**box, "id": 2, "bbox": [0, 0, 5, 4], "iscrowd": 1, "segmentation": {"counts": [0, 20], "size": [4, 5]}},
        ],
    }
    folder = tmp_path / "annotations"
    folder.mkdir()
    for part in ("train", "val"):
        (folder / f"instances_{part}2017.json").write_text(json.dumps(content))
    coco = task("coco", folder=tmp_path)
    assert (len(coco.train), len(coco.test), coco.shape["classes"]) == (1, 2, 8)
    first, second = coco.test[torch.tensor([0, 1])].targets
    (trained,) = coco.train[torch.tensor([0])].targets
    assert trained["boxes"].tolist() == [[1, 0, 3, 2]]
    # A crowd is for the evaluation only, in which what is found inside of it is neither right nor wrong.
    assert first["boxes"].tolist() == [[1, 0, 3, 2], [0, 0, 5, 4]]
    assert first["iscrowd"].tolist() == [0, 1]
    assert first["masks"][0].tolist() == [[0, 1, 1, 0, 0]] * 2 + [[0] * 5] * 2
    assert second["boxes"].shape == (0, 4)
    assert second["masks"].shape == (0, 4, 5)
    assert coco.test[torch.tensor([1])].inputs[0].unique().tolist() == pytest.approx([0.4])
    (tmp_path / "val2017" / "2.png").write_bytes((tmp_path / "val2017" / "2.png").read_bytes()[:40])
    with pytest.raises(WellcondError, match=r"2\.png' cannot be read"):
        coco.test[torch.tensor([1])]
    (tmp_path / "val2017" / "2.png").unlink()
    with pytest.raises(WellcondError, match=r"no file .*2\.png.*https"):
        coco.test[torch.tensor([1])]
    whole = (folder / "instances_val2017.json").read_text()
    (folder / "instances_val2017.json").write_text(whole[:100])
    with pytest.raises(WellcondError, match=r"instances_val2017\.json' is not JSON"):
        task("coco", folder=tmp_path)
    (folder / "instances_val2017.json").write_text("{}")
    with pytest.raises(WellcondError, match="has no 'images'"):
        task("coco", folder=tmp_path)
    (folder / "instances_val2017.json").unlink()
    with pytest.raises(WellcondError, match=r"no file .*instances_val2017\.json.*https"):
        task("coco", folder=tmp_path)


def test_masks_agree_with_pycocotools():
    from pycocotools import mask as masks

    runs = [3, 4, 2, 5, 6]
    packed = masks.frPyObjects({"counts": runs, "size": [4, 5]}, 4, 5)
    assert (masks.decode(packed) == run_mask(runs, 4, 5).numpy()).all()
    found = []
    shapes = task("shapes").train
    for number in range(20):
        for annotation in shapes.drawn(number)[1]:
            judge = masks.decode(masks.merge(masks.frPyObjects(annotation["segmentation"], 64, 64))) > 0
            mask = outline_mask(annotation["segmentation"], 64, 64).numpy()
            found.append((judge & mask).sum() / (judge | mask).sum())
    assert np.mean(found) > 0.95  # theirs rounds corners to a fifth of a pixel


def test_polygons_are_filled_by_the_centres_of_pixels():
    corners = np.array([[2.3, 1.1], [17.2, 3.4], [9.9, 8.2], [14.0, 18.7], [4.1, 12.2]])  # not convex
    mask = outline_mask([corners.flatten().tolist(), [0, 0, 3, 0, 3, 1, 0, 1]], 20, 22)
    centres = np.stack(np.meshgrid(np.arange(22) + 0.5, np.arange(20) + 0.5), -1).reshape(-1, 2)
    judge = matplotlib.path.Path(corners).contains_points(centres).reshape(20, 22)
    judge[0, :3] = True
    assert (mask.numpy() == judge).all()
    assert outline_mask([[-5, -5, 30, -5, 30, 30, -5, 30]], 20, 22).all()
    for damaged in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]):
        with pytest.raises(WellcondError, match="damaged"):
            outline_mask([damaged], 4, 5)
    with pytest.raises(WellcondError, match="damaged"):
        run_mask([1], 4, 5)
