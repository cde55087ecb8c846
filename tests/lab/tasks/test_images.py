"""Images on disk, in small files of the real formats written here by other means, whole and damaged."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
import torchvision
from PIL import Image

from wellcond.errors import WellcondError
from wellcond.lab.tasks import task
from wellcond.lab.tasks.images.fashion_mnist import read_idx

RANDOM = np.random.default_rng(0)


def write_idx(path: Path, values: np.ndarray) -> None:
    content = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def fashion(tmp_path):
    """Seven and four images; half of the files compressed."""
    made = {}
    for prefix, count, suffix in (("train", 7, ".gz"), ("t10k", 4, "")):
        made[prefix] = RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte{suffix}", made[prefix])
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte{suffix}", np.arange(count, dtype=np.uint8))
    return tmp_path, made


def test_fashion_mnist_is_read_compressed_or_not(fashion):
    folder, made = fashion
    built = task("fashion-mnist", folder=folder)
    batch = built.train[torch.tensor([6, 2])]
    judge = (torch.from_numpy(made["train"][[6, 2]])[:, None] / 255 - 0.2860) / 0.3530
    assert torch.allclose(batch.inputs, judge, atol=1e-6)
    assert batch.targets.tolist() == [6, 2]
    assert len(built.test) == 4
    assert len(task("fashion-mnist", folder=folder, train_images=5).train) == 5
    with pytest.raises(WellcondError, match="9 images are asked for, and there are 7"):
        task("fashion-mnist", folder=folder, train_images=9)
    large = task("fashion-mnist", folder=folder, size=56)
    assert large.test[torch.tensor([0])].inputs.shape == (1, 1, 56, 56)
    assert large.shape["size"] == 56


def test_cut_idx_files_say_how_much_is_there(fashion):
    folder, _ = fashion
    plain, packed = folder / "t10k-images-idx3-ubyte", folder / "train-images-idx3-ubyte.gz"
    whole = plain.read_bytes()
    plain.write_bytes(whole[:-100])
    with pytest.raises(WellcondError, match=r"t10k-images-idx3-ubyte' is cut short: 3152 bytes expected, 3052 found"):
        task("fashion-mnist", folder=folder)
    plain.write_bytes(whole + b"more")
    with pytest.raises(WellcondError, match="is too long: 3152 bytes expected, 3156 found"):
        task("fashion-mnist", folder=folder)
    for length in (0, 2, 4, 9):
        plain.write_bytes(whole[:length])
        with pytest.raises(WellcondError, match=rf"is cut short: \d+ bytes expected, {length} found"):
            task("fashion-mnist", folder=folder)
    plain.write_bytes(whole)
    content = packed.read_bytes()
    packed.write_bytes(content[:2000])
    with pytest.raises(WellcondError, match=r"images-idx3-ubyte\.gz' is cut short: 5504 bytes expected, \d+ found"):
        task("fashion-mnist", folder=folder)
    packed.write_bytes(content[:-4])  # only the checksum is cut
    with pytest.raises(WellcondError, match="cut short"):
        task("fashion-mnist", folder=folder)
    packed.write_bytes(content[:1000] + b"damage" + content[1006:])
    with pytest.raises(WellcondError, match=r"images-idx3-ubyte\.gz' is damaged"):
        task("fashion-mnist", folder=folder)
    packed.write_bytes(b"<html>not found</html>")
    with pytest.raises(WellcondError, match="not an idx file"):
        task("fashion-mnist", folder=folder)
    packed.unlink()
    with pytest.raises(WellcondError, match=r"no file .*train-images-idx3-ubyte' or .*\.gz'.*apt install"):
        task("fashion-mnist", folder=folder)


def test_idx_files_that_do_not_belong_together_are_refused(fashion):
    folder, _ = fashion
    write_idx(folder / "t10k-labels-idx1-ubyte", np.arange(3, dtype=np.uint8))
    with pytest.raises(WellcondError, match="does not hold 4 labels from 0 to 9"):
        task("fashion-mnist", folder=folder)
    write_idx(folder / "t10k-images-idx3-ubyte", np.zeros((4, 20, 20), dtype=np.uint8))
    with pytest.raises(WellcondError, match=r"holds \(4, 20, 20\)"):
        task("fashion-mnist", folder=folder)


def test_fashion_mnist_of_debian():
    """`make debian` installs the package."""
    built = task("fashion-mnist")
    assert (len(built.train), len(built.test)) == (60_000, 10_000)
    everything = built.train[torch.arange(60_000)]
    assert abs(everything.inputs.mean()) < 1e-3
    assert abs(everything.inputs.std() - 1) < 1e-3
    assert torch.bincount(everything.targets).tolist() == [6000] * 10


def cifar_file(path: Path, count: int, label: bytes, classes: int) -> np.ndarray:
    pixels = RANDOM.integers(0, 256, (count, 3072), dtype=np.uint8)
    names = [b"a.png"] * count
    content = {b"data": pixels, label: [i % classes for i in range(count)], b"filenames": names, b"batch_label": b"x"}
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))
    return pixels


@pytest.fixture
def cifar(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    made = [cifar_file(folder / f"data_batch_{n}", 4, b"labels", 10) for n in range(1, 6)]
    return tmp_path, np.concatenate(made), cifar_file(folder / "test_batch", 3, b"labels", 10)


def test_cifar10_is_read_in_order_with_its_channels(cifar):
    folder, train, _ = cifar
    built = task("cifar10", folder=folder)
    batch = built.train[torch.tensor([17])]
    image = train[17].reshape(3, 32, 32).astype(np.float32) / 255  # red, green, blue, each row by row
    mean, std = (np.array(v)[:, None, None] for v in ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]))
    assert np.allclose(batch.inputs[0], (image - mean) / std, atol=1e-5)
    assert batch.targets.tolist() == [1]
    assert len(task("cifar10", folder=folder / "cifar-10-batches-py", train_images=9).train) == 9
    assert task("cifar10", folder=folder, size=64).train[torch.tensor([0, 1])].inputs.shape == (2, 3, 64, 64)


def test_cifar_as_python_2_wrote_it(tmp_path):
    """The files have str keys of Python 2 and arrays of a numpy that still had numpy.core."""
    pixels = bytes(range(256)) * 12
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x01M\x00\x0c\x86" + dtype + b"\x89"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + state
    array += b"T" + struct.pack("<I", len(pixels)) + pixels + b"tb"
    content = b"\x80\x02}(U\x04data" + array + b"U\x0bfine_labels]K\x63aU\x0dcoarse_labels]K\x05au."
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(content)
    batch = task("cifar100", folder=tmp_path).train[torch.tensor([0])]
    assert batch.targets.tolist() == [99]
    assert torch.allclose(batch.inputs[0, 0, 0, 5], torch.tensor((5 / 255 - 0.5071) / 0.2673))


def test_cifar100_takes_fine_labels(tmp_path):
    for name in ("train", "test"):
        cifar_file(tmp_path / "cifar-100-python" / name, 5, b"fine_labels", 100)
    built = task("cifar100", folder=tmp_path)
    assert built.shape["classes"] == 100
    assert built.test[torch.tensor([4])].targets.tolist() == [4]


class Malicious:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("call", [os.system, eval, getattr, np.fromfile, np.load])
def test_a_malicious_cifar_pickle_is_refused_and_not_run(cifar, call, protocol, tmp_path):
    folder, _, _ = cifar
    file, witness = folder / "cifar-10-batches-py" / "data_batch_2", tmp_path / "witness"
    code = f"touch {witness}" if call is os.system else f"open({str(witness)!r}, 'w')"
    content = {b"data": Malicious(call, code, "x") if call is getattr else Malicious(call, code), b"labels": []}
    file.write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(WellcondError, match=r"data_batch_2' .*it asks for .*, which no CIFAR file does"):
        task("cifar10", folder=folder)
    assert not witness.exists()


def test_the_two_functions_a_cifar_pickle_may_call_do_only_what_it_needs(cifar):
    folder, _, _ = cifar
    file = folder / "cifar-10-batches-py" / "data_batch_2"
    for content in (
        b"c_codecs\nencode\n(Vabc\nVzlib\ntR.",
        b"cnumpy\ndtype\n(U\x01OK\x00K\x01tR.",
        b"\x80\x02Voutside\nQ.",
        pickle.dumps({b"data": np.zeros((1, 3072), np.int64), b"labels": [0]}, protocol=2),
        pickle.dumps({b"data": np.array([[object]]), b"labels": [0]}, protocol=2),
        b"\x80\x02]q\x00.",
    ):
        file.write_bytes(content)
        with pytest.raises(WellcondError, match="data_batch_2'"):
            task("cifar10", folder=folder)


def test_damaged_cifar_files_are_named(cifar):
    folder, _, _ = cifar
    file = folder / "cifar-10-batches-py" / "test_batch"
    whole = file.read_bytes()
    for length in (0, 1, 50, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(WellcondError, match=rf"test_batch' \({length} bytes\) is cut short"):
            task("cifar10", folder=folder)
    for wrong in ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, {b"data": [1], b"labels": [1]}, {}):
        file.write_bytes(pickle.dumps(wrong, protocol=2))
        with pytest.raises(WellcondError, match=r"test_batch' has no b'(data|labels)'.*https"):
            task("cifar10", folder=folder)
    file.unlink()
    with pytest.raises(WellcondError, match=r"no file .*test_batch.*cifar-10-python\.tar\.gz"):
        task("cifar10", folder=folder)


def test_lra_image_is_grey_pixel_by_pixel(cifar):
    folder, train, test = cifar
    built = task("lra-image", folder=folder)
    assert (len(built.train), len(built.test)) == (18, 3)
    ids = built.test[torch.tensor([2])].inputs
    colour = Image.fromarray(test[2].reshape(3, 32, 32).transpose(1, 2, 0))
    judge = np.asarray(colour.convert("L")).astype(int).reshape(-1)
    assert ids.shape == (1, 1024)
    assert abs(ids[0].numpy() - judge).max() <= 1
    held = task("lra-image", folder=folder, held_out="validation").test
    grey = (train[18:].reshape(2, 3, 1024) * np.array([0.2989, 0.5870, 0.1140])[:, None]).sum(1)
    assert abs(held[torch.arange(2)].inputs.numpy() - grey).max() <= 0.51


def photograph(path: Path, colour: int, size: tuple[int, int] = (40, 32), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (colour,) * 3 if mode == "RGB" else colour).save(path)


@pytest.mark.parametrize(
    ("name", "held"), [("imagenet", "val"), ("flowers", "test"), ("pets", "test"), ("food101", "val")]
)
def test_a_folder_for_each_class_is_read_when_asked_for(tmp_path, name, held):
    for part in ("train", held):
        photograph(tmp_path / part / "n01" / "a.jpg", 255)
        photograph(tmp_path / part / "n02" / "b.png", 0, (30, 50), mode="L")
    built = task(name, folder=tmp_path, size=16)
    batch = built.train[torch.tensor([1, 0])]
    assert batch.inputs.shape == (2, 3, 16, 16)
    assert batch.targets.tolist() == [1, 0]
    for image, value in zip(batch.inputs, (0.0, 1.0), strict=True):
        judge = (value - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
        assert torch.allclose(image.mean((1, 2)), judge, atol=1e-3)
    assert built.shape == {"channels": 3, "size": 16, "classes": 2}
    broken = tmp_path / held / "n01" / "a.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(WellcondError, match=r"a\.jpg' cannot be read as an image"):
        built.test[torch.tensor([0])]
    broken.unlink()
    with pytest.raises(WellcondError, match=r"no file .*a\.jpg.*http"):
        built.test[torch.tensor([0])]
    photograph(tmp_path / held / "n03" / "c.png", 0)
    photograph(broken, 1)
    with pytest.raises(WellcondError, match="the class 'n03' in only one of"):
        task(name, folder=tmp_path)


def test_crop_is_that_of_torchvision(tmp_path):
    # Pillow cuts what overshoots black and white between its two passes, so there is none here.
    pixels = np.random.default_rng(0).integers(64, 192, (60, 90, 3), dtype=np.uint8)
    for part in ("train", "val"):
        (tmp_path / part / "a").mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / part / "a" / "0.png")
    image = task("imagenet", folder=tmp_path, size=28).train[torch.tensor([0])].inputs[0]
    steps = torchvision.transforms
    judge = steps.Compose(
        [
            steps.Resize(32, steps.InterpolationMode.BICUBIC),
            steps.CenterCrop(28),
            steps.ToTensor(),
            steps.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )(Image.fromarray(pixels))
    assert (image - judge).abs().max() < 0.03  # Pillow rounds in between


def test_flowers_trains_on_training_and_validation(tmp_path, monkeypatch):
    base = tmp_path / "flowers-102"
    for number in range(1, 8):
        photograph(base / "jpg" / f"image_{number:05d}.jpg", 30 * number)
    scipy.io.savemat(base / "imagelabels.mat", {"labels": np.array([[1, 2, 3, 1, 2, 102, 4]])})
    scipy.io.savemat(base / "setid.mat", {"trnid": [[1, 2]], "valid": [[3, 7]], "tstid": [[4, 5, 6]]})
    with pytest.raises(WellcondError, match=r"does not hold flowers .*robots\.ox\.ac\.uk"):  # not the published bytes
        task("flowers", folder=tmp_path)
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_check_integrity", lambda self: True)
    built = task("flowers", folder=tmp_path, size=8)
    assert built.train[torch.arange(4)].targets.tolist() == [0, 1, 2, 3]
    assert built.test[torch.arange(3)].targets.tolist() == [0, 1, 101]
    assert built.shape["classes"] == 102


def test_pets_and_food_as_distributed(tmp_path):
    base = tmp_path / "oxford-iiit-pet"
    for name in ("Abyssinian_1", "beagle_2", "beagle_3"):
        photograph(base / "images" / f"{name}.jpg", 90)
    lists = base / "annotations"
    lists.mkdir()
    (lists / "trainval.txt").write_text("Abyssinian_1 1 1 1\nbeagle_2 2 2 1\n")
    (lists / "test.txt").write_text("beagle_3 2 2 1\n")
    pets = task("pets", folder=tmp_path, size=8)
    assert pets.train[torch.arange(2)].targets.tolist() == [0, 1]
    assert pets.test[torch.tensor([0])].targets.tolist() == [1]
    base = tmp_path / "food-101"
    for name in ("pie/1", "tart/2", "tart/3"):
        photograph(base / "images" / f"{name}.jpg", 90)
    (base / "meta").mkdir()
    (base / "meta" / "train.json").write_text('{"pie": ["pie/1"], "tart": ["tart/2"]}')
    (base / "meta" / "test.json").write_text('{"pie": [], "tart": ["tart/3"]}')
    food = task("food101", folder=tmp_path, size=8)
    assert food.train[torch.arange(2)].inputs.shape == (2, 3, 8, 8)
    assert food.test[torch.tensor([0])].targets.tolist() == [1]
    (base / "meta" / "test.json").write_text('{"pie": [')
    with pytest.raises(WellcondError, match=r"does not hold food101 .*food-101\.tar\.gz"):
        task("food101", folder=tmp_path)


def test_idx_of_any_number_of_dimensions(tmp_path):
    for shape in ((3,), (2, 3), (2, 1, 3, 2), (0, 28, 28)):
        values = RANDOM.integers(0, 256, shape, dtype=np.uint8)
        write_idx(tmp_path / "x.gz", values)
        assert (read_idx(tmp_path / "x.gz").numpy() == values).all()
