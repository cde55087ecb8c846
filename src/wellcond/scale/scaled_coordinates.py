"""One number r between the factors of every head: W_Q r, W_K ÷ r, W_V r, W_O ÷ r, which is the same function."""

from __future__ import annotations

import torch
from torch import nn

from wellcond.attention.apart import shared_weights, stored_weight
from wellcond.attention.find import chosen_layers
from wellcond.attention.layers import LayerFilter
from wellcond.attention.paths import unwrap
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.errors import WeightError
from wellcond.scale.allowed_maps import Maps, allowed_maps
from wellcond.scale.balance import apply_maps_
from wellcond.scale.products import PAIRS


@torch.no_grad()
def scale_coordinates_(model: nn.Module, r: float, layers: LayerFilter = None) -> None:
    """Scale the first factor of each product by r and the second by 1/r, biases along; all or nothing.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.TransformerEncoderLayer(16, 2, dropout=0, batch_first=True).double()
    >>> x = torch.randn(2, 5, 16, dtype=torch.float64)
    >>> before = model(x)
    >>> scale_coordinates_(model, 16.0)
    >>> torch.allclose(model(x), before, rtol=1e-12)
    True
    """
    root = unwrap(model)
    chosen, known = chosen_layers(root, layers), dict[object, Maps]()
    tied = shared_weights(chosen)
    with ParameterWrites(root) as writes:
        for layer in chosen:
            for part, roles in PAIRS.items():
                pair = [projection for _, projection in layer.projections(*roles)]
                if len(pair) < 2:
                    raise WeightError(f"'{layer.name}' has no {part} product, whose factors could be scaled")
                kinds = allowed_maps(layer, None, part, known)
                if isinstance(kinds, str) or "scalar" not in kinds:
                    why = kinds if isinstance(kinds, str) else "something between its factors is not linear"
                    raise WeightError(f"'{layer.name}' would not be the same function with its factors scaled: {why}")
                for projection in pair:
                    if stored_weight(projection) in tied:
                        raise WeightError(f"'{projection.weight.path}' is tied, so its factors cannot be scaled")
                for projection, factor in zip(pair, (r, 1 / r), strict=True):
                    maps = factor * torch.eye(projection.width, dtype=torch.float64)
                    apply_maps_(projection, maps.expand(projection.heads, -1, -1), writes)
