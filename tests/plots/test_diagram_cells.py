"""Where points stand on a diagram that a page draws."""

from __future__ import annotations

import pytest

from wellcond.plots.diagram_cells import diagram_cells


@pytest.mark.parametrize("beta", [0.0, 1.37e-5, 0.3])
def test_a_point_beyond_an_axis_is_at_the_last_cell_to_the_bit(beta):
    """What is beyond by rounding is hidden by the page's plots, with its name."""
    points = [{"beta": beta, "value_gain": 0.0}, {"beta": 7e4, "value_gain": 2e3}]
    found = diagram_cells({"depth": 3, "tokens": 16}, points, 9)
    low, high = found["places"]
    assert low["beyond"]
    assert low["shown"][1] == found["y"][0]
    assert found["x"][0] <= low["shown"][0]
    assert found["x"][-1] >= high["shown"][0]
    assert found["y"][-1] >= high["shown"][1]
