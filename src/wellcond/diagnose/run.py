"""`wc.diagnose`: every attention layer of a model on one batch."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from wellcond.attention.find import attention_layers
from wellcond.checked import Bytes, checked
from wellcond.diagnose.diagnosis import Diagnosis
from wellcond.diagnose.jacobians import JacobianOptions
from wellcond.diagnose.layers import layer_record
from wellcond.diagnose.probe import Loss, gradients, look
from wellcond.diagnose.verdicts import judge
from wellcond.diagnose.weights import stored_weights
from wellcond.errors import WellcondError
from wellcond.initialise import LayerFilter
from wellcond.jacobian.spectrum import MEMORY, Rows

SIZE = 1024  # outputs up to which a Jacobian is measured whole, unasked


@checked
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
) -> Diagnosis:
    """Measure the conditioning of every attention layer of a model on a batch.

    One eager pass in evaluation mode; the model's mode, random numbers, gradients, buffers and kernels stay the same.

    Args:
        model: any model with attention that `wc.attention_layers` finds.
        batch: a tensor, a tuple of positional or a dict of keyword arguments.
        layers: a name, a pattern or several; all if None.
        jacobian: `"auto"`: κ(J) of every head, exact where a sequence has up to 1024 outputs, else of evenly spaced
            query rows, a lower bound; `"exact"` or True: all query rows, however long it takes; False: none.
        heads: whose Jacobians; all if None.
        rows: which query rows, or how many; overrides what `jacobian` says.
        sequences: of the batch (windows, where a layer attends in windows) that the Jacobian is about.
        vertical: whether to measure the papers' vertical Jacobian too, which their bound is about.
        loss: a function of the model's output, or True for an output with `.loss`: adds gradient norms.
        max_memory: bytes for one Jacobian.
        progress: whether to show a bar if it takes more than a few seconds.
        description: of the batch, in words, for the report.

    >>> import wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> d = wc.diagnose(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.randn(2, 6, 8))
    >>> len(d.layers[0].heads), d.layers[0].tokens, d.layers[0].jacobian[0].condition.structural_rank
    (2, 6, 24)
    """
    found = attention_layers(model)
    chosen = found.select(layers)
    if not len(chosen):
        raise WellcondError("there is no layer to diagnose: layers=[] picks none")
    options = None
    if jacobian is not False:
        size = SIZE if jacobian == "auto" else None
        options = JacobianOptions(rows, size, heads, tuple(sequences), vertical, max_memory)
    stored = stored_weights(model)
    slopes = {} if loss is None or loss is False else gradients(chosen, batch, loss)
    bar = tqdm(look(chosen, batch), desc="diagnose", unit="layer", delay=3, disable=not progress, leave=False)
    records = [layer_record(seen, jacobian=options, stored=stored, gradients=slopes) for seen in bar]
    return Diagnosis(
        type(chosen[0].root).__name__,
        description or describe(batch),
        tuple(judge(record)[0] for record in records),
        tuple({"name": item.name, "cls": item.cls, "reason": item.reason} for item in found.unclaimed),
        {"jacobian": None if options is None else asdict(options)},
        {"python": platform.python_version(), "torch": str(torch.__version__), "wellcond": version("wellcond")},
    )


def describe(batch: Any) -> str:
    """A batch in words.

    >>> describe({"input_ids": torch.zeros(2, 7, dtype=torch.long)})
    'input_ids (2, 7)'
    """
    if isinstance(batch, Tensor):
        return f"a batch {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return ", ".join(f"{name} {tuple(x.shape)}" for name, x in batch.items() if isinstance(x, Tensor))
    if isinstance(batch, Sequence):
        return ", ".join(str(tuple(x.shape)) for x in batch if isinstance(x, Tensor))
    return type(batch).__name__
