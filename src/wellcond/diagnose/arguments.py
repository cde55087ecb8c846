"""Which arguments a model takes, and of which shape, read from the model itself; nothing is run."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import nn

from wellcond.diagnose.embeddings import positions_of, vocabulary_of
from wellcond.errors import WellcondError

TOKENS = 128  # length of a sequence unless told otherwise
SIDE = 224  # of an image where the model takes any size and names none
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
WAY_OUT = (
    "call wc.diagnose(model, batch) in Python with a batch of your own, or return the model from "
    "path/to/file.py:function with an attribute or method `example_inputs`"
)


@dataclass(frozen=True)
class Pixels:
    """Images, `(B, C, H, W)`, or videos, `(B, frames, C, H, W)`.

    Args:
        shape: without the batch.
        mean, std: one number per channel; of an image with values from 0 to 1.
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Ids:
    """Token ids, `(B, length)`.

    Args:
        length: of a sequence.
        vocabulary: how many ids there are.
        special: ids with a meaning of their own (padding, end, image…).
        exact: the model takes this length and no other.
        last: what a sequence must end with.
    """

    length: int
    vocabulary: int
    special: frozenset[int] = frozenset()
    exact: bool = False
    last: int | None = None


@dataclass(frozen=True)
class Numbers:
    """Anything else that is real-valued: embedded tokens, sound.

    Args:
        shape: without the batch.
        axis: of the batch.
    """

    shape: tuple[int, ...]
    axis: int = 0


Slot: TypeAlias = Pixels | Ids | Numbers
Arguments: TypeAlias = dict[str | int, Slot]  # by keyword, or by position


def arguments_of(model: nn.Module, tokens: int | None = None) -> Arguments:
    """What a model takes: by keyword for transformers, by position for everything else.

    >>> arguments_of(nn.TransformerEncoderLayer(8, 2, batch_first=True), tokens=5)
    {0: Numbers(shape=(5, 8), axis=0)}
    """
    if hasattr(model, "config") and hasattr(model, "main_input_name"):
        return _transformers(model, tokens)
    return dict(enumerate(_positional(model, tokens)))


