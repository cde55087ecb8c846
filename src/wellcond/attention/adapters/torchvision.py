"""torchvision's Swin and MaxViT attention; its ViT uses `nn.MultiheadAttention`.

Swin hands its weights to a function, which also pads, shifts and cuts the grid into windows. No sub-module sees that,
so the replay does it from the layer's argument.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.attention.adapters import build, windows
from wellcond.attention.adapters.registry import adapter
from wellcond.attention.replay import Call, Replay, Softmax
from wellcond.attention.view import AttentionLayer

SWIN = "torchvision.models.swin_transformer.ShiftedWindowAttention"
SWIN_V2 = "torchvision.models.swin_transformer.ShiftedWindowAttentionV2"
MAXVIT = "torchvision.models.maxvit.RelativePositionalMultiHeadAttention"


@adapter(priority=10)
def describe_torchvision(module: nn.Module, name: str) -> AttentionLayer | None:
    """Swin, Swin-V2 (a sub-class of it) and MaxViT."""
    classes = build.origin(module, "torchvision")
    if SWIN in classes:
        return _swin(module, name, cosine=SWIN_V2 in classes)
    return _maxvit(module, name) if MAXVIT in classes else None


def _swin(module: Any, name: str, *, cosine: bool) -> AttentionLayer:
    heads = module.num_heads
    width = module.qkv.out_features // (3 * heads)
    query, key, value = build.fused(module, name, "qkv", heads, width)
    if cosine:  # the key's part of the stored bias is set to zero before use
        key = replace(key, bias=None, bias_layout=None)
    output = build.output(module, name, "proj", heads)
    replay = Replay(_cosine if cosine else _scaled, _windows, finish=_grid)
    return build.layer(name, (query, key, value), output, replay, scale=None if cosine else width**-0.5)


def _scaled(call: Call) -> Softmax:
    return Softmax(call.layer.head_dim**-0.5, _bias(call))


def _cosine(call: Call) -> Softmax:
    unit = partial(nn.functional.normalize, dim=-1)
    return Softmax(call.module.logit_scale.clamp(max=math.log(100)).exp(), _bias(call), unit, unit)


def _padded(call: Call) -> list[int]:
    """Height and width of the grid, filled up to whole windows."""
    grid = call.arguments["x"].shape[1:3]
    return [math.ceil(n / size) * size for n, size in zip(grid, call.module.window_size, strict=True)]


def _shift(call: Call) -> list[int]:
    """Rows and columns by which the grid is rolled; not at all along a side that one window covers."""
    sizes = zip(_padded(call), call.module.window_size, call.module.shift_size, strict=True)
    return [0 if window >= n else shift for n, window, shift in sizes]


def _windows(call: Call) -> dict[str, Tensor]:
    x = call.arguments["x"]
    (height, width), (down, right) = _padded(call), _shift(call)
    x = nn.functional.pad(x, (0, 0, 0, width - x.shape[2], 0, height - x.shape[1])).roll((-down, -right), (1, 2))
    cut = windows.partition(x, call.module.window_size)
    return {"query": cut, "key": cut, "value": cut}


def _grid(call: Call, x: Tensor) -> Tensor:
    """Undo `_windows`."""
    _, height, width, _ = call.arguments["x"].shape
    grid = windows.merge(x, call.module.window_size, *_padded(call)).roll(_shift(call), (1, 2))
    return grid[:, :height, :width]


def _bias(call: Call) -> Tensor:
    """Relative positions, and −100 between tokens of one window that only the roll brought together."""
    x: Tensor = call.arguments["x"]
    bias: Tensor = call.module.get_relative_position_bias()
    if not any(_shift(call)):
        return bias
    sides = [
        torch.arange(n, device=x.device) >= n - shift for n, shift in zip(_padded(call), _shift(call), strict=True)
    ]
    region = 2 * sides[0][:, None] + sides[1]
    regions = windows.partition(region[None, ..., None], call.module.window_size)
    mask = -100.0 * (regions != regions.mT).to(x.dtype)
    return bias + windows.per_window(mask, x.shape[0] * mask.shape[0])


def _maxvit(module: Any, name: str) -> AttentionLayer:
    """Windows are the second axis; the logit scale is that of the model's width, not the head's."""
    parts = build.fused(module, name, "to_qkv", module.n_heads, module.head_dim)
    output = build.output(module, name, "merge", module.n_heads)
    return build.layer(name, parts, output, Replay(_relative, _window_axis), scale=module.scale_factor)


def _relative(call: Call) -> Softmax:
    return Softmax(call.module.scale_factor, call.module.get_relative_positional_bias())


def _window_axis(call: Call) -> dict[str, Tensor]:
    x = call.arguments["x"].flatten(0, 1)
    return {"query": x, "key": x, "value": x}
