"""Layouts recognised from elements, and strided ones read, written and refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.attention.layouts import AnyLayout, Layout, Strided, on_matrix
from wellcond.attention.projection import Projection, Slot
from wellcond.attention.recorded.columns import Undescribed
from wellcond.attention.recorded.layout_of import matrix_layout, vector_layout
from wellcond.attention.recorded.tape import Tape, recording
from wellcond.errors import WeightError


class Holder(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))


def tape_of(*shape: int) -> tuple[Tape, Tensor]:
    with recording(Holder(*shape)) as tape:
        pass
    return tape, torch.arange(torch.Size(shape).numel()).reshape(shape)


CASES: list[tuple[tuple[int, ...], AnyLayout]] = [
    ((6, 4), Layout((0, 3), 3)),
    ((6, 4), Layout((0, 1), 3, step=2)),
    ((4, 6), Layout((3, 0), 3, axis=1)),
    ((4, 6), Layout((0, 1, 2), 2, step=3, axis=1)),
    ((6, 4, 1, 1), Layout((0, 2, 4), 2)),
    ((4, 3, 2), Strided((0, 2, 4), 4, 2, 6)),
    ((2, 3, 4, 2), Strided((24, 32, 40), 4, 2, 2)),
    ((2, 6, 4), Strided((24, 36), 4, 3, 1, 4)),
]


@pytest.mark.parametrize(("shape", "layout"), CASES)
def test_a_layout_is_recognised_from_its_elements(shape: tuple[int, ...], layout: AnyLayout) -> None:
    tape, elements = tape_of(*shape)
    assert matrix_layout(layout.read(elements), tape) == ("w", layout)


def test_irregular_columns_are_refused() -> None:
    tape, elements = tape_of(6, 4)
    with pytest.raises(Undescribed, match="no regular order"):
        matrix_layout(elements[torch.tensor([[0, 1, 3]])].mT, tape)


def test_the_layout_of_a_bias() -> None:
    tape, elements = tape_of(12)
    layout = Layout((4, 8), 4)
    assert vector_layout(layout.read_vector(elements), tape) == ("w", layout)
    assert vector_layout(torch.full((2, 4), -1), tape) is None


STRIDED = Strided((24, 32, 40), 4, 2, 2)


def test_strided_numbers_are_read_and_written_in_place() -> None:
    model = Holder(2, 3, 4, 2)
    projection = Projection(Slot("w", STRIDED), root=model)
    before = model.w.detach().clone()
    assert projection.shape == (3, 4, 2)
    assert torch.equal(projection.read(), before[1])
    projection.write_(torch.zeros(3, 4, 2))
    assert torch.equal(model.w[1], torch.zeros(3, 4, 2))
    assert torch.equal(model.w[0], before[0])


def test_strided_shapes_are_known_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = nn.Module()
        model.w = nn.Parameter(torch.empty(2, 3, 4, 2))
    projection = Projection(Slot("w", STRIDED), root=model)
    assert projection.shape == (3, 4, 2)
    assert projection.stored_shape == (4, 6)


def test_strided_numbers_outside_a_parameter_are_refused() -> None:
    with pytest.raises(WeightError, match="reach number 47"):
        STRIDED.read(torch.zeros(2, 3, 4))
    with pytest.raises(WeightError, match="in order"):
        STRIDED.views(torch.zeros(2, 3, 2, 4).mT)


def test_what_needs_rows_refuses_strided_numbers() -> None:
    assert on_matrix(Layout((0,), 2)) == Layout((0,), 2)
    with pytest.raises(WeightError, match="bank"):
        on_matrix(STRIDED)


def test_fused_names_of_the_storage() -> None:
    layer = wc.attention_layers(nn.MultiheadAttention(6, 2))[0]
    assert layer.storage == "fused block"