def _positional(model: nn.Module, tokens: int | None) -> tuple[Slot, ...]:
    if isinstance(model, nn.Transformer | nn.TransformerDecoder | nn.TransformerDecoderLayer):
        return (_embedded(model, tokens),) * 2
    if isinstance(model, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        return (_embedded(model, tokens),)
    if isinstance(model, nn.MultiheadAttention):
        axis = 0 if model.batch_first else 1
        return tuple(Numbers((tokens or TOKENS, width), axis) for width in (model.embed_dim, model.kdim, model.vdim))
    if (images := _vision(model)) is not None:
        return (images,)
    if (vocabulary := vocabulary_of(model)) is not None:
        return (Ids(min(tokens or TOKENS, positions_of(model) or sys.maxsize), vocabulary),)
    raise WellcondError(f"the shape of the inputs of {type(model).__name__} cannot be told from it: {WAY_OUT}")


def _embedded(model: nn.Module, tokens: int | None) -> Numbers:
    attention = next((part for part in model.modules() if isinstance(part, nn.MultiheadAttention)), None)
    if attention is None:
        raise WellcondError(f"the width of {type(model).__name__} cannot be told from its layers: {WAY_OUT}")
    return Numbers((tokens or TOKENS, attention.embed_dim), 0 if attention.batch_first else 1)


def _pair(size: Any) -> tuple[int, int] | None:
    """An image's height and width, however a library writes them."""
    if isinstance(size, int) and size > 0:
        return (size, size)
    if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return (size[0], size[1])
    return None


def _pixels(channels: int, size: tuple[int, int], mean: Any = None, std: Any = None, frames: Any = None) -> Pixels:
    """Normalised by 0.5 and 0.5 where the model names nothing."""

    def per_channel(values: Any) -> tuple[float, ...]:
        values = tuple(values or (0.5,))
        return values if len(values) == channels else (sum(values) / len(values),) * channels

    shape = (channels, *size)
    return Pixels((frames, *shape) if isinstance(frames, int) else shape, per_channel(mean), per_channel(std))


def _vision(model: nn.Module) -> Pixels | None:
    """timm, torchvision, and models written like them: one tensor of images."""
    settings: Any = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if isinstance(settings, Mapping) and settings.get("input_size"):
        channels, *size = settings["input_size"]
        # The model may have been built for another size or number of channels than its pretrained weights.
        first = dict(model.named_modules()).get(str(settings.get("first_conv")))
        channels = first.in_channels if isinstance(first, nn.Conv2d) else channels
        return _pixels(channels, _size_in(model) or (size[0], size[1]), settings.get("mean"), settings.get("std"))
    origins = [kind.__module__ for kind in type(model).__mro__]
    if any(o.startswith("torchvision.models.") and o.count(".") == 2 for o in origins):  # deeper: video, detection…
        return _pixels(3, _torchvision_size(model), *IMAGENET)
    size_found = _size_in(model)
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    return _pixels(first.in_channels, size_found) if first is not None and size_found is not None else None


def _size_in(model: nn.Module) -> tuple[int, int] | None:
    """`img_size` of the model or of its patch embedding, which is the first part that has one."""
    sizes = (_pair(getattr(part, "img_size", None)) for part in model.modules())
    return next((size for size in sizes if size is not None), None)


def _torchvision_size(model: Any) -> tuple[int, int]:
    blocks = getattr(model, "blocks", None)
    if blocks is not None and hasattr(blocks[0], "grid_size"):  # MaxViT: a stem and a first block of stride two each
        height, width = blocks[0].grid_size
        return (4 * height, 4 * width)
    return _pair(getattr(model, "image_size", None)) or (SIDE, SIDE)


def _transformers(model: Any, tokens: int | None) -> Arguments:
    takes = inspect.signature(model.forward).parameters
    config = model.config
    found: Arguments = {}
    if "input_ids" in takes and _needs_ids(model):
        found["input_ids"] = _ids(model, _part(config, "text_config", "text_encoder", "encoder"), tokens)
    if "pixel_values" in takes and _needs_pixels(config, takes):
        found["pixel_values"] = _transformers_images(model, _part(config, "vision_config", "encoder"))
    for name in ("input_values", "input_features"):
        if name in takes and (not found or model.main_input_name == name):
            found[name] = _sound(model, name, tokens)
    if "decoder_input_ids" in takes:
        found["decoder_input_ids"] = _ids(model, _part(config, "decoder", "text_config"), tokens, decoder=True)
    if getattr(config, "add_cross_attention", False) and "encoder_hidden_states" in takes:
        width = getattr(config, "cross_attention_hidden_size", None) or config.hidden_size
        found["encoder_hidden_states"] = Numbers((tokens or TOKENS, width))
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [n for n, p in takes.items() if p.default is p.empty and p.kind not in kinds and n not in found]
    if needed or not found:
        names = ", ".join(needed) or model.main_input_name
        raise WellcondError(f"{type(model).__name__} takes {names}, which wellcond cannot make up: {WAY_OUT}")
    return found


def _needs_ids(model: Any) -> bool:
    """Not where text is a second, optional input (BEiT's masks, a detector's prompt)."""
    return model.main_input_name != "pixel_values" or hasattr(model.config, "text_config")


def _needs_pixels(config: Any, takes: Mapping[str, Any]) -> bool:
    """Language models that splice images into their text at an image token also run on text alone; CLIP needs both."""
    spliced = any(hasattr(config, name) for name in ("image_token_id", "image_token_index"))
    return not (spliced and "input_ids" in takes)


def _part(config: Any, *names: str) -> Any:
    """The nested configuration of this name, however deep, else the configuration itself."""
    inner = next((part for name in names if hasattr(part := getattr(config, name, None), "to_dict")), None)
    return config if inner is None else _part(inner, *names)


def _ids(model: Any, config: Any, tokens: int | None, *, decoder: bool = False) -> Ids:
    vocabulary = getattr(config, "vocab_size", None) or getattr(model.config, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise WellcondError(f"the configuration of {type(model).__name__} names no vocab_size: {WAY_OUT}")
    special = frozenset(i for part in (model.config, config) for i in _special_ids(part))
    segments = getattr(config, "segment_means_seq_len", None)  # Nyströmformer averages segments of this sequence
    if isinstance(segments, int) and segments != config.num_landmarks:
        return Ids(segments, vocabulary, special, exact=True)
    ends = not decoder and model.config.is_encoder_decoder and "SequenceClassification" in type(model).__name__
    last = model.config.eos_token_id if ends else None  # BART reads its answer there
    return Ids(min(tokens or TOKENS, _room(model, config, decoder)), vocabulary, special, last=last)


def _special_ids(config: Any) -> Iterator[int]:
    for name, value in config.to_dict().items():
        if name.endswith(("_token_id", "_token_index")):
            yield from (i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))


def _room(model: nn.Module, config: Any, decoder: bool) -> int:
    """The longest sequence there are positions for."""
    names = ("max_target_positions" if decoder else "max_source_positions", "max_position_embeddings")
    rooms = [room for name in names if isinstance(room := getattr(config, name, None), int) and room > 0]
    # RoBERTa and its kin begin to count behind the position of the padding.
    tables = [part for name, part in model.named_modules() if "position" in name and isinstance(part, nn.Embedding)]
    taken = max((table.padding_idx + 1 for table in tables if table.padding_idx is not None), default=0)
    return max(min(rooms) - taken, 1) if rooms else sys.maxsize


def _transformers_images(model: nn.Module, config: Any) -> Pixels:
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None)
    size = _pair(getattr(config, "image_size", None)) or _size_in(model) or (SIDE, SIDE)
    return _pixels(channels if isinstance(channels, int) else 3, size, frames=getattr(config, "num_frames", None))


def _sound(model: Any, name: str, tokens: int | None) -> Numbers:
    """A waveform (Wav2Vec2) or a spectrogram (Whisper, AST)."""
    config = model.config
    if name == "input_values" and hasattr(config, "conv_stride"):
        return Numbers((math.prod(config.conv_stride) * ((tokens or TOKENS) + 1),))
    if name == "input_values" and hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return Numbers((config.max_length, config.num_mel_bins))
    if name == "input_features" and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        return Numbers((config.num_mel_bins, 2 * config.max_source_positions))  # its second convolution has stride two
    raise WellcondError(f"the shape of {name} of {type(model).__name__} cannot be told from it: {WAY_OUT}")
