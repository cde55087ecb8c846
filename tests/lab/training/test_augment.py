"""Augmentation against timm's own pipeline, and against what each change must do to the numbers."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from timm.data.auto_augment import NAME_TO_OP, AugmentOp
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from wellcond._core.keyed_random import key
from wellcond.errors import WellcondError
from wellcond.lab.recipe.settings import Augment
from wellcond.lab.tasks import task
from wellcond.lab.tasks.base import Batch
from wellcond.lab.tasks.images.photographs import Photographs
from wellcond.lab.tasks.images.pixels import PixelExamples
from wellcond.lab.training.augment import augmented, check_augment
from wellcond.lab.training.data_order import generator

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
POLICY = "rand-m9-mstd0.5-inc1"
EVERYTHING = Augment(crop="resized", flip=0.5, policy=POLICY, erasing=0.5, mixup=0.8, cutmix=1.0)


def colour(count: int = 8, side: int = 32, size: int | None = None) -> PixelExamples:
    """Noise, each image a class of its own."""
    noise = torch.randint(256, (count, 3, side, side), generator=generator("colour"), dtype=torch.uint8)
    return PixelExamples(noise, torch.arange(count), MEAN, STD, size)


def done(examples: PixelExamples | Photographs, settings: Augment, seed: int = 0, count: int = 8) -> Batch:
    return augmented(examples, torch.arange(count), settings, generator(seed), classes=10)


def levels(examples: PixelExamples | Photographs, batch: Batch) -> Tensor:
    """Undo the normalisation, to a scale from 0 to 255."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (examples.mean, examples.std))
    return (batch.inputs * std + mean) * 255


@pytest.fixture
def photographs(tmp_path: Path) -> Photographs:
    """Ten JPEGs of ten sizes, smooth enough to survive compression; one of them grey."""
    for number in range(10):
        wide, high = 40 + 13 * number, 90 - 5 * number
        across, down = np.meshgrid(np.linspace(0, 255, wide), np.linspace(0, 255, high))
        pixels = np.stack([across, down, np.full_like(across, 25 * number)], -1).astype(np.uint8)
        for part in ("train", "val"):
            path = tmp_path / part / f"class{number}" / "image.jpg"
            path.parent.mkdir(parents=True)
            Image.fromarray(pixels[..., 0] if number == 3 else pixels).save(path, quality=95)
    made = task("imagenet", folder=tmp_path, size=24).train
    assert isinstance(made, Photographs)
    return made


def test_nothing_asked_for_is_the_examples_to_the_bit(photographs):
    order = torch.tensor([5, 0, 7, 5, 2, 5])
    for examples in (task("digits").train, colour(), colour(size=48), colour(size=20), photographs):
        batch = augmented(examples, order, Augment(), generator(0), classes=10)
        assert torch.equal(batch.inputs, examples[order].inputs)
        assert torch.equal(batch.targets, examples[order].targets)
        assert batch.targets.dtype == torch.int64
        mirrored = augmented(examples, order, Augment(flip=1), generator(0), classes=10)
        assert torch.equal(mirrored.inputs, examples[order].inputs.flip(-1))
    assert len(augmented(colour(), torch.tensor([], dtype=torch.int64), Augment(flip=1), generator(0), classes=10)) == 0


def test_pictures_of_256_levels_pass_through_pil_unchanged_and_digits_within_half_a_level():
    unused = Augment(policy="rand-p0")
    assert torch.equal(done(colour(), unused).inputs, colour()[torch.arange(8)].inputs)
    digits = task("digits").train
    plain = levels(digits, digits[torch.arange(8)])
    for settings in (unused, Augment(crop="resized", scale=(1.0, 1.0))):  # at 8 pixels no ratio fits but the whole
        difference = (levels(digits, done(digits, settings)) - plain).abs()
        assert 0.4 < difference.max() < 0.5 + 1e-3
        assert difference[(plain < 1) | (plain > 254)].max() < 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        Augment(crop="resized", scale=(0.08, 1.0), flip=0.5, policy=POLICY, erasing=0.6),
        Augment(crop="resized", scale=(0.35, 0.9), flip=0.5, jitter=0.4),
        Augment(crop="resized", flip=0.5, policy="original-mstd0.5", jitter=0.3, erasing=0.25),
        Augment(crop="resized", policy="3a", jitter=0.3),
        Augment(crop="resized", policy="rand-m5-n3-tweights", jitter=0.3),
    ],
)
def test_photographs_are_those_of_timms_own_pipeline_to_the_bit(photographs, settings):
    batch = augmented(photographs, torch.arange(10), settings, generator(4), classes=10)
    reference = timm.data.create_transform(
        24,
        is_training=True,
        scale=settings.scale,
        hflip=settings.flip,
        color_jitter=settings.jitter or None,
        auto_augment=settings.policy or None,
        interpolation="bicubic",
        re_prob=settings.erasing,
        re_mode="pixel",
    )
    draw = int(torch.randint(2**62, (), generator=generator(4)))
    for place, file in enumerate(photographs.files):
        number = key("augment", draw, place)
        random.seed(number)
        np.random.seed([number >> 32, number % 2**32])
        torch.manual_seed(number)
        assert torch.equal(batch.inputs[place], reference(Image.open(file).convert("RGB")))


