"""Right views pass and wrong ones do not: heads, roles, columns, groups, sites and outputs that are not as claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import wellcond as wc
from tests.census.by_hand import (
    GROUPS,
    HEAD,
    HEADS,
    WIDTH,
    Apart,
    Claim,
    Factorised,
    Rows,
    Strided,
    Two,
    blocks,
    strided_claim,
)
from tests.census.claims import check_claim
from tests.census.test_oracle import LAYERS, build
from wellcond.testing import same_bits, state, tamper

X = {"x": torch.randn(2, 10, WIDTH, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize("name", LAYERS)
def test_right_views_are_accepted_and_wrong_ones_are_not(name: str) -> None:
    model, inputs = build(name)
    before = state(model)
    layer = wc.attention_layers(model)[-1]
    verdict = check_claim(model, inputs, layer)
    assert verdict, verdict.reason
    wrong = dict(tamper(layer))
    assert wrong
    for what, tampered in wrong.items():
        assert not check_claim(model, inputs, tampered), what
    assert all(same_bits(value, before[key]) for key, value in state(model).items())


@pytest.fixture(params=[False, True], ids=["plain", "norm over all heads"])
def model(request: pytest.FixtureRequest) -> Strided:
    torch.manual_seed(0)
    return Strided(norm=request.param).eval()


def test_the_true_view_passes(model: Strided) -> None:
    verdict = check_claim(model, X, strided_claim(model))
    assert verdict, verdict.reason
    assert verdict.places == (("", 0),)


def test_a_group_of_neighbours_is_not_assumed(model: Strided) -> None:
    order = range(HEADS)
    wrong = {
        "query": Rows(model.q.weight, blocks(*order)),
        "output": Rows(model.o.weight, blocks(*order), columns=True),
    }
    assert "query head 1 does not meet key head 0" in check_claim(model, X, strided_claim(model, **wrong)).reason


def test_swapped_query_and_key_are_told_apart_across_windows() -> None:
    torch.manual_seed(0)
    model = Strided(groups=HEADS).eval()
    q, k, v = (Rows(m.weight, blocks(*range(HEADS))) for m in (model.q, model.k, model.v))
    assert check_claim(model, X, Claim(q, k, v))
    assert check_claim(model, X, Claim(k, q, v)).reason == "what is claimed as query is the key"


def test_shifted_columns_are_caught(model: Strided) -> None:
    rows = [[*range(3)], [*range(7, 10)], [*range(4, 7)], [*range(9, 12)]]
    rows[3] = [10, 11, 3]
    verdict = check_claim(model, X, strided_claim(model, query=Rows(model.q.weight, rows)))
    assert "move the same entries" in verdict.reason


def test_missing_columns_are_caught(model: Strided) -> None:
    narrow = [rows[:-1] for rows in blocks(0, 1)]
    verdict = check_claim(model, X, strided_claim(model, key=Rows(model.k.weight, narrow)))
    assert verdict.reason == "a part of the key comes from outside the view of it"


def test_heads_that_overlap_are_caught(model: Strided) -> None:
    twice = Rows(model.k.weight, blocks(0, 0))
    assert "writing key head 0 changes key heads" in check_claim(model, X, strided_claim(model, key=twice)).reason


def test_a_role_that_moves_nothing_is_caught(model: Strided) -> None:
    model.unused = torch.nn.Linear(WIDTH, GROUPS * HEAD)
    verdict = check_claim(model, X, strided_claim(model, value=Rows(model.unused.weight, blocks(0, 1))))
    assert verdict.reason == "the value moves no softmax and nothing that one mixes"


@pytest.mark.parametrize("order", [(2, 0, 1, 3), (0, 1, 2, 3)])
def test_swapped_heads_of_the_output_are_caught(model: Strided, order: tuple[int, ...]) -> None:
    verdict = check_claim(model, X, strided_claim(model, output=Rows(model.o.weight, blocks(*order), columns=True)))
    assert "what head" in verdict.reason


def test_swapped_value_heads_are_caught(model: Strided) -> None:
    verdict = check_claim(model, X, strided_claim(model, value=Rows(model.v.weight, blocks(1, 0))))
    assert "value head" in verdict.reason


def two(model: Two, query: str, value: str) -> Claim:
    all_rows, q, v = [list(range(WIDTH))], getattr(model, query).weight, getattr(model, value).weight
    second_half = [list(range(WIDTH, 2 * WIDTH))]
    return Claim(Rows(q, all_rows), Rows(model.key.weight, all_rows), Rows(v, second_half))


def test_a_claim_holds_at_its_own_site() -> None:
    torch.manual_seed(0)
    model = Two().eval()
    for index, name in enumerate(("first", "second")):
        verdict = check_claim(model, X, two(model, name, name))
        assert verdict, verdict.reason
        assert verdict.places == (("", index),)
    assert "different softmaxes" in check_claim(model, X, two(model, "first", "second")).reason


def test_a_view_may_leave_the_output_out(model: Strided) -> None:
    assert check_claim(model, X, replace(strided_claim(model), output=None))


@pytest.mark.parametrize(("order", "reason"), [((0, 1), ""), ((1, 0), "output head 0 does not read")])
def test_a_value_of_zeros_and_an_output_further_out_are_seen(order: tuple[int, ...], reason: str) -> None:
    torch.manual_seed(0)
    model = Apart().eval()
    heads = blocks(0, 1, width=WIDTH // 2)
    q, k, v = (Rows(m.weight, heads) for m in (model.inner.q, model.inner.k, model.inner.v))
    output = Rows(model.o.weight, [heads[i] for i in order], columns=True)
    verdict = check_claim(model, X, Claim(q, k, v, output, "inner"))
    assert bool(verdict) == (not reason)
    assert verdict.reason.startswith(reason)


@pytest.mark.parametrize(
    ("query", "value", "reason"),
    [("q", (0, 1), ""), ("unused", (0, 1), "query head 0 moves nothing"), ("q", (1, 0), "key head 0 does not meet")],
)
def test_where_keys_alone_are_normalised_a_query_moves_the_result(
    query: str, value: tuple[int, ...], reason: str
) -> None:
    torch.manual_seed(0)
    model = Factorised().eval()
    heads = blocks(0, 1, width=WIDTH // 2)
    values = [heads[i] for i in value]
    claim = Claim(Rows(getattr(model, query).weight, heads), Rows(model.k.weight, heads), Rows(model.v.weight, values))
    verdict = check_claim(model, X, claim)
    assert bool(verdict) == (not reason)
    assert verdict.reason.startswith(reason)
