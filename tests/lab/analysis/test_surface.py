"""Surfaces of results that are known: the fit against its formula, arms on and off it, and what explains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from tests.lab.outcomes import outcome
from wellcond.errors import WellcondError
from wellcond.lab.analysis.common_targets import common_targets
from wellcond.lab.analysis.explained import held_out, share_of
from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.analysis.response import fit_response
from wellcond.lab.analysis.surface import Surface
from wellcond.lab.analysis.surface_runs import BY_SURFACE, surface_of
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.recipe.settings import ArmSettings, Named, SurfaceGrid
from wellcond.lab.recipe.surface_grid import point_name, surface_grid

BETAS, GAINS = (0.01, 0.04, 0.16, 0.64), (0.03, 0.12, 0.5, 2.0)
STARTS = SurfaceGrid(beta=BETAS, branch=GAINS, seeds=(0, 1, 2))
NOISE = 0.004
SQRT2 = math.sqrt(2)  # between the theory's β and the measured one
KEYS = ("kappa_jacobian", "kappa_equilibrated", "kappa_query", "kappa_value", "kappa_qk", "kappa_vo")
Truth = Callable[[float, float], float]


def hill(beta: float, branch: float, top: tuple[float, float] = (0.2, 0.4)) -> float:
    return 0.7 - 0.02 * math.log(beta / top[0]) ** 2 - 0.03 * math.log(branch / top[1]) ** 2


def grid(arms: Iterable[str] = (), starts: SurfaceGrid = STARTS, baseline: str = "default") -> Recipe:
    """A recipe with arms of these names, and its grid."""
    settings = {name: ArmSettings() for name in dict.fromkeys([*arms, baseline])}
    names = {"task": Named(name="digits"), "model": Named(name="vit")}
    return surface_grid(Recipe(**names, arms=settings, baseline=baseline, surface=starts))


def looked(beta: float, branch: float, kappa: float = 10.0) -> tuple[dict[str, Any], ...]:
    return ({"step": 0, "beta": beta, "branch": branch, **dict.fromkeys(KEYS, kappa)},)


def runs(
    truth: Truth = hill,
    arms: dict[str, tuple[float, float, float]] | None = None,
    noise: float = NOISE,
    seed: int = 0,
    starts: SurfaceGrid = STARTS,
) -> list[Outcome]:
    """Runs of a grid, and of arms by name: β, g and by how much they are off the truth."""
    rng = np.random.default_rng(seed)
    shift = {s: 0.01 * rng.normal() for s in starts.seeds}
    places = {point_name(b, g): (b, g, 0.0) for b in starts.beta for g in starts.branch} | (arms or {})
    return [
        outcome(
            name,
            s,
            truth(b, g) + off + shift[s] + noise * rng.normal(),
            monitor=looked(b, g, kappa=1 + 100 * rng.random()),
            start={"beta": SQRT2 * b, "value_gain": g},
        )
        for name, (b, g, off) in places.items()
        for s in starts.seeds
    ]


def test_the_fit_is_that_of_its_kernel_written_out() -> None:
    """Mean and variance of a Gaussian process, from the chosen lengths and noise, by a solve of our own."""
    values = {(b, g): {0: hill(b, g) + 0.01 * np.sin(90 * b + g), 1: hill(b, g)} for b in BETAS for g in GAINS}
    found = fit_response(values)  # type: ignore[arg-type]
    kernel = found._process.kernel_
    amplitude, white = kernel.k1.k1.constant_value, kernel.k2.noise_level
    places = np.log([place for place in values for _ in range(2)])
    y = np.array([value for by_seed in values.values() for value in by_seed.values()])
    y -= np.tile([np.mean([v[s] for v in values.values()]) for s in (0, 1)], len(values))  # of each seed
    size = y.std()

    def k(a: Any, b: Any) -> Any:
        apart = (a[:, None] - b[None]) / np.array(found.lengths)
        return amplitude * np.exp(-0.5 * (apart**2).sum(-1))

    new = np.log([(0.02, 0.3), (0.5, 1.0)])
    whole = k(places, places) + white * np.eye(len(y))
    mean = np.mean(list(fit_mean(values))) + size * (k(new, places) @ np.linalg.solve(whole, y / size))
    variance = np.diag(k(new, new) - k(new, places) @ np.linalg.solve(whole, k(places, new)))
    ours, deviation = found.at([(0.02, 0.3), (0.5, 1.0)])
    np.testing.assert_allclose(ours, mean, rtol=1e-7)
    np.testing.assert_allclose(deviation, size * np.sqrt(variance), rtol=1e-5)
    assert found.noise == pytest.approx(size * math.sqrt(white))


def fit_mean(values: Any) -> list[float]:
    return [value for by_seed in values.values() for value in by_seed.values()]


def test_the_best_place_and_the_noise_are_found_within_their_errors() -> None:
    hits, noises = 0, []
    for seed in range(8):
        found = surface_of(grid(), runs(seed=seed))
        (b, g), best = found.best.place, found.best
        hits += best.first[0] <= 0.2 <= best.first[1] and best.second[0] <= 0.4 <= best.second[1]
        assert abs(math.log(b / 0.2)) < math.log(2)
        assert abs(math.log(g / 0.4)) < math.log(2)
        noises.append(found.noise)
    assert hits >= 6  # of two intervals of 95 % each
    assert np.mean(noises) == pytest.approx(NOISE, rel=0.15)  # 8 × 45 degrees of freedom: 4 % standard error


def test_an_arm_on_the_surface_has_no_residual_and_one_off_it_has_its_own() -> None:
    arms = {"on": (0.1, 0.3, 0.0), "off": (0.1, 0.3, 0.05), "outside": (0.001, 0.3, 0.0), "without": (0.1, 0.0, 0.0)}
    found = surface_of(grid(arms), runs(lambda b, g: hill(b, g or 0.1), arms))
    on, off = found["on"], found["off"]
    assert on.interval is not None
    assert on.interval[0] < 0 < on.interval[1]
    assert off.residual == pytest.approx(0.05, abs=3 * NOISE)
    assert off.interval is not None
    assert off.interval[0] > 0
    assert found["outside"].predicted is None
    assert found["without"].branch is None
    assert "outside" in str(found)
    with pytest.raises(WellcondError, match="no arm 'other'; there are on, off"):
        found["other"]


def test_what_makes_the_differences_explains_them_and_what_does_not_does_not() -> None:
    rng = np.random.default_rng(3)
    arms = {f"arm {i}": (*np.exp(rng.uniform(*np.log([[0.02, 0.05], [0.5, 1.5]]))), 0.0) for i in range(14)}
    found = surface_of(grid(arms), runs(arms=arms))  # type: ignore[arg-type]
    shares = {one.predictor: one for one in found.shares}
    assert shares[BY_SURFACE].share is not None
    assert shares[BY_SURFACE].share > 0.85
    assert shares["β and g"].share is not None
    assert shares["β and g"].share > 0.9  # the truth is a parabola
    assert shares["κ(J)"].share is not None
    assert shares["κ(J)"].share < 0.3
    assert {one.arms for one in found.shares} == {14}
    assert found.noise_share is not None
    assert 0 < found.noise_share < 0.1


def test_a_number_that_is_not_known_of_an_arm_leaves_that_arm_out_of_its_own_share_alone() -> None:
    arms = {f"arm {i}": (0.02 * 1.3**i, 0.1, 0.0) for i in range(9)}
    made = runs(arms=arms)
    made = [
        run if run.arm != "arm 3" else outcome(run.arm, run.seed, run.result, monitor=looked(0.044, 0.1, math.inf))
        for run in made
    ]
    shares = {one.predictor: one.arms for one in surface_of(grid(arms), made).shares}
    assert (shares["κ(J)"], shares["β"], shares[BY_SURFACE]) == (8, 9, 9)


def test_each_arm_is_predicted_by_a_fit_to_the_others() -> None:
    rng = np.random.default_rng(0)
    numbers, y = np.exp(rng.normal(size=(9, 2))), rng.normal(size=9)
    told = held_out(numbers.tolist(), y.tolist())
    assert told is not None
    x = np.log(numbers)
    design = np.hstack([np.ones((9, 1)), x, x**2])
    for i in range(9):
        rest = np.arange(9) != i
        coefficients = np.linalg.solve(design[rest].T @ design[rest], design[rest].T @ y[rest])
        expected = float(np.clip(design[i] @ coefficients, y[rest].min(), y[rest].max()))
        assert told[i] == pytest.approx(expected, rel=1e-6)
    assert held_out(numbers[:5].tolist(), y[:5].tolist()) is None
    assert held_out(numbers[:, :1].tolist(), y.tolist()) is not None


def test_an_arm_without_which_the_others_tell_no_curve_is_their_mean_and_not_itself() -> None:
    numbers = [[1.0]] * 5 + [[3.0]] * 4 + [[80.0]]
    y = [0.02, 0.03, 0.01, 0.02, 0.02, 0.03, 0.02, 0.02, 0.03, 0.018]
    told = held_out(numbers, y)
    assert told is not None
    assert told[-1] == pytest.approx(np.mean(y[:-1]))


def test_a_share_is_of_the_variance_between_arms() -> None:
    means = [0.1, 1.1, 2.1]
    found = share_of("half", means, [0.6, 1.1, 1.6])
    assert found.share == pytest.approx(0.75)
    assert found.interval is not None
    assert found.interval[0] <= 0.75 <= found.interval[1]
    assert share_of("none", means, None).share is None
    alike = share_of("alike", [0.1 + 1e-17, 0.1, 0.1, 0.1], [0.1] * 4)
    assert (alike.share, alike.interval) == (None, None)


def test_what_seeds_do_to_all_arms_is_no_difference_between_them() -> None:
    arms = {f"arm {i}": (0.02 * 1.5**i, 0.1 * 1.2**i, 0.0) for i in range(8)}
    made = [
        outcome(run.arm, run.seed, (run.result or 0) + 0.1 * run.seed, monitor=run.monitor) for run in runs(arms=arms)
    ]
    plain, shifted = (surface_of(grid(arms), each) for each in (runs(arms=arms), made))
    ours, theirs = shifted.shares[0], plain.shares[0]
    assert ours.share == pytest.approx(theirs.share, abs=1e-3)
    assert shifted.noise == pytest.approx(plain.noise, rel=1e-3)


def test_runs_of_another_grid_in_the_folder_are_passed_over() -> None:
    arms = {"on": (0.1, 0.3, 0.0)}
    stray = [outcome("β 0.3, g 0.3", 0, 0.9, monitor=looked(0.3, 0.3)), outcome("on", 7, 0.9, monitor=looked(0.1, 0.3))]
    found = surface_of(grid(arms), runs(arms=arms) + stray)
    assert found.to_dict() == surface_of(grid(arms), runs(arms=arms)).to_dict()


def test_a_best_at_the_edge_is_told() -> None:
    def ridge(beta: float, branch: float) -> float:
        return 0.5 + 0.05 * math.log(beta) - 0.02 * math.log(branch / 0.3) ** 2

    found = surface_of(grid(), runs(ridge))
    assert found.best.place[0] == 0.64
    assert "; β is at the edge of the grid, and a better one may lie beyond" in str(found)
    flat = surface_of(grid(), runs(lambda b, g: 0.5 - 0.02 * math.log(g / 0.3) ** 2))
    assert flat.edge == "; β is not shown to matter"
    assert surface_of(grid(), runs()).edge == ""


def test_a_first_test_that_is_no_number_leaves_its_start_out() -> None:
    made = [
        outcome(run.arm, run.seed, run.result, test=((0, math.nan), (9, 0.5)), monitor=run.monitor)
        if run.arm == point_name(0.01, 0.03)
        else run
        for run in runs()
    ]
    assert any("'β 0.01, g 0.03'" in one for one in surface_of(grid(), made).left_out)


def test_regret_at_a_place_does_not_depend_on_what_else_is_asked() -> None:
    found = surface_of(grid(), runs()).response
    alone = found.regret([(0.2, 0.4)])[0][0]
    beside = found.regret([(0.2, 0.4), (50.0, 0.4)])[0][0]
    assert beside == pytest.approx(alone, abs=NOISE / 2)  # of other draws
    assert alone < NOISE


def test_own_weights_are_those_of_the_baseline_wherever_it_stands() -> None:
    arms = {"first": (0.2, 0.4, 0.0), "own": (0.01, 0.03, 0.0)}
    made = surface_of(grid(arms, baseline="own"), runs(arms=arms))
    short = common_targets({"a": (made, 2), "b": (made, 8)}).baseline
    assert short["a"] == pytest.approx(hill(0.2, 0.4) - hill(0.01, 0.03), abs=0.02)
    without = surface_of(grid(arms), runs(arms=arms))  # of which the default has no run
    assert common_targets({"a": (without, 2), "b": (without, 8)}).baseline["a"] is None


def test_less_of_a_perplexity_is_better_and_what_is_lost_is_untrained() -> None:
    def run(name: str, seed: int, place: tuple[float, float]) -> Outcome:
        loss = 3 - 3 * hill(*place)
        lost = place == (BETAS[-1], GAINS[-1])
        tests = ((0, math.exp(4.0)), *(() if lost else ((9, math.exp(loss)),)))
        words = {"metric": "perplexity", "higher_is_better": False, "status": "diverged" if lost else "finished"}
        return outcome(name, seed, 1.0, test=tests, monitor=looked(*place), **words)

    places = {point_name(b, g): (b, g) for b in BETAS for g in GAINS} | {"arm": (0.1, 0.3)}
    found = surface_of(grid(["arm"]), [run(name, s, place) for name, place in places.items() for s in range(3)])
    assert (found.metric, found.higher_is_better) == ("log perplexity", False)
    assert found.untrained == pytest.approx(4.0)
    assert found.grid[-1].lost == 3
    assert list(found.grid[-1].results.values()) == pytest.approx([4.0] * 3)
    assert found.best.value < 1.3
    assert found["arm"].results[0] == pytest.approx(3 - 3 * hill(0.1, 0.3))


def test_a_start_without_every_seed_is_left_out_and_told() -> None:
    made = [run for run in runs() if (run.arm, run.seed) != (point_name(0.01, 0.03), 2)]
    found = surface_of(grid(), made)
    assert len(found.grid) == 15
    assert "left out: 'β 0.01, g 0.03', of which not every seed has a result" in str(found)
    kept = {point_name(b, g) for b in BETAS for g in GAINS[:2]}
    few = [run for run in made if run.arm in kept]
    with pytest.raises(WellcondError, match="takes 9 starts or more; 7 have a result"):
        surface_of(grid(), few)


def surfaces(rule: Callable[[int], float]) -> dict[str, tuple[Surface, int]]:
    """Tasks of 2, 8 and 32 layers whose best gain follows a rule."""
    found = {}
    for seed, layers in enumerate((2, 8, 32)):

        def truth(b: float, g: float, layers: int = layers) -> float:
            return hill(b, g, (0.1, rule(layers)))

        own = {"own": (0.01, 0.03, 0.0)}
        found[f"{layers} layers"] = surface_of(grid(own, baseline="own"), runs(truth, own, seed=seed)), layers
    return found


def test_the_rule_of_depth_that_holds_costs_less_on_a_task_that_it_was_not_chosen_on() -> None:
    by_depth = common_targets(surfaces(lambda layers: 1 / math.sqrt(2 * layers)))
    assert by_depth.mean_regret("1/sqrt(2L)") < by_depth.mean_regret("constant")
    chosen = by_depth.chosen("1/sqrt(2L)")
    assert chosen.factor == pytest.approx(1, rel=0.5)
    assert chosen.beta == pytest.approx(0.1, rel=0.5)
    alike = common_targets(surfaces(lambda layers: 0.25))
    assert alike.mean_regret("constant") < alike.mean_regret("1/sqrt(2L)")
    task = "8 layers"
    mean, low, high = alike.left_out("constant", task).regret[task]
    assert low <= mean <= high
    assert low >= 0
    own = alike.baseline[task]
    assert own == pytest.approx(hill(0.1, 0.25, (0.1, 0.25)) - hill(0.01, 0.03, (0.1, 0.25)), abs=0.02)
    assert "β" in str(alike)
    assert len(alike.records()) == 6


def test_targets_need_tasks_that_have_something_in_common() -> None:
    first = surfaces(lambda layers: 0.25)
    with pytest.raises(WellcondError, match="two surfaces or more"):
        common_targets(dict([next(iter(first.items()))]))
    far = SurfaceGrid(beta=(3.0, 4.0, 5.0), branch=(0.1, 0.3, 1.0), seeds=(0, 1))
    other = surface_of(grid(starts=far), runs(starts=far)), 2
    with pytest.raises(WellcondError, match="no β in common"):
        common_targets({"far": other} | first)
