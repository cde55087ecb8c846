"""The optimizer of a run, its learning rate step by step, and the average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from wellcond.lab.order import learning_rate, momentum
from wellcond.lab.settings import Training


def optimizer_for(model: nn.Module, lr: float, settings: Training) -> torch.optim.Optimizer:
    """Matrices decay; biases and gains do not, nor what the recipe names."""
    own = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decays = [p.dim() > 1 and not any(part in name for part in settings.undecayed) for name, p in own]
    wide, thin = ([p for (_, p), does in zip(own, decays, strict=True) if does == which] for which in (True, False))
    groups = [{"params": wide, "weight_decay": settings.weight_decay}, {"params": thin, "weight_decay": 0.0}]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=settings.betas[0])
    return torch.optim.AdamW(groups, lr=lr, betas=settings.betas, eps=settings.eps)


def steer_(optimizer: torch.optim.Optimizer, step: int, lr: float, settings: Training) -> None:
    """Set the learning rate and the momentum of a step."""
    rate, first = learning_rate(step, lr, settings), momentum(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = rate
        if "betas" in group:
            group["betas"] = (first, settings.betas[1])
        else:
            group["momentum"] = first


def averaged_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What an average of a model is of: its parameters, and statistics such as those of BatchNorm."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point():
            yield name, tensor.detach()


@contextmanager
def averaged(model: nn.Module, average: dict[str, Tensor]) -> Iterator[None]:
    """The averaged weights for a moment, where there are some."""
    if not average:
        yield
        return
    own = dict(averaged_tensors(model))
    kept = {name: own[name].clone() for name in average}
    with torch.no_grad():
        for name, tensor in average.items():
            own[name].copy_(tensor)
        yield
        for name, tensor in kept.items():
            own[name].copy_(tensor)
