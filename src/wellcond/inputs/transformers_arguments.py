"""Find which arguments a model of transformers takes from its configuration and the signature of its `forward`."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from wellcond.errors import WellcondError
from wellcond.inputs import arguments as kinds
from wellcond.inputs.language_models import needed_arguments


def transformers_arguments(model: Any, tokens: int) -> kinds.Arguments:
    """Return the arguments of a model of transformers, by keyword."""
    takes = inspect.signature(model.forward).parameters
    config = model.config
    found: kinds.Arguments = {}
    if "input_ids" in takes and _needs_ids(model):
        found["input_ids"] = _ids(model, _part(config, "text_config", "text_encoder", "encoder"), tokens)
    if "pixel_values" in takes and _needs_pixels(config, takes):
        found["pixel_values"] = _images(model, _part(config, "vision_config", "encoder"))
    for name in ("input_values", "input_features"):
        if name in takes and (not found or model.main_input_name == name):
            found[name] = _sound(model, name, tokens)
    if "decoder_input_ids" in takes:
        found["decoder_input_ids"] = _ids(model, _part(config, "decoder", "text_config"), tokens, decoder=True)
    if getattr(config, "add_cross_attention", False) and "encoder_hidden_states" in takes:
        width = getattr(config, "cross_attention_hidden_size", None) or config.hidden_size
        found["encoder_hidden_states"] = kinds.RealNumbers((tokens, width))
    needed = [name for name in needed_arguments(model) if name not in found]
    if needed or not found:
        names = ", ".join(needed) or model.main_input_name
        raise WellcondError(f"{type(model).__name__} takes {names}, which wellcond cannot make up: {kinds.WAY_OUT}")
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


def _ids(model: Any, config: Any, tokens: int, *, decoder: bool = False) -> kinds.TokenIds:
    vocabulary = getattr(config, "vocab_size", None) or getattr(model.config, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise WellcondError(f"the configuration of {type(model).__name__} names no vocab_size: {kinds.WAY_OUT}")
    special = frozenset(i for part in (model.config, config) for i in _special_ids(part))
    segments = getattr(config, "segment_means_seq_len", None)  # Nyströmformer averages segments of this sequence
    if isinstance(segments, int) and segments != config.num_landmarks:
        return kinds.TokenIds(segments, vocabulary, special, exact=True)
    ends = not decoder and model.config.is_encoder_decoder and "SequenceClassification" in type(model).__name__
    last = model.config.eos_token_id if ends else None  # BART reads its answer there
    return kinds.TokenIds(min(tokens, _room(model, config, decoder)), vocabulary, special, last=last)


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


def _images(model: nn.Module, config: Any) -> kinds.ImageArgument:
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None)
    size = (
        kinds.size_pair(getattr(config, "image_size", None)) or kinds.image_size_in(model) or kinds.DEFAULT_IMAGE_SIZE
    )
    return kinds.image_argument(
        channels if isinstance(channels, int) else 3, size, frames=getattr(config, "num_frames", None)
    )


def _sound(model: Any, name: str, tokens: int) -> kinds.RealNumbers:
    """A waveform (Wav2Vec2) or a spectrogram (Whisper, AST)."""
    config = model.config
    if name == "input_values" and hasattr(config, "conv_stride"):
        return kinds.RealNumbers((math.prod(config.conv_stride) * (tokens + 1),))
    if name == "input_values" and hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return kinds.RealNumbers((config.max_length, config.num_mel_bins))
    if name == "input_features" and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        return kinds.RealNumbers(
            (config.num_mel_bins, 2 * config.max_source_positions)
        )  # its second convolution has stride two
    raise WellcondError(f"the shape of {name} of {type(model).__name__} cannot be told from it: {kinds.WAY_OUT}")
