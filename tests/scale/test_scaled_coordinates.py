"""One number between the factors of every head: the same function on every case, or a refusal that writes nothing."""

from __future__ import annotations

import pytest
import torch

from tests.cases import CASES
from tests.scale.test_balance import NOTHING, SHARE, SINGLE, apart, outputs
from wellcond.errors import WellcondError
from wellcond.scale.scaled_coordinates import scale_coordinates_


@pytest.mark.parametrize("name", SHARE)
def test_the_function_stays_or_nothing_is_written(name: str) -> None:
    model, batch = CASES[name].model().double(), CASES[name].batch()
    held = {key: value.clone() for key, value in model.state_dict().items()}
    before = outputs(model, batch)
    try:
        scale_coordinates_(model, 16.0)
    except WellcondError:
        assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())
        return
    assert name not in NOTHING
    assert any(not torch.equal(value, held[key]) for key, value in model.state_dict().items())
    assert apart(outputs(model, batch), before) < (1e-4 if name in SINGLE else 1e-10)


def test_each_factor_is_scaled_and_its_bias() -> None:
    model = torch.nn.MultiheadAttention(8, 2).double()
    torch.nn.init.normal_(model.in_proj_bias)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scale_coordinates_(model, 4.0)
    factors = torch.tensor([4.0, 0.25, 4.0], dtype=torch.float64).repeat_interleave(8)
    torch.testing.assert_close(model.in_proj_weight, before["in_proj_weight"] * factors[:, None])
    torch.testing.assert_close(model.in_proj_bias, before["in_proj_bias"] * factors)
    torch.testing.assert_close(model.out_proj.weight, before["out_proj.weight"] / 4)
    torch.testing.assert_close(model.out_proj.bias, before["out_proj.bias"])
