"""Inputs by name: real models run on them, the generators are left alone, and whatever a folder or a text may hold."""

from __future__ import annotations

import builtins
import errno
import importlib
import json
import os
import socket
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import wellcond as wc
from tests.cases import CASES
from tests.cases.hf import BART, BERT, GPT2, LLAMA, SPECIAL, VOCAB, build
from wellcond.attention.capture import capture, evaluating, run_model
from wellcond.errors import WellcondError
from wellcond.inputs.example_inputs import Inputs, image_inputs, inputs_for, random_inputs, text_inputs

# Cases whose class does not know its own shape: parts of models, sizes that timm does not keep, packed images.
SHAPELESS = {
    "timm-attention-masked": "Attention",
    "timm-volo": "VOLO",
    "hf-qwen2.5-vl-vision": "hidden_states, grid_thw",
}
BUILT_SMALLER = {"timm-maxvit-rw", "timm-maxvit-tf", "timm-maxvit-nchw", "timm-coatnet"}  # than their pretrained_cfg
DECODER = {"decoder_start_token_id": 1}
VIT = {"hidden_size": 20, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 28}
VISION = {**VIT, "image_size": 8, "patch_size": 4}
CLIP_TEXT = {**VIT, "vocab_size": VOCAB, "max_position_embeddings": 9, **SPECIAL}
CLIP = {"text_config": CLIP_TEXT, "vision_config": {**VISION, "num_channels": 3}, "projection_dim": 12}
WAV2VEC = {
    **VIT,
    "vocab_size": VOCAB,
    "conv_dim": [8, 8],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}


def forward(model: nn.Module, inputs: Inputs) -> Any:
    with torch.no_grad(), evaluating(model):
        return run_model(model, inputs.batch)


def tensors(inputs: Inputs) -> list[Tensor]:
    batch = inputs.batch
    return [batch] if isinstance(batch, Tensor) else list(batch.values() if isinstance(batch, dict) else batch)


def refused(call: Callable[[], Any]) -> str:
    """The message: of one line, with nothing that moves a terminal's cursor."""
    with pytest.raises(WellcondError) as caught:
        call()
    message = str(caught.value)
    assert message.isprintable()
    return message


def gpt2(**options: Any) -> nn.Module:
    return build("GPT2Model", **GPT2, **options)()


def vit(**options: Any) -> nn.Module:
    import timm

    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "num_heads": 3, "depth": 1, "num_classes": 2}
    return timm.create_model("vit_tiny_patch16_224", **sizes, **options)


def still(call: Callable[[], Inputs]) -> Inputs:
    """Make inputs, and check that the global generators have not moved."""
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()
    inputs = call()
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numbers).all()
    assert inputs.description.isprintable()
    return inputs


# Random inputs


@pytest.mark.parametrize("name", [name for name in CASES if name not in BUILT_SMALLER | SHAPELESS.keys()])
def test_random_inputs_reach_every_layer(name: str) -> None:
    model = CASES[name].model()
    inputs = still(lambda: random_inputs(model, batch=2, tokens=9))
    calls = capture(list(wc.attention_layers(model)), inputs.batch)
    assert all(call is not None for call in calls)
    assert inputs.description.startswith("2 ")