def test_mixup_is_the_sum_that_the_targets_say():
    plain = colour()[torch.arange(8)].inputs.double()
    seen = set()
    for seed in range(5):
        batch = done(colour(), Augment(mixup=0.8), seed)
        part = float(batch.targets[0, 0])
        judge = part * plain + (1 - part) * plain.flip(0)
        # Two products and a sum, λ itself and 1 − λ rounded: five roundings of float32 at most.
        assert (batch.inputs - judge).abs().max() < 5 * 2**-24 * plain.abs().max() * 1.01
        targets = torch.zeros(8, 10)
        targets[torch.arange(8), torch.arange(8)] = part
        targets[torch.arange(8), 7 - torch.arange(8)] = 1 - part
        assert torch.allclose(batch.targets, targets, rtol=0, atol=2**-23)
        assert batch.targets.dtype == torch.float32
        seen.add(part)
    assert len(seen) == 5


def test_cutmix_takes_a_box_as_large_as_the_targets_say():
    plain = colour()[torch.arange(8)].inputs
    boxes = set()
    for seed in range(5):
        batch = done(colour(), Augment(cutmix=1.0), seed)
        other = (batch.inputs != plain).any(1)
        assert torch.equal(batch.inputs, torch.where(other[:, None], plain.flip(0), plain))
        assert rectangles(other)
        assert (other == other[0]).all()
        assert float(1 - batch.targets[0, 0]) * 32 * 32 == pytest.approx(int(other[0].sum()), abs=1e-3)
        boxes.add(tuple(other[0].nonzero()[0].tolist()))
    assert len(boxes) > 1


def test_mixing_has_random_numbers_of_its_own():
    alone, among = (
        done(colour(), settings).targets for settings in (Augment(mixup=0.8), Augment(mixup=0.8, policy=POLICY))
    )
    assert torch.equal(alone, among)
    later = augmented(colour(), torch.arange(8), Augment(mixup=0.8), generator(0), classes=10, first=8).targets
    assert not torch.equal(alone, later)


def test_with_both_a_batch_takes_one_of_them():
    plain = colour()[torch.arange(8)].inputs
    boxed = 0
    for seed in range(40):
        inputs = done(colour(), Augment(mixup=1.0, cutmix=1.0), seed).inputs
        boxed += bool(((inputs == plain) | (inputs == plain.flip(0))).all())
    assert 8 <= boxed <= 32  # a fair coin is further off once in 10 000 times


def test_erasing_replaces_one_rectangle_by_normal_noise():
    noise = []
    for seed in range(10):
        batch, plain = done(colour(), Augment(erasing=1.0), seed), colour()[torch.arange(8)]
        erased = (batch.inputs != plain.inputs).any(1)
        assert rectangles(erased)
        area = erased.flatten(1).sum(1) / 32**2
        assert (area > 0.015).all()
        assert (area < 0.36).all()
        noise.append(batch.inputs[erased[:, None].expand(-1, 3, -1, -1)])
    values = torch.cat(noise)
    assert abs(float(values.mean())) < 4 / len(values) ** 0.5
    assert abs(float(values.var()) - 1) < 4 * (2 / len(values)) ** 0.5


def rectangles(masks: Tensor) -> bool:
    """Whether each mask `(B, H, W)` is one full rectangle."""
    for mask in masks:
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        if not box.all():
            return False
    return True


