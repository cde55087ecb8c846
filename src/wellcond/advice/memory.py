"""How much memory a probe takes beside the model, told before it begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from wellcond.advice.own_batches import batch_bytes
from wellcond.advice.trial import TrialSettings

COPIES = 5  # of the parameters: the copy, its gradients, two moments, what a scheme replaces
SLACK = 1.25  # what allocators and temporary results add
LEAST = 2**28  # of libraries that are loaded on the way


def probe_memory(trial: nn.Module, settings: TrialSettings, batch: Any) -> int:
    """Return the bytes that training copies of a model is estimated to take, from one pass with its graph.

    >>> from wellcond.advice.own_batches import OwnBatches
    >>> from wellcond.inputs.objective import Objective
    >>> pair = torch.ones(3, 2), torch.zeros(3, 1)
    >>> settings = TrialSettings(Objective(nn.functional.mse_loss), "adamw", 1e-3, OwnBatches([pair]))
    >>> probe_memory(nn.Linear(2, 1), settings, pair) > LEAST
    True
    """
    kept = dict[int, int]()

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    own = {p.untyped_storage().data_ptr() for p in trial.parameters()}
    was = trial.training
    trial.train()
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            settings.objective(trial, batch)
    finally:
        trial.train(was)
    activations = sum(size for place, size in kept.items() if place not in own)
    parameters = sum(p.nbytes for p in trial.parameters()) + sum(b.nbytes for b in trial.buffers())
    return int(SLACK * (COPIES * parameters + 2 * activations + batch_bytes(batch))) + LEAST