@pytest.mark.parametrize(("name", "says"), SHAPELESS.items())
def test_says_what_to_do_where_the_shape_cannot_be_told(name: str, says: str) -> None:
    message = refused(lambda: random_inputs(CASES[name].model()))
    assert says in message
    assert "wc.diagnose(model, batch)" in message
    assert "example_inputs" in message


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]]]] = {
    "bart-classifier": (  # which reads its answer at the end token, and fails without
        build("BartForSequenceClassification", **BART, **SPECIAL, **DECODER, max_position_embeddings=16),
        {"input_ids": (3, 16), "decoder_input_ids": (3, 16)},
    ),
    "clip": (build("CLIPModel", **CLIP), {"input_ids": (3, 9), "pixel_values": (3, 3, 8, 8)}),
    "clip-text": (build("CLIPTextModel", **CLIP_TEXT), {"input_ids": (3, 9)}),
    "nystromformer-full": (  # with as many landmarks as tokens it is ordinary attention, of any length
        build("NystromformerModel", **BERT, num_landmarks=8, segment_means_seq_len=8),
        {"input_ids": (3, 16)},
    ),
    "nystromformer": (
        build("NystromformerModel", **BERT, num_landmarks=2, segment_means_seq_len=8, conv_kernel_size=3),
        {"input_ids": (3, 8)},
    ),
    "roberta": (build("RobertaModel", **BERT), {"input_ids": (3, 14)}),  # two positions are the padding's
    "gpt2-long": (build("GPT2Model", **GPT2 | {"n_positions": 200}), {"input_ids": (3, 128)}),
    "t5-encoder": (
        build("T5EncoderModel", vocab_size=VOCAB, d_model=20, d_kv=6, num_heads=4, num_layers=1, d_ff=28),
        {"input_ids": (3, 128)},
    ),
    "llama-bfloat16": (lambda: build("LlamaForCausalLM", **LLAMA)().bfloat16(), {"input_ids": (3, 16)}),
    "vit-bfloat16": (lambda: build("ViTModel", **VISION)().bfloat16(), {"pixel_values": (3, 3, 8, 8)}),
    "vit-grey": (build("ViTModel", **VISION, num_channels=1), {"pixel_values": (3, 1, 8, 8)}),
    "videomae": (
        build("VideoMAEModel", **VISION, num_frames=4, tubelet_size=2),
        {"pixel_values": (3, 4, 3, 8, 8)},
    ),
    "wav2vec2": (build("Wav2Vec2Model", **WAV2VEC), {"input_values": (3, 1290)}),
    "ast": (
        build("ASTModel", **VIT, patch_size=4, frequency_stride=4, time_stride=4, max_length=16, num_mel_bins=8),
        {"input_values": (3, 16, 8)},
    ),
    "whisper": (
        build("WhisperModel", **BART, **SPECIAL, **DECODER, num_mel_bins=6, max_source_positions=8),
        {"input_features": (3, 6, 16), "decoder_input_ids": (3, 128)},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers(name: str) -> None:
    make, shapes = MODELS[name]
    model = make()
    inputs = still(lambda: random_inputs(model, batch=3))
    assert {name: tuple(tensor.shape) for name, tensor in inputs.batch.items()} == shapes
    forward(model, inputs)


def composed(kind: str, encoder: str, **options: Any) -> nn.Module:
    import transformers

    decoder = transformers.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
    config_class = getattr(transformers, f"{kind}Config")
    first = getattr(transformers, encoder)(**options)
    config = config_class.from_encoder_decoder_configs(first, decoder)
    return getattr(transformers, f"{kind}Model")(config=config)


def test_encoder_and_decoder_of_two_configurations() -> None:
    model = composed("EncoderDecoder", "BertConfig", **BERT | {"vocab_size": 50, "max_position_embeddings": 7})
    inputs = random_inputs(model, batch=2)
    assert {n: tuple(x.shape) for n, x in inputs.batch.items()} == {"input_ids": (2, 7), "decoder_input_ids": (2, 16)}
    forward(model, inputs)
    forward(model, text_inputs(model, "the cat sat on the mat"))  # the decoder has fewer ids


def test_an_encoder_of_images_with_a_decoder_of_text() -> None:
    model = composed("VisionEncoderDecoder", "ViTConfig", **VISION)
    inputs = random_inputs(model, batch=2)
    shapes = {"pixel_values": (2, 3, 8, 8), "decoder_input_ids": (2, 16)}
    assert {n: tuple(x.shape) for n, x in inputs.batch.items()} == shapes
    forward(model, inputs)
    assert "takes images, not text" in refused(lambda: text_inputs(model, "the cat sat"))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 8), 1), [(5, 2, 12)]),
        (lambda: nn.TransformerEncoderLayer(12, 3, 8, batch_first=True), [(2, 5, 12)]),
        (lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, 8), 1), [(5, 2, 12)] * 2),
        (lambda: nn.Transformer(12, 3, 1, 1, 8), [(5, 2, 12)] * 2),
        (lambda: nn.Transformer(12, 3, 1, 1, 8, batch_first=True), [(2, 5, 12)] * 2),
        (lambda: nn.MultiheadAttention(12, 3), [(5, 2, 12)] * 3),
        (lambda: nn.MultiheadAttention(12, 3, kdim=10, vdim=7, batch_first=True), [(2, 5, 12), (2, 5, 10), (2, 5, 7)]),
    ],
)
def test_torch(make: Callable[[], nn.Module], shapes: list[tuple[int, ...]]) -> None:
    model = make()
    inputs = still(lambda: random_inputs(model, batch=2, tokens=5))
    assert [tuple(tensor.shape) for tensor in tensors(inputs)] == shapes
    forward(model, inputs)
    assert len({float(tensor.sum()) for tensor in tensors(inputs)}) == len(shapes)  # a memory is not the target


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("vit_tiny_patch16_224", (3, 224, 224)),
        ("swin_tiny_patch4_window7_224", (3, 224, 224)),
        ("swinv2_tiny_window8_256", (3, 256, 256)),
        ("xcit_nano_12_p16_384", (3, 384, 384)),
        ("eva02_tiny_patch14_336", (3, 336, 336)),
        ("maxvit_tiny_tf_384", (3, 384, 384)),
        ("vit_tiny_patch16_224.augreg_in21k", (3, 224, 224)),
    ],
)
def test_timm_by_name(name: str, shape: tuple[int, ...]) -> None:
    model = wc.build_model(f"timm:{name}", device="meta")
    inputs = random_inputs(model, batch=2)
    assert inputs.batch.device.type == "meta"
    assert inputs.batch.shape == (2, *shape)
    forward(model, inputs)


