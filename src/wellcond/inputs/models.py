"""Build models by name, for the command line: always fresh weights, never the network, no remote code."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import nn

from wellcond._core.argument_types import Seed
from wellcond._core.checked import checked
from wellcond._core.file_names import check_path
from wellcond._core.json_files import read_json
from wellcond._core.safe_text import briefly
from wellcond.errors import ModelNameError, WellcondError
from wellcond.inputs.own_functions import MAX_MESSAGE, call_own, names_a_function, refusing

FORMS = "timm:NAME, hf:NAME, hf:path/to/config.json or path/to/file.py:function"


@checked
def build_model(name: str, *, seed: Seed = 0, device: str | None = None, **options: Any) -> nn.Module:
    """Build a model from its configuration with fresh weights; no weights or code are fetched from anywhere.

    Args:
        name: `timm:NAME`; `hf:NAME`, a transformers model type in its default configuration or a repository whose
            configuration is in the local cache; `hf:path/to/config.json`; or `path/to/file.py:function`, a function
            that returns the model and needs no arguments.
        seed: of the weights; the global generator does not move.
        device: `"meta"` for shapes without memory; None for the current default.
        options: of timm's constructor, of the transformers configuration (`architectures=["ViTForImageClassification"]`
            names the class), or of the function in the file.

    >>> import wellcond as wc
    >>> type(wc.build_model("hf:vit", device="meta")).__name__
    'ViTModel'
    >>> wc.build_model("timm:vit_tiny_patch16_224", device="meta", num_classes=10).head.out_features
    10
    """
    return build_fitting(name, {}, seed=seed, device=device, **options)


def build_fitting(
    name: str, offered: Mapping[str, Any], *, seed: int = 0, device: str | None = None, **options: Any
) -> nn.Module:
    """Build as `build_model` does, offering a function of the user's own arguments that it may have parameters for.

    They are offered by name, for `path/to/file.py:function`; `options` go first.
    """
    try:
        place = torch.device(device) if device else nullcontext()
    except RuntimeError as error:
        raise ModelNameError(f"device is the name of a torch device or None; got {device!r}") from error
    prefix, _, rest = name.partition(":")
    builders: dict[str, Callable[..., nn.Module]] = {"timm": _timm, "hf": _hf}
    if prefix in builders:
        build, argument = builders[prefix], rest
    elif names_a_function(name):
        build, argument = partial(_file, offered=offered), name
    else:
        raise ModelNameError(f"'{name}' is not the name of a model; write {FORMS}")
    with torch.random.fork_rng(devices=[]), place:
        torch.default_generator.manual_seed(seed)
        return build(argument, **options)


def optional_library(name: str, lacking: str, install: str, refusal: type[WellcondError]) -> Any:
    """Import a library that is no dependency; where that fails, say what it is lacking for and how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise refusal(f"{lacking} ({error}): pip install {install}") from error


def _closest(name: str, known: Iterable[str]) -> str:
    """Names that begin most like this one."""

    def likeness(other: str) -> float:
        return difflib.SequenceMatcher(None, name, other[: len(name) + 2]).ratio()

    close = [other for other in sorted(known, key=likeness, reverse=True)[:3] if likeness(other) > 0.5]
    return f"; the closest are {', '.join(close)}" if close else ""


def _timm(name: str, **options: Any) -> nn.Module:
    timm = optional_library("timm", "timm cannot be imported", "'wellcond[timm]'", ModelNameError)
    if not timm.is_model(name):  # this refuses hf-hub:… too, which would go to the network
        raise ModelNameError(
            f"timm has no model '{name}'{_closest(name, timm.list_models())}. timm.list_models('*vit*') lists them"
        )
    with offline(), refusing(f"timm cannot build '{name}':", ModelNameError):
        model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model


def _hf(name: str, **options: Any) -> nn.Module:
    transformers = optional_library("transformers", "transformers cannot be imported", "'wellcond[hf]'", ModelNameError)
    with offline():
        config = _hf_config(transformers, name, options)
        with refusing(f"transformers cannot build '{name}':", ModelNameError):
            model: nn.Module = _hf_model(transformers, config, name)
    return model


def _hf_config(transformers: ModuleType, name: str, options: dict[str, Any]) -> Any:
    known = transformers.CONFIG_MAPPING
    if name.endswith(".json"):
        _check_json(Path(name), known)
    elif name in known:
        unknown = [option for option in options if not hasattr(transformers.AutoConfig.for_model(name), option)]
        if unknown:
            raise ModelNameError(f"the configuration of '{name}' has no '{unknown[0]}'")
        return transformers.AutoConfig.for_model(name, **options)
    try:
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:
        if name.endswith(".json"):
            raise ModelNameError(
                f"'{name}' is not a configuration transformers accepts: {briefly(error, MAX_MESSAGE)}"
            ) from error
        raise ModelNameError(
            f"'{name}' is neither a transformers model type{_closest(name, known)}, nor a repository in the local "
            f"cache (hf download {name} config.json puts it there). A configuration of your own: hf:path/to/config.json"
        ) from error


def _check_json(path: Path, known: Iterable[str]) -> None:
    if not check_path(path, ModelNameError).exists():
        raise ModelNameError(f"there is no file '{path}'")
    data = read_json(path, error=ModelNameError)
    kind = data.get("model_type") if isinstance(data, dict) else None
    if kind not in set(known):
        raise ModelNameError(
            f"'{path}' has model_type {kind!r}, which transformers does not have"
            f"{_closest(str(kind), known)}. Set model_type; code from a repository is not run"
        )


def _hf_model(transformers: ModuleType, config: Any, name: str) -> Any:
    """The class the configuration names, else the bare model of its type."""
    if not config.architectures:
        return transformers.AutoModel.from_config(config, trust_remote_code=False)
    wanted = config.architectures[0]
    cls: Any = getattr(transformers, wanted, None) if isinstance(wanted, str) else None
    known = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    if not known:
        raise ModelNameError(
            f"'{name}' names the architecture {wanted!r}, which transformers does not have; leave `architectures` out "
            "for the bare model. Code from a repository is not run"
        )
    return cls._from_config(config)


@contextmanager
def offline() -> Iterator[None]:
    """Turn every request of huggingface_hub into an error, even where a configuration asks for a pretrained part."""
    with mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"):  # for a first import inside
        constants = sys.modules.get("huggingface_hub.constants")
        with mock.patch.object(constants, "HF_HUB_OFFLINE", True) if constants else nullcontext():
            yield


def _file(name: str, *, offered: Mapping[str, Any], **options: Any) -> nn.Module:
    model = call_own(name, offered, ModelNameError, **options)
    if not isinstance(model, nn.Module):
        raise ModelNameError(f"{name} returned a {type(model).__name__}; it must return a torch.nn.Module")
    return model
