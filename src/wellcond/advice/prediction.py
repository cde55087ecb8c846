r"""Predict what every candidate does to a model at its start, from weights and the theory, without running the model.

The model is placed once, on a batch. Each candidate is then drawn for a few blocks, of a copy, and the recursion of
`wc.propagate` follows tokens and gradients through the stack, with the sharpness and gains that a calibration would set
put in their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.progress import bar
from wellcond._core.safe_text import briefly
from wellcond.advice.candidates import Candidate, Weights
from wellcond.attention.capture import evaluating
from wellcond.errors import WellcondError
from wellcond.init.api import plan
from wellcond.init.laws import Law, Normal, TruncatedNormal, Uniform, zeros
from wellcond.init.plan import Plan
from wellcond.placement.block_architecture import block_architecture, stream_before
from wellcond.placement.expected_rows import harmonic_mean
from wellcond.placement.mean_block import mean_block
from wellcond.placement.placed_blocks import PlacedBlock, place_blocks
from wellcond.placement.weight_estimates import logits_from_weights, mlp_from_weights, values_from_weights
from wellcond.propagation.attention_statistics import Attention, Statistics, ragged_statistics
from wellcond.propagation.block import Architecture, State, forward
from wellcond.propagation.stack import propagate_blocks
from wellcond.propagation.thresholds import PHASE_WORDS, ConcernKind, Severity, Thresholds, phase_words
from wellcond.scale.calibration_targets import BETA, BRANCH

SAMPLED_BLOCKS = 2  # for which weights are drawn: the first and the last, between which schemes are powers of depth
INDEPENDENT = (Normal, Uniform, TruncatedNormal)  # laws whose entries say nothing of each other
NOTHING = str(zeros((1, 1, 1)))


@dataclass(frozen=True)
class Prediction:
    """What the theory says of a candidate before anything is trained; tuples have a number for each block.

    Args:
        candidate: its name.
        beta: sharpness of the logits, their deviation along a row ÷ √(2 log T).
        branch: gain of attention's branch.
        entropy: of attention rows ÷ log T.
        similarity: mean cosine of two tokens behind the last block.
        gradient: log10 of the squared gradient at the input ÷ that at the output.
        verdict: what is wrong, `"trainable"` if nothing is.
        value_gain: of what differs between tokens, mean over blocks: the place on the diagram, with `heat`.
        heat: the diagram's β, mean over blocks.
        alarms: what of it rules training out.
        independent: whether all that it draws are independent entries, which have a scale and nothing else.
    """

    candidate: str
    beta: tuple[float, ...]
    branch: tuple[float, ...]
    entropy: tuple[float, ...]
    similarity: float
    gradient: float
    verdict: str
    value_gain: float
    heat: float
    alarms: tuple[str, ...]
    independent: bool


def predict(
    trial: nn.Module,
    batch: Any,
    candidates: Sequence[Candidate],
    smaller: float = 1.0,
    thresholds: Thresholds | None = None,
) -> tuple[dict[str, Prediction], str, dict[str, Any]]:
    """Return predictions by the candidates' names, why there are none, and what the model's diagram is drawn for.

    The last are arguments of `wc.trainability`; they are empty, and a reason is there, where the theory does not cover
    the model.

    Args:
        trial: a copy of the model, which is written into and put back.
        batch: what it is called with.
        candidates: to predict; those that cannot be drawn are left out.
        smaller: size of the entering stream with the candidates' embedding ÷ that with the model's own.
        thresholds: of the verdicts.

    >>> _ = torch.manual_seed(0)
    >>> blocks = [nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, norm_first=True) for _ in range(2)]
    >>> model, x = nn.Sequential(*blocks), torch.randn(2, 16, 32)
    >>> found, reason, stack = predict(model, x, [Candidate(), Candidate("fan_in")])
    >>> list(found), found["fan_in"].verdict, reason, stack["depth"]
    (['yours', 'fan_in'], 'trainable', '', 2)
    """
    try:
        placed, skipped = place_blocks(trial, batch)
    except WellcondError as error:
        return {}, briefly(error, 300), {}
    if skipped:
        name, why = next(iter(skipped.items()))
        return {}, f"{len(skipped)} of {len(skipped) + len(placed)} layers are not covered: '{name}': {why}", {}
    if any(not one.follows for one in placed[1:]):
        return {}, "its blocks do not follow one another, as the theory's do", {}
    tokens = _tokens(placed)
    stack = mean_block([block_architecture(one, tokens) for one in placed], placed[0].batch.read.cosine)
    weights = list(dict.fromkeys(one.weights for one in candidates))
    drawn = {each: found for each in bar(weights, "predicting") if (found := _drawn(trial, placed, each))}
    with evaluating(trial):
        known = [one for one in candidates if one.weights in drawn]
        try:
            return _predictions(placed, drawn, known, smaller, thresholds), "", stack
        except WellcondError:  # of one of them, for which the recursion has no answer
            alone = dict[str, Prediction]()
            for one in known:
                with suppress(WellcondError):
                    alone |= _predictions(placed, drawn, [one], smaller, thresholds)
            return alone, "", stack


@dataclass(frozen=True)
class _Drawn:
    """Blocks of the model with a scheme's weights in them, by depth, and whether these are independent entries."""

    blocks: dict[int, PlacedBlock]
    independent: bool


