"""Draw the README's picture: singular values and κ of each query head of a ViT-Tiny, before and after `conditioned`.

Usage: `python docs/figure.py docs/img/conditioned.svg`
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import timm
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

import wellcond as wc
from wellcond._core.linalg import svdvals

MODEL = "vit_tiny_patch16_224"
BEFORE, AFTER = "#c44e52", "#2a6f97"


def spectra(model: torch.nn.Module) -> torch.Tensor:
    """Singular values of every query head, `(layers, heads, d)`."""
    return torch.stack([svdvals(layer.query.read()) for layer in wc.attention_layers(model) if layer.query])


def draw_spectra(axes: Axes, before: torch.Tensor, after: torch.Tensor) -> None:
    """Each head's singular values over its largest one."""
    for sigma, colour, label in ((before, BEFORE, "timm's default"), (after, AFTER, "conditioned")):
        heads = sigma.flatten(0, 1)
        lines = axes.plot((heads / heads[:, :1]).T, color=colour, alpha=0.35, linewidth=0.8)
        lines[0].set_label(label)
    axes.set(xlabel="index", ylabel="σ ÷ σ_max", ylim=(0, 1.08), title="Singular values of each W_Q head")
    for handle in axes.legend(frameon=False, loc="lower left").legend_handles:
        if handle is not None:
            handle.set(alpha=1, linewidth=2)
    axes.spines[["top", "right"]].set_visible(False)


def draw_conditions(axes: Axes, before: torch.Tensor, after: torch.Tensor) -> None:
    """κ per layer and head, side by side on one colour scale."""
    kappa = torch.cat([sigma[..., 0] / sigma[..., -1] for sigma in (before, after)], dim=1)
    heads = before.shape[1]
    image = axes.imshow(kappa, aspect="auto", cmap="YlOrRd", norm=LogNorm(1, float(kappa.max())))
    for row, column in torch.cartesian_prod(torch.arange(kappa.shape[0]), torch.arange(kappa.shape[1])).tolist():
        value = float(kappa[row, column])
        shade = "white" if value > 2.5 else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=shade)
    axes.axvline(heads - 0.5, color="white", linewidth=4)
    axes.set_xticks([(heads - 1) / 2, heads + (heads - 1) / 2], ["timm's default", "conditioned"])
    axes.set(ylabel="layer", title=f"κ of each W_Q head ({heads} per layer)")
    axes.tick_params(length=0)
    axes.figure.colorbar(image, ax=axes, ticks=[1, 2, 3, 4], format="%d", label="κ = σ_max ÷ σ_min").minorticks_off()


def main(path: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(MODEL)
    before = spectra(model)
    wc.init_(model, "conditioned", seed=0)
    after = spectra(model)
    for name, sigma in (("before", before), ("after", after)):
        kappa = sigma[..., 0] / sigma[..., -1]
        print(f"κ of the query heads {name}: {kappa.min():.6f} to {kappa.max():.6f}")
    plt.rcParams.update({"svg.hashsalt": "wellcond", "font.size": 9, "axes.titlesize": 10})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    draw_spectra(left, before, after)
    draw_conditions(right, before, after)
    figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1])
