"""Keep the condition number of each head's W_Q, W_K and W_V below a limit."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from wellcond._core.linalg import conditions, eigenvalues, wide
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.control.bands import at_limit
from wellcond.control.limit_condition import limit_condition
from wellcond.control.log import ControlRecord


def keep_spectrum(layer: AttentionLayer, limit: float, step: int, writes: ParameterWrites) -> Iterator[ControlRecord]:
    """Bring heads above the limit down to it, at the same norm; yield a record of each."""
    for role, projection in layer.projections(*QKV):
        weights = wide(projection.read())
        # Singular values by the Gram matrix: twice the digits lost, which is enough to tell who is above.
        gram = weights.mT @ weights if weights.shape[1] >= weights.shape[2] else weights @ weights.mT
        if not bool(torch.isfinite(gram.sum())):
            yield ControlRecord(step, "spectrum", f"{layer.name} {role}", None, "κ", None, reason="it is not finite")
            continue
        found = conditions(eigenvalues(gram).flip(1).clamp_min(0.0).sqrt(), max(weights.shape[1:]))
        above = found > limit * (1 + at_limit(projection.parameter().dtype))
        if not bool(above.any()):
            continue
        weights[above] = limit_condition(weights[above], limit)
        writes.open(projection.weight.path)
        projection.write_(weights)
        for head in torch.nonzero(above)[:, 0].tolist():
            yield ControlRecord(step, "spectrum", f"{layer.name} {role}", head, "κ", float(found[head]), limit)