def _drawn(trial: nn.Module, placed: list[PlacedBlock], weights: Weights) -> _Drawn | None:
    """Some blocks as a candidate's weights make them, or all as they are; None if it cannot be drawn."""
    if weights is None:
        return _Drawn(dict(enumerate(placed)), independent=False)
    count = min(SAMPLED_BLOCKS, len(placed))
    sampled = [round(i * (len(placed) - 1) / max(1, count - 1)) for i in range(count)]
    layers = [placed[index].layer for index in sampled]
    try:
        with _applied(plan(trial, weights, layers=layers, on_inapplicable="skip")) as made:
            found = {index: _estimated(placed[index]) for index in sampled}
    except WellcondError:
        return None
    return _Drawn(found, all(map(_is_independent, (assignment.law for assignment in made.assignments))))


def _is_independent(law: Law | None) -> bool:
    return isinstance(law, INDEPENDENT) or str(law) == NOTHING


@contextmanager
def _applied(made: Plan) -> Iterator[Plan]:
    made.apply_()
    try:
        yield made
    finally:
        made.undo_()


def _estimated(one: PlacedBlock) -> PlacedBlock:
    """A block with what its weights say now."""
    assert one.layer.block is not None
    return replace(
        one,
        logits=logits_from_weights(one.layer, one.wiring.attention.norm),
        values=values_from_weights(one.layer, one.wiring.attention),
        mlp=mlp_from_weights(one.layer.block, one.activation, one.wiring.mlp),
    )


def _predictions(
    placed: list[PlacedBlock],
    drawn: dict[Weights, _Drawn],
    candidates: Sequence[Candidate],
    smaller: float,
    thresholds: Thresholds | None,
) -> dict[str, Prediction]:
    """Follow all candidates through the stack at once, each an element of every tensor."""
    tokens = _tokens(placed)
    plain = [block_architecture(block, tokens) for block in placed]
    stacks = [_stack(plain, drawn[one.weights].blocks, tokens) for one in candidates]
    first = stream_before(placed[0])
    statistics = _remembered(
        ragged_statistics(
            harmonic_mean([one.batch.alone for one in placed]), harmonic_mean([one.batch.together for one in placed])
        )
    )
    calibrated = torch.tensor([one.calibrated for one in candidates])
    sizes = [smaller**2 if one.embedding else 1.0 for one in candidates]
    entering = first.size * torch.tensor(sizes, dtype=torch.float64)
    q, p = entering, entering * first.cosine
    blocks, betas, gains, entropies = list[Architecture](), list[Tensor](), list[Tensor](), list[Tensor]()
    log = math.log(tokens)
    for depth in range(len(placed)):
        block = _together([stack[depth] for stack in stacks])
        _, _, state = forward(q, p, block, statistics)
        heat = _row_deviation(state, block) / math.sqrt(2 * log)
        wanted = torch.where(calibrated & (heat > 0), BETA / heat.clamp_min(1e-30), 1.0)
        block = replace(block, beta=block.beta * wanted, self_bias=block.self_bias * wanted)
        _, _, state = forward(q, p, block, statistics)
        gain = _branch_gain(state, block)
        factor = torch.where(calibrated & (gain > 0), BRANCH / gain.clamp_min(1e-30), 1.0)
        block = _scaled(block, factor)
        betas.append(heat * wanted)
        gains.append(gain * factor)
        entropies.append(state.attention.entropy.expand(len(candidates)))
        blocks.append(block)
        after, p, _ = forward(q, p, block, statistics)
        q = torch.as_tensor(after).expand(len(candidates))
    whole = propagate_blocks(
        blocks,
        cosine=torch.full_like(entering, first.cosine),
        size=entering,
        statistics=statistics,
        thresholds=thresholds,
    )

    def column(tensors: Sequence[Tensor], index: int) -> tuple[float, ...]:
        return tuple(float(x[index]) for x in tensors)

    return {
        one.name: Prediction(
            one.name,
            column(betas, index),
            column(gains, index),
            column(entropies, index),
            float(whole.cosine[-1][index]),
            float(whole.gradient_growth[index]),
            phase_words(int(whole.phase[index])),
            fmean(column([torch.as_tensor(block.incoherent) for block in blocks], index)),
            fmean(column([torch.as_tensor(block.beta) for block in blocks], index)),
            tuple(word for word in _words(whole.phase[index]) if ConcernKind(word).severity is Severity.ALARM),
            drawn[one.weights].independent,
        )
        for index, one in enumerate(candidates)
    }


