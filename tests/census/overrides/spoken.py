"""Model types that read text together with sound."""

from __future__ import annotations

import torch

from tests.census.makers import grid_positions
from tests.census.overrides.override import Override

WINDOWS = Override(
    {"window_size": 15},
    inputs=lambda b: {
        "input_ids": b.ids(),
        "input_features": b.random(2, 15, 160),
        "input_features_mask": torch.ones(2, 3, dtype=torch.bool),
        "use_cache": False,
    },
)
SPOKEN: dict[str, Override] = {
    "phi4_multimodal": Override(
        inputs=lambda b: {
            "input_ids": torch.cat([b.ids(), torch.full((2, 8), int(b.size("audio_token_id", of="audio")))], 1),
            "audio_input_features": b.random(2, 64, 80),
            "audio_embed_sizes": torch.tensor([8, 8]),
            "use_cache": False,
        },
        config={
            "audio_config": {
                "nemo_conv_channels": 32,
                "ext_pw_out_channel": 32,
                "depthwise_separable_out_channel": 32,
                "input_size": 80,
            },
        },
    ),
    "qwen3_asr": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "input_features": b.random(2, int(b.size("num_mel_bins", of="audio")), 100),
            "input_features_mask": torch.ones(2, 100, dtype=torch.long),
            "use_cache": False,
        }
    ),
    "glmasr": Override({"audio_config": {"intermediate_size": 128}}),
    "gemma4": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "pixel_values": b.patches(32).unflatten(0, (2, 16)),
            "image_position_ids": grid_positions(),
            "input_features": b.random(2, 64, 64),
            "input_features_mask": torch.ones(2, 64, dtype=torch.bool),
            "use_cache": False,
        }
    ),
    "granite_speech": WINDOWS,
    "granite_speech_plus": WINDOWS,
    "qwen2_audio": Override(
        inputs=lambda b: {
            "input_ids": torch.cat([b.ids(), torch.full((2, 1), int(b.config.audio_token_index)), b.ids(3)], 1),
            "input_features": b.random(2, 128, 256),
            "feature_attention_mask": torch.ones(2, 256, dtype=torch.long),
            "attention_mask": torch.ones(2, 11, dtype=torch.long),
            "use_cache": False,
        }
    ),
    "voxtral": Override({"audio_config": {"intermediate_size": 128}, "audio_token_id": 70}),
    "voxtral_realtime": Override(
        inputs=lambda b: {"input_ids": b.ids(4), "input_features": b.random(2, 128, 32), "use_cache": False}
    ),
}
