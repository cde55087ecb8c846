"""`wc.trainability`: predict where on a plane of two parameters a deep stack can be trained."""

from __future__ import annotations

from typing import Any

import torch

from wellcond._core.checked import checked
from wellcond.propagation.diagram import Diagram, Resolution, compute_diagram
from wellcond.propagation.diagram_axes import Axis, all_parameters, axis_values
from wellcond.propagation.parameters import in_double_precision
from wellcond.propagation.propagate import propagate
from wellcond.propagation.thresholds import Thresholds


@checked
def trainability(
    x: Axis,
    y: Axis,
    *,
    resolution: Resolution = 200,
    thresholds: Thresholds | None = None,
    gradients: bool = True,
    **parameters: Any,
) -> Diagram:
    """Predict which settings can be trained: neither collapsed in rank nor in entropy, with gradients in range.

    Two failure modes of deep Transformers (arXiv 2505.24333), exact at finite length. Statistics of attention are read
    from tables that agree with `wc.propagate` to 2e-4 in the cosine.

    Args:
        x: name, lowest and highest value of the horizontal axis, and `"log"` for even ratios.
        y: the same of the vertical axis.
        resolution: cells along each axis; at most 24 where each needs statistics of its own (tokens, head_dim).
        thresholds: of the verdict.
        gradients: whether to follow gradients as well.
        **parameters: any of `wc.propagate`; a decoder (`causal=True`) is taken by its last tokens, which see all.

    >>> import wellcond as wc
    >>> dia = wc.trainability(("beta", 0.05, 4), ("residual_attention", 0.1, 2), depth=24, tokens=64, resolution=10)
    >>> int((dia.phase == 0).sum()) > 0
    True
    """
    given = in_double_precision(all_parameters(propagate, parameters, (x, y)))
    names = (x[0], y[0])
    xs, ys = (axis_values(axis, resolution) for axis in (x, y))
    return compute_diagram(names, xs, ys, given, thresholds or Thresholds(), gradients=gradients)


@checked
def window(
    x: Axis, *, resolution: Resolution = 200, thresholds: Thresholds | None = None, **parameters: Any
) -> tuple[float, float] | None:
    """Return the widest trainable interval of one parameter, others as for `trainability`; None if there is none.

    >>> low, high = window(("beta", 0.05, 8), depth=24, tokens=197, value_gain=0.3)
    >>> low, round(high, 2)
    (0.05, 4.97)
    """
    other = "residual_mlp" if x[0] != "residual_mlp" else "residual_attention"
    at = parameters.pop(other, 1.0)
    given = in_double_precision(all_parameters(propagate, parameters, (x, (other, 0.0, 1.0))))
    line = torch.tensor([at], dtype=torch.float64)
    along = axis_values(x, resolution)
    return compute_diagram((x[0], other), along, line, given, thresholds or Thresholds()).window(**{other: at})
