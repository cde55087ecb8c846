"""A response surface: the result of training over sharpness β and gain g at the start, and what it says of schemes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from wellcond._core.json_safe import plain
from wellcond._core.numbers import three_digits
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.errors import WellcondError
from wellcond.lab.analysis.explained import Share
from wellcond.lab.analysis.response import Best, Response, fit_response

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure


EVEN = 2.0  # largest ÷ least gain of layers that are called alike


@dataclass(frozen=True)
class GridPlace:
    """A start of the grid: its targets, where it is on the trainability diagram, and its results.

    Args:
        beta: target of the sharpness.
        branch: target of the gain.
        results: of the final test, by seed; what was lost is as good as untrained.
        lost: seeds that diverged.
        on_diagram: β and the variance gain of the branch, as the trainability diagram has them; None where the model
            could not be located.
    """

    beta: float
    branch: float
    results: Mapping[int, float]
    lost: int
    on_diagram: tuple[float, float] | None


@dataclass(frozen=True)
class ArmPlace:
    """An arm on the surface.

    Args:
        arm: its name.
        control_of: the arm that it is a control of, if it is one.
        beta: sharpness at the start, mean over layers and seeds; None where it was not measured.
        branch: gain at the start, likewise.
        layers: least and largest gain of a layer, means over seeds; None where they were not measured.
        results: by seed; what was lost is as good as untrained.
        lost: seeds that diverged.
        predicted: by the surface, which knows nothing of the arm; None outside the grid.
        residual: mean result minus what is predicted.
        interval: 95 %, of the residual: of seeds and of the surface.
        numbers: measured at the start, by key.
    """

    arm: str
    control_of: str | None
    beta: float | None
    branch: float | None
    layers: tuple[float, float] | None
    results: Mapping[int, float]
    lost: int
    predicted: float | None
    residual: float | None
    interval: tuple[float, float] | None
    numbers: Mapping[str, float | None]

    @property
    def uneven(self) -> str:
        """The gains of the layers where they are not alike, as they are in all starts of the grid; else empty."""
        if self.layers is None or self.layers[1] <= EVEN * self.layers[0]:
            return ""
        return " to ".join(three_digits(gain) for gain in self.layers)


@dataclass(frozen=True)
class Surface(Tabular):
    """Results over a grid of starts, a smooth response, and the arms of a recipe on it.

    Args:
        metric: of the results; `"log perplexity"` for a perplexity.
        higher_is_better: whether more of it is better.
        untrained: mean before training.
        baseline: the arm whose weights the starts of the grid are.
        grid: starts, by β and then by g.
        arms: of the recipe, controls too.
        noise: deviation of one run around the response.
        best: where the response is best, within the grid.
        shares: of the variance between arms that predictors explain.
        noise_share: of that variance, over arms inside the grid, which is the standard error of the means.
        left_out: starts without a result of every seed, and why.
    """

    metric: str
    higher_is_better: bool
    untrained: float
    baseline: str
    grid: tuple[GridPlace, ...]
    arms: tuple[ArmPlace, ...]
    noise: float
    best: Best
    shares: tuple[Share, ...]
    noise_share: float | None
    left_out: tuple[str, ...]

    @cached_property
    def response(self) -> Response:
        """The fitted response; of a metric of which less is better, with its sign changed."""
        return fit_grid(self.grid, self.higher_is_better)

    @property
    def edge(self) -> str:
        """Say where the best is at the edge of the grid, or may be anywhere along an axis; else nothing."""
        said = ""
        for name, place, ends, along in (
            ("β", self.best.place[0], self.best.first, [one.beta for one in self.grid]),
            ("g", self.best.place[1], self.best.second, [one.branch for one in self.grid]),
        ):
            if ends[0] <= min(along) and ends[1] >= max(along):
                said += f"; {name} is not shown to matter"
            elif place in (min(along), max(along)):
                said += f"; {name} is at the edge of the grid, and a better one may lie beyond"
        return said

    def __getitem__(self, arm: str) -> ArmPlace:
        for one in self.arms:
            if one.arm == arm:
                return one
        raise WellcondError(f"no arm '{arm}'; there are {', '.join(one.arm for one in self.arms)}")

    def records(self) -> list[dict[str, Any]]:
        """Return one row per arm."""
        keys = ("arm", "control_of", "beta", "branch", "predicted", "residual", "interval", "lost")
        return [{key: getattr(one, key) for key in keys} | {self.metric: _mean(one.results)} for one in self.arms]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dictionaries."""
        data: dict[str, Any] = plain(asdict(self))
        return data

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the response over the plane, with the grid, the arms and the best; write it if there is a path."""
        from wellcond.lab.figures.surface import surface_figure

        return surface_figure(self, path)

    def _result_table(self) -> ResultTable:
        rows = [
            [
                one.arm,
                three_digits(one.beta),
                three_digits(one.branch) + (f" ({one.uneven})" if one.uneven else ""),
                f"{_mean(one.results):.4g}{f' ({one.lost} lost)' if one.lost else ''}",
                "outside" if one.predicted is None else f"{one.predicted:.4g}",
                "" if one.residual is None else f"{one.residual:+.3g}{_ends(one.interval, '+.3g')}",
            ]
            for one in self.arms
        ]
        best, (place, first, second) = self.best, (self.best.place, self.best.first, self.best.second)
        notes = [
            "",
            f"best of the surface: {best.value:.4g} at β {place[0]:.2g}{_ends(first, '.2g')}, g {place[1]:.2g}"
            f"{_ends(second, '.2g')}{self.edge}; one run differs from it by {self.noise:.2g}",
            "share of the variance between arms that is explained, each arm held out:",
            *(f"  {one.predictor}: {share_text(one)}" for one in self.shares),
        ]
        if self.noise_share is not None:
            notes.append(f"  nothing explains {max(self.noise_share, 0):.2f} of it, which is the error of the means")
        if any(one.uneven for one in self.arms):
            notes.append("in brackets the gains of layers that differ: the surface knows starts whose layers are alike")
        notes += [f"left out: {one}" for one in self.left_out]
        header = ["arm", "β", "g", self.metric, "surface", "− surface"]
        seeds = len(self.grid[0].results)
        return ResultTable(header, rows, f"{len(self.grid)} starts of {seeds} seed{'' if seeds == 1 else 's'}", notes)


def fit_grid(grid: Sequence[GridPlace], higher_is_better: bool) -> Response:
    """Fit a response to the starts of a grid; of a metric of which less is better, with its sign changed."""
    sign = 1 if higher_is_better else -1
    return fit_response(
        {(one.beta, one.branch): {seed: sign * value for seed, value in one.results.items()} for one in grid}
    )


def share_text(one: Share) -> str:
    """Return a share as text, with its interval and over how many arms it is."""
    share = "–" if one.share is None else f"{one.share:.2f}{_ends(one.interval, '.2f')}"
    return f"{share} ({one.arms} arms)"


def _mean(results: Mapping[int, float]) -> float:
    return fmean(results.values())


def _ends(interval: tuple[float, float] | None, form: str) -> str:
    return "" if interval is None else f" [{interval[0]:{form}}, {interval[1]:{form}}]"
