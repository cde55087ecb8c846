"""The number that multiplies the logits of a layer, as a pass shows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from wellcond.attention.replay import Call, Softmax, project

LENGTH_ERROR = 1e-5  # of a rotation by angles in float32


@torch.no_grad()
def logit_scale(call: Call) -> float | None:
    """Return what multiplies the products of queries and keys; None where it is no single number.

    A factor on queries or keys counts; where they are normalised there is none.
    """
    layer, precise = call.layer, replace(call, dtype=torch.float64)
    mixing, tokens = precise.mixing(), precise.tokens()
    if not isinstance(mixing, Softmax) or not isinstance(mixing.scale, float) or not layer.query or not layer.key:
        return None
    query = _stretch(mixing.query_map, project(layer.query, tokens["query"]))
    key = _stretch(mixing.key_map, project(layer.key, tokens["key"]))
    if query is None or key is None:
        return None
    found = mixing.scale * query * key
    same = layer.scale is not None and math.isclose(found, layer.scale, rel_tol=LENGTH_ERROR)
    return layer.scale if same else found


def _stretch(change: Callable[[Tensor], Tensor], x: Tensor) -> float | None:
    """The factor by which a map changes lengths; None if that depends on what it is given."""
    lengths = x.norm(dim=-1)
    ratios = (change(x).norm(dim=-1) / lengths)[lengths > 0].double()
    if not ratios.numel() or not bool(torch.isfinite(ratios).all()):
        return None
    low, high = float(ratios.min()), float(ratios.max())
    return (low + high) / 2 if high - low <= LENGTH_ERROR * high else None