def test_resized_crops_have_the_area_and_the_places_asked_for():
    ramp = torch.arange(256, dtype=torch.uint8)
    image = torch.stack([ramp.expand(256, 256), ramp[:, None].expand(256, 256), torch.zeros(256, 256).byte()])
    examples = PixelExamples(image[None], torch.tensor([0]), MEAN, STD, size=64)
    # Sides reach √(0.5 · 4/3) = 0.82 at most, so that every draw fits.
    settings = Augment(crop="resized", scale=(0.2, 0.5))
    batch = augmented(examples, torch.zeros(400, dtype=torch.int64), settings, generator(1), classes=10)
    assert batch.inputs.shape == (400, 3, 64, 64)
    pixels = levels(examples, batch)
    # Red tells the column and green the row: between the quarters of a crop lies half of its width.
    wide = (pixels[:, 0, 32, 48] - pixels[:, 0, 32, 16]) * 2 / 256
    high = (pixels[:, 1, 48, 32] - pixels[:, 1, 16, 32]) * 2 / 256
    error = (0.5 - 0.2) / 12**0.5 / 400**0.5
    assert abs(float((wide * high).mean()) - 0.35) < 4 * error
    assert (wide * high).min() < 0.22
    assert (wide * high).max() > 0.48
    assert (wide / high).min() < 0.78
    assert (wide / high).max() > 1.28
    centres = pixels[:, :2, 32, 32] / 255
    assert (centres.mean(0) - 0.5).abs().max() < 4 * 0.15 / 400**0.5  # wider than their spread, which follows
    assert centres.std(0).min() > 0.05
    assert centres.std(0).max() < 0.15


def test_padded_crops_are_every_shift_within_an_eighth_of_the_black_framed_image():
    digits = task("digits").train
    place = torch.zeros(200, dtype=torch.int64)
    batch = augmented(digits, place, Augment(crop="padded"), generator(0), classes=10)
    framed = np.pad(digits.bytes[0, 0].numpy() / 16, 1)
    shifts = {(top, left): framed[top : top + 8, left : left + 8] for top in range(3) for left in range(3)}
    found = set()
    for image in levels(digits, batch)[:, 0].numpy() / 255:
        same = [shift for shift, judge in shifts.items() if np.abs(image - judge).max() < 1e-5]
        assert len(same) == 1
        found.add(same[0])
    assert found == set(shifts)
    shifted = done(colour(), Augment(crop="padded"))
    assert (levels(colour(), shifted).abs() < 0.01).all(1).sum() > 8  # four pixels to move by, and black comes in


def test_flips_and_erasing_come_as_often_as_asked():
    plain = colour(1)
    place = torch.zeros(400, dtype=torch.int64)
    flipped = augmented(plain, place, Augment(flip=0.3), generator(0), classes=10).inputs
    erased = augmented(plain, place, Augment(erasing=0.3), generator(0), classes=10).inputs
    for inputs in (flipped, erased):
        changed = (inputs != plain[place[:1]].inputs).flatten(1).any(1)
        assert abs(float(changed.float().mean()) - 0.3) < 4 * (0.3 * 0.7 / 400) ** 0.5


def test_the_same_generator_gives_the_same_bits_and_another_does_not(photographs):
    for examples in (task("digits").train, colour(), photographs):
        one, two, other = (done(examples, EVERYTHING, seed) for seed in (3, 3, 4))
        assert torch.equal(one.inputs, two.inputs)
        assert torch.equal(one.targets, two.targets)
        assert not torch.equal(one.inputs, other.inputs)
        assert one.inputs.isfinite().all()
        assert one.inputs.dtype == torch.float32
        policy = Augment(policy=POLICY)
        assert torch.equal(done(examples, policy, 3).inputs, done(examples, policy, 3).inputs)
        assert not torch.equal(done(examples, policy, 3).inputs, done(examples, policy, 4).inputs)
    moving = generator(3)
    first, second = (augmented(colour(), torch.arange(8), EVERYTHING, moving, classes=10) for _ in range(2))
    assert not torch.equal(first.inputs, second.inputs)