def test_timm_built_for_another_size_and_other_channels() -> None:
    model = vit(in_chans=5)
    inputs = random_inputs(model, batch=2)
    assert inputs.batch.shape == (2, 5, 16, 16)
    forward(model, inputs)


@pytest.mark.parametrize("name", ["vit_b_32", "swin_v2_t", "maxvit_t"])
def test_torchvision_by_name(name: str) -> None:
    import torchvision

    with torch.device("meta"):
        model = torchvision.models.get_model(name)
    inputs = random_inputs(model, batch=2)
    assert inputs.batch.shape == (2, 3, 224, 224)
    forward(model, inputs)


def test_a_video_model_of_torchvision_is_refused() -> None:
    import torchvision

    with torch.device("meta"):
        model = torchvision.models.get_model("swin3d_t")
    assert "SwinTransformer3d" in refused(lambda: random_inputs(model))


def test_a_seed_says_it_all() -> None:
    model = build("CLIPModel", **CLIP)()
    first, again, other = (random_inputs(model, seed=seed) for seed in (1, 1, 2))
    for name in first.batch:
        assert torch.equal(first.batch[name], again.batch[name])
        assert not torch.equal(first.batch[name], other.batch[name])
    assert (
        first.description
        == "8 sequences of 9 random token ids (input_ids); 8 random images of 3 × 8 × 8 (pixel_values)"
    )


def test_the_default_device_and_precision_do_not_matter() -> None:
    model = vit()
    expected = random_inputs(model).batch
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = random_inputs(model).batch
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


def test_special_ids_are_left_out() -> None:
    model = gpt2(bos_token_id=3, eos_token_id=[4, 5], pad_token_id=30)
    drawn = set(random_inputs(model, batch=64, tokens=16).batch["input_ids"].unique().tolist())
    assert drawn == set(range(VOCAB)) - {3, 4, 5, 30}


def test_one_id_that_is_special() -> None:
    model = build("GPT2Model", **GPT2 | {"vocab_size": 1, "bos_token_id": 0, "eos_token_id": 0})()
    forward(model, random_inputs(model, batch=2))


class Mine(nn.Module):
    def __init__(self, example: Any = None) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        if example is not None:
            self.example_inputs = example

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


@pytest.mark.parametrize("example", [torch.ones(2, 3), (torch.ones(2, 3),), {"x": torch.ones(2, 3)}])
@pytest.mark.parametrize("called", [False, True])
def test_example_inputs(example: Any, called: bool) -> None:
    model = Mine((lambda: example) if called else example)
    inputs = random_inputs(model)
    assert inputs.batch is example
    assert inputs.description == "example_inputs of Mine"
    forward(model, inputs)


def test_example_inputs_that_are_drawn() -> None:
    model = Mine(lambda: torch.randn(2, 3))
    first, again, other = (still(lambda seed=seed: random_inputs(model, seed=seed)).batch for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("example", "says"),
    [
        (None, "Mine cannot be told"),
        ("text", "got a str"),
        (lambda: 3, "got a int"),
        (lambda: torch.ones(2) @ torch.ones(3), "example_inputs of Mine raised RuntimeError"),
    ],
)
def test_refuses_example_inputs(example: Any, says: str) -> None:
    assert says in refused(lambda: random_inputs(Mine(example)))


@pytest.mark.parametrize("numbers", [{"batch": 0}, {"batch": 1.5}, {"batch": True}, {"tokens": 0}, {"tokens": -1}])
def test_refuses_a_number(numbers: dict[str, Any]) -> None:
    assert "whole number" in refused(lambda: inputs_for(gpt2(), **numbers))
    assert "whole number" in refused(lambda: inputs_for(gpt2(), text="the cat", **numbers))


