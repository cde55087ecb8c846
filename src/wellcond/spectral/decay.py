r"""Weight decay around a folded correction: towards C instead of towards zero.

Training W inside `W + C` with a fixed C is training `V = W + C` with the decay of W: after a decoupled step
$V \leftarrow (1 - \eta\lambda)V - \dots$ add $\eta\lambda C$; for decay that is added to the gradient, subtract
$\lambda C$ from the gradient before the step. Everything else an elementwise optimizer does is the same for V and W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from wellcond.errors import OptimizerError
from wellcond.spectral.shift import Entries

Decay = Literal["decoupled", "coupled"]
DECOUPLED = {"AdamW", "Lion", "Adafactor"}
COUPLED = {"SGD", "Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta"}
BY_NORM = {
    "lamb": "scales its step by the norm of the weight",
    "lars": "scales its step by the norm of the weight",
    "adafactor": "scales its step by the size of the weight",
    "adamp": "projects its step on the weight",
    "sgdp": "projects its step on the weight",
}
Found = Callable[[Tensor], Entries | None]


def decay_kind(optimizer: Optimizer, group: dict[str, Any], declared: Decay | None = None) -> Decay:
    """How an optimizer decays weights in one of its groups; refuse one whose step depends on the weights otherwise.

    >>> optimizer = torch.optim.AdamW([torch.zeros(1)])
    >>> decay_kind(optimizer, optimizer.param_groups[0])
    'decoupled'
    """
    names = [cls.__name__ for cls in type(optimizer).__mro__]
    for name, reason in BY_NORM.items():
        by_size = group.get("scale_parameter", True) or group.get(
            "relative_step"
        )  # transformers' Adafactor can do without
        if by_size and any(name in known.lower() for known in names):
            raise OptimizerError(
                f"{type(optimizer).__name__} {reason}, so a folded correction would change the step itself; condition "
                "with mode='live', which trains W as it is"
            )
    if declared is not None:
        return declared
    plain = not group.get("corrected_weight_decay")  # timm's variant decays by another factor than lr · wd
    if plain and (group.get("decoupled_weight_decay") or any(name in DECOUPLED for name in names)):
        return "decoupled"
    if plain and any(name in COUPLED for name in names):
        return "coupled"
    raise OptimizerError(
        f"it is not known how {type(optimizer).__name__} uses the weights: if its step is elementwise and depends on "
        "them only through weight decay, say which with attach(optimizer, decay='decoupled') (p ← (1 − lr·wd) p) or "
        "'coupled' (grad + wd·p); else condition with mode='live'"
    )


def anchored(optimizer: Optimizer, found: Found) -> Iterator[tuple[dict[str, Any], Tensor, Entries]]:
    """The optimizer's parameters that hold a correction and decay: `(group, parameter, its entries)`."""
    for group in optimizer.param_groups:
        if float(group.get("weight_decay") or 0.0):
            for parameter in group["params"]:
                change = found(parameter)
                if change is not None:
                    yield group, parameter, change


@torch.no_grad()
def before_step(optimizer: Optimizer, found: Found, declared: Decay | None) -> Callable[[], None]:
    """Take `λ C` out of the gradients where decay is added to them; return what puts the gradients back."""
    saved: list[tuple[Tensor, Entries, Tensor]] = []
    scale = getattr(optimizer, "grad_scale", None)  # a fused step gets scaled gradients from GradScaler
    factor = 1.0 if scale is None else float(scale)
    for group, parameter, change in anchored(optimizer, found):
        if decay_kind(optimizer, group, declared) == "coupled" and parameter.grad is not None:
            gradient = _local(parameter.grad)
            saved.append((gradient, change, change.take(gradient)))
            sign = 1.0 if group.get("maximize") else -1.0
            change.add_(gradient, sign * float(group["weight_decay"]) * factor)

    @torch.no_grad()
    def restore() -> None:
        for gradient, change, numbers in saved:
            change.put_(gradient, numbers)

    return restore


@torch.no_grad()
def after_step(optimizer: Optimizer, found: Found, declared: Decay | None) -> None:
    """Add `lr · wd · C` where decay multiplied the weights, unless the step was skipped."""
    skipped = getattr(optimizer, "found_inf", None)  # a fused step is called even if GradScaler found an inf
    if skipped is not None and float(skipped):
        return
    for group, parameter, change in anchored(optimizer, found):
        if decay_kind(optimizer, group, declared) == "decoupled" and parameter.grad is not None:
            change.add_(_local(parameter), float(group["lr"]) * float(group["weight_decay"]))


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
