"""Keep a few examples of what a model is trained on, as its own forward is given them, for the steps that need them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from wellcond._core.deferred_torch import not_compiled
from wellcond.attention.capture import bound_arguments
from wellcond.attention.ordinary import autocasts
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
        self._autocast: tuple[tuple[str, torch.dtype], ...] = ()
        self._hook = model.register_forward_pre_hook(self._keep, with_kwargs=True)

    @not_compiled
    @torch.no_grad()
    def _keep(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.wanted and self._kept is None and model.training:
            given = bound_arguments(unwrap(model), args, kwargs)
            tensors = [x for x in tree_leaves(given) if isinstance(x, Tensor) and x.ndim]
            # Cut only where every tensor has the examples first: a mask or positions may have something else there.
            alike = len({x.shape[0] for x in tensors}) == 1
            first = all(getattr(module, "batch_first", True) for module in model.modules())
            some = self.examples if alike and first else None
            self._kept = tree_map(lambda x: x[:some].detach().clone() if isinstance(x, Tensor) and x.ndim else x, given)
            self._autocast = autocasts()

    @contextmanager
    def as_called(self) -> Iterator[None]:
        """Go into the autocast in which the model was called."""
        with ExitStack() as stack:
            for kind, dtype in self._autocast:
                stack.enter_context(torch.autocast(kind, dtype))
            yield

    def take(self) -> dict[str, Any] | None:
        """Return what was kept, by the names of arguments, and forget it; None if the model was not called."""
        kept, self._kept = self._kept, None
        return kept

    def close(self) -> None:
        """Stop watching."""
        self._hook.remove()
