"""Options of a named model that fit a task: as many classes, channels and words as it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from wellcond.attention.find import attention_layers
from wellcond.errors import WellcondError
from wellcond.lab.models.switches import first_scale
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import library

# What transformers calls the model of a type for a kind of task, and the fields of its configuration.
HEAD_MAPPINGS = {
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "sequence": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "causal-text": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked-text": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
}
# What a function of the user's own may call them.
PARAMETERS = {
    "classes": ("num_classes", "num_labels", "n_classes"),
    "channels": ("in_chans", "in_channels", "num_channels"),
    "size": ("img_size", "image_size"),
    "vocabulary": ("vocab_size",),
    "tokens": ("block_size", "max_seq_len", "seq_len", "context_length"),
}
CONFIG_FIELDS = {"num_labels": "classes", "vocab_size": "vocabulary", "image_size": "size", "num_channels": "channels"}


def model_options(name: str, options: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Return the options that make a named model fit a task; what is given goes first.

    >>> from wellcond.lab.tasks import task
    >>> model_options("timm:vit_tiny_patch16_224", {"patch_size": 2}, task("digits"))
    {'num_classes': 10, 'in_chans': 1, 'img_size': 8, 'patch_size': 2}
    """
    library, _, rest = name.partition(":")
    if library == "timm":
        return (_timm(rest, task.shape) if task.kind == "image" else {}) | _timm_switches(options)
    if library == "hf" and task.kind in HEAD_MAPPINGS:
        return _transformers(rest, task) | dict(options)
    return dict(options)


def check_switches(model: nn.Module, name: str, options: Mapping[str, Any]) -> None:
    """Refuse a model of timm's that takes an option of QK-norm or LayerScale, and makes nothing of it, as many do."""
    if not name.startswith("timm:"):
        return
    layers = attention_layers(model) if {"qk_norm", "layer_scale"} & options.keys() else []
    if options.get("qk_norm") and not all(layer.qk_norm for layer in layers):
        raise WellcondError(f"model '{name}' has no QK-norm to switch on: leave out qk_norm")
    scaled = all(layer.block is not None and layer.block.layer_scale for layer in layers)
    if first_scale(options.get("layer_scale")) is not None and not scaled:
        raise WellcondError(f"model '{name}' has no LayerScale to switch on: leave out layer_scale")


def task_numbers(task: Task) -> dict[str, int]:
    """Return the numbers of a task under every name that `path/to/file.py:function` may have a parameter for.

    >>> from wellcond.lab.tasks import task
    >>> offers = task_numbers(task("digits"))
    >>> offers["num_classes"], offers["in_chans"], offers["img_size"], "vocab_size" in offers
    (10, 1, 8, False)
    """
    return {name: task.shape[key] for key, names in PARAMETERS.items() if task.shape.get(key) for name in names}


def _timm_switches(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as timm calls them; a switch that is off is left out, since many models do not know it."""
    found = dict(options)
    value = first_scale(found.pop("layer_scale", None))
    if found.get("qk_norm") is False:
        del found["qk_norm"]
    return found if value is None else found | {"init_values": value}


def _timm(name: str, shape: Mapping[str, int]) -> dict[str, Any]:
    import timm

    wanted = {"num_classes": shape["classes"], "in_chans": shape["channels"]}
    # An unknown name is for build_model to refuse; a model without a size of its own takes any image.
    fixed = timm.is_model(name) and timm.get_pretrained_cfg(name).fixed_input_size
    return wanted | ({"img_size": shape["size"]} if fixed else {})


def _transformers(name: str, task: Task) -> dict[str, Any]:
    transformers, modeling_auto = (library(f"transformers{part}", "hf") for part in ("", ".models.auto.modeling_auto"))
    if name not in transformers.CONFIG_MAPPING:
        return {}  # a configuration of the user's own says what it is
    config = transformers.AutoConfig.for_model(name)
    wanted = {
        field: task.shape[of] for field, of in CONFIG_FIELDS.items() if of in task.shape and hasattr(config, field)
    }
    head = getattr(modeling_auto, HEAD_MAPPINGS[task.kind]).get(name)
    if head is None:
        raise WellcondError(f"transformers has no '{name}' for {task.kind} tasks such as '{task.name}'")
    return wanted | {"architectures": [head if isinstance(head, str) else head[0]]}
