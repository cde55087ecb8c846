"""A small member of every family (module) of timm that has attention, without pretrained weights.

The named model is taken with its depths, and where it is large its widths, cut down, so that every other choice is the
real model's; pictures are as small as the model takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.census.redraw import redraw_
from tests.census.transformers_models import CannotBuild

SMALL_PICTURE = 64  # two of them make a batch, of a larger one only one
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 4, "depth": 2}
STAGES = (1, 1, 1, 1)
# name -> arguments of the constructor; `picture` is the side of the input where the model takes any;
# without it and `img_size` the picture has the model's own size.
MODELS: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": VIT,
    "beitv2_base_patch16_224": VIT,
    "halonet_h1": {},
    "lambda_resnet26rpt_256": {},
    "botnet26t_256": {},
    "resnet50_clip": {"picture": 224},
    "cait_xxs24_224": {**VIT, "depth_token_only": 2},
    "coat_lite_tiny": {},
    "convit_tiny": {**VIT, "local_up_to_layer": 1},
    "cpubone_nano": {},
    "crossvit_tiny_240": {"embed_dim": (24, 48), "depth": ((1, 1, 0),)},
    "csatv2": {"picture": 256},
    "davit_tiny": {"depths": STAGES, "embed_dims": (24, 48, 96, 192)},
    "deepseek_vit_412m": VIT,
    "deit_tiny_distilled_patch16_224": VIT,
    "deit3_small_patch16_224": VIT,
    "edgenext_xx_small": {"picture": 128},
    "efficientformer_l1": {},
    "efficientformerv2_s0": {},
    "efficientvim_m1": {},
    "efficientvit_b0": {},
    "efficientvit_m0": {},
    "eva02_tiny_patch14_224": {**VIT, "patch_size": 8},
    "vit_small_patch16_rope_mixed_224": VIT,
    "vit_small_patch16_dinov3": VIT,
    "vit_pe_core_tiny_patch16_384": {**VIT, "embed_dim": 64},
    "fastvit_sa12": {},
    "gcvit_xxtiny": {},
    "gemma4_vit_167m": VIT,
    "hiera_tiny_224": {},
    "sam2_hiera_tiny": {"picture": 128},
    "iformer_t": {},
    "levit_128s": {"depth": (1, 1, 1)},
    "levit_conv_128s": {"depth": (1, 1, 1)},
    "lowformer_b0": {},
    "maxvit_rmlp_pico_rw_256": {},
    "coatnet_pico_rw_224": {},
    "coatnet_rmlp_nano_rw_224": {},
    "caformer_s18": {},
    "mobilenetv4_hybrid_medium": {},
    "mobilenetv5_base": {},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "mvitv2_tiny": {},
    "naflexvit_base_patch16_gap": {"embed_dim": 32, "num_heads": 4, "depth": 2, "picture": 64},
    "nest_tiny": {"img_size": 64},
    "nextvit_small": {},
    "pit_ti_224": {},
    "pvt_v2_b0": {},
    "qwen3_vit_88m": VIT,
    "shvit_s1": {},
    "swiftformer_xs": {},
    "swin_tiny_patch4_window7_224": {"depths": (2, 2, 2, 2), "embed_dim": 24},
    "swinv2_tiny_window8_256": {
        "img_size": 64,
        "window_size": 4,
        "depths": (2, 2),
        "num_heads": (3, 6),
        "embed_dim": 24,
    },
    "swinv2_cr_tiny_224": {"depths": (2, 2, 2, 2), "embed_dim": 24},
    "tiny_vit_5m_224": {},
    "tnt_s_legacy_patch16_224": {},
    "twins_pcpvt_small": {},
    "twins_svt_small": {},
    "visformer_tiny": {},
    "vit_tiny_patch16_224": VIT,
    "vit_small_r26_s32_224": {},
    "vit_relpos_small_patch16_224": VIT,
    "vit_relpos_base_patch32_plus_rpn_256": {},
    "samvit_base_patch16": {**VIT, "img_size": 64, "neck_chans": 16, "window_size": 3, "global_attn_indexes": (1,)},
    "vitamin_small_224": {},
    "volo_d1_224": {},
    "xcit_nano_12_p16_224": {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 4},
}


def model_names() -> list[str]:
    """Return the named models, at least one a family, that the installed timm has."""
    import timm

    return [name for name in MODELS if name in set(timm.list_models())]


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model in eval mode and float32, and its argument.

    Raises:
        CannotBuild: with what the constructor or the forward said.
    """
    import timm

    options = {"num_classes": 7, **MODELS[name]}
    picture = options.pop("picture", options.get("img_size"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model: nn.Module = timm.create_model(name, pretrained=False, **options).eval().float()
        except Exception as error:  # whatever a constructor raises is the reason
            raise CannotBuild(f"constructor: {type(error).__name__}: {error}") from error
    redraw_(model)
    channels, height, width = model.default_cfg["input_size"]
    height, width = (picture, picture) if picture else (height, width)
    batch = 2 if height <= SMALL_PICTURE else 1
    generator = torch.Generator().manual_seed(1)
    inputs = {"x": torch.randn(batch, channels, height, width, generator=generator)}
    try:
        with torch.no_grad():
            model(**inputs)
    except Exception as error:  # whatever a forward raises is the reason
        raise CannotBuild(f"forward: {type(error).__name__}: {error}") from error
    return model, inputs
