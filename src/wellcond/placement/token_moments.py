"""Moments of tokens, how large they are and how alike: q and p, of the stream and of what a layer reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from wellcond.attention.replay import as_sequences
from wellcond.placement.weight_estimates import norm_affine
from wellcond.placement.wiring import NotPlaced

SMALLEST_GAIN = 1e-3  # of a norm's largest gain: coordinates with less say nothing of the tokens before the norm


@dataclass(frozen=True)
class TokenMoments:
    """Mean |x|² ÷ D of the tokens, and mean x·x' ÷ D over different ones."""

    size: float
    overlap: float

    @property
    def cosine(self) -> float:
        """Return p ÷ q."""
        return self.overlap / self.size if self.size > 0 else 1.0


def token_moments(x: Tensor, visible: Tensor) -> TokenMoments:
    """Return the moments of `(B, N, D)` tokens; those not visible are left out, and sequences count alike.

    >>> import torch
    >>> token_moments(torch.ones(1, 4, 8), torch.ones(1, 4, dtype=torch.bool))
    TokenMoments(size=1.0, overlap=1.0)
    """
    x = x.double() * visible.to(x.device)[..., None]
    count = visible.sum(1).to(x.device)
    squares = x.square().sum((1, 2))
    common = (x.sum(1).square().sum(1) - squares) / (count * (count - 1)).clamp_min(1)
    usable = count > 1
    if not usable.any():
        raise NotPlaced("no sequence has two tokens")
    width = x.shape[2]
    return TokenMoments(float((squares / count)[usable].mean()) / width, float(common[usable].mean()) / width)


def stream_as_sequences(stream: Tensor, transposed: bool) -> Tensor:
    """Return a block's stream as `(B, N, D)`."""
    return stream.transpose(0, 1) if transposed and stream.ndim == 3 else as_sequences(stream)


def before_gain(x: Tensor, norm: nn.Module | None) -> Tensor:
    """Return the tokens before the norm's own gain and bias."""
    gained, shift = norm_affine(norm, x.shape[-1])
    usable = gained.abs() > SMALLEST_GAIN * gained.abs().max()
    if not usable.any():
        return x
    gained, shift = gained[usable].to(x.device), shift[usable].to(x.device)
    return (x[..., usable.to(x.device)].double() - shift) / gained
