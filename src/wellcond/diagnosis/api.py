"""`wc.diagnose`: every attention layer of a model on one batch."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond._core.argument_types import Bytes
from wellcond._core.checked import checked
from wellcond._core.progress import bar
from wellcond.attention.ordinary import ordinary
from wellcond.diagnosis.measure.budget import BUDGET, exact_operations
from wellcond.diagnosis.measure.jacobians import JacobianOptions
from wellcond.diagnosis.measure.layers import layer_record, with_conditioning
from wellcond.diagnosis.measure.probe import Loss, Seen, gradients, look_at_model
from wellcond.diagnosis.measure.weights import trained_weights
from wellcond.diagnosis.result import Diagnosis
from wellcond.diagnosis.verdicts import judge
from wellcond.errors import WellcondError
from wellcond.init.api import LayerFilter
from wellcond.jacobian.condition_number import MEMORY
from wellcond.jacobian.head_jacobian import Rows, operations_per_second
from wellcond.propagation.thresholds import Thresholds

ANNOUNCED_SECONDS = 3.0  # of work from which on it is said how long it takes before it begins


@checked
@ordinary()
def diagnose(
    model: nn.Module,
    batch: Any,
    *,
    layers: LayerFilter = None,
    jacobian: Literal["auto", "exact", True, False] = "auto",
    heads: Sequence[int] | None = None,
    rows: Rows = None,
    sequences: Sequence[int] = (0,),
    vertical: bool = False,
    loss: Loss | bool | None = None,
    max_memory: Bytes = MEMORY,
    progress: bool = True,
    description: str = "",
    thresholds: Thresholds | None = None,
) -> Diagnosis:
    """Measure the conditioning of every attention layer of a model on a batch.

    One eager pass in evaluation mode; the model's mode, random numbers, gradients, buffers and kernels stay the same.
    A layer's attention is measured only if its replay, or its own recorded steps, rebuild on this batch what its module
    computed; one that nothing rebuilds is listed as refused, with its weights' spectra and the largest difference.

    Args:
        model: any model with attention that `wc.attention_layers` finds.
        batch: a tensor, a tuple of positional or a dict of keyword arguments.
        layers: a name, a pattern or several; all if None.
        jacobian: `"auto"`: as much of κ(J) as two or three seconds pay for, exact where a model is small, else of
            evenly spaced query rows (a lower bound) and heads; `"exact"` or True: all rows of all heads, and the time
            that takes is said before it starts; False: none.
        heads: whose Jacobians; all if None.
        rows: which query rows, or how many; overrides what `jacobian` says.
        sequences: of the batch (windows, where a layer attends in windows) that the Jacobian is about.
        vertical: whether to measure the papers' vertical Jacobian too, which their bound is about.
        loss: a function of the model's output, or True for an output with `.loss`: adds gradient norms.
        max_memory: bytes for one Jacobian.
        progress: whether to show a bar if it takes more than a few seconds, at once where that is known.
        description: of the batch, in words, for the report.
        thresholds: of the verdicts.

    >>> import wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> d = wc.diagnose(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.randn(2, 6, 8))
    >>> len(d.layers[0].heads), d.layers[0].tokens, d.layers[0].jacobian[0].condition.structural_rank
    (2, 6, 24)
    """
    look = look_at_model(model, batch).of(layers)
    chosen, seen = look.layers, look.seen
    if not len(chosen):
        raise WellcondError("there is no layer to diagnose: layers=[] picks none")
    limits, options = thresholds or Thresholds(), None
    if jacobian is not False:
        budget = BUDGET / len(chosen) if jacobian == "auto" else None
        options = JacobianOptions(rows, None, heads, tuple(sequences), vertical, max_memory, budget)
    trained = trained_weights(model)
    slopes = {} if loss is None or loss is False else gradients(chosen, batch, loss)
    seconds = _seconds(seen, options) if progress else 0.0
    said = f"diagnose: exact κ(J), about {_duration(seconds)}" if seconds > ANNOUNCED_SECONDS else "diagnose"
    records = [
        layer_record(one, jacobian=options, trained=trained, gradients=slopes)
        for one in bar(seen, said, unit="layer", shown=progress, at_once=seconds > ANNOUNCED_SECONDS)
    ]
    return Diagnosis(
        type(chosen[0].root).__name__,
        description or describe_batch(batch),
        tuple(judge(record, limits) for record in with_conditioning(model, chosen, records)),
        tuple({"name": item.name, "cls": item.cls, "reason": item.reason} for item in chosen.unclaimed),
        {"jacobian": None if options is None else asdict(options), "thresholds": asdict(limits)},
        {"python": platform.python_version(), "torch": str(torch.__version__), "wellcond": version("wellcond")},
    )


def _seconds(seen: Sequence[Seen], options: JacobianOptions | None) -> float:
    """Estimate how long Jacobians will take that no budget limits."""
    if options is None or options.budget is not None:
        return 0.0
    work = sum(exact_operations(s.layer, s.call, options.heads, options.rows, options.sequences) for s in seen)
    return (2 if options.vertical else 1) * work / operations_per_second()


def _duration(seconds: float) -> str:
    """Write a time in words.

    >>> _duration(12.3), _duration(400), _duration(9000)
    ('12 s', '7 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def describe_batch(batch: Any) -> str:
    """Describe a batch in words.

    >>> describe_batch({"input_ids": torch.zeros(2, 7, dtype=torch.long)})
    'input_ids (2, 7)'
    """
    if isinstance(batch, Tensor):
        return f"a batch {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return ", ".join(f"{name} {tuple(x.shape)}" for name, x in batch.items() if isinstance(x, Tensor))
    if isinstance(batch, Sequence):
        return ", ".join(str(tuple(x.shape)) for x in batch if isinstance(x, Tensor))
    return type(batch).__name__
