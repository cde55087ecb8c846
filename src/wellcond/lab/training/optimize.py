"""The optimizer of a run, its learning rate step by step, and the average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from wellcond.attention.layers import LayerFilter
from wellcond.lab.recipe.arms import Shown, by_class
from wellcond.lab.recipe.settings import Training
from wellcond.lab.training.data_order import learning_rate, momentum
from wellcond.optim.muon import Muon


def optimizer_for(model: nn.Module, lr: float, settings: Training, shown: Shown = by_class) -> torch.optim.Optimizer:
    """Return the recipe's optimizer: matrices decay; biases and gains do not, nor what the recipe names.

    `shown` gives the attention layers of a model, for Muon, which cuts them into heads; None for those it knows.
    """
    own = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    thin = {p for name, p in own if p.dim() < 2 or any(part in name for part in settings.undecayed)}
    if settings.optimizer in ("muon", "head-muon"):
        return _muon(model, lr, settings, thin, shown(model))
    wide = [p for _, p in own if p not in thin]
    groups = [
        {"params": wide, "weight_decay": settings.weight_decay},
        {"params": [p for _, p in own if p in thin], "weight_decay": 0.0},
    ]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=settings.betas[0])
    return torch.optim.AdamW(groups, lr=lr, betas=settings.betas, eps=settings.eps)


def _muon(model: nn.Module, lr: float, settings: Training, thin: set[nn.Parameter], layers: LayerFilter) -> Muon:
    """Muon whose steps have the size of AdamW's, so that one learning rate and one decay serve both."""
    optimizer = Muon(
        model,
        lr=lr,
        per_head=settings.optimizer == "head-muon",
        weight_decay=settings.weight_decay,
        adjust_lr_fn="match_rms_adamw",
        sphere=settings.sphere,
        adamw_lr=lr,
        adamw_betas=settings.betas,
        adamw_eps=settings.eps,
        adamw_weight_decay=settings.weight_decay,
        layers=layers,
    )
    for group in list(optimizer.param_groups):
        apart = [p for p in group["params"] if p in thin]
        group["params"] = [p for p in group["params"] if p not in thin]
        if apart:
            optimizer.add_param_group(group | {"params": apart, "weight_decay": 0.0})
    return optimizer


def steer_(optimizer: torch.optim.Optimizer, step: int, lr: float, settings: Training) -> None:
    """Set the learning rate and the momentum of a step."""
    rate, first = learning_rate(step, lr, settings), momentum(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = rate
        if group.get("algorithm") == "muon":
            group["momentum"] = group["momentum"] if settings.momentum_cycle is None else first
        elif "betas" in group:
            group["betas"] = (first, settings.betas[1])
        else:
            group["momentum"] = first


# torch's AveragedModel is a deep copy of the model, which FSDP2 refuses; it begins at the first update instead of the
# initial weights, averages the integer counters of BatchNorm, and would have to be compiled and wrapped a second time.
def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that an average of a model is of: parameters, and statistics such as those of BatchNorm."""
    own = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.detach() for name, tensor in own if tensor.is_floating_point()}


def update_average_(average: dict[str, Tensor], model: nn.Module, decay: float) -> None:
    """Move an average towards the weights, `decay · average + (1 − decay) · weights`, by torch's own function.

    >>> average = {"weight": torch.zeros(2)}
    >>> update_average_(average, nn.LayerNorm(2), 0.75)
    >>> average["weight"]
    tensor([0.2500, 0.2500])
    """
    own, mean = averaged_tensors(model), get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    mean(list(average.values()), [own[name] for name in average], 0)


@contextmanager
def averaged_weights(model: nn.Module, average: dict[str, Tensor]) -> Iterator[None]:
    """Put the averaged weights, where there are some, in place of the trained ones for the duration of a block."""
    own = averaged_tensors(model)
    kept = {name: own[name].clone() for name in average}
    with torch.no_grad():
        for name, tensor in average.items():
            own[name].copy_(tensor)
        yield
        for name, tensor in kept.items():
            own[name].copy_(tensor)
