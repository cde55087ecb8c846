"""A trainability diagram as a picture that needs no paper to be read."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wellcond.plots.figure_files import new_figure, save
from wellcond.plots.phase_labels import misfits
from wellcond.propagation.thresholds import (
    ENTROPY_COLLAPSED,
    EXPLODING,
    RANK_COLLAPSED,
    SELF_ATTENDING,
    VANISHING,
    Thresholds,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from wellcond.propagation.diagram import Diagram

LEGEND = 44  # characters of a line of a legend
NAMES = {
    "beta": "sharpness of attention β  (0: every token alike; large: one token only)",
    "value_gain": "strength of the attention branch (variance gain of W_O W_V)",
    "mlp_gain": "strength of the MLP (variance gain of each matrix)",
    "bias": "variance of the biases",
    "residual_attention": "strength of the skip around attention",
    "residual_mlp": "strength of the skip around the MLP",
    "cosine": "similarity of the tokens at the input",
    "self_bias": "self-bias tr(W_QᵀW_K) ÷ √d",
    "depth": "number of blocks",
    "tokens": "number of tokens",
    "width": "width of the model",
    "head_dim": "width of a head",
}
# Distinguishable also without colour vision (Wong 2011), and in print by their brightness.
PHASES = {
    0: ("#f2f7f2", "can be trained"),
    RANK_COLLAPSED: ("#56b4e9", "tokens become alike"),
    ENTROPY_COLLAPSED: ("#e69f00", "attention collapses\nonto single tokens"),
    EXPLODING: ("#d55e00", "gradients explode"),
    VANISHING: ("#7570b3", "gradients vanish"),
    SELF_ATTENDING: ("#999999", "tokens attend to\nthemselves only"),
}
LABELS = {bit: label for bit, (_, label) in PHASES.items()}


def diagram_figure(found: Diagram, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a diagram, its phases named where they lie, its thresholds below."""
    figure = new_figure(7.2, 5.6)
    axes = figure.subplots()
    labels = draw_diagram(axes, found)
    figure.supxlabel(criteria(found.thresholds, found.parameters.get("depth")), fontsize=7.5, color="#555555")
    handles: list[Any] = []
    while more := unplaced(figure, axes, found, labels):  # a legend takes room from the labels that are left
        handles += more
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=8, frameon=False)
    return save(figure, path)


def unplaced(figure: Figure, axes: Any, found: Diagram, labels: dict[int, Text]) -> list[Any]:
    """Take away the labels that fit nowhere inside their phase; return what stands for them in a legend."""
    from matplotlib.patches import Patch

    patches = []
    for mask in misfits(figure, axes, found, labels):
        text = labels.pop(mask)
        colour: Any = phase_colours(found.phase)[found.phase == mask][0].tolist()
        name = textwrap.fill(text.get_text(), LEGEND)
        patches.append(Patch(facecolor=colour, edgecolor="#666666", linewidth=0.5, label=name))
        text.remove()
    return patches


def draw_diagram(axes: Any, found: Diagram) -> dict[int, Text]:
    """Draw the phases on axes, a mixture of colours where several things are wrong; return their labels by bit mask."""
    labels = {}
    image = phase_colours(found.phase)
    axes.pcolormesh(found.x.numpy(), found.y.numpy(), image.numpy(), shading="nearest", rasterized=True)
    for axis, name, values in ((axes.xaxis, found.names[0], found.x), (axes.yaxis, found.names[1], found.y)):
        axis.set_label_text(NAMES[name])
        ratios = values[1:] / values[:-1] if bool((values > 0).all()) and len(values) > 2 else torch.zeros(0)
        if len(ratios) and float(ratios.std()) < 0.1 * float(ratios.mean() - 1):
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    for mask, where in phase_places(found.phase):
        bits = [bit for bit in LABELS if bit and mask & bit] or [0]
        text = ",\n".join(LABELS[bit] for bit in bits)
        x, y = float(found.x[where[1]]), float(found.y[where[0]])
        label = axes.text(x, y, text, ha="center", va="center", fontsize=8.5 if len(bits) < 3 else 7, color="#222222")
        label.set_bbox({"facecolor": image[where].tolist(), "edgecolor": "none", "pad": 1.5, "alpha": 0.8})
        labels[mask] = label
    levels = [0.1, 0.3, 0.5, 0.7, 0.9]
    if min(found.cosine.shape) > 1 and any(float(found.cosine.min()) < v < float(found.cosine.max()) for v in levels):
        lines = axes.contour(
            found.x, found.y, found.cosine, levels, colors="#666666", linewidths=0.7, linestyles="dotted"
        )
        axes.clabel(lines, fontsize=6.5)
    axes.set_title(_title(found), fontsize=10)
    return labels


def criteria(limits: Thresholds, depth: int | None) -> str:
    """Return the thresholds in words."""
    blocks = "the last block" if depth is None else f"{depth} blocks"
    return (
        f"Alike: mean cosine of tokens > {limits.cosine:g} after {blocks}. Collapsed: entropy < {limits.entropy:g} "
        f"log T in some layer. Explode, vanish:\nthe squared gradient changes by more than 10^{limits.gradient:g} "
        f"on its way back. To themselves: own weight > {limits.own:g}.\nDotted: mean cosine of tokens after {blocks}. "
        "The first two limits agree best with what trained, the others are conventions."
    )


def _title(found: Diagram) -> str:
    """The question, and for which Transformers it is answered."""
    p = found.parameters
    norm = {"pre": "pre-norm", "post": "post-norm", "none": "without norm"}[p["norm"]]
    parts = [norm, *([p["activation"]] if isinstance(p["activation"], str) else [])]
    parts += [f"{p['depth']} blocks"] if "depth" in p else []
    parts += [f"{p['tokens']} tokens"] if "tokens" in p else []
    parts += ["infinitely long sequences"] if p["theory"] == "asymptotic" else []
    parts += ["decoder, its last tokens"] if p.get("causal") else []
    return "Which Transformers can be trained? " + ", ".join(parts)


def phase_colours(phase: Tensor) -> Tensor:
    """`(rows, columns, 3)` in [0, 1]."""
    palette = {bit: torch.tensor([int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for bit, (c, _) in PHASES.items()}
    image = torch.empty(*phase.shape, 3)
    for mask in sorted(set(phase.flatten().tolist())):
        own = [palette[bit] for bit in PHASES if bit and mask & bit] or [palette[0]]
        image[phase == mask] = torch.stack(own).mean(0)
    return image


def phase_places(phase: Tensor) -> list[tuple[int, tuple[int, int]]]:
    """For each phase of at least 2 % of the cells, the one that lies deepest inside it."""
    found = []
    for mask in sorted(set(phase.flatten().tolist())):
        inside = phase == mask
        if float(inside.double().mean()) < 0.02:
            continue
        left = inside.double()[None, None]
        last = left
        # Peel until nothing is left; what goes last lies deepest.
        for _ in range(max(phase.shape)):
            peeled = -torch.nn.functional.max_pool2d(-torch.nn.functional.pad(left, (1, 1, 1, 1)), 3, 1)
            if not bool(peeled.any()):
                break
            last = left = peeled
        rows, columns = torch.nonzero(last[0, 0], as_tuple=True)
        points = torch.stack([rows, columns]).double()
        k = int((points - points.mean(1, keepdim=True)).norm(dim=0).argmin())
        found.append((int(mask), (int(rows[k]), int(columns[k]))))
    return found
