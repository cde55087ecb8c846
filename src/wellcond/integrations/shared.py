"""What the callbacks of all training loops share: checks, messages, the monitor or control that they make."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from wellcond.conditioning.handle import Conditioning
from wellcond.control.api import control_
from wellcond.control.control import Control
from wellcond.diagnosis.monitor import Monitor
from wellcond.diagnosis.summaries import scalars
from wellcond.errors import WeightError, WellcondError

NAME = "wellcond"  # under which a checkpoint has the state


def missing_library(library: str, extra: str, error: ImportError) -> ImportError:
    """Return the error to raise where an optional library cannot be imported."""
    return ImportError(f"{library} cannot be imported ({error}): pip install 'wellcond[{extra}]'", name=library)


def check_keywords(options: Mapping[str, Any], made: Callable[..., Any], what: str) -> None:
    """Raise unless all options are keywords of what a callback makes when training begins.

    >>> check_keywords({"evry": 5}, Monitor, "a monitor's callback")
    Traceback (most recent call last):
    wellcond.errors.WellcondError: a monitor's callback has no keyword 'evry'; did you mean every?
    """
    keywords = [name for name, p in inspect.signature(made).parameters.items() if p.kind is p.KEYWORD_ONLY]
    unknown = [name for name in options if name not in keywords]
    if unknown:
        close = difflib.get_close_matches(unknown[0], keywords, n=1)
        known = f"did you mean {close[0]}?" if close else f"there are {', '.join(keywords)}"
        raise WellcondError(f"{what} has no keyword '{unknown[0]}'; {known}")


def check_model(own: nn.Module, model: nn.Module, what: str = "conditioned") -> None:
    """Raise unless the conditioned or monitored network is what is trained, however either is wrapped.

    >>> import wellcond as wc
    >>> block = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> check_model(wc.condition_(block, "polar").model, nn.Sequential(block))
    """
    if {id(module) for module in own.modules()}.isdisjoint(id(module) for module in model.modules()):
        raise WeightError(
            f"the {type(model).__name__} in training is not the {type(own).__name__} that was {what}: give the very "
            "object that is trained (a model_init or a deep copy makes another)"
        )


def attach(handle: Conditioning, optimizers: Sequence[Any]) -> None:
    """Attach a handle to those of a loop's optimizers that hold its weights; to none is an error, as `attach` says."""
    concerned = [optimizer for optimizer in optimizers if handle.concerns(optimizer)]
    for optimizer in concerned or optimizers[:1]:
        handle.attach(optimizer)


class Controlling:
    """Makes a control when training begins, and carries its state from a checkpoint to it.

    Args:
        options: keywords of `wc.control_`.

    >>> import torch
    >>> controlling = Controlling({"every": 5, "beta": None})
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> controlling.begin(model, torch.optim.SGD(model.parameters(), lr=0.1), step=10)
    >>> controlling.control.state_dict()
    {'steps': 10, 'looks': 2}
    >>> controlling.end()
    """

    def __init__(self, options: dict[str, Any]) -> None:
        check_keywords(options, control_, "a control's callback")
        self.options, self.saved = options, dict[str, Any]()
        self.control: Control | None = None

    def begin(self, model: nn.Module, optimizer: Any, step: int = 0) -> None:
        """Training begins, or goes on after a step: control it from there."""
        self.end()
        control = control_(model, optimizer, **self.options)
        control.load_state_dict(self.saved or {"steps": step, "looks": step // control.every})
        self.control = control

    def end(self) -> None:
        """Training is over; the log stays."""
        if self.control is not None:
            self.control.remove_()


class Watching:
    """Steps a monitor, and makes it first where a callback was given a batch.

    Args:
        given: a `wc.Monitor`, or the batch of one.
        options: keywords of `wc.Monitor`, with a batch.

    >>> import torch
    >>> watching = Watching(torch.randn(2, 6, 8), {"every": 5, "alarms": False})
    >>> watching.begin(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True))
    >>> sorted(watching.step(5))[:2], watching.step(6)
    (['wellcond/beta', 'wellcond/beta_max'], {})
    """

    def __init__(self, given: Any, options: dict[str, Any]) -> None:
        if given is None or isinstance(given, nn.Module):
            got = "None" if given is None else f"the model {type(given).__name__}, which it knows from the Trainer"
            raise WellcondError(f"a monitor's callback takes a batch (and every=…) or a wc.Monitor, got {got}")
        check_keywords(options, Monitor, "a monitor's callback")
        if isinstance(given, Monitor) and options:
            raise WellcondError(
                f"a monitor's callback was given a wc.Monitor and {', '.join(options)}: give them to the Monitor, or "
                "give the callback its batch instead"
            )
        self.monitor: Monitor | None = given if isinstance(given, Monitor) else None
        self.given, self._options, self._last = given, options, 0

    def begin(self, model: nn.Module, step: int = 0) -> None:
        """Training begins at a step: make the monitor, or see that the one given watches what is trained."""
        self._last = step
        if isinstance(self.given, Monitor):
            check_model(self.given.model, model, "monitored")
        else:
            self.monitor = Monitor(model, self.given, **self._options)

    def step(self, step: int) -> dict[str, float]:
        """Measure what is due after a step of the optimizer; averages of all that was, by name."""
        if self.monitor is None or step == self._last:
            return {}  # training has not begun, or a gradient accumulates
        self._last = step
        found: dict[str, float] = {}
        for record in self.monitor.step(step):
            found |= scalars(record)
        return found

    def end(self) -> None:
        """Close the files; training may begin again, and then goes on in them."""
        if self.monitor is not None:
            self.monitor.close()
