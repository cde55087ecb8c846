"""Predictions against what the modules compute once a candidate is really applied."""

from __future__ import annotations

import copy
from statistics import fmean

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import wellcond as wc
from tests.advice.models import data, equal_states, fresh
from wellcond.advice.candidates import Candidate, candidates_for
from wellcond.advice.exclusion import rule_out
from wellcond.advice.model_state import ModelState, OutOfLine, mean_beta
from wellcond.advice.prediction import predict
from wellcond.inputs.objective import Objective
from wellcond.scale.measure_scales import measure_scales

WIDTH, TOKENS, DEPTH = 128, 48, 4


class Stack(nn.Module):
    """Pre-norm blocks on tokens that are given, wide enough for the theory's averages."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(DEPTH)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(scope="module")
def stack():
    model, x = Stack(), torch.randn(4, TOKENS, WIDTH, generator=torch.Generator().manual_seed(2))
    names = ("fan_in", "conditioned", "orthogonal", "normal", "depth_scaled")
    candidates = [Candidate(), Candidate(calibrated=True)]
    candidates += [Candidate(name, calibrated=c) for name in names for c in (False, True)]
    trial = copy.deepcopy(model)
    found, reason, stack = predict(trial, x, candidates)
    assert equal_states(trial, model)
    assert (reason, stack["depth"], stack["tokens"]) == ("", DEPTH, TOKENS)
    assert list(found) == [one.name for one in candidates]
    return model, x, {one.name: one for one in candidates}, found


@pytest.mark.parametrize("name", ["yours", "fan_in", "conditioned", "orthogonal", "normal", "depth_scaled"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_sharpness_gain_and_similarity_are_those_of_the_modules(stack, name, calibrated):
    """Within 10 % (20 % of the gain): the theory knows Frobenius norms, of heads of 32 dimensions and 48 tokens."""
    model, x, candidates, found = stack
    key = f"{name} + calibrated" if calibrated else name
    own = copy.deepcopy(model)
    candidates[key].apply_(own, x)
    predicted = found[key]
    for block, scale in enumerate(measure_scales(own, x).values()):
        assert predicted.beta[block] == pytest.approx(mean_beta(scale), rel=0.1)
        assert predicted.branch[block] == pytest.approx(scale.branch, rel=0.2)
    y = own(x).detach()
    unit = y / y.norm(dim=-1, keepdim=True)
    cosines = (unit @ unit.mT).sum((1, 2)) - TOKENS
    assert predicted.similarity == pytest.approx(float(cosines.mean()) / (TOKENS * (TOKENS - 1)), abs=0.06)


def test_a_calibration_is_predicted_at_its_targets(stack):
    found = stack[3]["conditioned + calibrated"]
    assert found.beta == pytest.approx([0.35] * DEPTH)
    assert found.branch == pytest.approx([0.06] * DEPTH)


def test_entropy_and_gradients_are_those_of_propagate(stack):
    """The recursion of all candidates at once against `wc.propagate` of each block's own numbers."""
    found = stack[3]["normal"]
    placed = wc.locate(copy.deepcopy(stack[0]), stack[1])  # the same wiring and tokens, other weights
    assert len(placed.layers) == DEPTH
    same = wc.propagate(
        depth=DEPTH,
        tokens=TOKENS,
        beta=found.heat,
        value_gain=found.value_gain,
        mlp_gain=placed.layers[0].mlp_gain,
        cosine=placed.layers[0].cosine,
        bias=0.0,
    )
    assert found.entropy[-1] == pytest.approx(float(same.entropy[-1]), abs=5e-3)
    assert found.gradient == pytest.approx(float(same.gradient_growth), abs=0.05)


