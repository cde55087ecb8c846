"""How a model is called with a batch of the user's own, and the loss that follows from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from wellcond._core.function_hash import INSTALLED
from wellcond._core.safe_text import briefly
from wellcond.attention.capture import batch_words
from wellcond.attention.paths import unwrap
from wellcond.errors import BatchError, WellcondError

LossFunction = Callable[[Any, Any], Tensor]
FORMS = "a pair (input, target), or a dict of keyword arguments"
MAX_LISTED = 5  # parts of an output that a message names


class BatchLoss(Protocol):
    """How a model is called with a batch, and the loss that follows: an `Objective`, or that of a training loop."""

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch, one number with its graph."""

    def inputs(self, model: nn.Module, batch: Any) -> Any:
        """Return what the model is called with: a tensor, a tuple of positional or a dict of keyword arguments."""


@dataclass(frozen=True)
class Objective:
    """What a model is trained to make small on a batch.

    A batch is a pair `(input, target)`, whose input is a tensor, a tuple of positional or a dict of keyword arguments,
    and whose loss is `loss(output, target)`; or a dict of keyword arguments, whose loss is `loss(output, batch)`. Of a
    dict a model is given what its forward takes. Without a function the loss is the output's own: `.loss`, `["loss"]`,
    or the one number of a tuple.

    Args:
        loss: the function.

    >>> model = nn.Linear(2, 1)
    >>> pair = torch.ones(3, 2), torch.zeros(3, 1)
    >>> Objective(nn.functional.mse_loss)(model, pair).shape
    torch.Size([])
    >>> Objective()(model, pair)
    Traceback (most recent call last):
    wellcond.errors.BatchError: Linear gives Tensor (3, 1) of float32, without a loss: say loss=…, of (output, target)
    """

    loss: LossFunction | None = None

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch, one number with its graph."""
        return self.of_output(self.run(model, batch), batch, type(unwrap(model)).__name__)

    def run(self, model: nn.Module, batch: Any) -> Any:
        """Return what the model gives for a batch."""
        inputs = self.inputs(model, batch)
        try:
            if isinstance(inputs, Mapping):
                return model(**inputs)
            return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        except (WellcondError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise BatchError(
                f"{type(model).__name__} cannot be run on {batch_words(inputs)}: {briefly(error, 200)}; a batch is "
                f"{FORMS}"
            ) from error

    def of_output(self, output: Any, batch: Any, model: str = "the model") -> Tensor:
        """Return the loss of what a model, by its name, gave for a batch."""
        return self._own(model, output) if self.loss is None else self._given(self.loss, output, batch)

    def inputs(self, model: nn.Module, batch: Any) -> Any:
        """Return what the model is called with: a tensor, a tuple of positional or a dict of keyword arguments."""
        if isinstance(batch, Mapping):
            if not batch or not all(isinstance(name, str) for name in batch):
                raise BatchError(f"a batch is {FORMS}; got a dict of {list(batch)[:MAX_LISTED]}")
            return _taken(model, batch)
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            many = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
            raise BatchError(f"a batch is {FORMS}; got a {type(batch).__name__}{many}")
        given = batch[0]
        if isinstance(given, Mapping):
            return dict(given)
        return tuple(given) if isinstance(given, list) else given

    def _given(self, loss: LossFunction, output: Any, batch: Any) -> Tensor:
        found = judged(loss, output, batch if isinstance(batch, Mapping) else batch[1])
        if not isinstance(found, Tensor) or found.numel() != 1 or not found.is_floating_point():
            words = f"{function_name(loss)}(output, target) returns one number as a tensor"
            raise BatchError(f"{words}; got {output_words(found)}{written_at(loss)}")
        return found.reshape(())

    @staticmethod
    def _own(model: str, output: Any) -> Tensor:
        named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        numbers = [named] if isinstance(named, Tensor) else []
        if not numbers:
            leaves = output if isinstance(output, (tuple, list)) else [output]
            numbers = [x for x in leaves if isinstance(x, Tensor) and x.numel() == 1 and x.is_floating_point()]
        if len(numbers) != 1:
            raise BatchError(f"{model} gives {output_words(output)}, without a loss: say loss=…, of (output, target)")
        return numbers[0].reshape(())


def judged(function: Callable[[Any, Any], Any], output: Any, target: Any) -> Any:
    """Call a user's loss or metric; what it raises is told in a line, with what it was given."""
    try:
        return function(output, target)
    except (WellcondError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise BatchError(
            f"{function_name(function)}(output, target) raised {briefly(error, 200)} for an output "
            f"{output_words(output)} and a target {batch_words(target)}{written_at(function)}"
        ) from error


def function_name(function: Any) -> str:
    """Return what to call a function, or an object that is called, in messages."""
    return str(getattr(function, "__name__", type(function).__name__))


def written_at(function: Any) -> str:
    """Return the file and line of a user's function for the end of a message; nothing for what was installed.

    >>> written_at(nn.functional.mse_loss), written_at(len)
    ('', '')
    """
    code = getattr(function, "__code__", None)
    path = Path(code.co_filename) if code else Path()
    own = path.is_file() and INSTALLED not in path.parts
    return f" ({path.name}, line {code.co_firstlineno})" if code and own else ""


def output_words(output: Any) -> str:
    """Return what a model or a function gave, in words.

    >>> output_words((torch.zeros(2, 3), None))
    '(Tensor (2, 3) of float32, None)'
    """
    if isinstance(output, (Tensor, tuple, list, dict)):
        return batch_words(output)
    shown = ", ".join(batch_words(x) for x in tree_leaves(output)[:MAX_LISTED] if isinstance(x, Tensor))
    return f"{type(output).__name__}{f' of {shown}' if shown else ''}"


def moved(batch: Any, like: Tensor) -> Any:
    """Return a copy of a batch on a tensor's device, its real numbers in the tensor's type.

    >>> x, y = moved((torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.long)), torch.zeros(1))
    >>> x.dtype, y.dtype
    (torch.float32, torch.int64)
    """

    def one(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        # A copy without a graph: models and losses may write into what they are given.
        return x.detach().to(like.device, like.dtype if x.is_floating_point() else x.dtype, copy=True)

    try:
        return tree_map(one, dict(batch) if isinstance(batch, Mapping) else batch)
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise BatchError(f"{batch_words(batch)} cannot be copied to {like.device}: {briefly(error, 200)}") from error


def _taken(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """What of a dict the model's forward has parameters for: all, if it takes any."""
    parameters = inspect.signature(unwrap(model).forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(batch)
    taken = {name: value for name, value in batch.items() if name in parameters}
    if not taken:
        raise BatchError(
            f"{type(unwrap(model)).__name__} takes {', '.join(parameters) or 'nothing'}, and the batch has "
            f"{', '.join(list(batch)[:MAX_LISTED])}: name its entries so, or give pairs (input, target)"
        )
    return taken
