"""Layers as a pass shows them: verified on what their modules computed, or refused with the reason."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.capture import capture
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.observation import Observation, Observed
from wellcond.attention.ordinary import ordinary
from wellcond.attention.recorded.discover import discover
from wellcond.attention.replay import Call
from wellcond.attention.running import averaging
from wellcond.attention.undisturbed import undisturbed
from wellcond.attention.verify import Verification
from wellcond.attention.view import AttentionLayer
from wellcond.errors import WeightError, WellcondError


def verify(layer: AttentionLayer, inputs: Any) -> Verification:
    """Rebuild a layer's output from its view while the model runs on `inputs`, by its replay or its own recorded steps.

    >>> import wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).double()
    >>> result = wc.attention_layers(model)[0].verify(torch.randn(1, 5, 8, dtype=torch.float64))
    >>> result.passed, result.method
    (True, 'replay')
    """
    call = _call(layer, inputs)
    assert call.verification is not None
    return call.verification


def verified_call(layer: AttentionLayer, inputs: Any) -> Call:
    """Run the model and return a layer's call with the replay that rebuilt its output, or raise with the reason."""
    call = _call(layer, inputs)
    assert call.verified
    return call


def _call(layer: AttentionLayer, inputs: Any) -> Call:
    assert layer.root is not None
    (call,) = observe(layer.root, AttentionLayers([layer]), inputs, complete=False).calls
    if call is None:
        raise WellcondError(f"'{layer.name}' was not called on this input; give one that reaches it")
    return call


@ordinary()
@torch.no_grad()
def observe(
    root: nn.Module,
    layers: AttentionLayers,
    inputs: Any,
    *,
    complete: bool = True,
    watching: AbstractContextManager[Any] | None = None,
) -> Observed:
    """Run a model and verify each layer: its replay, or its own recorded steps, rebuild what the module computed.

    Args:
        root: the model.
        layers: views from its structure.
        inputs: a batch.
        complete: whether to add what the pass shows beside these layers, and to replace views that it shows wrong.
        watching: of a caller who watches the pass too; the first, where there are several.
    """
    for name, parameter in root.named_parameters():
        if is_lazy(parameter):
            raise WeightError(f"'{name}' has no shape yet: run one batch through the model first")
    with undisturbed(root) as changed, watching or nullcontext(), averaging(root) as averages:
        calls = capture(layers, inputs, root)
    observed = Observation(root, layers, calls, complete=complete)
    observed.doubt(changed)
    unexplained = [path for path in averages.certain if not observed.explains(path)]
    possible = any(not observed.explains(path) for path in averages.possible)
    doubtful = unexplained or possible or not len(layers) or layers.unclaimed
    if observed.refused or (unexplained and None in calls) or (complete and doubtful):
        if any(map(is_dtensor, root.parameters())):  # gathered for a moment only
            observed.explain(observed.refused, "the model is sharded: look at it before it is")
        else:
            observed.use(discover(root, inputs), inputs)
    observed.accept()
    observed.list_rest(unexplained)
    return observed.result(layers)
