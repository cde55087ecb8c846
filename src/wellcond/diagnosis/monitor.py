"""`wc.Monitor`: the measurements of a diagnosis all through training, at a share of its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, Self, get_args, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wellcond._core.argument_types import Count, Folder, Range
from wellcond._core.checked import checked
from wellcond._core.deferred_torch import is_dtensor
from wellcond._core.user_warnings import warn_user
from wellcond.attention.find import attention_layers, from_structure
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.ordinary import ordinary
from wellcond.diagnosis.journal import Journal
from wellcond.diagnosis.measure.jacobians import JacobianOptions
from wellcond.diagnosis.measure.layers import layer_record, with_conditioning
from wellcond.diagnosis.measure.probe import Seen, look_at_layers
from wellcond.diagnosis.measure.weights import trained_weights, with_updates
from wellcond.diagnosis.records import Concern, LayerRecord
from wellcond.diagnosis.schedule import Schedule
from wellcond.diagnosis.schema import SCHEMA
from wellcond.diagnosis.summaries import Scalars, scalars, summarize, to_plain
from wellcond.diagnosis.verdicts import judge
from wellcond.errors import AttentionWarning, WellcondError
from wellcond.init.api import LayerFilter
from wellcond.propagation.thresholds import Severity, Thresholds
from wellcond.scale.update_entropy import UpdateWatch

MonitorTier = Literal["weights", "attention", "jacobian"]
"""A part of what a monitor measures, from the cheapest to the dearest."""

TIERS: Final[tuple[MonitorTier, ...]] = get_args(MonitorTier)


@runtime_checkable
class Tracker(Protocol):
    """Keeps numbers by step: an Accelerator, one of its trackers, a wandb run."""

    def log(self, values: dict[str, Any], *, step: int | None) -> object:
        """Keep the numbers of a step."""


Log = Annotated[
    Tracker | Callable[[Scalars], object],
    lambda log: not isinstance(log, Tensor),  # whose .log is a logarithm
    "a function, or an object with .log(values, step=…)",
]


class Monitor:
    """Measure a model's attention while it trains; call `step` after every training step.

    Three tiers, each with its own interval: `weights` (singular values of every head), `attention` (entropy, logits,
    tokens, on the batch) and `jacobian` (κ(J) of a few heads, others each time). A new concern that is more than a note
    is an `AttentionWarning` at the line that trains, one for a layer and kind, and once until it has gone.

    Args:
        model: what is trained; wrappers are looked through.
        batch: what it is looked at with, always the same: a tensor, a tuple or a dict.
        budget: share of the time that measuring may take, 0.01 by default; the interval stretches by itself.
        every: instead of a budget, steps between two records; the records of two equal runs are then equal.
        log: called with a dictionary of averages that prints as a line (`print`), or an object with
            `.log(values, step=…)`: an Accelerator, one of its trackers, a wandb run.
        folder: where to keep `run.json` and `metrics.jsonl`, which `wellcond figures` draws; not kept if None.
        label: what is compared, for the figures.
        seed: which repetition.
        tiers: which of the three.
        layers: a name, a pattern or several; all if None.
        heads: Jacobians per record.
        size: outputs of a Jacobian; longer sequences are measured at evenly spaced query rows.
        updates: whether to measure what training changed between two records, head by head; keeps a copy of W_Q, W_K
            and W_V, and the first record of a resumed run has none.
        alarms: whether to warn.
        thresholds: of the verdicts.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> with wc.Monitor(model, torch.randn(2, 6, 8), every=10, alarms=False) as monitor:
    ...     for step in range(20):
    ...         records = monitor.step()
    ...         if step % 10 == 0:
    ...             print(step, [record["tier"] for record in records])
    0 ['weights', 'attention', 'jacobian']
    10 ['weights', 'attention', 'jacobian']
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        *,
        budget: Annotated[float, Range(0, 1, open=True)] | None = None,
        every: Count | None = None,
        log: Log | None = None,
        folder: Folder | None = None,
        label: str = "",
        seed: int | None = None,
        tiers: Sequence[MonitorTier] = TIERS,
        layers: LayerFilter = None,
        heads: Count = 1,
        size: Count = 256,
        updates: bool = False,
        alarms: bool = True,
        thresholds: Thresholds | None = None,
    ) -> None:
        if every is not None and budget is not None:
            raise WellcondError(f"say either budget= or every=, got budget={budget!r}, every={every!r}")
        if not tiers:
            raise WellcondError(f"tiers are some of {', '.join(TIERS)}; got {tiers!r}")
        self.model, self.batch, self.log, self.alarms = model, batch, log, alarms
        self._filter = layers
        self._observed = False
        known = from_structure(model)
        self.layers: AttentionLayers = (known if len(known) else attention_layers(model, batch)).select(layers)
        self.schedule = Schedule(tuple(tiers), every, 0.01 if budget is None else budget)
        self.steps = -1
        if not len(self.layers):
            raise WellcondError("there is no layer to monitor: layers=[] picks none")
        self.thresholds = thresholds or Thresholds()
        self._heads, self._size = min(heads, sum(layer.num_heads for layer in self.layers)), size
        self._known: set[tuple[str, str, str]] = set()
        self._updates = UpdateWatch() if updates else None
        self._sharded = any(is_dtensor(p) for p in model.parameters())
        if self._sharded and every is None:
            raise WellcondError(
                "a sharded model is measured by all processes together, so at fixed steps: Monitor(…, every=100)"
            )
        about = {"label": label or type(self.layers[0].root).__name__, "seed": seed, "tiers": list(tiers)}
        self._journal = Journal(Path(folder), about) if folder is not None and _first() else None

    @property
    def overhead(self) -> float:
        """The share of the time since the start that measuring took."""
        return self.schedule.overhead

    @checked
    def step(self, step: int | None = None) -> list[dict[str, Any]]:
        """Count a training step, measure what is due and return its records (most often none).

        Args:
            step: its number, where the loop has one; else calls are counted from 0.
        """
        self.steps = self.steps + 1 if step is None else step
        if not self._sharded and not _first():
            return []  # one process of several looks at the same weights
        due = [tier for tier in self.schedule.tiers if self.schedule.due(tier, self.steps)]
        return list(map(self._record, due))  # a comprehension would be one more frame between warning and caller

    def _record(self, tier: str) -> dict[str, Any]:
        with self.schedule.paying(tier):
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # what the training has queued is not ours
            start = time.perf_counter()
            measured = with_conditioning(self.model, self.layers, self._measure(tier))
            judged = [judge(layer, self.thresholds) for layer in measured]
            layers = [asdict(layer) for layer in judged]
            record = {
                "schema": SCHEMA,
                "kind": "monitor",
                "step": self.steps,
                "tier": tier,
                "elapsed": self.schedule.elapsed,
                "seconds": time.perf_counter() - start,
                "overhead": self.overhead,
                "quantities": to_plain(summarize(layers)),
                "layers": layers,
            }
            if self._journal is not None:
                self._journal.write(record)
            if self.log is not None and _first():
                _send(self.log, scalars(record), self.steps)
            if self.alarms:
                self._warn(tier, [concern for layer in judged for concern in layer.concerns])
        return record

    @ordinary()
    @torch.no_grad()
    def _measure(self, tier: str) -> list[LayerRecord]:
        if not self._observed:  # when the model is where it is trained
            self.layers = attention_layers(self.model, self.batch).select(self._filter)
            self._turns, self._observed = cycle(_rotation(self.layers)), True
        if tier == "weights":
            trained = trained_weights(self.model)
            unseen = [Seen(layer, None, None) for layer in self.layers]
            updates = {} if self._updates is None else self._updates.look(self.layers)
            found = (layer_record(seen, attention=False, trained=trained, brief=True) for seen in unseen)
            return [with_updates(record, updates) for record in found]
        if tier == "attention":
            return [layer_record(seen, weights=False) for seen in look_at_layers(self.layers, self.batch)]
        chosen: dict[str, list[int]] = {}
        for name, head in islice(self._turns, self._heads):
            chosen.setdefault(name, []).append(head)
        if not chosen:
            return []
        options = {name: JacobianOptions(size=self._size, heads=sorted(heads)) for name, heads in chosen.items()}
        return [
            layer_record(seen, weights=False, attention=False, jacobian=options[seen.layer.name], brief=True)
            for seen in look_at_layers(self.layers.select(list(chosen)), self.batch)
        ]

    def _warn(self, tier: str, concerns: Sequence[Concern]) -> None:
        """One warning per layer and kind until it has gone; what another tier found is not gone."""
        now = {(tier, c.layer, c.code): c for c in concerns if c.severity != Severity.NOTE}
        for key, concern in now.items():
            if key not in self._known:
                warn_user(AttentionWarning(self.steps, concern))
        self._known = {key for key in self._known if key[0] != tier} | set(now)

    def close(self) -> None:
        """Close the files."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.close()


def _rotation(layers: AttentionLayers) -> list[tuple[str, int]]:
    """Every head of every verified layer, another layer each time."""
    known = [layer for layer in layers if layer.standing == "verified"]
    most = max((layer.num_heads for layer in known), default=0)
    return [(layer.name, head) for head in range(most) for layer in known if head < layer.num_heads]


def _first() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _send(log: Any, values: Scalars, step: int) -> None:
    if hasattr(log, "log"):
        log.log(dict(values), step=step)
    else:
        log(values)
