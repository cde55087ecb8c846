"""Fake data are read by the tasks they stand in for, and by the libraries that define their formats."""

from __future__ import annotations

import csv
import inspect
import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

from wellcond.errors import StorageError, WellcondError
from wellcond.lab.tasks import Batch, Task, options_of, registry, task, tasks
from wellcond.lab.tasks.images.safe_pickle import read_pickle
from wellcond.lab.tasks.text.glue import SUBSETS
from wellcond.lab.tasks.text.tokens import tokens_of
from wellcond.reproduce.fake_data import writers
from wellcond.reproduce.fake_data.tokenizer import TOKENIZER_FOLDER, write_tokenizer
from wellcond.reproduce.fake_data.writers import WRITERS, write_fake_data

IMAGES = {"imagenet": 1000, "flowers": 102, "pets": 37, "food101": 101, "cifar10": 10, "cifar100": 100}
GLUE = {"cola": 2, "sst2": 2, "mrpc": 2, "qqp": 2, "stsb": 1, "mnli": 3, "qnli": 2, "rte": 2}
CORPORA = ("tinystories", "wikitext103", "pile")
SMALL: dict[str, dict[str, Any]] = {"glue": {"subset": "rte"}, "lra-text": {"tokens": 300}}
SMALL |= {name: {"length": 16} for name in CORPORA} | {"lra-retrieval": {"tokens": 300}}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A folder for each task."""
    base = tmp_path_factory.mktemp("fake")
    for name in WRITERS:
        write_fake_data(name, base / name, SMALL.get(name, {}))
    return {name: base / name for name in WRITERS}


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def everything(part: Any) -> Batch:
    found: Batch = part[torch.arange(len(part))]
    return found


def checked_tokens(built: Task, batch: Batch, shape: tuple[int, ...]) -> None:
    inputs = batch.inputs["input_ids"] if isinstance(batch.inputs, Mapping) else batch.inputs
    assert tuple(inputs.shape) == shape
    assert inputs.min() >= 0
    assert inputs.max() < built.shape["vocabulary"]
    assert len(inputs.unique()) > 10


def test_every_task_that_takes_a_folder_has_fake_data() -> None:
    assert set(WRITERS) == {name for name in tasks() if "folder" in options_of(name)}
    for name in WRITERS:  # and a task that needs it does not build without
        required = inspect.signature(registry._TASKS[name].build).parameters["folder"].default is inspect._empty
        assert required == (name not in ("listops", "pathfinder", "fashion-mnist")), name


@pytest.mark.parametrize("name", IMAGES)
def test_images_have_the_real_number_of_classes(written: Mapping[str, Path], name: str) -> None:
    built = task(name, folder=written[name], size=16)
    assert dict(built.shape) == {"channels": 3, "size": 16, "classes": IMAGES[name]}
    for part in (built.train, built.test):
        batch = everything(part)
        assert batch.inputs.shape == (len(part), 3, 16, 16)
        assert torch.isfinite(batch.inputs).all()
        assert batch.targets.unique().tolist() == list(range(IMAGES[name]))


@pytest.mark.parametrize("name", IMAGES)
def test_images_have_the_colour_of_their_class(written: Mapping[str, Path], name: str) -> None:
    """The nearest mean colour of the training set finds most classes: images and labels belong together.

    Noise averages out over 64 pixels or more, to 17.6 / 8 ≈ 2 of 190 levels; only colours as near as that are confused.
    """
    built = task(name, folder=written[name], size=8)
    train, test = everything(built.train), everything(built.test)
    colours = torch.stack([train.inputs[train.targets == label].mean((0, 2, 3)) for label in range(IMAGES[name])])
    nearest = torch.cdist(test.inputs.mean((2, 3)), colours).argmin(1)
    assert (nearest == test.targets).double().mean() > 0.7


def test_fashion_mnist_and_pixel_sequences(written: Mapping[str, Path]) -> None:
    built = task("fashion-mnist", folder=written["fashion-mnist"])
    batch = everything(built.test)
    assert batch.inputs.shape == (20, 1, 28, 28)
    assert torch.isfinite(batch.inputs).all()
    assert batch.targets.unique().tolist() == list(range(10))
    for held_out in ("test", "validation"):
        built = task("lra-image", folder=written["lra-image"], held_out=held_out)
        checked_tokens(built, everything(built.train), (90, 1024))
        checked_tokens(built, everything(built.test), (20 if held_out == "test" else 10, 1024))
        assert built.shape["classes"] == 10


@pytest.mark.parametrize("name", ["listops", "pathfinder"])
def test_tasks_that_make_their_own_data_find_an_empty_folder(tmp_path: Path, name: str) -> None:
    write_fake_data(name, tmp_path / name, {})
    assert list((tmp_path / name).iterdir()) == []
    built = task(name, folder=tmp_path / name, train_examples=8, test_examples=4)
    assert len(everything(built.train)) == 8
    assert len(list((tmp_path / name).iterdir())) == 1


def test_scenes_of_coco(written: Mapping[str, Path], tmp_path: Path) -> None:
    built = task("coco", folder=written["coco"])
    assert built.shape["classes"] == 91
    assert (len(built.train), len(built.test)) == (11, 6)  # the one without an object is left out of the training
    batch = everything(built.train)
    for image, target in zip(batch.inputs, batch.targets, strict=True):
        assert image.shape[0] == 3
        assert ((image >= 0) & (image <= 1)).all()
        assert target["masks"].shape == (3, *image.shape[1:])
        assert target["masks"].flatten(1).any(1).all()
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
        for mask, label in zip(target["masks"].bool(), target["labels"].tolist(), strict=True):
            seen = mask & (target["masks"].sum(0) == 1)  # not where another covers it
            colour = torch.tensor([label * factor % 256 for factor in (37, 91, 151)]) / 255
            # JPEG halves the resolution of colours, so edges differ; the middle of an object does not
            assert not seen.any() or ((image[:, seen].median(1).values - colour).abs() < 0.15).all()
    assert len(everything(built.test).targets[-1]["boxes"]) == 0
    write_fake_data("coco", tmp_path / "other", {"train": "mine", "test": "yours"})
    assert len(task("coco", folder=tmp_path / "other", train="mine", test="yours").train) == 11


@pytest.mark.parametrize("subset", GLUE)
@pytest.mark.parametrize("joined", [False, True])
def test_every_subset_of_glue_is_in_the_folder(written: Mapping[str, Path], subset: str, joined: bool) -> None:
    built = task("glue", folder=written["glue"], subset=subset, tokens=32, joined=joined)
    assert built.shape["classes"] == GLUE[subset]
    pair = built.kind == "pair"
    for part, count in ((built.train, 24), (built.test, 12)):
        batch = everything(part)
        checked_tokens(built, batch, (count, 2, 32) if pair else (count, 32))
        if subset == "stsb":
            assert ((batch.targets >= 0) & (batch.targets <= 5)).all()
            assert batch.targets.max() > 3
        else:
            assert batch.targets.unique().tolist() == list(range(GLUE[subset]))
    if subset == "mnli":
        assert len(task("glue", folder=written["glue"], subset=subset, mismatched=True).test) == 12


def test_long_texts(written: Mapping[str, Path]) -> None:
    for name, count in (("lra-text", 24), ("lra-retrieval", 16)):
        built = task(name, folder=written[name], tokens=300)
        batch = everything(built.train)
        checked_tokens(built, batch, (count, 300) if name == "lra-text" else (count, 2, 300))
        lengths = batch.inputs["attention_mask"].sum(-1)
        assert lengths.min() < 300  # padding and cutting are both tried
        assert lengths.max() == 300
        assert batch.targets.double().mean() == 0.5
    for held_out in ("test", "validation"):
        assert len(task("lra-retrieval", folder=written["lra-retrieval"], tokens=300, held_out=held_out).test) == 8


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("length", [16, 512])
def test_corpora_have_blocks_enough_with_bytes_and_with_words(tmp_path: Path, name: str, length: int) -> None:
    options = {"length": length, "tokenizer": "gpt2"}
    write_fake_data(name, tmp_path / "data", options)
    for tokenizer, vocabulary in ((None, 260), (str(tmp_path / "data" / TOKENIZER_FOLDER), 50_257)):
        built = task(name, folder=tmp_path / "data", length=length, tokenizer=tokenizer)
        assert built.shape["vocabulary"] == vocabulary
        assert len(built.train) >= 32
        assert len(built.test) >= 8
        batch = built.prepare(everything(built.train), torch.Generator().manual_seed(0))
        checked_tokens(built, batch, (len(built.train), length))
    if name != "tinystories":
        assert len(task(name, folder=tmp_path / "data", length=length, held_out="test").test) >= 8


def test_the_tokenizer_knows_every_word(tmp_path: Path) -> None:
    for name in (*CORPORA, "glue"):
        write_fake_data(name, tmp_path / name, {"tokenizer": "somewhere/mine", **SMALL[name]})
    words = tokens_of(str(tmp_path / "pile" / TOKENIZER_FOLDER))
    assert words.vocabulary == 1024
    built = [
        task(name, folder=tmp_path / name, **SMALL[name], tokenizer=str(tmp_path / name / TOKENIZER_FOLDER))
        for name in CORPORA
    ]
    glue = task(
        "glue", folder=tmp_path / "glue", subset="rte", tokenizer=str(tmp_path / "glue" / TOKENIZER_FOLDER), joined=True
    )
    for ids in (*(everything(each.train).inputs for each in built), everything(glue.train).inputs["input_ids"]):
        assert words.tokenizer.unk_token_id not in ids
    # A document ends by one token, where the format has such an end; a pair is [CLS] a [SEP] b [SEP].
    assert [words.tokenizer.eos_token_id in everything(each.train).inputs for each in built] == [True, False, True]
    assert (everything(glue.train).inputs["input_ids"] == words.between).sum() == 2 * 24
    with pytest.raises(WellcondError, match="more than vocabulary = 20: raise it"):
        write_tokenizer(tmp_path / "small", 20)


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    for name in sorted({*WRITERS} - {"imagenet"}):
        options = {**SMALL.get(name, {}), **({"tokenizer": "mine"} if name == "glue" else {})}
        for copy, seed in (("a", 0), ("b", 0), ("c", 1)):
            # scipy writes the time into its files
            monkeypatch.setattr(time, "asctime", lambda *_, copy=copy: f"Mon Jan  1 00:00:00 200{ord(copy) % 10}")
            write_fake_data(name, tmp_path / copy / name, options, seed=seed)
        found = [content(tmp_path / copy / name) for copy in "abc"]
        assert found[0] == found[1], name
        assert found[0] != found[2] or name in ("listops", "pathfinder"), name
    assert states[:2] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    assert torch.equal(states[2], torch.get_rng_state())


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write_fake_data("cifar10", tmp_path / "mine", {})  # an empty one is taken
    before = content(tmp_path / "mine")
    assert len(before) == 7
    with pytest.raises(WellcondError, match=r"mine' holds something already: .* name one"):
        write_fake_data("cifar10", tmp_path / "mine", {}, seed=1)
    assert content(tmp_path / "mine") == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WellcondError, match="file' holds something already"):
        write_fake_data("cifar10", tmp_path / "file", {})
    with pytest.raises(WellcondError, match="no fake data for task 'digits'; there are for cifar10, "):
        write_fake_data("digits", tmp_path / "digits", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine"]


def test_what_fails_halfway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, options: Mapping[str, Any], draw: np.random.Generator) -> None:
        (folder / "first").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(writers.WRITERS, "pets", full)
    with pytest.raises(StorageError, match=r"pets' cannot be written: .*No space left on device"):
        write_fake_data("pets", tmp_path / "pets", {})
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    write_fake_data("pets", tmp_path / "pets", {})
    assert task("pets", folder=tmp_path / "pets").shape["classes"] == 37


def test_torchvision_reads_flowers(written: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_check_integrity", lambda self: True)  # of published bytes
    built, files = task("flowers", folder=written["flowers"], size=16), {}
    for split in ("train", "val", "test"):
        found = torchvision.datasets.Flowers102(written["flowers"], split=split, download=False)
        assert sorted(label for _, label in found) == list(range(102))
        assert found[0][0].size == (32, 24)
        files[split] = {(path.name, label) for path, label in zip(found._image_files, found._labels, strict=True)}
    for part, names in ((built.train, files["train"] | files["val"]), (built.test, files["test"])):
        assert {(p.name, n) for p, n in zip(part.files, part.labels.tolist(), strict=True)} == names  # type: ignore[attr-defined]


def test_torchvision_reads_pets_and_food(written: Mapping[str, Path]) -> None:
    for split in ("trainval", "test"):
        found = torchvision.datasets.OxfordIIITPet(
            written["pets"], split=split, target_types=["category", "binary-category"]
        )
        assert len(found.classes) == 37
        assert sorted(label for _, (label, _) in found) == sorted(2 * list(range(37)))
        assert [kind for _, (_, kind) in found] == [int(path.name[0] == "d") for path in found._images]
    for split, count in (("train", 2), ("test", 1)):
        dishes = torchvision.datasets.Food101(written["food101"], split=split)
        assert sorted(label for _, label in dishes) == sorted(count * list(range(101)))
        meta = written["food101"] / "food-101" / "meta"
        listed = json.loads((meta / f"{split}.json").read_text())
        assert (meta / f"{split}.txt").read_text().split() == [file for files in listed.values() for file in files]


@pytest.mark.parametrize(("name", "reader"), [("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")])
def test_torchvision_reads_cifar(
    written: Mapping[str, Path], name: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)  # of published bytes
    built = task(name, folder=written[name])
    for train, part in ((True, built.train), (False, built.test)):
        found = getattr(torchvision.datasets, reader)(written[name], train=train, download=False)
        assert len(found.classes) == IMAGES[name]
        assert found.targets == part.labels.tolist()  # type: ignore[attr-defined]
        pixels = torch.from_numpy(found.data).permute(0, 3, 1, 2)
        assert torch.equal(pixels, part.bytes)  # type: ignore[attr-defined]
    if name == "cifar100":
        train100 = read_pickle(written[name] / "cifar-100-python" / "train")
        assert train100[b"coarse_labels"] == [label // 5 for label in train100[b"fine_labels"]]


def test_pycocotools_reads_coco(written: Mapping[str, Path]) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    mask = pytest.importorskip("pycocotools.mask")
    for part in ("train2017", "val2017"):
        found = coco.COCO(written["coco"] / "annotations" / f"instances_{part}.json")
        assert len(found.getCatIds()) == 80
        assert max(found.getCatIds()) == 90
        assert len(found.getAnnIds(iscrowd=True)) == 1
        for annotation in found.loadAnns(found.getAnnIds()):
            drawn = mask.encode(np.asfortranarray(found.annToMask(annotation)))
            # A polygon's outline is off by half a pixel at most, and is no longer than that of its box.
            x, y, width, height = annotation["bbox"]
            assert abs(mask.area(drawn) - annotation["area"]) <= width + height
            assert np.abs(mask.toBbox(drawn) - [x, y, width, height]).max() <= 2
            image = found.loadImgs(annotation["image_id"])[0]
            assert 0 <= x < x + width <= image["width"]
            assert 0 <= y < y + height <= image["height"]


def test_pyarrow_reads_the_pile_and_csv_reads_glue(written: Mapping[str, Path]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("train", "val", "test"):
        table = parquet.read_table(written["pile"] / "data" / f"{name}-00000-of-00001.parquet").to_pylist()
        assert all(row["text"].endswith(".") and "pile_set_name" in json.loads(row["meta"]) for row in table)
    for subset, which in SUBSETS.items():
        for file in (written["glue"] / which.folder).iterdir():
            with file.open(newline="", encoding="utf-8") as lines:
                rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
            assert len({len(row) for row in rows}) == 1, file
            assert (subset == "cola") == (rows[0][0] == "fake")
    heads = {
        name: (written["glue"] / name / "train.tsv").read_text().split("\n")[0] for name in ("MRPC", "STS-B", "QQP")
    }
    assert heads["MRPC"] == "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    assert heads["QQP"] == "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    assert heads["STS-B"].split("\t")[-3:] == ["sentence1", "sentence2", "score"]
    matched = (written["glue"] / "MNLI" / "dev_matched.tsv").read_text().split("\n")[0]
    assert matched.replace("\t", " ") == (
        "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
        "sentence1 sentence2 label1 label2 label3 label4 label5 gold_label"
    )


def test_plain_texts_have_the_marks_of_their_format(written: Mapping[str, Path]) -> None:
    stories = (written["tinystories"] / "TinyStories-train.txt").read_text()
    assert stories.endswith("\n<|endoftext|>\n")
    assert stories.count("\n<|endoftext|>\n") > 5
    articles = (written["wikitext103"] / "wikitext-103-raw" / "wiki.valid.raw").read_text().split("\n")
    assert articles[0] == " "
    assert articles[1].startswith(" = ")
    assert articles[1].endswith(" = ")
    assert all(line.startswith(" ") and line.endswith(" ") for line in articles[:-1])
    review = next((written["lra-text"] / "aclImdb" / "train" / "pos").iterdir())
    assert 7 <= int(review.stem.split("_")[1]) <= 10
