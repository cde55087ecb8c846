"""The loss that a training loop computes from a batch, as `wc.recommend` trains by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.safe_text import briefly
from wellcond.attention.capture import batch_words, evaluating, run_model
from wellcond.errors import BatchError, WellcondError
from wellcond.inputs.objective import Objective, output_words


class LoopLoss:
    """What a loop's own function of a model and a batch returns; see `Objective` for how it is used.

    The model itself is called with what of a batch its forward takes. Where that cannot be, `call_with_batches_` has
    it called with whole batches, by the loop's function.

    Args:
        function: of a model and a batch.
        name: of it in messages, as in `"Trainer.compute_loss"`.

    >>> loss = LoopLoss(lambda model, batch: model(batch).square().mean(), "mean square")
    >>> loss(nn.Linear(2, 1), torch.ones(3, 2)).shape
    torch.Size([])
    """

    def __init__(self, function: Callable[[nn.Module, Any], Any], name: str) -> None:
        self._function, self.name = function, name
        self._whole = self._inside = False

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch, one number with its graph."""
        was, self._inside = self._inside, True
        try:
            found = self._function(model, batch)
        except (WellcondError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise BatchError(f"{self.name} raised {briefly(error, 200)} for {batch_words(batch)}") from error
        finally:
            self._inside = was
        if not isinstance(found, Tensor) or found.numel() != 1 or not found.is_floating_point():
            raise BatchError(f"{self.name} returns one number as a tensor; got {output_words(found)}")
        return found.reshape(())

    def inputs(self, model: nn.Module, batch: Any) -> Any:
        """Return what the model is called with."""
        if self._whole:
            return (dict(batch) if isinstance(batch, Mapping) else batch,)
        if isinstance(batch, Mapping):
            return Objective().inputs(model, batch)
        given = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        return tuple(given) if isinstance(given, list) else given

    def taken_by(self, model: nn.Module, batch: Any) -> bool:
        """Whether a model's own forward runs on what of a batch it takes."""
        try:
            with torch.no_grad(), evaluating(model):
                run_model(model, self.inputs(model, batch))
        except WellcondError:
            return False
        return True

    def call_with_batches_(self, model: nn.Module) -> None:
        """Have a model, and its copies, be called with a whole batch, by this function.

        Calls of the model inside of the function go to its own forward.
        """

        def forward(self_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return type(self_).forward(self_, *args, **kwargs) if self._inside else self(self_, *args, **kwargs)

        self._whole = True
        model.forward = MethodType(forward, model)  # a copy's own in a copy, as deepcopy binds methods anew