# Images


def photograph(width: int = 24, height: int = 16) -> Image.Image:
    """Red on the left, green on the right."""
    values = np.zeros((height, width, 3), dtype=np.uint8)
    values[:, : width // 2, 0] = 255
    values[:, width // 2 :, 1] = 255
    return Image.fromarray(values)


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "deeper" / "still").mkdir(parents=True)
    photograph().save(tmp_path / "b.PNG")
    photograph().save(tmp_path / "deeper" / "a.jpeg", quality=95)
    photograph().save(tmp_path / "deeper" / "still" / "c.webp")
    (tmp_path / "labels.csv").write_text("not an image, and not named like one\n")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    model = vit()
    inputs = still(lambda: image_inputs(model, tmp_path))
    assert inputs.batch.shape == (3, 3, 16, 16)
    assert inputs.description == f"3 images of {str(tmp_path)!r} as 3 × 16 × 16, mean 0.5, std 0.5"
    forward(model, inputs)
    red, green, blue = inputs.batch[0, :, 8, 2]  # sorted: b.PNG is first
    assert (red, green, blue) == (1.0, -1.0, -1.0)


def test_normalised_as_the_model_says(tmp_path: Path) -> None:
    import timm

    Image.new("RGB", (5, 40), (255, 0, 51)).save(tmp_path / "a.bmp")
    sizes = {"img_size": (32, 16), "embed_dim": 12, "depths": (1,), "num_heads": (3,), "window_size": (4, 2)}
    swin = timm.create_model("swin_tiny_patch4_window7_224", **sizes)
    inputs = image_inputs(swin, tmp_path)
    assert inputs.batch.shape == (1, 3, 32, 16)
    expected = [(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    torch.testing.assert_close(inputs.batch.mean((0, 2, 3)), torch.tensor(expected))
    assert "mean 0.485 0.456 0.406, std 0.229 0.224 0.225" in inputs.description
    forward(swin, inputs)
    torchvision_vit = CASES["torchvision-vit"].model()
    torch.testing.assert_close(image_inputs(torchvision_vit, tmp_path).batch.mean((0, 2, 3)), torch.tensor(expected))


def test_the_centre_is_kept(tmp_path: Path) -> None:
    values = np.zeros((10, 30, 3), dtype=np.uint8)
    values[:, 10:20] = 255
    Image.fromarray(values).save(tmp_path / "a.png")
    assert (image_inputs(vit(), tmp_path).batch[..., 2:-2] == 1).all()  # at the edge, bicubic sees the neighbours


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "1", "I;16"])
def test_every_kind_of_colour(tmp_path: Path, mode: str) -> None:
    suffix = "jpg" if mode == "CMYK" else "png"
    if mode == "I;16":
        image = Image.fromarray(np.full((20, 20), 51 * 257, dtype=np.uint16))
    else:
        image = Image.new("RGB", (20, 20), (255, 255, 255) if mode == "1" else (51, 51, 51)).convert(mode)
    image.save(tmp_path / f"a.{suffix}")
    with Image.open(tmp_path / f"a.{suffix}") as saved:
        assert saved.mode == mode
    expected = 1.0 if mode == "1" else 2 * 0.2 - 1
    inputs = image_inputs(vit(), tmp_path)
    torch.testing.assert_close(inputs.batch, torch.full((1, 3, 16, 16), expected), atol=0.02, rtol=0)
    grey = image_inputs(vit(in_chans=1), tmp_path)
    torch.testing.assert_close(grey.batch, torch.full((1, 1, 16, 16), expected), atol=0.02, rtol=0)


def test_transparency_in_a_palette(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    photograph().quantize(4).save(tmp_path / "a.png", transparency=bytes([0, 128, 255, 255]))
    assert image_inputs(vit(), tmp_path).batch.shape == (1, 3, 16, 16)
    assert not recwarn.list


HOSTILE = ["a\nb.png", "\x1b[2J.png", "$(touch x).png", "-rf.png", "%s{0}.png", "ü 🦉.png", os.fsdecode(b"\xff.png")]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    photograph().save(folder / name)
    model = vit()
    assert still(lambda: image_inputs(model, folder)).batch.shape == (1, 3, 16, 16)
    (folder / name).write_bytes(b"not an image")
    assert repr(str(folder / name)) in refused(lambda: image_inputs(model, folder))


def test_a_truncated_file(tmp_path: Path) -> None:
    photograph(400, 300).save(tmp_path / "cut.jpg")
    whole = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    message = refused(lambda: image_inputs(vit(), tmp_path))
    assert "cut.jpg" in message
    assert "truncated" in message


def png(width: int, height: int) -> bytes:
    """A file that claims a size and has next to nothing in it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("side", "says"), [(10_000, "DecompressionBomb"), (60_000, "DecompressionBomb")])
def test_a_decompression_bomb(tmp_path: Path, side: int, says: str) -> None:
    (tmp_path / "bomb.png").write_bytes(png(side, side))
    message = refused(lambda: image_inputs(vit(), tmp_path))
    assert "bomb.png" in message
    assert says in message


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"RIFF\0\0\0\0WEBP", png(9, 9)])
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp"])
def test_damaged_files(tmp_path: Path, content: bytes, suffix: str) -> None:
    (tmp_path / f"bad.{suffix}").write_bytes(content)
    assert f"bad.{suffix}' cannot be read as an image" in refused(lambda: image_inputs(vit(), tmp_path))


def test_hidden_images_are_named(tmp_path: Path) -> None:
    photograph().save(tmp_path / "a.png")
    photograph().save(tmp_path / "._a.png")
    message = refused(lambda: image_inputs(vit(), tmp_path))
    assert "._a.png" in message
    assert "hidden" in message


def test_in_a_hidden_folder_nothing_is_hidden(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    photograph().save(tmp_path / ".cache" / "a.png")
    assert len(image_inputs(vit(), tmp_path / ".cache").batch) == 1
    assert "hidden" in refused(lambda: image_inputs(vit(), tmp_path))


def test_links(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    photograph().save(outside / "a.png")
    (folder / "link.png").symlink_to(outside / "a.png")
    (folder / "out").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    assert len(image_inputs(vit(), folder).batch) == 2
    (folder / "broken.png").symlink_to(tmp_path / "nowhere.png")
    assert "broken.png" in refused(lambda: image_inputs(vit(), folder))


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    assert "pipe.png" in refused(lambda: image_inputs(vit(), tmp_path))


def forbid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the permission to read away; root keeps it, so for root the system's answer is played."""
    path.chmod(0)
    if os.geteuid() == 0:
        opened, listed = builtins.open, os.scandir

        def refuse(given: Any, system: Any, *rest: Any, **named: Any) -> Any:
            if os.fspath(given) == os.fspath(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(given))
            return system(given, *rest, **named)

        monkeypatch.setattr(builtins, "open", lambda given, *rest, **named: refuse(given, opened, *rest, **named))
        monkeypatch.setattr(os, "scandir", lambda given=".": refuse(given, listed))


@pytest.mark.parametrize("name", ["a.png", "closed"])
def test_what_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    photograph().save(tmp_path / "a.png")
    (tmp_path / "closed").mkdir()
    forbid(tmp_path / name, monkeypatch)
    assert name in refused(lambda: image_inputs(vit(), tmp_path))


def test_folders_without_images(tmp_path: Path) -> None:
    assert "has no image" in refused(lambda: image_inputs(vit(), tmp_path))
    assert "is not a folder" in refused(lambda: image_inputs(vit(), tmp_path / "absent"))
    photograph().save(tmp_path / "a.png")
    assert "is not a folder" in refused(lambda: image_inputs(vit(), tmp_path / "a.png"))


def test_a_seed_chooses_among_many(tmp_path: Path) -> None:
    for grey in range(0, 240, 8):
        Image.new("L", (20, 20), grey).save(tmp_path / f"{grey:03}.png")
    first, again, other = (image_inputs(vit(), tmp_path, batch=4, seed=seed).batch for seed in (1, 1, 2))
    assert len(first) == 4
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    levels = first.mean((1, 2, 3))
    assert (levels[1:] > levels[:-1]).all()  # in the order of their names


@pytest.mark.parametrize("name", ["timm-swin", "torchvision-maxvit", "hf-vit"])
def test_sample_photographs(name: str) -> None:
    model = CASES[name].model()
    inputs = still(lambda: inputs_for(model, images="sample", batch=3, seed=1))
    again, other = (inputs_for(model, images="sample", batch=3, seed=seed) for seed in (1, 2))
    (first,), (second,), (third,) = tensors(inputs), tensors(again), tensors(other)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert first.std() > 0.1  # a photograph, not a blank
    assert not torch.equal(first[0], first[2])  # two crops of one photograph
    assert inputs.description.startswith("3 crops of scikit-learn's sample photographs as 3 × ")
    forward(model, inputs)


def test_images_for_a_model_of_both() -> None:
    model = build("CLIPModel", **CLIP)()
    inputs = inputs_for(model, images="sample", batch=2)
    assert inputs.description.endswith("std 0.5; 2 sequences of 9 random token ids (input_ids)")
    forward(model, inputs)


@pytest.mark.parametrize(("missing", "package"), [("PIL.Image", "pillow"), ("sklearn.datasets", "scikit-learn")])
def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert f"pip install {package}" in refused(lambda: image_inputs(vit()))


def test_images_for_what_does_not_take_them() -> None:
    assert "GPT2Model takes text, not images" in refused(lambda: inputs_for(gpt2(), images="sample"))
    encoder = nn.TransformerEncoderLayer(12, 3)
    assert "takes embedded tokens, not images" in refused(lambda: inputs_for(encoder, images="sample"))
    assert "takes videos" in refused(lambda: inputs_for(MODELS["videomae"][0](), images="sample"))
    assert "5 channels" in refused(lambda: inputs_for(vit(in_chans=5), images="sample"))
    assert "takes sound, not images" in refused(lambda: inputs_for(MODELS["wav2vec2"][0](), images="sample"))


def test_a_language_model_that_splices_images_into_its_text() -> None:
    vision = {**VISION, "model_type": "clip_vision_model"}
    text = {**LLAMA, "model_type": "llama"}
    model = build("LlavaModel", vision_config=vision, text_config=text, image_token_index=5)()
    inputs = random_inputs(model, batch=64)
    assert inputs.batch.keys() == {"input_ids"}
    assert 5 not in inputs.batch["input_ids"]
    forward(model, inputs)
    assert "at its image tokens" in refused(lambda: inputs_for(model, images="sample"))


# Text


def test_bytes_of_a_text() -> None:
    model = gpt2()
    inputs = still(lambda: inputs_for(model, text="the cat sat on the mat", tokens=7, batch=5))
    expected = [[byte % VOCAB for byte in piece] for piece in (b"the cat", b" sat on", b" the ma")]
    assert inputs.batch["input_ids"].tolist() == expected
    says = f"the text given, 3 × 7 UTF-8 bytes modulo its {VOCAB} ids (no tokenizer is known for it)"
    assert inputs.description == says
    forward(model, inputs)


def test_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "a\nb.txt"
    path.write_text("\ufeffÄh " * 1000, encoding="utf-8")
    model = gpt2()
    inputs = still(lambda: text_inputs(model, str(path), batch=4, tokens=16))
    assert inputs.batch["input_ids"].shape == (4, 16)
    assert inputs.batch["input_ids"][0, :3].tolist() == [byte % VOCAB for byte in "Äh".encode()]  # without its mark
    assert inputs.description.startswith(f"the text of {str(path)!r}, 4 × 16 UTF-8 bytes")
    assert torch.equal(text_inputs(model, path, batch=4, tokens=16).batch["input_ids"], inputs.batch["input_ids"])


class Block(nn.Module):
    """As in nanoGPT, with torch's attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Gpt(nn.Module):
    """nanoGPT's: a bare tensor of ids, a dictionary of parts, its settings in a dataclass."""

    def __init__(self, vocabulary: int = 65, block_size: int = 16, width: int = 8) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocabulary, block_size=block_size)
        parts = {"wpe": nn.Embedding(block_size, width), "wte": nn.Embedding(vocabulary, width)}
        self.transformer = nn.ModuleDict({**parts, "h": nn.ModuleList([Block(width) for _ in range(2)])})
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        assert idx.shape[1] <= self.config.block_size
        x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, None if targets is None else nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_a_language_model_of_ones_own() -> None:
    model = Gpt()
    text = "the cat sat on the mat"
    inputs = still(lambda: inputs_for(model, text=text, batch=2))
    assert inputs.batch.tolist() == [[byte % 65 for byte in text.encode()[:16]]]
    assert inputs.description == "the text given, 1 × 16 UTF-8 bytes modulo its 65 ids (no tokenizer is known for it)"
    forward(model, inputs)
    drawn = random_inputs(model, batch=3)
    assert drawn.batch.shape == (3, 16)
    assert drawn.batch.max() > 32
    assert drawn.description == "3 sequences of 16 random token ids"
    forward(model, drawn)
    assert "Gpt takes text, not images" in refused(lambda: inputs_for(model, images="sample"))


def test_a_language_model_without_settings_or_with_learned_positions() -> None:
    model = Gpt(vocabulary=300, block_size=9)
    del model.config
    model.config = {"block_size": 7}  # as a dictionary
    assert inputs_for(model, text="x" * 99, batch=2).batch.shape == (2, 7)
    model.config = None
    assert inputs_for(model, text="x" * 99, batch=2).batch.shape == (2, 9)  # as many as the table of positions has
    del model.transformer["wpe"]
    assert inputs_for(model, text="x" * 99, batch=2, tokens=40).batch.shape == (2, 40)
    model.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
    assert inputs_for(model, text="x" * 99, batch=2, tokens=40).batch.shape == (2, 5)


class Letters:
    def encode(self, text: str) -> list[int]:
        return ["abcdefghijklmnopqrstuvwxyz ".index(letter) for letter in text]


def test_a_tokenizer_of_ones_own() -> None:
    model = Gpt(vocabulary=27)
    model.tokenizer = Letters()
    inputs = inputs_for(model, text="a cab")
    assert inputs.batch.tolist() == [[0, 26, 2, 0, 1]]
    assert inputs.description == "the text given, 1 × 5 tokens of its own tokenizer"
    assert "tokenizer.encode of Gpt" in refused(lambda: inputs_for(model, text="A CAB"))
    small = Gpt(vocabulary=5)
    small.tokenizer = Letters()
    assert "more ids than it has embeddings" in inputs_for(small, text="a cab").description


class Labelled(nn.Module):
    """Takes images, and perhaps a label, for which it has an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.labels, self.conv = nn.Embedding(10, 3), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor, label: Tensor | None = None) -> Tensor:
        out: Tensor = self.conv(x)
        return out


class Paired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 3)

    def forward(self, idx: Tensor, times: Tensor) -> Tensor:
        out: Tensor = self.tokens(idx) + times
        return out


@pytest.mark.parametrize("make", [Labelled, Paired])
def test_an_embedding_is_not_yet_a_language_model(make: type[nn.Module]) -> None:
    assert "cannot be told from it" in refused(lambda: inputs_for(make(), text="the cat"))


def test_a_short_text_is_one_short_piece() -> None:
    assert text_inputs(gpt2(), "a").batch["input_ids"].shape == (1, 1)
    assert text_inputs(gpt2(), "cat sat").batch["input_ids"].shape == (1, 7)


def test_no_more_tokens_than_positions() -> None:
    assert text_inputs(gpt2(), "x" * 1000, tokens=100).batch["input_ids"].shape == (8, 16)


def test_text_of_a_fixed_length() -> None:
    model = MODELS["nystromformer"][0]()
    forward(model, text_inputs(model, "eight by eight", tokens=3))
    assert "takes 8 tokens, and the text has 3" in refused(lambda: text_inputs(model, "one"))


def test_text_for_encoder_and_decoder() -> None:
    model = build("BartModel", **BART, **SPECIAL, **DECODER, max_position_embeddings=16)()
    inputs = text_inputs(model, "the cat sat on the mat", tokens=9)
    assert torch.equal(inputs.batch["input_ids"], inputs.batch["decoder_input_ids"])
    forward(model, inputs)
    classifier = MODELS["bart-classifier"][0]()
    forward(classifier, text_inputs(classifier, "the cat sat on the mat", tokens=9))


def test_text_for_a_model_of_both() -> None:
    model = build("CLIPModel", **CLIP)()
    inputs = text_inputs(model, "the cat sat on the mat")
    assert inputs.batch["pixel_values"].shape == (2, 3, 8, 8)
    forward(model, inputs)


@pytest.mark.parametrize("text", ["\0", "\ud83d", os.fsdecode(b"caf\xe9 noir"), "word " * 5000, "🦉", "-", "a/b c"])
def test_any_text_at_all(text: str) -> None:
    model = gpt2()
    forward(model, still(lambda: text_inputs(model, text)))


@pytest.mark.parametrize("text", ["corpus.txt", "texts/corpus", "./a", "/tmp"])
def test_a_mistyped_file_is_no_text(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"no text file '{text}'" in refused(lambda: text_inputs(gpt2(), text))


def test_texts_that_cannot_be_read(tmp_path: Path) -> None:
    assert "the text given is empty" in refused(lambda: text_inputs(gpt2(), ""))
    assert "the text given is empty" in refused(lambda: text_inputs(gpt2(), " \n"))
    (tmp_path / "empty.txt").touch()
    assert "empty.txt' is empty" in refused(lambda: text_inputs(gpt2(), tmp_path / "empty.txt"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 noir")
    assert "latin.txt' cannot be read as UTF-8" in refused(lambda: text_inputs(gpt2(), tmp_path / "latin.txt"))
    os.mkfifo(tmp_path / "pipe")
    assert "no text file" in refused(lambda: text_inputs(gpt2(), tmp_path / "pipe"))
    assert "no text file" in refused(lambda: text_inputs(gpt2(), tmp_path / "absent"))


def test_text_for_what_does_not_take_it() -> None:
    assert "VisionTransformer takes images, not text" in refused(lambda: inputs_for(vit(), text="the cat"))
    assert "ViTModel takes images, not text" in refused(lambda: inputs_for(CASES["hf-vit"].model(), text="the cat"))
    assert "WhisperModel takes sound, not text" in refused(lambda: inputs_for(MODELS["whisper"][0](), text="the cat"))
    encoder = nn.TransformerEncoderLayer(12, 3)
    assert "takes embedded tokens, not text" in refused(lambda: inputs_for(encoder, text="the cat"))


def test_not_images_and_text() -> None:
    assert "not both" in refused(lambda: inputs_for(vit(), images="sample", text="the cat"))


# Tokenizers


def repository(folder: Path, words: list[str] | None, **config: Any) -> Path:
    """A configuration, with or without a tokenizer beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"model_type": "bert", **BERT, **config}
    (folder / "config.json").write_text(json.dumps(settings))
    if words is not None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["?", *words])}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("file", ["", "config.json"])