def test_a_smaller_embedding_is_predicted_with_the_gains_that_follow():
    model = fresh("gpt2")
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)
    inputs = Objective().inputs(model, data("gpt2", 1)[0][0])
    factors = {"transformer.wte.weight": 0.05}
    smaller = copy.deepcopy(model)
    Candidate(embedding=factors).apply_(smaller, inputs)
    ratio = float(smaller.transformer.wte.weight.detach().norm() / model.transformer.wte.weight.detach().norm())
    found, *_ = predict(copy.deepcopy(model), inputs, [Candidate(), Candidate(embedding=factors)], ratio)
    own = [scale.branch for scale in measure_scales(smaller, inputs).values()]
    assert fmean(found["yours + smaller embedding"].branch) == pytest.approx(fmean(own), rel=0.35)
    assert fmean(found["yours"].branch) < 0.2 * fmean(own)


def test_alarms_rule_out_and_equal_beginnings_are_tried_once():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = VisionTransformer(img_size=32, patch_size=4, embed_dim=64, depth=4, num_heads=4, num_classes=5)
    x = torch.randn(2, 3, 32, 32)
    candidates, refused = candidates_for(model, wc.attention_layers(model), None, ModelState({}, None, ()))
    assert {one.candidate.name for one in refused} >= {"admin", "deepnorm"}
    predictions, *_ = predict(copy.deepcopy(model), x, candidates)
    left, excluded = rule_out(candidates, predictions)
    reasons = {one.candidate.name: one.reason for one in excluded}
    assert "begin as 'fan_in' does" in reasons["xavier"]
    assert {one.name for one in left} | set(reasons) == {one.name for one in candidates}
    assert left[0].is_own
    strict, *_ = predict(copy.deepcopy(model), x, candidates, thresholds=wc.Thresholds(entropy=0.9))
    left, excluded = rule_out(candidates, strict)
    assert {"mimetic": "predicted: entropy collapse"}.items() <= {
        one.candidate.name: one.reason for one in excluded
    }.items()
    assert left[0].is_own


def test_what_leaves_a_broken_role_as_it_is_is_not_tried_unless_it_is_calibrated():
    model = fresh("vit")
    state = ModelState({}, None, (OutOfLine("output projections", "", ("output",)),))
    candidates, refused = candidates_for(model, wc.attention_layers(model), ("conditioned", "fan_in", "admin"), state)
    outcomes = {one.candidate.name: one.outcome for one in refused}
    assert outcomes == {"conditioned": "ruled out", "admin": "not applicable"}
    calibrated = ["yours + calibrated", "conditioned + calibrated", "fan_in + calibrated"]
    assert [one.name for one in candidates] == ["yours", calibrated[0], "fan_in", *calibrated[1:]]


def test_a_calibration_does_not_stand_for_sizes_that_are_known():
    """Behind a norm of queries and keys, or in W_V, it would leave them as they are."""
    model = fresh("vit")
    state = ModelState({}, None, (OutOfLine("output projections", "", ("output",), 0.1),))
    candidates, refused = candidates_for(model, wc.attention_layers(model), ("conditioned", "fan_in"), state)
    assert {one.candidate.name for one in refused} == {"conditioned", "conditioned + calibrated"}
    own = ["yours", "yours + usual sizes", "yours + usual sizes + calibrated"]
    assert [one.name for one in candidates] == [*own, "fan_in", "fan_in + calibrated"]


def test_where_the_theory_does_not_reach_it_says_why():
    import timm

    model = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1))
    found, reason, stack = predict(model, torch.randn(1, 3, 224, 224), [Candidate()])
    assert (found, stack) == ({}, {})
    assert "windows" in reason


def test_a_candidate_without_an_answer_leaves_the_others_theirs():
    """Centring takes away more of a small stream than there is, which the recursion refuses."""
    model = fresh("llama")
    inputs = Objective().inputs(model, data("llama", 1)[0][0])
    found, *_ = predict(copy.deepcopy(model), inputs, [Candidate(), Candidate("centring"), Candidate("fan_in")])
    assert {"yours", "fan_in"} <= set(found)
