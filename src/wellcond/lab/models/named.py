"""Models by name for a task: as many classes, channels and words as it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Task

# What transformers calls the model of a type for a kind of task, and the fields of its configuration.
HEADS = {
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
FIELDS = {"num_labels": "classes", "vocab_size": "vocabulary", "image_size": "size", "num_channels": "channels"}


def fitting(name: str, options: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Options that make a named model fit a task; what is given goes first.

    >>> from wellcond.lab.tasks import task
    >>> fitting("timm:vit_tiny_patch16_224", {"patch_size": 2}, task("digits"))
    {'num_classes': 10, 'in_chans': 1, 'img_size': 8, 'patch_size': 2}
    """
    library, _, rest = name.partition(":")
    if library == "timm" and task.kind == "image":
        return _timm(rest, task.shape) | dict(options)
    if library == "hf" and task.kind in HEADS:
        return _transformers(rest, task) | dict(options)
    return dict(options)


def offered(task: Task) -> dict[str, int]:
    """The numbers of a task under every name that `path/to/file.py:function` may have a parameter for.

    >>> from wellcond.lab.tasks import task
    >>> offers = offered(task("digits"))
    >>> offers["num_classes"], offers["in_chans"], offers["img_size"], "vocab_size" in offers
    (10, 1, 8, False)
    """
    return {name: task.shape[key] for key, names in PARAMETERS.items() if task.shape.get(key) for name in names}


def _timm(name: str, shape: Mapping[str, int]) -> dict[str, Any]:
    import timm

    wanted = {"num_classes": shape["classes"], "in_chans": shape["channels"]}
    # An unknown name is for build_model to refuse; a model without a size of its own takes any image.
    fixed = timm.is_model(name) and timm.get_pretrained_cfg(name).fixed_input_size
    return wanted | ({"img_size": shape["size"]} if fixed else {})


def _transformers(name: str, task: Task) -> dict[str, Any]:
    try:
        import transformers
        from transformers.models.auto import modeling_auto
    except ImportError as error:
        raise WellcondError(f"'hf:{name}' needs transformers ({error}): pip install 'wellcond[hf]'") from error
    if name not in transformers.CONFIG_MAPPING:
        return {}  # a configuration of the user's own says what it is
    config = transformers.AutoConfig.for_model(name)
    wanted = {field: task.shape[of] for field, of in FIELDS.items() if of in task.shape and hasattr(config, field)}
    head = getattr(modeling_auto, HEADS[task.kind]).get(name)
    if head is None:
        raise WellcondError(f"transformers has no '{name}' for {task.kind} tasks such as '{task.name}'")
    return wanted | {"architectures": [head if isinstance(head, str) else head[0]]}
