"""`Control`: looks at attention every so many optimizer steps and brings back what has left its band."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import torch
from torch import nn

from wellcond._core.safe_text import briefly
from wellcond._core.user_warnings import warn_user
from wellcond.attention.apart import shared_weights, stored_weight
from wellcond.attention.find import from_structure
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.observe import observe
from wellcond.attention.ordinary import ordinary
from wellcond.attention.paths import resolve, unwrap
from wellcond.attention.replay import Call
from wellcond.attention.storage import split_path
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.correction_marks import followed
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.control.bands import Bands
from wellcond.control.keep_balance import keep_balance
from wellcond.control.keep_sharpness import keep_sharpness
from wellcond.control.keep_spectrum import keep_spectrum
from wellcond.control.log import ControlLog, ControlRecord
from wellcond.control.training_inputs import TrainingInputs
from wellcond.errors import BatchError, WellcondError
from wellcond.jacobian.condition_number import spectrum
from wellcond.jacobian.layer_heads import head_of
from wellcond.propagation.thresholds import Thresholds
from wellcond.scale.allowed_maps import allowed_maps
from wellcond.scale.products import PAIRS
from wellcond.scale.update_entropy import UpdateWatch

STEPS_TIMED = 50  # of which the median is what a step takes
AUDIT_OUTPUTS = 256  # rows of the Jacobian that an audit measures
DRY = "a dry run"
NOTHING = "no attention was seen in the layers that were asked for"
UNSEEN = "the model was not called in training mode since the last look: call it, not a part of it, or give batch=…"


class Control:
    """Keeps a model's attention within bands while an optimizer trains it; made by `wc.control_`.

    Attributes:
        log: what was outside its band, when, and what was done.
        steps: of the optimizer since the start.
        seconds: spent on looking and acting.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> control = wc.control_(model, torch.optim.SGD(model.parameters(), lr=0.1), batch=torch.randn(1, 5, 8), act=False)
    >>> {record.acted for record in control.look()} <= {False}, control.state_dict()
    (True, {'steps': 0, 'looks': 1})
    >>> control.remove_()
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        bands: Bands,
        every: int,
        *,
        budget: float | None,
        audit: bool,
        updates: bool,
        act: bool,
        alarms: bool,
        batch: Any,
        examples: int,
        choose: Callable[[AttentionLayers], AttentionLayers],
    ) -> None:
        self.model, self.optimizer, self.bands, self.every = model, optimizer, bands, every
        self.budget, self.audit, self.act, self.alarms, self.batch = budget, audit, act, alarms, batch
        self.log, self.steps, self.looks, self.seconds = ControlLog(), 0, 0, 0.0
        self._choose = choose
        self._updates = UpdateWatch() if updates else None
        self._last: ParameterWrites | None = None
        self._acted_at = 0
        self._scalable: dict[tuple[str, str], str] = {}
        self._told: set[tuple[str, str]] = set()
        self._started = time.perf_counter()
        self._before: float | None = None  # when the last step was done
        self._durations: deque[float] = deque(maxlen=STEPS_TIMED)
        self._trained = 0.0  # seconds of all steps, each as long as is usual
        self._cost = 0.0  # seconds of the last look; the first is made to know it
        self._inputs = TrainingInputs(model, examples)
        self._inputs.wanted = every == 1
        self._hook = optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.steps += 1
        if self._before is not None:
            self._durations.append(time.perf_counter() - self._before)
            self._trained += statistics.median(self._durations)  # tests and pauses between two steps earn nothing
        if self.steps % self.every == 0:
            begun = time.perf_counter()
            if self._affordable():
                with self._inputs.as_called():
                    self.look()
                self._cost = time.perf_counter() - begun
            self._inputs.take()  # what a look was left out for is not what the next one is to see
            self.seconds += time.perf_counter() - begun
        self._inputs.wanted = (self.steps + 1) % self.every == 0
        self._before = time.perf_counter()

    def _affordable(self) -> bool:
        return self.budget is None or self.seconds + self._cost <= self.budget * self._trained

    @property
    def overhead(self) -> float:
        """The share of the time since the start that looking and acting took."""
        return self.seconds / max(time.perf_counter() - self._started, 1e-9)

    @ordinary()
    @torch.no_grad()
    def look(self) -> list[ControlRecord]:
        """Look at the model now, act on what is outside its band, and return the records of it."""
        kept = self._inputs.take()
        inputs = kept if self.batch is None else self.batch
        if inputs is None:
            return [self._keep(ControlRecord(self.steps, "control", "", None, "", None, reason=UNSEEN))]
        root = unwrap(self.model)
        try:
            observed = observe(root, from_structure(self.model), inputs)
        except BatchError as problem:
            if self.batch is not None:
                raise
            words = f"{briefly(problem, 200)}: give batch=…"
            return [self._keep(ControlRecord(self.steps, "control", "", None, "", None, reason=words))]
        chosen = {layer.name for layer in self._choose(observed.layers)}
        seen = [
            (layer, call)
            for layer, call in zip(observed.layers, observed.calls, strict=True)
            if call is not None and layer.name in chosen
        ]
        if not seen:
            return [self._keep(ControlRecord(self.steps, "control", "", None, "", None, reason=NOTHING))]
        tied = shared_weights(observed.layers)
        found = [self._keep(record) for record in self._collapsing([layer for layer, _ in seen])]
        with ParameterWrites(root) as writes:
            for layer, call in seen:
                found += [self._keep(record) for record in self._layer(layer, call, tied, writes)]
            if not self.act:
                writes.undo_()
        if self.act and any(record.acted for record in found):
            self._last, self._acted_at = writes, self.steps
            if self._updates is not None:  # an action is no update of training's
                self._updates.remember(layer for layer, _ in seen)
        if self.audit:
            round_, index = divmod(self.looks, len(seen))  # another layer each time, then another head
            layer, call = seen[index]
            found += [self._keep(self._audited(layer, call, round_ % max(layer.num_heads, 1)))]
        self.looks += 1
        return found

    def _collapsing(self, layers: list[AttentionLayer]) -> Iterator[ControlRecord]:
        """Records of heads whose update has lost directions against earlier ones."""
        readings = {} if self._updates is None else self._updates.look(layers)
        for (layer, role, head), one in readings.items():
            if one.trend is not None and one.trend < Thresholds().update:
                name, words = f"{layer} {role}", f"{one.trend:.2f} of its usual: lower the learning rate"
                yield ControlRecord(self.steps, "updates", name, head, "entropy", one.entropy, reason=words)

    def _layer(
        self, layer: AttentionLayer, call: Call, tied: set[Any], writes: ParameterWrites
    ) -> Iterator[ControlRecord]:
        reason = self._untouchable(layer, call, tied)
        if reason:
            yield ControlRecord(self.steps, "control", layer.name, None, "", None, reason=reason)
            return
        if self.bands.kappa is not None:
            yield from keep_spectrum(layer, self.bands.kappa, self.steps, writes)
        if self.bands.beta is not None or self.bands.max_logit is not None:
            yield from keep_sharpness(layer, call, self.bands, self.steps, writes)
        if self.bands.balance is not None:
            for pair in PAIRS:
                if self._scalar_allowed(layer, call, pair):
                    yield from keep_balance(layer, pair, self.bands.balance, self.steps, writes, self.optimizer)

    def _untouchable(self, layer: AttentionLayer, call: Call, tied: set[Any]) -> str:
        """Why a layer is left alone; empty if it is not."""
        if call.replay is None:
            return f"not measured: {call.refusal}"
        for _, projection in layer.projections():
            reason = projection.refusal()
            if reason:
                return reason
            owner, name = split_path(projection.weight.path)
            if followed(resolve(unwrap(self.model), owner), name):
                return f"'{projection.weight.path}' holds W + C of wc.condition_"
            if not projection.parameter().requires_grad:
                return f"'{projection.weight.path}' is frozen"
            if stored_weight(projection) in tied:
                return f"'{projection.weight.path}' is tied: another role or layer reads the same weights"
        return ""

    def _scalar_allowed(self, layer: AttentionLayer, call: Call, pair: str) -> bool:
        """Whether factors can be scaled against each other, tried on the module when it is first seen."""
        key = layer.name, pair
        if key not in self._scalable:
            first, second = (getattr(layer, role) for role in PAIRS[pair])
            widths = first is not None and second is not None and first.width == second.width
            maps = allowed_maps(layer, call, pair, {}) if widths else "its factors are no product"
            self._scalable[key] = "" if "scalar" in maps and not isinstance(maps, str) else str(maps)
        return not self._scalable[key]

    def _audited(self, layer: AttentionLayer, call: Call, head: int) -> ControlRecord:
        """One exact κ_eq(J), with κ(J) beside it."""
        try:
            one = head_of(layer, call, head, sequences=[0])
            found = spectrum(one, rows=max(1, min(one.rows, AUDIT_OUTPUTS // max(one.value_width, 1))))
        except WellcondError as problem:
            return ControlRecord(self.steps, "audit", layer.name, head, "κ_eq(J)", None, reason=str(problem))
        value = None if found.equilibrated is None else found.equilibrated.value
        kappa = "not known" if found.value is None else f"{found.value:.3g}"
        return ControlRecord(self.steps, "audit", layer.name, head, "κ_eq(J)", value, reason=f"κ(J) is {kappa}")

    def _keep(self, record: ControlRecord) -> ControlRecord:
        """Log a record; warn once for a layer and part where something is wrong and nothing was done."""
        if not self.act and record.acted:
            record = replace(record, after=None, reason=DRY)
        self.log.add(record)
        key = record.part, record.layer
        if record.reason not in ("", DRY) and record.part != "audit" and self.alarms and key not in self._told:
            self._told.add(key)
            warn_user(f"control_: {record.layer or 'the model'}, {record.part}: {record.reason}")
        return record

    def undo_(self) -> None:
        """Put back the weights and moments that the last action changed."""
        if self._last is None:
            raise WellcondError("there is no action to undo")
        if self.steps != self._acted_at:
            raise WellcondError(
                f"the last action was at step {self._acted_at}, and steps since then are in the same weights: undo it "
                "before the next one"
            )
        self._last.undo_()
        self._last = None

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to act at the same steps, and to see the same trends; the log is not in it."""
        watch = {} if self._updates is None else {"updates": self._updates.state_dict()}
        return {"steps": self.steps, "looks": self.looks, **watch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.steps, self.looks = int(state["steps"]), int(state["looks"])
        if self._updates is not None and "updates" in state:
            self._updates.load_state_dict(state["updates"])
        self._inputs.wanted = (self.steps + 1) % self.every == 0

    def remove_(self) -> None:
        """Stop watching the model and the optimizer."""
        self._inputs.close()
        self._hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove_()