def _tokens(placed: Sequence[PlacedBlock]) -> int:
    """The number of tokens that is taken for all blocks."""
    return max(2, round(sum(one.batch.tokens for one in placed) / len(placed)))


def _words(phase: Tensor) -> list[str]:
    return [word for bit, word in PHASE_WORDS.items() if int(phase) & bit]


def _stack(plain: Sequence[Architecture], drawn: dict[int, PlacedBlock], tokens: int) -> list[Architecture]:
    """All blocks; those between drawn ones on the power law of depth through these, as depth-scaled schemes have it."""
    known = {index: block_architecture(block, tokens) for index, block in drawn.items()}
    found = []
    for depth, own in enumerate(plain):
        before, after = max(i for i in known if i <= depth), min(i for i in known if i >= depth)
        part = 0.0 if before == after else math.log((depth + 1) / (before + 1)) / math.log((after + 1) / (before + 1))
        ends = [_numbers(known[index]) for index in (before, after)]
        found.append(_with_numbers(own, [_between(a, b, part) for a, b in zip(*ends, strict=True)]))
    return found


def _between(a: float, b: float, part: float) -> float:
    """The geometric mean, weighted; the arithmetic where that has no meaning."""
    return math.copysign(abs(a) ** (1 - part) * abs(b) ** part, a) if a * b > 0 else a + part * (b - a)


def _numbers(block: Architecture) -> list[float]:
    """What of a block follows from its weights."""
    every = (block.beta, block.incoherent, block.coherent, block.trace, block.self_bias, *block.mlp, *block.bias)
    return [float(number) for number in every]


def _with_numbers(block: Architecture, numbers: Sequence[Any]) -> Architecture:
    beta, incoherent, coherent, trace, self_bias, mlp_in, mlp_out, *bias = numbers
    return replace(
        block,
        beta=beta,
        incoherent=incoherent,
        coherent=coherent,
        trace=trace,
        self_bias=self_bias,
        mlp=(mlp_in, mlp_out),
        bias=(bias[0], bias[1], bias[2]),
    )


def _together(blocks: Sequence[Architecture]) -> Architecture:
    """One block whose numbers are those of several, element by element."""
    columns = torch.tensor([_numbers(block) for block in blocks], dtype=torch.float64).T
    return _with_numbers(blocks[0], list(columns))


def _row_deviation(state: State, block: Architecture) -> Tensor:
    """The standard deviation of logits along a row."""
    q, p = state.read
    spread = (torch.as_tensor(q) - p).clamp_min(0.0)
    return torch.as_tensor(q * block.temperature * spread).sqrt()


def _branch_gain(state: State, block: Architecture) -> Tensor:
    """RMS(what attention adds) ÷ RMS(stream)."""
    q, p = state.read
    spread = (torch.as_tensor(q) - p).clamp_min(0.0)
    added = block.bias[0] + block.coherent * p + block.incoherent * spread * state.attention.participation
    return (added / torch.as_tensor(state.stream[0])).clamp_min(0.0).sqrt()


def _scaled(block: Architecture, factor: Tensor) -> Architecture:
    """The block with its W_O multiplied."""
    return replace(
        block,
        incoherent=block.incoherent * factor**2,
        coherent=block.coherent * factor**2,
        trace=block.trace * factor,
        bias=(block.bias[0] * factor**2, *block.bias[1:]),
    )


def _remembered(statistics: Statistics) -> Statistics:
    """Statistics that are computed once for each point: the recursion asks for the same ones three times."""
    known = dict[tuple[Any, ...], Attention]()

    def at(deviation: Tensor, correlation: Tensor, shift: Tensor) -> Attention:
        shape = (deviation + correlation + shift).shape
        key = tuple(tuple(x.expand(shape).flatten().tolist()) for x in (deviation, correlation, shift))
        if key not in known:
            known[key] = statistics(deviation, correlation, shift)
        return known[key]

    return at
