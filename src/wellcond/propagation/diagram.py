"""`wc.Diagram`, the result of `wc.trainability`: verdicts over a plane of two parameters, and trainable intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from wellcond._core.argument_types import File, Range
from wellcond._core.checked import checked
from wellcond._core.result_table import ResultTable, Tabular
from wellcond._core.short_repr import short_repr
from wellcond.errors import WellcondError
from wellcond.propagation.diagram_axes import as_parameter, widest_interval
from wellcond.propagation.diagram_cells import plane_cells, run_cells
from wellcond.propagation.parameters import check_parameters, in_double_precision, is_number
from wellcond.propagation.thresholds import PHASE_WORDS, Thresholds, phase_words, phases

Resolution = Annotated[int, Range(1, 2000), "a whole number of cells along an axis, from 1 to 2000"]
PREDICTED = ("cosine", "entropy", "participation", "own", "gradient_growth", "collapse_depth", "phase")


@dataclass(frozen=True, eq=False)  # tensors are equal element by element
class Diagram(Tabular):
    """A trainability diagram: predictions over a plane of two parameters; tensors have the shape `(len(y), len(x))`.

    Args:
        x: values along the horizontal axis.
        y: values along the vertical axis.
        names: of the two parameters.
        cosine: of the tokens after the last block.
        entropy: E[H] ÷ log T of the sharpest layer.
        participation: E[Σ p²] of the sharpest layer.
        own: weight of the own token in the layer that has most of it.
        gradient_growth: log10 of the squared gradient at the input ÷ that at the output.
        collapse_depth: the first block behind which tokens are more alike than the threshold says; infinite if none is.
        phase: bit mask of what is wrong, 0 where nothing is: see `wellcond.propagation.thresholds`.
        thresholds: of the verdict.
        parameters: all others.

    >>> import wellcond as wc
    >>> dia = wc.trainability(x=("beta", 0.1, 8), y=("value_gain", 0.1, 1), depth=12, tokens=64, resolution=20)
    >>> dia.phase.shape, dia.verdict(beta=0.5, value_gain=0.3), dia.verdict(beta=7.0, value_gain=0.3)
    (torch.Size([20, 20]), 'trainable', 'entropy collapse')
    """

    x: Tensor
    y: Tensor
    names: tuple[str, str]
    cosine: Tensor
    entropy: Tensor
    participation: Tensor
    own: Tensor
    gradient_growth: Tensor
    collapse_depth: Tensor
    phase: Tensor
    thresholds: Thresholds
    parameters: Mapping[str, Any]

    @checked
    def verdict(self, **at: Any) -> str:
        """Say what is wrong at a point; both parameters are given by name.

        A gain may be all that `wc.propagate` takes, such as a layer's `value_gain` of three numbers.
        """
        if set(at) != set(self.names):
            raise WellcondError(f"a point of this diagram has {self.names[0]}= and {self.names[1]}=, got {sorted(at)}")
        for name, value in at.items():
            parts = value if isinstance(value, tuple) else (value,)
            if not all(is_number(part) and not (isinstance(part, Tensor) and part.numel() != 1) for part in parts):
                hint = "; where weights do not set it, take the batch's" if value is None else ""
                raise WellcondError(f"{name} is a number on this diagram, got {short_repr(value)}{hint}")
        point = {
            name: v if isinstance(v, tuple) else as_parameter(name, torch.tensor(float(v), dtype=torch.float64))
            for name, v in at.items()
        }
        given = in_double_precision({**self.parameters, **point})
        check_parameters(given)
        cell = run_cells(given, [given["depth"]], self.thresholds.cosine)[0]
        return phase_words(int(phases(cell.cosine, cell.entropy, cell.own, cell.growth, self.thresholds)))

    @checked
    def window(self, **at: float) -> tuple[float, float] | None:
        """Return the widest trainable interval of one parameter, the other being given; None if there is none.

        >>> import wellcond as wc
        >>> dia = wc.trainability(x=("beta", 0.1, 8), y=("value_gain", 0.1, 1), depth=12, tokens=64, resolution=40)
        >>> low, high = dia.window(value_gain=0.3)
        >>> low, round(high, 2)
        (0.1, 5.82)
        """
        if len(at) != 1 or not set(at) <= set(self.names):
            raise WellcondError(
                f"a window is asked for at {self.names[0]}= or {self.names[1]}=, one of the two; got {sorted(at)}"
            )
        ((fixed, value),) = at.items()
        free = self.x if fixed == self.names[1] else self.y
        other = self.names[0] if fixed == self.names[1] else self.names[1]
        exactly = torch.tensor([value], dtype=torch.float64)
        line = compute_diagram((other, fixed), free, exactly, dict(self.parameters), self.thresholds)
        return widest_interval(free.tolist(), _excess(line, self.thresholds).reshape(-1, len(free)))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers and strings; rows of cells from the lowest y up."""
        activation = self.parameters.get("activation")
        named = {"activation": activation if isinstance(activation, str) else "function"} if activation else {}
        return {
            "names": self.names,
            "x": self.x.tolist(),
            "y": self.y.tolist(),
            **{name: getattr(self, name).tolist() for name in PREDICTED},
            "phases": {word: bit for bit, word in PHASE_WORDS.items()},
            "thresholds": asdict(self.thresholds),
            "parameters": {**self.parameters, **named},
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one row per cell: the two parameters by name, what is predicted there, and the verdict in words.

        >>> import wellcond as wc
        >>> dia = wc.trainability(("beta", 0.1, 8), ("value_gain", 0.1, 1), depth=12, tokens=64, resolution=2)
        >>> [(row["beta"], row["value_gain"], row["verdict"]) for row in dia.records()][:2]
        [(0.1, 0.1, 'trainable'), (8.0, 0.1, 'entropy collapse')]
        """
        cells = zip(*(getattr(self, name).flatten().tolist() for name in PREDICTED), strict=True)
        places = [{self.names[0]: x, self.names[1]: y} for y in self.y.tolist() for x in self.x.tolist()]
        return [
            place | dict(zip(PREDICTED, cell, strict=True)) | {"verdict": phase_words(cell[-1])}
            for place, cell in zip(places, cells, strict=True)
        ]

    def _result_table(self) -> ResultTable:
        """The share of the plane that has each verdict."""
        masks = sorted(set(self.phase.flatten().tolist()))
        shares = sorted(((float((self.phase == mask).double().mean()), mask) for mask in masks), key=lambda s: -s[0])
        rows = [[f"{100 * share:.1f} %", phase_words(int(mask))] for share, mask in shares]
        axes = zip(self.names, (self.x, self.y), strict=True)
        ends = [f"{name} {float(along.min()):g} … {float(along.max()):g}" for name, along in axes]
        return ResultTable(["of the plane", "verdict"], rows, f"{ends[0]} × {ends[1]}")

    @checked
    def plot(self, path: File | None = None) -> Any:
        """Draw phases in colour and what decides as lines, as a matplotlib figure, also written to a file."""
        from wellcond.plots.diagram import diagram_figure

        return diagram_figure(self, path)


def compute_diagram(
    names: tuple[str, str], x: Tensor, y: Tensor, given: dict[str, Any], limits: Thresholds, *, gradients: bool = True
) -> Diagram:
    """Predict and judge every cell of the plane of two named parameters; `given` holds all others."""
    grids = {names[0]: x[None, :].expand(len(y), -1), names[1]: y[:, None].expand(-1, len(x))}
    for corner in ((x.min(), y.min()), (x.max(), y.max())):
        check_parameters({**given, **{n: as_parameter(n, value) for n, value in zip(names, corner, strict=True)}})
    cells = plane_cells(grids, given, limits.cosine, gradients=gradients)
    return Diagram(
        x,
        y,
        names,
        cells.cosine,
        cells.entropy,
        cells.participation,
        cells.own,
        cells.growth,
        torch.where(cells.cosine > limits.cosine, cells.collapse, torch.inf),
        phases(cells.cosine, cells.entropy, cells.own, cells.growth, limits),
        limits,
        {name: value for name, value in given.items() if name not in names},
    )


def _excess(found: Diagram, limits: Thresholds) -> Tensor:
    """By how much each criterion is exceeded, `(criteria, len(y), len(x))`; negative where it holds."""
    growth = torch.nan_to_num(found.gradient_growth, nan=math.inf, posinf=1e3, neginf=-1e3)
    return torch.stack(
        [
            found.cosine - limits.cosine,
            limits.entropy - found.entropy,
            growth.abs() - limits.gradient,
            found.own - limits.own,
        ]
    )
