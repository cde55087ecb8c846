r"""A smooth response over a plane of two positive numbers, with its uncertainty: a Gaussian process in logarithms.

y(β, g, seed) = f(log β, log g) + s(seed) + ε, the kernel of f being an amplitude times exp(−½ Σ (Δxᵢ ÷ ℓᵢ)²) and ε
independent noise; amplitude, lengths and noise are those of the largest marginal likelihood. Seeds are paired, so s is
taken out by the means of each (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, chapters 2 and 5).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

Place = tuple[float, float]
Array = NDArray[np.float64]
SMOOTH = (1.0, 30.0)  # lengths: what a factor of e changes is seen, and nothing finer, as grids are not
RESTARTS = 4  # of the search for the largest likelihood
DRAWS = 400  # of the surface, from which the interval of its best place is read
ALONG = 25  # places along each axis among which the best is sought


@dataclass(frozen=True)
class Best:
    """Where a response is largest, within the plane that was looked at.

    Args:
        place: of the largest mean.
        value: the mean there.
        first: 95 % of the draws of the surface have their best between these, along the first axis.
        second: along the second.
    """

    place: Place
    value: float
    first: Place
    second: Place


@dataclass(frozen=True)
class Response:
    """A fitted response.

    Args:
        places: where it was measured.
        noise: deviation of one measurement around it.
        lengths: in which it changes along each axis, in units of the logarithm.
    """

    places: tuple[Place, ...]
    noise: float
    lengths: Place
    _process: Any = field(repr=False, compare=False)
    _centre: Array = field(repr=False, compare=False)
    _scale: tuple[float, float] = field(repr=False, compare=False)  # mean and deviation of what was fitted

    def at(self, places: Sequence[Place]) -> tuple[Array, Array]:
        """Return mean and standard deviation of the response itself, without the noise of a measurement."""
        mean, covariance = self._process.predict(self._inputs(places), return_cov=True)
        variance = np.clip(np.diag(covariance) - self._white(), 0, None)
        middle, size = self._scale
        return middle + size * mean, size * np.sqrt(variance)

    def reaches(self, place: Place) -> bool:
        """Return whether a place is within the plane that was looked at."""
        return all(min(p[i] for p in self.places) <= place[i] <= max(p[i] for p in self.places) for i in (0, 1))

    def best(self) -> Best:
        """Return the place of the largest response, with an interval from draws of the surface."""
        plane = self._plane()
        mean, drawn = self._drawn(plane)
        places = np.array(plane)
        ends = np.quantile(places[np.argmax(drawn, axis=1)], [0.025, 0.975], axis=0, method="nearest")
        half = (places.max(0) / places.min(0)) ** (0.5 / (ALONG - 1))  # a place stands for what is nearer to it
        low, high = np.maximum(ends[0] / half, places.min(0)), np.minimum(ends[1] * half, places.max(0))
        top = int(np.argmax(mean))
        return Best(plane[top], float(mean[top]), (float(low[0]), float(high[0])), (float(low[1]), float(high[1])))

    def regret(self, places: Sequence[Place]) -> tuple[Array, Array, Array]:
        """Return what the response falls short of its best in the plane by, at some places: mean and 95 % of draws."""
        _, drawn = self._drawn([*places, *self._plane()])
        best = drawn[:, len(places) :].max(1, keepdims=True)
        short = np.clip(best - drawn[:, : len(places)], 0, None)
        low, high = np.quantile(short, [0.025, 0.975], axis=0)
        return short.mean(0), low, high

    def _plane(self) -> list[Place]:
        axes = [np.geomspace(min(p[i] for p in self.places), max(p[i] for p in self.places), ALONG) for i in (0, 1)]
        return [(float(a), float(b)) for a in axes[0] for b in axes[1]]

    def _drawn(self, places: Sequence[Place]) -> tuple[Array, Array]:
        """The mean of the response at some places, and draws of it, always the same."""
        mean, covariance = self._process.predict(self._inputs(places), return_cov=True)
        values, vectors = np.linalg.eigh(covariance - self._white() * np.eye(len(places)))
        normal = np.random.default_rng(0).standard_normal((DRAWS, len(places)))
        drawn = mean + normal * np.sqrt(np.clip(values, 0, None)) @ vectors.T
        middle, size = self._scale
        return middle + size * mean, middle + size * drawn

    def _inputs(self, places: Sequence[Place]) -> Array:
        return np.log(np.asarray(places, dtype=np.float64)) - self._centre

    def _white(self) -> float:
        return float(self._process.kernel_.k2.noise_level)


def fit_response(values: Mapping[Place, Mapping[int, float]]) -> Response:
    """Fit a response to measurements by place and seed.

    >>> plane = [(b, g) for b in (0.1, 0.2, 0.4, 0.8) for g in (0.1, 0.2, 0.4)]
    >>> found = fit_response({(b, g): {0: -np.log(b / 0.2) ** 2, 1: 3 - np.log(b / 0.2) ** 2} for b, g in plane})
    >>> bool(0.18 < found.best().place[0] < 0.22)
    True
    """
    places = list(values)
    means = seed_means(values)
    whole = float(np.mean(list(means.values())))
    pairs = [(place, value - means[seed] + whole) for place in places for seed, value in values[place].items()]
    centre = np.log(np.asarray(places)).mean(0)
    x = np.log(np.asarray([place for place, _ in pairs])) - centre
    y = np.asarray([value for _, value in pairs])
    scale = float(y.mean()), float(y.std()) or 1.0
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF((2.0, 2.0), SMOOTH) + WhiteKernel(0.1, (1e-8, 10.0))
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=RESTARTS, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound is an axis that does not matter
        process.fit(x, (y - scale[0]) / scale[1])
    lengths = process.kernel_.k1.k2.length_scale
    noise = scale[1] * float(np.sqrt(process.kernel_.k2.noise_level))
    return Response(tuple(places), noise, (float(lengths[0]), float(lengths[1])), process, centre, scale)


def seed_means(values: Mapping[Place, Mapping[int, float]]) -> dict[int, float]:
    """Return the mean of each seed over the places; every place has every seed.

    >>> seed_means({(1.0, 1.0): {0: 1.0, 1: 3.0}, (2.0, 1.0): {0: 2.0, 1: 4.0}})
    {0: 1.5, 1: 3.5}
    """
    seeds = next(iter(values.values()))
    return {seed: float(np.mean([by_seed[seed] for by_seed in values.values()])) for seed in seeds}
