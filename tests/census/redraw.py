"""Draw a model's weights again, so that nothing is zero, constant, or so small that attention is uniform."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def redraw_(model: nn.Module, seed: int = 0) -> None:
    """Draw matrices with entries of size 1/√fan-in, gains around 1 and biases around 0."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.numel():
            parameter.copy_(redrawn(parameter, generator))


def redrawn(weight: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32).to(weight.dtype)
    if not bool(torch.isfinite(weight).all()):
        return 0.1 * noise
    low, high = (float(x) for x in torch.aminmax(weight))
    if low == high and weight.numel() > 1:  # a gain, a bias, or a zero to start from
        return 1 + 0.1 * noise if abs(low - 1) < 0.5 else 0.1 * noise
    if weight.ndim < 2:
        return weight * (1 + 0.05 * noise) + 0.01 * noise
    fan_in = weight.numel() // weight.shape[0]
    return max(0.05, min(0.3, fan_in**-0.5)) * noise
