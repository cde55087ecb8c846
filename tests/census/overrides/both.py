"""Model types that read text together with pictures."""

from __future__ import annotations

import torch

from tests.census.makers import GRID
from tests.census.overrides.override import Override
from tests.census.overrides.text import BOTH_ROPES, SECTIONS

PINPOINTS = Override(
    {"image_grid_pinpoints": [[32, 32]]},
    inputs=lambda b: {
        "input_ids": b.ids(),
        "pixel_values": b.image(2, 2),
        "image_sizes": torch.tensor([[32, 32]] * 2),
        "use_cache": False,
    },
)
TARGETS = Override(
    {"image_token_id": 70},
    inputs=lambda b: {
        "input_ids": torch.cat([b.ids(), torch.full((2, 1), int(b.config.image_token_id))], 1),
        "pixel_values": b.random(1, 3, b.patch(), 2 * 16 * b.patch()),
        "target_sizes": torch.tensor([[4, 4]] * 2),
        "use_cache": False,
    },
)
QUERIES = Override(
    inputs=lambda b: {
        "input_ids": b.ids(),
        "query_embeds": b.random(2, 5, 32),
        "encoder_hidden_states": b.random(2, 6, int(b.size("encoder_hidden_size", otherwise=32))),
    }
)
BOTH: dict[str, Override] = {
    "llava_next": PINPOINTS,
    "llava_next_video": PINPOINTS,
    "llava_onevision": PINPOINTS,
    "llama4": Override(
        {"vision_config": {"intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32}}
    ),
    "kimi_k25": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "pixel_values": b.random(32, 3, b.patch(), b.patch()),
            "image_grid_thw": GRID,
            "use_cache": False,
        }
    ),
    "paddleocr_vl": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "pixel_values": b.random(32, 3, b.patch(), b.patch()),
            "image_grid_thw": GRID,
            "use_cache": False,
        }
    ),
    "video_llama_3": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "pixel_values": b.patches(32),
            "image_grid_thw": GRID,
            "image_merge_sizes": torch.tensor([2, 2]),
            "use_cache": False,
        }
    ),
    "mllama": Override(
        {
            "vision_config": {
                "intermediate_layers_indices": [0, 1],
                "max_num_tiles": 2,
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
                "vision_output_dim": 96,
            },
            "text_config": {"cross_attention_layers": [1]},
        },
        inputs=lambda b: {
            "input_ids": b.ids(),
            "pixel_values": b.random(2, 1, 2, *b.image_shape()),
            "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long),
            "aspect_ratio_mask": torch.ones(2, 1, 2, dtype=torch.long),
            "cross_attention_mask": torch.ones(2, 7, 1, 2, dtype=torch.long),
            "use_cache": False,
        },
    ),
    "blip-2": Override({"image_token_index": 70, "image_token_id": 70}),
    "blip_2_qformer": Override(
        inputs=lambda b: {"query_embeds": b.random(2, 5, 32), "encoder_hidden_states": b.random(2, 6, 32)}
    ),
    "bridgetower": Override(
        {"vision_config": {"hidden_size": 128}, "hidden_size": 128, "text_config": {"hidden_size": 128}}
    ),
    "chameleon": Override({"vocabulary_map": {f"IMGIMG{i}Z": i for i in range(4)} | {"<image>": 70}}),
    "cohere_compass": Override(
        {"text_config": {"layer_types": ["full_attention", "sliding_attention"], "rope_parameters": BOTH_ROPES}}
    ),
    "ernie4_5_vl_moe": Override({"text_config": SECTIONS}),
    "evolla": Override(model="EvollaModel"),
    "idefics": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "pixel_values": b.image(2, 1),
            "image_attention_mask": torch.ones(2, 7, 1),
            "use_cache": False,
        }
    ),
    "idefics2_perceiver": Override(
        inputs=lambda b: {"context": b.random(2, 7, 32), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    ),
    "instructblip": Override({"image_token_index": 70, "image_token_id": 70}),
    "instructblipvideo": Override(
        {"video_token_index": 70, "video_token_id": 70},
        inputs=lambda b: {
            "input_ids": torch.cat([torch.full((2, 20), 70), b.ids()], 1),
            "pixel_values": b.image(2, 4),
            "qformer_input_ids": b.ids(),
        },
    ),
    "kosmos-2": Override(
        inputs=lambda b: {
            "input_ids": b.ids(12),
            "pixel_values": b.image(2),
            "image_embeds_position_mask": torch.tensor([[0, *[1] * int(b.size("latent_query_num")), *[0] * 20]] * 2)[
                :, :12
            ],
        },
        config={"latent_query_num": 4},
    ),
    "layoutlmv3": Override({"coordinate_size": 4, "shape_size": 8, "input_size": 32, "patch_size": 8}),
    "lxmert": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "visual_feats": b.random(2, 4, b.config.visual_feat_dim),
            "visual_pos": b.random(2, 4, 4),
        }
    ),
    "t5gemma2": Override({"encoder": {"text_config": {"dropout_rate": 0.0}}, "decoder": {"dropout_rate": 0.0}}),
    "t5gemma2_encoder": Override({"dropout_rate": 0.0, "text_config": {"dropout_rate": 0.0}}),
    "xclip": Override(inputs=lambda b: {"input_ids": b.ids(), "pixel_values": b.image(2, int(b.size("num_frames")))}),
    "aria": Override({"projector_patch_to_query_dict": {16: 5}}),
    "minicpmv4_6": TARGETS,
    "minicpmv4_7": TARGETS,
    "minicpm_ocr": TARGETS,
    "colqwen2": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "pixel_values": b.patches(32).unflatten(0, (2, 16)),
            "image_grid_thw": GRID,
            "attention_mask": torch.ones(2, 7, dtype=torch.long),
        }
    ),
    "pi0": Override(
        inputs=lambda b: {
            "input_ids": b.ids(),
            "pixel_values": b.image(2, 1),
            "pixel_attention_mask": torch.ones(2, 1, dtype=torch.bool),
            "attention_mask": torch.ones(2, 7, dtype=torch.long),
            "action_embeds": b.random(2, 4, 32),
        }
    ),
    "shieldgemma2": Override({"yes_token_index": 10, "no_token_index": 11}),
    "step3p7": Override({"text_config": {"sliding_window": 4}}),
    "gemma3n": Override({"vision_config": {"model_args": {"channel_multiplier": 0.1}}}),
    "vipllava": Override({"vision_feature_layers": [-1, -2]}),
    "instructblip_qformer": QUERIES,
    "instructblipvideo_qformer": QUERIES,
}
