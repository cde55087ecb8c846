"""Student's t against scipy."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from scipy import stats

from wellcond._core.student import mean_interval, p_of_mean, quantile, within


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8, 29, 200])
def test_probabilities_and_quantiles_are_scipys(freedom):
    for t in (0.0, 0.3, 1.0, 2.5, 40.0):
        assert within(t, freedom) == pytest.approx(stats.t.cdf(t, freedom) - stats.t.cdf(-t, freedom), abs=1e-13)
    for share in (0.5, 0.9, 0.95, 0.999):
        assert quantile(share, freedom) == pytest.approx(stats.t.ppf((1 + share) / 2, freedom), rel=1e-9)


@pytest.mark.parametrize("count", [2, 3, 6, 15])
def test_intervals_and_p_values_are_scipys(count):
    values = torch.randn(count, generator=torch.Generator().manual_seed(count)).double().add(0.5).tolist()
    found = stats.ttest_1samp(values, 0.0)
    assert p_of_mean(fmean(values), stats.sem(values), count - 1) == pytest.approx(found.pvalue, abs=1e-12)
    assert mean_interval(values) == pytest.approx(tuple(found.confidence_interval(0.95)), rel=1e-9)


def test_values_without_spread_are_certain():
    assert p_of_mean(1.0, 0.0, 2) == 0.0
    assert p_of_mean(0.0, 0.0, 1) == 1.0
