"""Model types that read pictures and films, and towers that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.census.batch import Batch
from tests.census.makers import GRID
from tests.census.overrides.override import Override


def video(frames: int) -> Callable[[Batch], dict[str, Any]]:
    return lambda b: {"pixel_values": b.image(2, frames)}


PICTURES: dict[str, Override] = {
    "bridgetower_vision_model": Override({"hidden_size": 128}, inputs=lambda b: {"image": b.image(2)}),
    "cvt": Override({"depth": [1, 2, 3]}),
    "florence_vision": Override(inputs=lambda b: {"hidden_states": b.image(2)}),
    "hiera": Override({"image_size": [64, 64], "patch_size": [7, 7], "depths": [1, 1, 1, 1]}),
    "kimi_k25_vision": Override(
        inputs=lambda b: {
            "pixel_values": b.random(32, 3, b.patch(), b.patch()),
            "grid_thw": torch.tensor([[1, 4, 4]] * 2),
        }
    ),
    "levit": Override({"image_size": 224, "patch_size": 16, "hidden_sizes": [32, 64, 96], "depths": [1, 1, 1]}),
    "llama4_vision_model": Override({"intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32}),
    "minicpmv4_6_vision": Override(
        inputs=lambda b: {"pixel_values": b.image(1), "target_sizes": torch.tensor([[4, 4]])}
    ),
    "mllama_vision_model": Override(
        {
            "intermediate_layers_indices": [0, 1],
            "max_num_tiles": 2,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
        inputs=lambda b: {
            "pixel_values": b.random(2, 1, 2, *b.image_shape()),
            "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long),
            "aspect_ratio_mask": torch.ones(2, 1, 2, dtype=torch.long),
        },
    ),
    "pvt": Override({"image_size": 64}),
    "pvt_v2": Override({"image_size": 64}),
    "timesformer": Override({"num_frames": 4}, inputs=video(4)),
    "video_llama_3_vision": Override(
        inputs=lambda b: {
            "pixel_values": b.patches(32),
            "grid_thw": torch.tensor([[1, 4, 4]] * 2),
            "merge_sizes": torch.tensor([2, 2]),
        }
    ),
    "videomae": Override({"num_frames": 4}, inputs=video(4)),
    "vivit": Override({"num_frames": 4, "tubelet_size": [2, 8, 8]}, inputs=video(4)),
    "vjepa2": Override({"frames_per_clip": 4}, inputs=lambda b: {"pixel_values_videos": b.image(2, 4)}),
    "xclip_vision_model": Override(inputs=lambda b: {"pixel_values": b.image(2 * int(b.config.num_frames))}),
    "gemma3n_vision": Override({"model_args": {"channel_multiplier": 0.1}}),
    "muse_glimmer_vision": Override(inputs=lambda b: {"pixel_values": b.random(32, 384), "grid_thw": GRID}),
    "muse_spark_vision": Override(inputs=lambda b: {"pixel_values": b.random(32, 384), "grid_thw": GRID}),
    "paddleocr_vl_vision": Override(
        inputs=lambda b: {
            "pixel_values": b.random(1, 32, 3, b.patch(), b.patch()),
            "grid_thw": GRID,
            "cu_seqlens": torch.tensor([0, 16, 32], dtype=torch.int32),
        }
    ),
}