def test_its_own_tokenizer(tmp_path: Path, file: str) -> None:
    model = wc.build_model(f"hf:{repository(tmp_path, ['the', 'cat', 'sat']) / file}")
    inputs = still(lambda: text_inputs(model, "the cat sat the cat owl", tokens=2))
    assert inputs.batch["input_ids"].tolist() == [[1, 2], [3, 1], [2, 0]]
    assert inputs.description == "the text given, 3 × 2 tokens of its own tokenizer"
    forward(model, inputs)


def test_a_configuration_alone_has_no_tokenizer(tmp_path: Path) -> None:
    """Transformers would make one that knows no word, and every token the same."""
    model = wc.build_model(f"hf:{repository(tmp_path, None)}")
    assert "ids (its tokenizer is not in the local cache)" in text_inputs(model, "the cat sat").description


def test_a_tokenizer_of_another_vocabulary(tmp_path: Path) -> None:
    model = wc.build_model(f"hf:{repository(tmp_path, [f'w{i}' for i in range(40)])}")
    assert "more ids than it has embeddings" in text_inputs(model, "w39 w2").description
    assert "of its own tokenizer" in text_inputs(model, "w3 w2").description


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    model = wc.build_model(f"hf:{repository(tmp_path, ['the'])}")
    (tmp_path / "tokenizer.json").write_text("{")
    assert "cannot be loaded from the local cache: " in text_inputs(model, "the cat sat").description


