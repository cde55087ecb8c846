"""Mask R-CNN on a transformer, which finds objects with their boxes and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from wellcond.errors import WellcondError
from wellcond.lab.tasks.checks import library


def mask_rcnn(
    shape: Mapping[str, int], backbone: str = "xcit_small_12_p16_224", options: Mapping[str, Any] | None = None,
    drop_path: float = 0.0, fpn: int = 256, min_size: int | Sequence[int] = 800, max_size: int = 1333,
    anchors: Sequence[int] = (32, 64, 128, 256, 512), proposals: Sequence[int] = (2000, 2000),
    test_proposals: Sequence[int] = (1000, 1000), samples: Sequence[int] = (256, 512), detections: int = 100,
) -> nn.Module:  # fmt: skip
    """Build torchvision's Mask R-CNN with a feature pyramid (FPN) of five levels, on an XCiT or a Swin of timm's.

    K. He et al., Mask R-CNN, arXiv 1703.06870; T.-Y. Lin et al., Feature Pyramid Networks, arXiv 1612.03144. What is
    not named here is as in torchvision, which normalises and resizes the images, so each may have its own size.
    `backbone.body` is timm's model without its classifier, its parameters under their own names.

    Args:
        shape: with `classes`, of which the first is the background, and `channels`, which are 3.
        backbone: a name of timm's, of an XCiT or a Swin.
        options: of its constructor: embed_dim, depth, num_heads, …
        drop_path: probability that a residual branch is left out in training.
        fpn: channels of the pyramid and of the mask branch; the box branch is four times as wide.
        min_size: shorter side that images are brought to; of several one is drawn for each image in training.
        max_size: what the longer side may not exceed.
        anchors: sides of the squares that boxes begin from, one for each level (strides 4, 8, 16, 32, 64).
        proposals: boxes in training that are kept in each level before, and in all after non-maximum suppression.
        test_proposals: the same in testing.
        samples: anchors, and boxes, of an image that the losses are taken over.
        detections: at most, in an image.

    >>> import torch
    >>> tiny = {"embed_dim": 16, "depth": 2, "num_heads": 2}
    >>> model = mask_rcnn({"classes": 4, "channels": 3}, options=tiny, fpn=16, min_size=64, test_proposals=(9, 9))
    >>> sorted(model.eval()([torch.zeros(3, 48, 64)])[0])
    ['boxes', 'labels', 'masks', 'scores']
    """
    parts = library("torchvision.models.detection", "timm")
    if shape["channels"] != 3:
        raise WellcondError(f"Mask R-CNN takes images of 3 channels, the task has {shape['channels']}")
    if len(anchors) != 5:
        raise WellcondError(f"anchors are five sides, one for each level of the pyramid; got {list(anchors)}")
    classes, size = shape["classes"], min_size if isinstance(min_size, int) else tuple(min_size)
    model: nn.Module = parts.MaskRCNN(
        Pyramid(backbone, {**(options or {}), "drop_path_rate": drop_path}, fpn),
        min_size=size,
        max_size=max_size,
        rpn_anchor_generator=parts.anchor_utils.AnchorGenerator(
            tuple((side,) for side in anchors), ((0.5, 1.0, 2.0),) * 5
        ),
        rpn_pre_nms_top_n_train=proposals[0],
        rpn_post_nms_top_n_train=proposals[1],
        rpn_pre_nms_top_n_test=test_proposals[0],
        rpn_post_nms_top_n_test=test_proposals[1],
        rpn_batch_size_per_image=samples[0],
        box_batch_size_per_image=samples[1],
        box_detections_per_img=detections,
        box_head=parts.faster_rcnn.TwoMLPHead(fpn * 7 * 7, 4 * fpn),
        box_predictor=parts.faster_rcnn.FastRCNNPredictor(4 * fpn, classes),
        mask_head=parts.mask_rcnn.MaskRCNNHeads(fpn, (fpn,) * 4, 1),
        mask_predictor=parts.mask_rcnn.MaskRCNNPredictor(fpn, fpn, classes),
    )
    return model


class Pyramid(nn.Module):
    """Five maps of as many channels, at strides 4, 8, 16, 32 and 64, from a transformer's.

    An XCiT has one stride only: after a third, a half, two thirds and all of its L blocks (3, 5, 7 and 11 of 12,
    counted from 0), its tokens are put back in their places and scaled, as in its authors' code: at stride 16 by two
    transposed convolutions, one, none, and pooling (A. El-Nouby et al., XCiT, arXiv 2106.09681). The four stages of a
    Swin have the strides, and each gets a LayerNorm (Z. Liu et al., Swin Transformer, arXiv 2103.14030).
    """

    def __init__(self, name: str, options: Mapping[str, Any], channels: int) -> None:
        super().__init__()
        parts = library("torchvision.ops.feature_pyramid_network", "timm")
        self.out_channels = channels  # torchvision asks for it
        self.body, self.taps, widths, self.scales = _body(name, options)
        self.fpn = parts.FeaturePyramidNetwork(widths, channels, parts.LastLevelMaxPool())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return maps by name, the finest first, of images `(B, 3, H, W)`, whose sides are multiples of 32."""
        maps = self.body.forward_intermediates(images, indices=self.taps, intermediates_only=True)
        # A shallow model has a map that is taken twice.
        by_tap = dict(zip(sorted(set(self.taps)), maps, strict=True))
        scaled = [scale(by_tap[tap]) for scale, tap in zip(self.scales, self.taps, strict=True)]
        found: dict[str, Tensor] = self.fpn({str(level): each for level, each in enumerate(scaled)})
        return found


