"""Sharpness and branch gain of every layer on a batch, from views that rebuild what their modules compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from wellcond._core.checked import checked
from wellcond.attention.capture import capture, evaluating
from wellcond.attention.higher_precision import wide_enough
from wellcond.attention.layers import AttentionLayers, LayerFilter
from wellcond.attention.observe import observe
from wellcond.attention.paths import unwrap
from wellcond.attention.replay import Call, project, repeat_groups
from wellcond.attention.undisturbed import undisturbed
from wellcond.attention.verify import check_call, compare, finished
from wellcond.attention.view import AttentionLayer
from wellcond.errors import WellcondError
from wellcond.scale.calibration_result import LayerScale
from wellcond.scale.mean_over_processes import mean_over_processes
from wellcond.scale.queries_and_keys import queries_and_keys
from wellcond.scale.residual_sums import residual_sums
from wellcond.scale.sharpness import sharpness
from wellcond.scale.views_on_batch import views_on_batch


@checked
@torch.no_grad()
def measure_scales(model: nn.Module, batch: Any, layers: LayerFilter = None) -> dict[str, LayerScale]:
    """Return the sharpness of each head and the gain of each branch on a batch, by layer, in one pass.

    >>> import torch, wellcond as wc
    >>> from wellcond.scale.measure_scales import measure_scales
    >>> found = measure_scales(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), torch.randn(4, 9, 16))
    >>> len(found["self_attn"].beta), found["self_attn"].branch > 0
    (2, True)
    """
    chosen = views_on_batch(model, batch, layers)
    return measured_scales(unwrap(model), chosen, batch, verified=list(chosen))


def measured_scales(
    root: nn.Module, layers: AttentionLayers, batch: Any, verified: Sequence[AttentionLayer]
) -> dict[str, LayerScale]:
    """Measure every layer on a batch, and rebuild the output of those whose β is relied on."""
    with undisturbed(root), residual_sums(layers) as joined:
        calls = capture(layers, batch, root)
    recorded = AttentionLayers([layer for layer in verified if layer.replay is None])
    own = observe(root, recorded, batch, complete=False).calls if len(recorded) else []
    steps = dict(zip((layer.name for layer in recorded), own, strict=True))
    found = {}
    for layer, call in zip(layers, calls, strict=True):
        if call is None:
            continue
        total, betas = joined.get(layer.name), list[float | None]()
        if layer in verified:
            with evaluating(call.module):
                betas = _verified_betas(layer, steps.get(layer.name) or call)
        gain = None if total is None else total.mean_gain()
        found[layer.name] = LayerScale(tuple(mean_over_processes(betas)), gain)
    return found


def _verified_betas(layer: AttentionLayer, call: Call) -> list[float | None]:
    """β of every head, from queries and keys that rebuild the module's own output."""
    replay = layer.replay or call.replay
    if replay is None or layer.value is None:
        return []
    call = wide_enough(call, replay)
    scored = queries_and_keys(layer, call, replay)
    seen = None if scored is None else scored.attended()
    if scored is None or seen is None:
        return []
    verification = call.verification  # of recorded steps
    if verification is None:
        v = project(layer.value, replay.tokens(call)["value"])
        rebuilt = finished(layer, call, seen.probabilities @ repeat_groups(v, layer.num_heads))
        verification = compare(layer.name, "replay", rebuilt, replay.target(call))
    if replay.guess:  # of which more is asked
        verification = check_call(layer, call)
        verification = verification if verification.conclusive else replace(verification, error=math.inf)
    if not verification:
        raise WellcondError(
            f"'{layer.name}': {verification.words}, so its sharpness is not known, and nothing was changed; leave it "
            "out with layers=…"
        )
    return sharpness(seen.logits, seen.hidden)
