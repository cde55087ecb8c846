"""Inputs for a model by name: images, text, or random ones of the model's shape, with what they are in words."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from wellcond._core.keyed_random import key, neutral
from wellcond.errors import WellcondError
from wellcond.inputs import arguments as kinds
from wellcond.inputs.images import folder_images, sample_images
from wellcond.inputs.text import encode_text, read_text
from wellcond.inputs.transformers_arguments import transformers_arguments

Wanted = TypeVar("Wanted", kinds.ImageArgument, kinds.TokenIds)
SAMPLE_PHOTOGRAPHS = "sample"  # the name of scikit-learn's photographs where a folder is expected
MAX_TOKEN_CHARACTERS = 64  # characters: how much of a text file is read for one token


@dataclass(frozen=True)
class Inputs:
    """A batch for a model, and its description: a tensor, a tuple of positional or a mapping of keyword arguments."""

    batch: Any
    description: str


def inputs_for(
    model: nn.Module,
    *,
    images: str | None = None,
    text: str | None = None,
    batch: int = 8,
    tokens: int | None = None,
    seed: int = 0,
) -> Inputs:
    """Return images, text, or else random inputs of the model's shape.

    Args:
        model: a model of timm, torchvision, transformers or `torch.nn`, one that takes a tensor of token ids, or one
            with `example_inputs`.
        images: a folder, or `"sample"` for scikit-learn's two photographs.
        text: a text file, or the text itself.
        batch: how many images or sequences, at most.
        tokens: of a sequence; 128, or fewer where the model has fewer positions.
        seed: of whatever is drawn; the global generators do not move.

    >>> import wellcond as wc
    >>> inputs_for(wc.build_model("timm:vit_tiny_patch16_224", device="meta"), batch=2).description
    '2 random images of 3 × 224 × 224'
    """
    if images is not None and text is not None:
        raise WellcondError("give images or text, not both")
    if images is not None:
        return image_inputs(model, None if images == SAMPLE_PHOTOGRAPHS else images, batch=batch, seed=seed)
    if text is not None:
        return text_inputs(model, text, batch=batch, seed=seed, tokens=tokens)
    return random_inputs(model, batch=batch, seed=seed, tokens=tokens)


def random_inputs(model: nn.Module, *, batch: int = 8, seed: int = 0, tokens: int | None = None) -> Inputs:
    """Draw standard normal images, sound and embedded tokens; uniform token ids, special ones (padding, end…) left out.

    A model with an attribute or method `example_inputs` (a tensor, a tuple or a mapping) is given that instead.

    >>> inputs = random_inputs(nn.TransformerEncoderLayer(8, 2, batch_first=True), batch=2, tokens=5)
    >>> inputs.batch.shape, inputs.description
    (torch.Size([2, 5, 8]), '2 random sequences of 5 × 8 numbers')
    """
    _check(batch=batch, tokens=tokens)
    example = getattr(model, "example_inputs", None)
    if example is not None:
        return _example(model, example, seed)
    return _complete(model, arguments_of(model, tokens), {}, "", batch=batch, seed=seed)


def image_inputs(model: nn.Module, folder: str | Path | None = None, *, batch: int = 8, seed: int = 0) -> Inputs:
    """Read images of a folder, or crops of scikit-learn's two photographs, resized and normalised for the model.

    Mean and std are those of timm's `pretrained_cfg`, ImageNet's for torchvision; transformers keeps them outside the
    model, so they are 0.5 and 0.5 there. Whatever else the model takes (CLIP's text) is random.

    >>> import wellcond as wc
    >>> inputs = image_inputs(wc.build_model("hf:vit", device="meta"), batch=2)
    >>> inputs.batch["pixel_values"].shape
    torch.Size([2, 3, 224, 224])
    """
    _check(batch=batch)
    arguments = arguments_of(model)
    name, pixels = _wanted(model, arguments, kinds.ImageArgument)
    if len(pixels.shape) > 3 or pixels.shape[0] not in (1, 3):
        kind = "videos" if len(pixels.shape) > 3 else f"images of {pixels.shape[0]} channels"
        raise WellcondError(f"{type(model).__name__} takes {kind}, not photographs: {kinds.WAY_OUT}")
    if folder is None:
        found = sample_images(pixels, batch=batch, seed=seed)
        what = f"{len(found)} crops of scikit-learn's sample photographs"
    else:
        found = folder_images(Path(folder), pixels, batch=batch, seed=seed)
        what = f"{len(found)} {'image' if len(found) == 1 else 'images'} of {str(folder)!r}"
    what += f" as {_times(pixels.shape)}, mean {_numbers(pixels.mean)}, std {_numbers(pixels.std)}"
    return _complete(model, arguments, {name: found}, what, batch=len(found), seed=seed)


def text_inputs(
    model: nn.Module, text: str | Path, *, batch: int = 8, seed: int = 0, tokens: int | None = None
) -> Inputs:
    """Read the beginning of a text, cut into at most `batch` pieces of `tokens` (128); nothing is padded.

    The model's own tokenizer is used: its attribute `tokenizer` with a method `encode`, or that of its repository if it
    is in the local cache. Else the ids are the text's UTF-8 bytes modulo the size of the vocabulary. A decoder beside
    an encoder reads the same text. Whatever else the model takes is random.

    >>> import wellcond as wc
    >>> inputs = text_inputs(wc.build_model("hf:gpt2", device="meta"), "the cat sat", tokens=5)
    >>> inputs.batch["input_ids"].shape
    torch.Size([2, 5])
    """
    _check(batch=batch, tokens=tokens)
    arguments = arguments_of(model, tokens)
    _, taken = _wanted(model, arguments, kinds.TokenIds)
    words, source = read_text(text, limit=MAX_TOKEN_CHARACTERS * batch * taken.length)
    ids, how = encode_text(model, words, taken.vocabulary)
    length = min(taken.length, len(ids))
    if taken.exact and length < taken.length:
        raise WellcondError(f"{type(model).__name__} takes {taken.length} tokens, and the text has {length}: add to it")
    pieces = torch.tensor(ids[: batch * taken.length], device="cpu").unfold(0, length, length)
    # A decoder may have fewer positions and fewer ids than its encoder.
    texts = [(name, one) for name, one in arguments.items() if isinstance(one, kinds.TokenIds)]
    given = {name: _ended(pieces[:, : one.length] % one.vocabulary, one) for name, one in texts}
    what = f"{source}, {len(pieces)} × {length} {how}"
    return _complete(model, arguments, given, what, batch=len(pieces), seed=seed)


def arguments_of(model: nn.Module, tokens: int | None = None) -> kinds.Arguments:
    """Return what a model takes: by keyword for transformers, by position for everything else.

    >>> arguments_of(nn.TransformerEncoderLayer(8, 2, batch_first=True), tokens=5)
    {0: RealNumbers(shape=(5, 8), axis=0)}
    """
    length = tokens or kinds.DEFAULT_TOKENS
    if hasattr(model, "config") and hasattr(model, "main_input_name"):
        return transformers_arguments(model, length)
    return dict(enumerate(kinds.positional_arguments(model, length)))


def _check(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise WellcondError(f"{name} is a whole number from 1 on, got {value!r}")


def _wanted(model: nn.Module, arguments: kinds.Arguments, kind: type[Wanted]) -> tuple[str | int, Wanted]:
    """The argument that images or text go to; if there is none, an error that says what the model takes."""
    for name, argument in arguments.items():
        if isinstance(argument, kind) and name != "decoder_input_ids":
            return name, argument
    wanted, own = ("images" if kind is kinds.ImageArgument else "text"), type(model).__name__
    if kind is kinds.ImageArgument and "pixel_values" in inspect.signature(model.forward).parameters:
        raise WellcondError(f"{own} takes images only inside a text, at its image tokens: {kinds.WAY_OUT}")
    name, argument = next(iter(arguments.items()))
    words = {kinds.ImageArgument: "images", kinds.TokenIds: "text", kinds.RealNumbers: "embedded tokens"}
    takes = words[type(argument)]
    takes = "sound" if name in ("input_values", "input_features") else takes
    raise WellcondError(f"{own} takes {takes}, not {wanted}: leave the {wanted} out for random inputs")


def _complete(
    model: nn.Module, arguments: kinds.Arguments, given: Mapping[str | int, Tensor], what: str, *, batch: int, seed: int
) -> Inputs:
    """Draw what is not given; everything on the model's device, real numbers in its precision."""
    weights = [weight for weight in (*model.parameters(), *model.buffers()) if weight.is_floating_point()]
    device = weights[0].device if weights else torch.device("cpu")
    # Weights of one byte are stored, not computed with.
    dtype = next((weight.dtype for weight in weights if weight.dtype.itemsize > 1), torch.float32)
    filled: dict[Any, Tensor] = {}
    words = [what] if what else []
    for name, argument in arguments.items():
        tensor = given.get(name)
        if tensor is None:
            tensor = _draw(argument, batch, torch.Generator().manual_seed(key(seed, "inputs", name)))
            words.append(_random_words(argument, batch) + (f" ({name})" if len(arguments) > 1 else ""))
        filled[name] = tensor.to(device, dtype if tensor.is_floating_point() else None)
    in_order = tuple(filled.values())
    positional = in_order if len(in_order) > 1 else in_order[0]
    return Inputs(filled if isinstance(next(iter(filled)), str) else positional, "; ".join(words))


def _draw(argument: kinds.Argument, batch: int, generator: torch.Generator) -> Tensor:
    with neutral():
        if isinstance(argument, kinds.TokenIds):
            ordinary = torch.tensor([i for i in range(argument.vocabulary) if i not in argument.special] or [0])
            chosen = torch.randint(len(ordinary), (batch, argument.length), generator=generator)
            return _ended(ordinary[chosen], argument)
        drawn = torch.randn(batch, *argument.shape, generator=generator)
        return drawn.movedim(0, argument.axis).contiguous() if isinstance(argument, kinds.RealNumbers) else drawn


def _ended(ids: Tensor, argument: kinds.TokenIds) -> Tensor:
    ids = ids.clone()
    if argument.last is not None:
        ids[:, -1] = argument.last
    return ids


def _random_words(argument: kinds.Argument, batch: int) -> str:
    many = batch > 1
    if isinstance(argument, kinds.TokenIds):
        return f"{batch} {'sequences' if many else 'sequence'} of {argument.length} random token ids"
    if isinstance(argument, kinds.ImageArgument):
        kind = "image" if len(argument.shape) == 3 else "video"
        return f"{batch} random {kind}{'s' if many else ''} of {_times(argument.shape)}"
    return f"{batch} random {'sequences' if many else 'sequence'} of {_times(argument.shape)} numbers"


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _numbers(values: tuple[float, ...]) -> str:
    """One number where all channels have the same."""
    return " ".join(f"{value:g}" for value in (values[:1] if len(set(values)) == 1 else values))


def _example(model: nn.Module, example: Any, seed: int) -> Inputs:
    own = f"example_inputs of {type(model).__name__}"
    if callable(example):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key(seed, "inputs"))
            try:
                example = example()
            except Exception as error:
                reason = " ".join(str(error).split())
                raise WellcondError(f"{own} raised {type(error).__name__}: {reason}") from error
    if not isinstance(example, Tensor | tuple | list | Mapping):
        kind = type(example).__name__
        raise WellcondError(f"{own} must be a tensor, a tuple or a mapping of arguments, or return one; got a {kind}")
    return Inputs(example, own)
