"""Which initialisation for a model and data of one's own? `python examples/own_model.py` takes about two minutes."""

import torch
from torch import nn
from torch.nn import functional

import wellcond as wc


class Mixer(nn.Module):
    """Attention in words of one's own: nothing in it is called query, key or value."""

    def __init__(self, width: int = 32, parts: int = 4) -> None:
        super().__init__()
        self.norm, self.parts = nn.LayerNorm(width), parts
        self.wq_lin, self.snarf, self.veep, self.frobnicate = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (self.parts, -1)).transpose(1, 2) for f in (self.wq_lin, self.snarf, self.veep))
        return x + self.frobnicate(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), Mixer(), Mixer(), nn.LayerNorm(32), nn.Linear(32, 4))


x = torch.randn(600, 12, 4, generator=torch.Generator().manual_seed(0))
y = x.flip(1)  # each token is to give what stands as far from the other end
data = {"train": (x[:500], y[:500]), "test": (x[500:], y[500:])}

if __name__ == "__main__":
    batches = list(zip(x[:500].split(20), y[:500].split(20), strict=True))
    print(wc.recommend(build(), batches, loss=functional.mse_loss, seconds=60))
    print(wc.compare(build, data, schemes=["conditioned", "mimetic"], loss=functional.mse_loss, steps=200))
