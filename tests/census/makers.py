"""How each argument of a model of transformers is made from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.census.batch import BATCH, LENGTH, Batch
from tests.census.shrink_rules import WIDTH


def grid_positions() -> Tensor:
    return torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(BATCH, 16, 2).contiguous()


GRID = torch.tensor([[1, 4, 4]] * BATCH)
MAKERS: dict[str, Callable[[Batch], Any]] = {
    "input_ids": lambda b: b.ids(),
    "decoder_input_ids": lambda b: b.ids(5),
    "pixel_values": lambda b: b.image(BATCH),
    "pixel_values_videos": lambda b: b.image(
        BATCH, int(b.size("num_frames", "frames_per_clip", of="vision", otherwise=4))
    ),
    "input_values": lambda b: b.random(BATCH, 1600),
    "input_features": lambda b: b.sound(),
    "hidden_states": lambda b: b.random(BATCH, LENGTH, int(b.size("hidden_size", otherwise=WIDTH))),
    "inputs_embeds": lambda b: b.random(BATCH, LENGTH, int(b.size("hidden_size", otherwise=WIDTH))),
    "encoder_hidden_states": lambda b: b.random(BATCH, 5, int(b.size("hidden_size", otherwise=WIDTH))),
    "bbox": lambda b: torch.tensor([1, 2, 5, 9]).expand(BATCH, LENGTH, 4),
    "past_values": lambda b: b.random(BATCH, int(b.size("context_length", "prediction_length", otherwise=32)), 1),
    "flattened_patches": lambda b: b.random(
        BATCH, 6, 2 + b.size("patch_embed_hidden_size", otherwise=3 * b.patch() ** 2)
    ).abs(),
    "query_embeds": lambda b: b.random(BATCH, 5, int(b.size("hidden_size", of="qformer", otherwise=WIDTH))),
    "pixel_mask": lambda b: torch.ones(BATCH, *b.image_shape()[1:], dtype=torch.long),
    "attention_mask": lambda b: torch.ones(BATCH, LENGTH, dtype=torch.long),
    "token_type_ids": lambda b: torch.zeros(BATCH, LENGTH, dtype=torch.long),
    "grid_thw": lambda b: GRID,
    "image_grid_thw": lambda b: GRID,
    "image_sizes": lambda b: torch.tensor([list(b.image_shape()[1:])] * BATCH),
    "qformer_input_ids": lambda b: b.ids(),
    "inputs": lambda b: b.random(BATCH, LENGTH, int(b.size("d_model", "hidden_size", otherwise=WIDTH))),
    "input_features_mask": lambda b: torch.ones(BATCH, b.frames(), dtype=torch.long),
    "feature_attention_mask": lambda b: torch.ones(BATCH, b.frames(), dtype=torch.long),
    "audio_mel": lambda b: b.sound(),
    "audio_mel_mask": lambda b: torch.zeros(BATCH, b.frames(), dtype=torch.bool),
    "pixel_attention_mask": lambda b: torch.ones(BATCH, 16, dtype=torch.long),
    "spatial_shapes": lambda b: torch.tensor([[4, 4]] * BATCH),
    "image_position_ids": lambda b: grid_positions(),
    "pixel_position_ids": lambda b: grid_positions(),
}
# Other shapes that models with the same argument take.
OTHER_SHAPES: dict[str, tuple[Callable[[Batch], Any], ...]] = {
    "input_values": (
        lambda b: b.random(BATCH, 1, 1920),
        lambda b: b.random(BATCH, int(b.size("max_length", otherwise=64)), int(b.size("num_mel_bins", otherwise=80))),
    ),
    "input_features": (
        lambda b: b.sound().mT,
        lambda b: b.random(BATCH, 64, int(b.size("input_size", "hidden_size", "feature_projection_input_dim"))),
        lambda b: b.random(BATCH, 1, 64, int(b.size("num_mel_bins", otherwise=64))),
    ),
    "pixel_values": (
        lambda b: b.image(BATCH, 2),
        lambda b: b.image(BATCH, int(b.size("num_frames", "frames_per_clip", "temporal_patch_size", otherwise=4))),
        lambda b: b.patches(16 * BATCH).unflatten(0, (BATCH, 16)),
    ),
}
