"""Model types that find, cut out, match or measure what is in a picture."""

from __future__ import annotations

import torch

from tests.census.overrides.override import Override

NECK = {
    "neck_hidden_sizes": [16, 32],
    "reassemble_factors": [1, 0.5],
    "backbone_config": {"out_indices": [1, 2], "reshape_hidden_states": False},
}
HIERA = {
    "image_size": [128, 128],
    "hidden_size": 16,
    "embed_dim_per_stage": [16, 32, 64, 128],
    "num_attention_heads_per_stage": [1, 2, 4, 8],
    "blocks_per_stage": [1, 2, 2, 1],
    "global_attention_blocks": [4],
    "window_size_per_stage": [4, 2, 4, 2],
    "window_positional_embedding_background_size": [4, 4],
}

HGNET = {
    "embedding_size": 16,
    "hidden_sizes": [16, 32, 32, 32],
    "stem_channels": [3, 16, 16],
    "stage_in_channels": [16, 16, 32, 32],
    "stage_mid_channels": [16, 16, 16, 16],
    "stage_out_channels": [16, 32, 32, 32],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [2, 2, 2, 2],
    "depths": [1, 1, 1, 1],
}
BOXES = Override(
    inputs=lambda b: {
        "input_ids": b.ids(),
        "pixel_values": b.image(2),
        "input_boxes": torch.tensor([[[0.5, 0.5, 0.4, 0.4]]] * 2),
        "input_boxes_labels": torch.ones(2, 1, dtype=torch.long),
    }
)
DENSE: dict[str, Override] = {
    "lightglue": Override(
        {"keypoint_detector_config": {"keypoint_decoder_dim": 65, "encoder_hidden_sizes": [64, 64, 128, 128]}},
        inputs=lambda b: {"pixel_values": b.random(1, 2, 3, 64, 64)},
    ),
    "lw_detr_vit": Override({"image_size": 64, "num_windows": 4, "window_block_indices": [0], "patch_size": 8}),
    "prompt_depth_anything": Override(NECK),
    "rt_detr": Override(
        {
            "backbone_config": {"out_features": ["stage2", "stage3", "stage4"], "depths": [1, 1, 1, 1]},
            "encoder_in_channels": [32, 64, 128],
            "decoder_in_channels": [32, 32, 32],
        }
    ),
    "rt_detr_v2": Override(
        {
            "backbone_config": {"out_features": ["stage2", "stage3", "stage4"], "depths": [1, 1, 1, 1]},
            "encoder_in_channels": [32, 64, 128],
            "decoder_in_channels": [32, 32, 32],
        }
    ),
    "sam": Override({"vision_config": {"output_channels": 32, "window_size": 2}}),
    "sam2_hiera_det_model": Override(HIERA),
    "sam2_vision_model": Override({"backbone_config": HIERA, "backbone_channel_list": [128, 64, 32, 16]}),
    "seggpt": Override(
        {"image_size": [64, 32], "patch_size": 8, "merge_index": 0, "intermediate_hidden_state_indices": [0, 1]},
        inputs=lambda b: {
            "pixel_values": b.random(2, 3, 32, 32),
            "prompt_pixel_values": b.random(2, 3, 32, 32),
            "prompt_masks": b.random(2, 3, 32, 32),
        },
    ),
    "superglue": Override(
        {"keypoint_detector_config": {"keypoint_decoder_dim": 65, "encoder_hidden_sizes": [64, 64, 128, 128]}},
        inputs=lambda b: {"pixel_values": b.random(1, 2, 3, 64, 64)},
    ),
    "tipsv2_dpt": Override(NECK),
    "upernet": Override(
        {"backbone_config": {"model_type": "swin", "out_features": ["stage1", "stage2", "stage3", "stage4"]}}
    ),
    "depth_anything": Override(
        {
            "neck_hidden_sizes": [16, 32],
            "reassemble_factors": [1, 0.5],
            "backbone_config": {
                "out_indices": [1, 2],
                "reshape_hidden_states": False,
                "image_size": 56,
                "patch_size": 14,
            },
            "patch_size": 14,
        },
        inputs=lambda b: {"pixel_values": b.random(2, 3, 56, 56)},
    ),
    "sam_hq": Override(
        {
            "vision_config": {"output_channels": 32, "window_size": 2},
            "mask_decoder_config": {"vit_dim": 32},
        }
    ),
    "sam2": Override(
        {
            "vision_config": {
                "backbone_config": HIERA,
                "backbone_channel_list": [128, 64, 32, 16],
                "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
            },
            "prompt_encoder_config": {"image_size": 128, "patch_size": 16},
        },
        inputs=lambda b: {"pixel_values": b.random(2, 3, 128, 128), "input_points": b.random(2, 1, 1, 2).abs()},
    ),
    "mask2former": Override(
        {"backbone_config": {"out_features": ["stage1", "stage2", "stage3", "stage4"]}},
        inputs=lambda b: {"pixel_values": b.random(2, 3, 128, 128)},
    ),
    "zoedepth": Override(
        {**NECK, "bottleneck_features": 32, "fusion_hidden_size": 32},
    ),
    "hgnet_v2": Override(HGNET),
    "d_fine": Override(
        {
            "backbone_config": {**HGNET, "out_features": ["stage2", "stage3", "stage4"]},
            "encoder_in_channels": [32, 32, 32],
            "decoder_in_channels": [32, 32, 32],
        },
        model="DFineModel",
        inputs=lambda b: {"pixel_values": b.random(2, 3, 64, 64)},
    ),
    "sam3_tracker": Override(
        {
            "vision_config": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
            "prompt_encoder_config": {"image_size": 32, "patch_size": 8},
        },
        inputs=lambda b: {"pixel_values": b.image(2), "input_points": b.random(2, 1, 1, 2).abs()},
    ),
    "oneformer": Override(
        {"backbone_config": {"out_features": ["stage1", "stage2", "stage3", "stage4"]}, "mask_dim": 32},
        inputs=lambda b: {"pixel_values": b.random(2, 3, 128, 128), "task_inputs": b.ids(77)},
    ),
    "deimv2": Override(
        {
            "backbone_config": {**HGNET, "out_features": ["stage2", "stage3", "stage4"]},
            "encoder_in_channels": [32, 32, 32],
            "decoder_in_channels": [32, 32, 32],
        }
    ),
    "sam3": BOXES,
    "sam3_lite_text": BOXES,
    "swin2sr": Override({"image_size": 16}, inputs=lambda b: {"pixel_values": b.random(2, 3, 16, 16)}),
}
