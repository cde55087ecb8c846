"""`wc.recommend`: which initialisation for this model on this data, or that it does not matter."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any

from torch import nn

from wellcond._core.argument_types import Folder, NotNegative, Positive
from wellcond._core.checked import checked
from wellcond.advice.own_batches import OwnBatches
from wellcond.advice.recommendation import Recommendation
from wellcond.advice.stages import advise, named
from wellcond.advice.trial import TrialSettings
from wellcond.attention.ordinary import ordinary
from wellcond.attention.paths import unwrap
from wellcond.inputs.objective import LossFunction, Objective

Loss = Annotated[LossFunction | None, "a function of (output, target), or None"]


@checked
@ordinary()
def recommend(
    model: nn.Module,
    batches: Any,
    *,
    loss: Loss = None,
    optimizer: Any = "adamw",
    lr: Positive = 1e-3,
    seconds: NotNegative = 120.0,
    schemes: Sequence[str] | None = None,
    out: Folder | None = None,
) -> Recommendation:
    """Say which initialisation a model should begin with on one's own data, with the evidence, or that none is shown.

    Five stages: measure the model as it is; predict every candidate from weights and theory; rule out what these say
    cannot be trained; probe the others by short trainings of copies, on the same batches in the same order; conclude
    where intervals over seeds allow it. The model, its mode, the generators and the optimizer stay as they are.

    Args:
        model: as it would be trained, before sharding; any class.
        batches: a list or a loader of pairs `(input, target)`, whose input is a tensor, a tuple of positional or a dict
            of keyword arguments, or of dicts of keyword arguments. Of the first 256 a quarter, four at most, judge.
        loss: `loss(output, target)`, or `loss(output, batch)` where batches are dicts; by default the output's own.
        optimizer: `"adamw"`, `"sgd"`, `"muon"`, an optimizer of this model, whose settings are taken, or a function
            that makes one from parameters.
        lr: peak of the learning rate, where the optimizer is a name.
        seconds: that the probe may take; 0 for none.
        schemes: names of those to consider; by default all that apply.
        out: a folder that keeps every trial, so that a call that was stopped goes on there.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    >>> batches = [(x, x.flip(1)) for x in torch.randn(8, 4, 6, 16)]
    >>> r = wc.recommend(model, batches, loss=torch.nn.functional.mse_loss, seconds=0)
    >>> r.best.name, r.summary
    ('yours', 'Nothing was probed, so nothing is advised; the predictions are below.')
    """
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss)  # whose own parameters would be given gradients
    settings = TrialSettings(Objective(loss), optimizer, lr, OwnBatches(batches))
    return advise(unwrap(model), settings, "the output's own" if loss is None else named(loss), seconds, schemes, out)
