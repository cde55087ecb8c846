"""`wc.trainability`: where on a plane of two parameters a deep stack can be trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from wellcond.checked import File, Range, checked, short
from wellcond.errors import WellcondError
from wellcond.progress import bar
from wellcond.propagation.axes import SEPARATE, Axis, as_parameter, complete, values
from wellcond.propagation.grid import Cells, run_cells
from wellcond.propagation.parameters import check, doubled, is_number
from wellcond.propagation.propagate import propagate
from wellcond.propagation.verdict import WORDS, Thresholds, phases, words
from wellcond.propagation.window import widest
from wellcond.tabular import ResultTable, Tabular

Resolution = Annotated[int, Range(1, 2000), "a whole number of cells along an axis, from 1 to 2000"]


@dataclass(frozen=True)
class Diagram(Tabular):
    """Cells over two parameters; tensors have the shape `(len(y), len(x))`.

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
        phase: bit mask of what is wrong, 0 where nothing is: see `wellcond.propagation.verdict`.
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
        """What is wrong at a point, in words; both parameters are given by name.

        A gain may be all that `wc.propagate` takes, such as a layer's `value_gain` of three numbers.
        """
        if set(at) != set(self.names):
            raise WellcondError(f"a point of this diagram has {self.names[0]}= and {self.names[1]}=, got {sorted(at)}")
        for name, value in at.items():
            parts = value if isinstance(value, tuple) else (value,)
            if not all(is_number(part) and not (isinstance(part, Tensor) and part.numel() != 1) for part in parts):
                hint = "; where weights do not set it, take the batch's" if value is None else ""
                raise WellcondError(f"{name} is a number on this diagram, got {short(value)}{hint}")
        point = {
            name: v if isinstance(v, tuple) else as_parameter(name, torch.tensor(float(v), dtype=torch.float64))
            for name, v in at.items()
        }
        given = doubled({**self.parameters, **point})
        check(given)
        cell = run_cells(given, [given["depth"]], self.thresholds.cosine)[0]
        return words(int(phases(cell.cosine, cell.entropy, cell.own, cell.growth, self.thresholds)))

    @checked
    def window(self, **at: float) -> tuple[float, float] | None:
        """The widest trainable interval of one parameter, the other being given; None if there is none.

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
        line = self._line(fixed, value, free)
        return widest(free.tolist(), _excess(line, self.thresholds).reshape(-1, len(free)))

    def _line(self, fixed: str, value: float, free: Tensor) -> Diagram:
        """The diagram of one line, at exactly the value given."""
        other = self.names[0] if fixed == self.names[1] else self.names[1]
        at = torch.tensor([value], dtype=torch.float64)
        return _diagram((other, fixed), free, at, dict(self.parameters), self.thresholds)

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers and strings; rows of cells from the lowest y up."""
        cells = ("cosine", "entropy", "participation", "own", "gradient_growth", "collapse_depth", "phase")
        activation = self.parameters.get("activation")
        named = {"activation": activation if isinstance(activation, str) else "function"} if activation else {}
        return {
            "names": self.names,
            "x": self.x.tolist(),
            "y": self.y.tolist(),
            **{name: getattr(self, name).tolist() for name in cells},
            "phases": {word: bit for bit, word in WORDS.items()},
            "thresholds": asdict(self.thresholds),
            "parameters": {**self.parameters, **named},
        }

    def records(self) -> list[dict[str, Any]]:
        """One row per cell: the two parameters by name, what is predicted there, and the verdict in words.

        >>> import wellcond as wc
        >>> dia = wc.trainability(("beta", 0.1, 8), ("value_gain", 0.1, 1), depth=12, tokens=64, resolution=2)
        >>> [(row["beta"], row["value_gain"], row["verdict"]) for row in dia.records()][:2]
        [(0.1, 0.1, 'trainable'), (8.0, 0.1, 'entropy collapse')]
        """
        columns = ["cosine", "entropy", "participation", "own", "gradient_growth", "collapse_depth", "phase"]
        cells = zip(*(getattr(self, name).flatten().tolist() for name in columns), strict=True)
        places = [{self.names[0]: x, self.names[1]: y} for y in self.y.tolist() for x in self.x.tolist()]
        return [
            place | dict(zip(columns, cell, strict=True)) | {"verdict": words(cell[-1])}
            for place, cell in zip(places, cells, strict=True)
        ]

    def _result_table(self) -> ResultTable:
        """How much of the plane is what."""
        share = {
            mask: float((self.phase == mask).double().mean()) for mask in sorted(set(self.phase.flatten().tolist()))
        }
        rows = [[f"{100 * part:.1f} %", words(int(mask))] for mask, part in sorted(share.items(), key=lambda s: -s[1])]
        ends = [
            f"{n} {float(v.min()):g} … {float(v.max()):g}" for n, v in zip(self.names, (self.x, self.y), strict=True)
        ]
        return ResultTable(["of the plane", "verdict"], rows, f"{ends[0]} × {ends[1]}")

    @checked
    def plot(self, path: File | None = None) -> Any:
        """Phases in colour, with the quantities that decide as lines; a matplotlib figure, also written to a file."""
        from wellcond.report.diagram import diagram_figure

        return diagram_figure(self, path)


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
    given = doubled(complete(propagate, parameters, (x, y)))
    names = (x[0], y[0])
    xs, ys = (values(axis, resolution) for axis in (x, y))
    return _diagram(names, xs, ys, given, thresholds or Thresholds(), gradients=gradients)


