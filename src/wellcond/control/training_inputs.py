"""Keep a few examples of what a model is trained on, as its own forward is given them, for the steps that need them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from wellcond._core.deferred_torch import not_compiled
from wellcond.attention.capture import bound_arguments
from wellcond.attention.paths import unwrap


class TrainingInputs:
    """The first examples of the first batch that a model is called with in training while it is `wanted`.

    >>> model = nn.Linear(2, 1)
    >>> seen = TrainingInputs(model, examples=2)
    >>> _ = model(torch.ones(8, 2))
    >>> seen.take()["input"].shape, seen.take()
    (torch.Size([2, 2]), None)
    >>> seen.close()
    """

    def __init__(self, model: nn.Module, examples: int) -> None:
        self.examples, self.wanted = examples, True
        self._kept: dict[str, Any] | None = None
        self._hook = model.register_forward_pre_hook(self._keep, with_kwargs=True)

    @not_compiled
    @torch.no_grad()
    def _keep(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.wanted and self._kept is None and model.training:
            given = bound_arguments(unwrap(model), args, kwargs)
            batch = next((x.shape[0] for x in tree_leaves(given) if isinstance(x, Tensor) and x.ndim), 0)
            self._kept = tree_map(lambda x: self._first(x, batch), given)

    def _first(self, value: Any, batch: int) -> Any:
        if not isinstance(value, Tensor):
            return value
        some = value[: self.examples] if value.ndim and value.shape[0] == batch else value
        return some.detach().clone()

    def take(self) -> dict[str, Any] | None:
        """Return what was kept, by the names of arguments, and forget it; None if the model was not called."""
        kept, self._kept = self._kept, None
        return kept

    def close(self) -> None:
        """Stop watching."""
        self._hook.remove()