def _body(name: str, options: Mapping[str, Any]) -> tuple[Any, list[int], list[int], nn.ModuleList]:
    """Return timm's model, which of its maps to take, their widths, and what brings them to strides 4, 8, 16 and 32."""
    import timm
    from timm.models.swin_transformer import SwinTransformer
    from timm.models.xcit import Xcit

    # Windows are always moved and padded, so that images of any size have a place.
    free = {"strict_img_size": False, "always_partition": True} if name.startswith("swin_") else {}
    if not timm.is_model(name):
        raise WellcondError(f"timm has no model {name!r}: timm.list_models('xcit*') lists those that will do")
    body = timm.create_model(name, **free, **options)
    if isinstance(body, SwinTransformer):
        taps, widths = [0, 1, 2, 3], [stage["num_chs"] for stage in body.feature_info]
        norm = library("torchvision.models.convnext", "timm").LayerNorm2d  # over the channels of each place
        scales = nn.ModuleList(norm(width) for width in widths)
    elif isinstance(body, Xcit):
        depth, width = len(body.blocks), body.embed_dim
        taps, widths = [max(0, round(depth * part) - 1) for part in (1 / 3, 1 / 2, 2 / 3, 1)], [width] * 4
        scales = nn.ModuleList(_scaling(body.patch_embed.patch_size, stride, width) for stride in (4, 8, 16, 32))
        del body.cls_token  # for a class only
    else:
        raise WellcondError(f"Mask R-CNN is built on an XCiT or a Swin here, and '{name}' is {type(body).__name__}")
    # What makes a class of the maps would have no gradient, which processes that share gradients wait for.
    body.prune_intermediate_layers(taps, prune_norm=True, prune_head=True)
    return body, taps, widths, scales


def _scaling(stride: int, wanted: int, width: int) -> nn.Module:
    """Return what brings one stride to another: transposed convolutions, or pooling."""
    if wanted >= stride:
        return nn.MaxPool2d(wanted // stride) if wanted > stride else nn.Identity()
    if stride == 2 * wanted:
        return nn.ConvTranspose2d(width, width, 2, 2)
    first, second = (nn.ConvTranspose2d(width, width, 2, 2) for _ in range(2))
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.GELU(), second)
