"""Choose arguments for a model of transformers by its signature, and mend them by what it says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.census.batch import BATCH, Batch
from tests.census.makers import GRID, MAKERS, OTHER_SHAPES
from tests.census.shrink_rules import WIDTH

Inputs = dict[str, Any]
MOST_PLACEHOLDERS = 600
MAIN = (
    *("input_ids", "pixel_values", "input_values", "input_features", "bbox", "past_values", "flattened_patches"),
    *("image_grid_thw", "image_sizes", "spatial_shapes", "pixel_position_ids", "image_position_ids"),
    *("input_features_mask", "feature_attention_mask", "pixel_attention_mask"),
)
TEXT = ("input_ids", "bbox")


def takes(model: nn.Module) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(model.forward).parameters)


def required(name: str, parameter: inspect.Parameter) -> bool:
    kind = parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return parameter.default is inspect.Parameter.empty and not kind and "None" not in str(parameter.annotation)


def candidates(model: nn.Module) -> Iterator[Inputs]:
    """Yield batches that the model may take, the one that feeds most of it first."""
    names, batch = takes(model), Batch(model.config)
    config = model.config
    needed = {name for name, parameter in names.items() if required(name, parameter)}
    main = getattr(model, "main_input_name", "input_ids")
    needed |= set(main if isinstance(main, list) else [main]) & set(names)
    everything = {name for name in MAIN if name in names} | needed
    extra = {"decoder_input_ids"} & set(names)
    seen: list[set[str]] = []
    sized = everything - {"image_sizes", "pixel_attention_mask", "image_position_ids"}
    for wanted in (
        everything | extra,
        sized | extra,
        everything,
        sized,
        needed | extra,
        needed,
        needed | {"input_ids"},
        set(TEXT),
    ):
        chosen = {name for name in wanted if name in MAKERS and name in names}
        if not chosen or chosen in seen:
            continue
        seen.append(chosen)
        made = {name: MAKERS[name](batch) for name in sorted(chosen)}
        if {"image_grid_thw", "grid_thw"} & chosen:
            grid = int(GRID.prod(-1).sum())
            if "pixel_values" in made:
                made["pixel_values"] = batch.patches(grid)
            if "hidden_states" in made:
                made["hidden_states"] = batch.patches(grid)
        if "spatial_shapes" in made or "pixel_position_ids" in made or "image_position_ids" in made:
            made["pixel_values"] = batch.patches(16 * BATCH).unflatten(0, (BATCH, 16))
        if "use_cache" in names or hasattr(config, "use_cache"):
            made["use_cache"] = False
        yield made
        for name, shapes in OTHER_SHAPES.items():
            for shape in shapes if name in made and not {"image_grid_thw", "grid_thw"} & chosen else ():
                yield {**made, name: shape(batch)}


def with_placeholders(model: nn.Module, inputs: Inputs, message: str) -> Inputs | None:
    """Put as many placeholder tokens into the text as the model's message asks for; None where it asks for none.

    Some models count features, some the numbers in them: these ask for too many, or for as many as there are.
    """
    found = re.search(r"(\w+) features and .*tokens:? ?(\d+),? *features:? ?(\d+)", message)
    if not found or "input_ids" not in inputs:
        return None
    what, there, missing = found[1].lower(), int(found[2]), int(found[3])
    if missing > MOST_PLACEHOLDERS or there == missing:
        missing //= WIDTH
    batch, ids = Batch(model.config), inputs["input_ids"]
    token = batch.size(f"{what}_token_id", f"{what}_token_index", "image_token_id", "image_token_index")
    if token is None or missing > MOST_PLACEHOLDERS or missing % BATCH:
        return None
    ids = ids[ids != token].reshape(BATCH, -1) if (ids == token).any() else ids
    held = torch.full((BATCH, missing // BATCH), int(token))
    longer = torch.cat([ids[:, :1], held, ids[:, 1:]], dim=1)
    added: Inputs = {"input_ids": longer}
    if "mm_token_type_ids" in takes(model):
        added["mm_token_type_ids"] = (longer == int(token)).long() * (2 if what == "video" else 1)
    return {**inputs, **added}
