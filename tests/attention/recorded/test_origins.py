"""Elements keep the number of what they come from through every operation that moves them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wellcond.attention.recorded.operators import NONE, SEVERAL
from wellcond.attention.recorded.origins import Origins
from wellcond.attention.recorded.tape import recording

Function = Callable[[Tensor], Tensor]


def followed(function: Function, columns: int = 4) -> tuple[Tensor, Tensor]:
    """Numbers of a function's result as they were followed, and the numbers moved by the function itself.

    The map multiplies by zero and adds its own numbers, so that what the pass computes tells where it comes from.
    """
    linear = nn.Linear(2, columns)
    x = torch.randn(3, 2)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(torch.arange(columns))
        with recording(linear) as tape:
            result = function(linear(x))
    origin = Origins(tape).of(result)
    assert origin is not None
    return origin.first, result


def buffer(x: Tensor) -> Tensor:
    whole = x.new_zeros(3, 6)
    whole[:, 1:5] = x
    return whole[:, 1:5]


def written_after(x: Tensor) -> Tensor:
    y = x + 0.0
    y[:, 0] = x[:, 1]
    return x * 1.0


MOVES: dict[str, Function] = {
    "view": lambda x: x.view(2, 6),
    "transposed": lambda x: x.T,
    "split": lambda x: x.chunk(2, -1)[1],
    "joined": lambda x: torch.cat((x[:, 2:], x[:, :2]), -1),
    "stacked": lambda x: torch.stack((x, x.flip(-1))),
    "rolled": lambda x: x.roll(1, -1),
    "repeated": lambda x: x.repeat_interleave(2, -1),
    "expanded": lambda x: x[None].expand(2, 3, 4),
    "gathered": lambda x: x.gather(1, torch.tensor([[3, 0]] * 3)),
    "indexed": lambda x: x[torch.tensor([2, 0])],
    "strided": lambda x: x.as_strided((2, 4), (8, 1)),
    "unfolded": lambda x: F.unfold(x.reshape(1, 1, 3, 4), 2),
    "shuffled": lambda x: F.pixel_shuffle(x.T.reshape(1, 4, 3, 1), 2),
    "buffered": buffer,
    "kept from later writing": written_after,
    "chosen": lambda x: torch.where(torch.tensor([True, False, True, False]), x, x.flip(-1)),
}


@pytest.mark.parametrize("name", MOVES)
def test_numbers_move_as_the_elements_do(name: str) -> None:
    numbers, values = followed(MOVES[name])
    assert torch.equal(numbers % 4, values.long())


def test_what_is_filled_in_comes_from_nothing() -> None:
    for function in (
        lambda x: F.pad(x, (0, 1), value=7.0)[:, 4:],
        lambda x: torch.cat((x, torch.ones(3, 1)), 1)[:, 4:],
        lambda x: x.new_zeros(3, 1).copy_(torch.ones(3, 1, dtype=torch.long)),
        lambda x: torch.cat((x, torch.arange(3)[:, None]), 1)[:, 4:],
        lambda x: x.scatter(1, torch.zeros(3, 1, dtype=torch.long), 1.0)[:, :1],
        lambda x: x.tril()[:1, 1:],
    ):
        numbers, _ = followed(function)
        assert bool((numbers == NONE).all())


def test_a_sum_of_two_maps_is_several() -> None:
    first, second = nn.Linear(2, 4), nn.Linear(2, 4)
    x = torch.randn(3, 2)
    with torch.no_grad(), recording(nn.ModuleList((first, second))) as tape:
        y = first(x) + second(x)
        gated = first(x) * second(x).sigmoid()
        z = first(x)
        z = z + 1.0
    origins = Origins(tape)
    both, kept, shifted = (origins.of(t) for t in (y, gated, z))
    assert both is not None
    assert int(both.first.max()) == int(both.first.min()) == SEVERAL
    assert kept is not None
    assert shifted is not None
    assert kept.source is not None
    assert kept.source.step.module == "0"  # what is gated, not the gate


def test_a_rotation_has_two_origins() -> None:
    numbers = []
    x = torch.randn(3, 2)
    linear = nn.Linear(2, 4)
    with torch.no_grad(), recording(linear) as tape:
        y = linear(x)
        turned = torch.cat((-y[:, 2:], y[:, :2]), -1)
        rotated = y * 0.6 + turned * 0.8
        complex_ = torch.view_as_real(torch.view_as_complex(y.view(3, 2, 2)) * torch.ones(2, dtype=torch.cfloat))
    origins = Origins(tape)
    for tensor in (rotated, complex_):
        origin = origins.of(tensor)
        assert origin is not None
        assert origin.second is not None
        numbers.append((origin.first[0].flatten() % 4, origin.second[0].flatten() % 4))
    assert [pair[0].tolist() for pair in numbers] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert [pair[1].tolist() for pair in numbers] == [[2, 3, 0, 1], [1, 0, 3, 2]]


def test_numbers_are_beside_the_values_so_precision_does_not_matter() -> None:
    linear = nn.Linear(64, 640).bfloat16()
    x = torch.randn(40, 64).bfloat16()
    with torch.no_grad(), recording(linear) as tape:
        y = linear(x).T * 2
    origin = Origins(tape).of(y)
    assert origin is not None
    assert torch.equal(origin.first, torch.arange(40 * 640).view(40, 640).T)
