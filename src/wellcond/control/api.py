"""`wc.control_`: keep attention within bands while a model trains."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from wellcond._core.argument_types import Count, Positive, Range
from wellcond._core.checked import checked
from wellcond.attention.find import attention_layers
from wellcond.attention.layers import LayerFilter
from wellcond.conditioning.storage.optimizer_hooks import inner
from wellcond.control.bands import Bands
from wellcond.control.control import Control
from wellcond.errors import ArgumentError

ControlRule = Literal["bands", "qk_clip"]
Above1 = Annotated[float, Range(1, open=True)]


@checked
def control_(
    model: nn.Module,
    optimizer: Any,
    *,
    beta: tuple[Positive, Positive] | None = (0.15, 0.8),
    max_logit: Positive | None = 100.0,
    kappa: Above1 | None = None,
    balance: Above1 | None = None,
    audit: bool = False,
    updates: bool = False,
    rule: ControlRule = "bands",
    every: Count = 20,
    budget: Annotated[float, Range(0, 1, open=True)] | None = None,
    act: bool = True,
    alarms: bool = True,
    batch: Any = None,
    examples: Count = 2,
    layers: LayerFilter = None,
) -> Control:
    r"""Look at attention every few steps of an optimizer, and bring back heads that have left their bands.

    A look is one pass in evaluation mode over a few examples of what the model is being trained on; it leaves no trace.
    Each part acts only outside its band, and training within all bands is the same to the bit as without control:

    - *sharpness*: W_Q, W_K × √(β_max/β) for a head above `beta`, or × √(τ/S) for one with a logit S above `max_logit`;
    - *spectrum*: W_Q, W_K, W_V of a head with κ above `kappa` are moved towards their polar factor until κ is `kappa`,
      at the same norm;
    - *balance*: W_Q a, W_K/a and W_V r, W_O/r, which is the same function, where norms differ by more than `balance`;
      at most 1.1 a look, moments of the optimizer along with it;
    - *audit*: one exact κ_eq(J) a look, of another head each time, into the log;
    - *updates*: spectral entropy of what training changed since the last look; half of its usual is a warning.

    What cannot be acted on (views that are not verified, weights that are computed or tied, a QK-norm without a gain)
    is a warning, once, and in the log. Layers are looked at before any of them is changed.

    Args:
        model: what is trained, as it is called: its inputs are taken from its own calls.
        optimizer: of torch, or a wrapper with `.optimizer`.
        beta: least and largest sharpness of a head; None to leave it. Heads below are only told.
        max_logit: largest size of a logit; None to leave it.
        kappa: largest condition number of a head's weights; None to leave it.
        balance: largest ratio of the norms of two factors; None to leave it.
        audit: whether to measure Jacobians.
        updates: whether to watch for updates that collapse into few directions; keeps a copy of W_Q, W_K and W_V.
        rule: `"qk_clip"`: QK-clip as published, the largest logit alone (Kimi K2, 2507.20534).
        every: steps of the optimizer between two looks.
        budget: share of the time that looks may take; one that would exceed it is left out, so that two equal runs may
            act at other steps. None for no limit.
        act: False for a dry run that only logs.
        alarms: whether to warn of what cannot be acted on.
        batch: what to look with, always; by default the first `examples` of what the model is called with.
        examples: how many.
        layers: a name, a pattern or several; all if None.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> with torch.no_grad():
    ...     _ = model.self_attn.in_proj_weight[:8].mul_(100)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    >>> control = wc.control_(model, optimizer, beta=(0.01, 0.8), every=1)
    >>> model(torch.randn(4, 5, 8)).square().mean().backward()
    >>> optimizer.step()
    >>> [(record.part, record.head, round(record.after, 3)) for record in control.log]
    [('sharpness', 0, 0.8), ('sharpness', 1, 0.8)]
    """
    if beta is not None and beta[0] >= beta[1]:
        raise ArgumentError(f"beta is a pair of least and largest, got {beta}")
    if budget is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ArgumentError("several processes look at the same steps: leave out budget=, and say every=…")
    if rule == "qk_clip":
        beta = kappa = balance = None
        if max_logit is None:
            raise ArgumentError("rule='qk_clip' is a limit of the largest logit: say max_logit=…")
    if layers is not None and batch is None:
        attention_layers(model).select(layers)  # a filter that picks nothing is told now, not after some steps
    bands = Bands(beta, max_logit, kappa, balance)
    found: torch.optim.Optimizer = inner(optimizer)
    options: dict[str, Any] = {"budget": budget, "audit": audit, "updates": updates, "act": act, "alarms": alarms}
    options |= {"batch": batch, "examples": examples}
    return Control(model, found, bands, every, choose=lambda views: views.select(layers), **options)