def test_global_generators_do_not_matter_and_are_left_alone():
    results = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        results.append(done(colour(), EVERYTHING).inputs)
        check_augment(EVERYTHING, task("digits"), batch=8)
        with pytest.raises(WellcondError, match="even number of images, got 7"):
            done(colour(), EVERYTHING, count=7)
        after = random.getstate(), np.random.get_state(), torch.get_rng_state()
        assert before[0] == after[0]
        assert before[1][0] == after[1][0]
        assert (before[1][1] == after[1][1]).all()
        assert before[1][2:] == after[1][2:]
        assert torch.equal(before[2], after[2])
    assert torch.equal(*results)


def test_images_do_not_depend_on_how_a_batch_is_split_or_on_what_is_beside_them():
    settings = Augment(crop="resized", flip=0.5, policy=POLICY, erasing=0.5)
    whole = done(colour(), settings).inputs
    parts = [
        augmented(colour(), torch.arange(first, last), settings, generator(0), classes=10, first=first).inputs
        for first, last in ((0, 3), (3, 8))
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_repeated_images_are_augmented_anew_each_time():
    order = torch.tensor([6, 1]).repeat(3)
    assert order.tolist() == [6, 1, 6, 1, 6, 1]
    batch = augmented(colour(), order, Augment(crop="resized"), generator(0), classes=10)
    assert batch.targets.tolist() == order.tolist()
    assert len({image.numpy().tobytes() for image in batch.inputs}) == 6


class Steps(Dataset[Batch]):
    """A batch for each step, made where the loader wants it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, step: int) -> Batch:
        return done(colour(), EVERYTHING, step)


def test_a_worker_process_makes_the_same_batches():
    loader = DataLoader(Steps(), batch_size=None, num_workers=1)
    for step, batch in enumerate(loader):
        here = done(colour(), EVERYTHING, step)
        assert torch.equal(batch.inputs, here.inputs)
        assert torch.equal(batch.targets, here.targets)
    assert step == 2


def test_no_operation_of_timm_makes_colour_of_grey():
    grey = np.random.default_rng(0).integers(0, 256, (16, 16, 1), dtype=np.uint8)
    picture = Image.fromarray(np.repeat(grey, 3, 2))
    for name in NAME_TO_OP:
        operation = AugmentOp(name, prob=1.0, magnitude=7, hparams={"img_mean": (80,) * 3, "translate_const": 7})
        changed = np.asarray(operation(picture))
        assert (changed == changed[..., :1]).all(), name
    digits = task("digits").train
    pixels = levels(digits, done(digits, Augment(policy="rand-m9-n3-p1", jitter=0.4)))
    assert pixels.shape == (8, 1, 8, 8)
    assert pixels.min() > -1e-3
    assert pixels.max() < 255 + 1e-3


@pytest.mark.parametrize(
    "policy",
    ["rand-m10-n3-p1", "rand-m10-n3-p1-inc1", "rand-m30-mmax30-n3-p1-inc1", "v0", "v0r", "original", "originalr"],
)
def test_policies_at_full_strength_work_with_every_pillow(policy):
    many = torch.zeros(200, dtype=torch.int64)  # some of them are posterised to no bits at all
    assert augmented(colour(1, 8), many, Augment(policy=policy), generator(0), classes=10).inputs.isfinite().all()


@pytest.mark.parametrize(("strength", "bits"), [("m0", 0), ("m3", 1), ("m5", 2), ("m10", 4), ("m30-mmax30", 8)])
def test_posterising_keeps_the_first_bits(monkeypatch, strength, bits):
    monkeypatch.setattr("timm.data.auto_augment._RAND_TRANSFORMS", ["Posterize"])  # to ⌊0.4 m⌋ bits
    pixels = levels(colour(), done(colour(), Augment(policy=f"rand-{strength}-n1-p1"))).round().numpy()
    lost = 2 ** (8 - bits)
    assert (pixels == colour().bytes.numpy().astype(int) // lost * lost).all()


def test_grey_images_are_changed_as_colour_ones_of_three_equal_channels():
    digits = task("digits").train
    tripled = PixelExamples(
        digits.bytes.expand(-1, 3, -1, -1), digits.labels, digits.mean * 3, digits.std * 3, peak=16.0
    )
    settings = Augment(crop="resized", flip=0.5, policy="rand-m9-p1")
    assert torch.equal(done(digits, settings).inputs.expand(-1, 3, -1, -1), done(tripled, settings).inputs)


@pytest.mark.parametrize(
    "wrong", ["rand9", "rand-m", "rand-m9-inc", "rand-x3", "rand-tnone", "augmix-m3", "v1", "rand-"]
)
def test_a_wrong_policy_is_an_error_that_shows_a_right_one(wrong):
    with pytest.raises(WellcondError, match=f"no policy '{wrong}': write one as in 'rand-m9-mstd0.5-inc1'"):
        check_augment(Augment(policy=wrong), task("digits"), batch=8)


@pytest.mark.parametrize(
    ("settings", "batch", "parts", "message"),
    [
        (Augment(mixup=0.8), 9, 1, "asks for a multiple of 2: try 10"),
        (Augment(cutmix=0.8), 12, 4, "there are 4, asks for a multiple of 8: try 16"),
        (Augment(repeats=3), 64, 1, "batch is 64; repeats = 3 asks for a multiple of 3: try 66"),
        (Augment(repeats=3, mixup=1), 9, 1, "asks for a multiple of 6: try 12"),
        (Augment(crop="resized", scale=(0.0, 1.0)), 8, 1, r"got \(0.0, 1.0\)"),
        (Augment(crop="resized", scale=(0.5, 1.5)), 8, 1, r"got \(0.5, 1.5\)"),
        (Augment(crop="resized", scale=(0.9, 0.5)), 8, 1, r"got \(0.9, 0.5\)"),
        (Augment(policy="rand-n20-tweights"), 8, 1, "timm cannot apply the policy 'rand-n20-tweights'"),
    ],
)
def test_what_cannot_be_is_said_before_training(settings, batch, parts, message):
    with pytest.raises(WellcondError, match=message):
        check_augment(settings, task("digits"), batch, parts)


def test_what_can_be_passes_the_check():
    for policy in (
        "rand",
        POLICY,
        "rand-m15-mmax30-n2-p0.5",
        "rand-t3aw",
        "original",
        "originalr-mstd0.5",
        "v0r",
        "3a",
    ):
        check_augment(Augment(policy=policy), task("digits"), batch=7)
    check_augment(Augment(repeats=3, mixup=0.8, cutmix=1.0), task("digits"), batch=1020, parts=2)
    check_augment(Augment(), task("listops", folder=None, train_examples=4, test_examples=4), batch=3)


def test_only_images_are_augmented():
    text = task("listops", folder=None, train_examples=4, test_examples=4)
    with pytest.raises(WellcondError, match="augment is for images, and task 'listops' is of kind 'sequence'"):
        check_augment(Augment(flip=0.5), text, batch=8)
    with pytest.raises(WellcondError, match="cannot be augmented"):
        augmented(text.train, torch.arange(2), Augment(flip=0.5), generator(0), classes=10)


def test_without_timm_the_error_says_how_to_install_it(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("timm")]:
        monkeypatch.setitem(sys.modules, name, None)
    assert done(colour(), Augment(crop="padded", flip=0.5)).inputs.shape == (8, 3, 32, 32)
    for settings in (Augment(mixup=1), Augment(erasing=0.1), Augment(policy=POLICY), Augment(crop="resized")):
        with pytest.raises(WellcondError, match=r"pip install 'wellcond\[timm\]'"):
            check_augment(settings, task("digits"), batch=8)
        with pytest.raises(WellcondError, match=r"pip install 'wellcond\[timm\]'"):
            done(colour(), settings)


def test_raw_photographs_keep_their_sizes_and_the_crop_of_the_test_can_be_set(photographs, tmp_path):
    images, labels = photographs.raw(torch.tensor([9, 0]))
    assert [image.shape for image in images] == [(3, 45, 157), (3, 90, 40)]
    assert labels.tolist() == [9, 0]
    assert images[0].dtype == torch.uint8
    for crop, share in ((1.0, 1.0), (0.875, 0.875), (0.5, 0.5)):
        test = task("imagenet", folder=tmp_path, size=40, crop=crop).test
        pixels = levels(test, test[torch.tensor([0])])[0, 0]  # red rises from 0 to 255 over the 40 pixels
        assert float(pixels[20, 30] - pixels[20, 10]) == pytest.approx(255 * share / 2, abs=5)
    for wrong in (0, 1.1, -0.5, True, "half"):
        with pytest.raises(WellcondError, match="crop is a part of the shorter side, over 0 and up to 1, got"):
            task("imagenet", folder=tmp_path, crop=wrong)
