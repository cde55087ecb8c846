"""Keep heads from attending too sharply: W_Q and W_K shrink where β or the largest logit is above its limit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.attention.higher_precision import wide_enough
from wellcond.attention.replay import Call
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.control.bands import Bands, at_limit
from wellcond.control.log import ControlRecord
from wellcond.scale.mean_over_processes import max_over_processes, mean_over_processes
from wellcond.scale.queries_and_keys import QueriesAndKeys, queries_and_keys
from wellcond.scale.sharpen import sharpen_
from wellcond.scale.sharpness import sharpness

BELOW = "below its band: it is only told"


def keep_sharpness(
    layer: AttentionLayer, call: Call, bands: Bands, step: int, writes: ParameterWrites
) -> Iterator[ControlRecord]:
    """Scale the logits of heads above a limit down to it; yield a record of each, and of heads below their band.

    Where logits are proportional to W_Q W_Kᵀ, β and the largest logit shrink by the same factor: that of the stricter
    limit. Where a cap or a QK-norm is in between, what was reached is in the record. QK-clip (2507.20534) is this with
    a limit of the largest logit alone.
    """
    call = wide_enough(call, call.verified)

    def measure() -> QueriesAndKeys | str:
        return queries_and_keys(layer, call, call.verified) or f"{layer.kind}: no softmax over tokens"

    logits = measure()
    if isinstance(logits, str) or layer.query is None:
        return
    before = _numbers(logits)
    low, high = bands.beta or (0.0, math.inf)
    limits = {"β": high, "logit": math.inf if bands.max_logit is None else bands.max_logit}
    close = at_limit(layer.query.parameter().dtype)
    targets, above = [], dict[int, str]()
    for head, numbers in enumerate(before):
        if not all(map(math.isfinite, numbers.values())):
            yield ControlRecord(step, "sharpness", layer.name, head, "β", None, reason="its logits are not finite")
            return
        if 0 < numbers["β"] < low:
            yield ControlRecord(step, "sharpness", layer.name, head, "β", numbers["β"], reason=BELOW)
        factors = {name: limits[name] / numbers[name] if numbers[name] else math.inf for name in limits}
        strictest = min(factors, key=lambda name: factors[name])
        if factors[strictest] * (1 + close) < 1:
            above[head] = strictest
        targets.append(numbers["β"] * min(factors[strictest], 1.0) if head in above else numbers["β"])
    if not above:
        return
    reason = sharpen_(logits, [numbers["β"] for numbers in before], targets, writes, measure)
    now = measure()
    after = before if isinstance(now, str) else _numbers(now)
    for head, name in above.items():
        reached = None if reason else after[head][name]
        yield ControlRecord(step, "sharpness", layer.name, head, name, before[head][name], reached, reason)


def _numbers(logits: QueriesAndKeys) -> list[dict[str, float]]:
    """β and the largest visible logit of each head that has them, over all processes."""
    seen = logits.scored()
    betas = [] if seen is None else mean_over_processes(sharpness(*seen))
    if seen is None or None in betas:
        return []
    scores, hidden = seen
    size = scores.abs() if hidden is None else scores.abs().masked_fill(hidden, 0.0)
    largest = max_over_processes(size.amax((0, 2, 3)).double().tolist())
    return [{"β": beta or 0.0, "logit": logit} for beta, logit in zip(betas, largest, strict=True)]
