"""Keep heads from attending too sharply: W_Q and W_K shrink where β or the largest logit is above its limit."""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.attention.replay import Call
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.control.bands import CLOSE, Bands
from wellcond.control.log import ControlRecord
from wellcond.scale.mean_over_processes import max_over_processes
from wellcond.scale.queries_and_keys import QueriesAndKeys, queries_and_keys
from wellcond.scale.sharpen import sharpen_


def keep_sharpness(
    layer: AttentionLayer, call: Call, bands: Bands, step: int, writes: ParameterWrites
) -> Iterator[ControlRecord]:
    """Scale the logits of heads above a limit down to it; yield a record of each, and of heads below their band.

    Where logits are proportional to W_Q W_Kᵀ, β and the largest logit shrink by the same factor: that of the stricter
    limit. QK-clip (2507.20534) is this with a limit of the largest logit alone.
    """

    def measure() -> QueriesAndKeys | str:
        return queries_and_keys(layer, call, call.verified) or f"{layer.kind}: no softmax over tokens"

    logits = measure()
    if isinstance(logits, str):
        return
    name, betas, largest = layer.name, logits.sharpness(), _largest(logits)
    low, high = bands.beta or (0.0, float("inf"))
    most = float("inf") if bands.max_logit is None else bands.max_logit
    targets, found = [], list[tuple[int, str, float, float]]()
    for head, (beta, logit) in enumerate(zip(betas, largest, strict=True)):
        if beta is None:
            return
        if 0 < beta < low:
            yield ControlRecord(step, "sharpness", name, head, "β", beta, reason="below its band: it is only told")
        factor = 1.0
        if beta > high * (1 + CLOSE):
            factor = high / beta
            found.append((head, "β", beta, high))
        if logit > most * (1 + CLOSE) and most / logit < factor:
            factor = most / logit
            found = [one for one in found if one[0] != head] + [(head, "logit", logit, most)]
        targets.append(beta * factor)
    if not found:
        return
    reason = sharpen_(logits, betas, targets, writes, measure)
    for head, quantity, before, limit in found:
        yield ControlRecord(step, "sharpness", name, head, quantity, before, None if reason else limit, reason)


def _largest(logits: QueriesAndKeys) -> list[float]:
    """The largest size of a visible logit of each head, over all processes."""
    seen = logits.attended()
    if seen is None:
        return []
    size = seen.logits.abs() if seen.hidden is None else seen.logits.abs().masked_fill(seen.hidden, 0.0)
    return max_over_processes(size.amax((0, 2, 3)).double().tolist())