@checked
def window(
    x: Axis, *, resolution: Resolution = 200, thresholds: Thresholds | None = None, **parameters: Any
) -> tuple[float, float] | None:
    """The widest trainable interval of one parameter, all others given as for `trainability`; None if there is none.

    >>> low, high = window(("beta", 0.05, 8), depth=24, tokens=197, value_gain=0.3)
    >>> low, round(high, 2)
    (0.05, 4.97)
    """
    other = "residual_mlp" if x[0] != "residual_mlp" else "residual_attention"
    at = parameters.pop(other, 1.0)
    given = doubled(complete(propagate, parameters, (x, (other, 0.0, 1.0))))
    line = torch.tensor([at], dtype=torch.float64)
    along = values(x, resolution)
    return _diagram((x[0], other), along, line, given, thresholds or Thresholds()).window(**{other: at})


def _diagram(
    names: tuple[str, str],
    xs: Tensor,
    ys: Tensor,
    given: dict[str, Any],
    limits: Thresholds,
    *,
    gradients: bool = True,
) -> Diagram:
    grids = {names[0]: xs[None, :].expand(len(ys), -1), names[1]: ys[:, None].expand(-1, len(xs))}
    corner = {name: as_parameter(name, along.min()) for name, along in zip(names, (xs, ys), strict=True)}
    check({**given, **corner})
    check({**given, **{name: as_parameter(name, along.max()) for name, along in zip(names, (xs, ys), strict=True)}})
    cells = _cells(grids, given, limits.cosine, gradients=gradients)
    return Diagram(
        xs,
        ys,
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


def _cells(grids: Mapping[str, Tensor], given: Mapping[str, Any], threshold: float, *, gradients: bool) -> Cells:
    """Every cell; those that share a length or a head's width together."""
    name = next((name for name in grids if name in SEPARATE), None)
    if name is None:
        if "depth" not in grids:
            return run_cells({**given, **_named(grids)}, [given["depth"]], threshold, gradients=gradients)[0]
        depths = sorted({int(d) for d in grids["depth"].flatten().tolist()})
        others = {k: v for k, v in grids.items() if k != "depth"}
        found = run_cells({**given, **_named(others)}, depths, threshold, gradients=gradients)
        return _chosen(found, [grids["depth"] == depth for depth in depths])
    each = sorted(set(grids[name].flatten().tolist()))
    parts, masks = [], []
    others = {k: v for k, v in grids.items() if k != name}
    for value in bar(each, name):
        parts.append(_cells(others, {**given, name: int(value)}, threshold, gradients=gradients))
        masks.append(grids[name] == value)
    return _chosen(parts, masks)


def _chosen(parts: Sequence[Cells], masks: Sequence[Tensor]) -> Cells:
    """From each part the cells of its mask."""
    joined = parts[0]
    for part, mask in zip(parts[1:], masks[1:], strict=True):
        joined = Cells(
            *(torch.where(mask, new, old) for new, old in zip(vars(part).values(), vars(joined).values(), strict=True))
        )
    return joined


def _named(grids: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: as_parameter(name, grid) for name, grid in grids.items()}


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