def test_code_from_a_repository_is_not_run(tmp_path: Path) -> None:
    folder = repository(tmp_path, None, auto_map={"AutoTokenizer": ["evil.Evil", None]})
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: ...\n")
    text_inputs(wc.build_model(f"hf:{folder}"), "the cat sat")
    assert not (tmp_path / "ran").exists()


def test_a_repository_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `hf download` lays it out: the configuration and the tokenizer under the name of the repository."""
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    base = tmp_path / "models--somebody--tiny"
    snapshot = repository(base / "snapshots" / ("0" * 40), ["the", "cat", "sat"])
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("0" * 40)
    model = build("BertModel", **BERT)()
    model.config._name_or_path = "somebody/tiny"
    assert "of its own tokenizer" in text_inputs(model, "the cat sat").description
    for file in snapshot.glob("tokenizer*"):
        file.unlink()
    assert "UTF-8 bytes" in text_inputs(model, "the cat sat").description


def test_never_uses_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: calls.append(a) or (_ for _ in ()).throw(OSError()))
    monkeypatch.setattr(socket.socket, "connect", lambda *a: calls.append(a))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    model = build("BertModel", **BERT)()
    model.config._name_or_path = "google-bert/bert-that-is-not-here"
    assert "UTF-8 bytes" in text_inputs(model, "the cat sat").description
    assert calls == []
