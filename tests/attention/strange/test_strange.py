"""Attention as strangers write it is verified and right to 1e-6, or refused in a sentence; never wrong."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.attention.strange import lookalikes, separate
from tests.attention.strange.audit import check_numbers, check_scale, check_writing, layers_of, outcomes
from tests.attention.strange.cases import CASES, Block, Case
from tests.attention.strange.claims import Wrong

LOOKALIKES = (
    lookalikes.SqueezeExcite,
    lookalikes.SelectiveKernel,
    lookalikes.SoftExperts,
    lookalikes.TopExperts,
    lookalikes.MixtureOfLogits,
    lookalikes.SoftEmbedding,
    lookalikes.SpatialSoftmax,
    lookalikes.SoftAssignment,
    lookalikes.NamesOnly,
    lookalikes.FusedNamesOnly,
)


@pytest.mark.parametrize("name", CASES)
def test_every_attention_is_right_or_refused(name: str) -> None:
    case = CASES[name]
    assert {outcome.standing for outcome in outcomes(case.model(), case.batch())} <= {
        "verified",
        "refused",
        "unclaimed",
    }


@pytest.mark.parametrize("name", CASES)
def test_writing_one_head_moves_that_head(name: str) -> None:
    case = CASES[name]
    check_writing(case.model(), case.batch())


@pytest.mark.parametrize("name", CASES)
def test_diagnosis_equals_autograd(name: str) -> None:
    case = CASES[name]
    check_numbers(case, case.model(), case.batch())


@pytest.mark.parametrize("name", CASES)
def test_scale_of_a_verified_layer(name: str) -> None:
    case = CASES[name]
    check_scale(case.model(), case.batch())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not (case.logits and case.distribution)])
def test_what_has_no_softmax_is_not_called_so(name: str) -> None:
    case = CASES[name]
    layers = layers_of(case.model(), case.batch())
    assert [layer.name for layer in layers if layer.standing == "verified" and layer.kind == "softmax"] == []


def test_how_many_are_verified() -> None:
    counts: Counter[str] = Counter()
    lines = []
    for name, case in CASES.items():
        try:
            found = outcomes(case.model(), case.batch())
        except Wrong as error:
            counts["wrong"] += 1
            lines.append(f"{name}: wrong: {error}")
            continue
        counts.update(outcome.standing for outcome in found)
        lines += [f"{name}: {o.standing}: {o.reason}" for o in found if o.standing != "verified"]
    print(f"attention in {len(CASES)} strange models: {dict(counts)}", *lines, sep="\n")
    assert counts["wrong"] == 0
    assert counts["verified"] > 0.75 * counts.total()


class Blind(separate.Separate):
    """The second sequence sees nothing: its softmax is not a number."""

    def visible(self, x: Tensor) -> Tensor | None:
        return torch.tensor([True, False])[:, None, None, None].expand(-1, -1, 1, x.shape[1])


@pytest.mark.parametrize("make", [Blind, type("BlindNames", (Blind, separate.Cosine), {})])
def test_a_sequence_that_sees_nothing(make: type[nn.Module]) -> None:
    case = Case(make)
    (record, *_) = wc.diagnose(case.model(), case.batch(), progress=False).layers
    numbers = [x for head in record.heads for x in (head.entropy, head.participation, head.max_logit) if x is not None]
    numbers += [j.condition.value for j in record.jacobian if j.condition.value is not None]
    assert all(math.isfinite(x) for x in numbers)


@pytest.mark.parametrize("make", LOOKALIKES)
def test_lookalikes_are_not_claimed(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = Block(make()).double()
    layers = layers_of(model, torch.randn(2, 6, 12, dtype=torch.float64))
    assert [layer.name for layer in layers if layer.standing != "refused"] == []
    assert all(len(layer.reason.split()) > 2 for layer in layers)
