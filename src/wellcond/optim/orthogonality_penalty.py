"""A penalty on heads whose weights are far from a multiple of a semi-orthogonal matrix, to be added to a loss."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.head_blocks import HeadBlock
from wellcond.attention.head_partition import head_blocks
from wellcond.attention.layers import LayerFilter
from wellcond.attention.paths import unwrap
from wellcond.errors import OptimizerError


class OrthogonalityPenalty:
    r"""Mean over heads of ‖W Wᵀ/s² − I‖²_F / d, differentiable: what orthogonal regularisation adds to a loss.

    With s = 1 it is soft orthogonality (Bansal et al. 2018, *Can We Gain More from Orthogonality Regularizations in
    Training Deep CNNs?*), cut into heads; with the default s² = ‖W‖²_F/d it judges the spectrum and leaves the scale.

    Args:
        model: what is trained.
        roles: letters of the weights that are meant, of `"q"`, `"k"`, `"v"`, `"o"`.
        scale: s; None for each head's own.
        layers: of `wc.attention_layers(model, batch)`, for attention that no adapter knows.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(8, 2)
    >>> penalty = wc.optim.OrthogonalityPenalty(model, roles="qk")
    >>> float(penalty()) > 0
    True
    >>> plan = wc.init_(model, "conditioned", seed=0)
    >>> round(float(penalty().detach()), 6)
    0.0
    """

    @checked
    def __init__(
        self, model: nn.Module, roles: str = "qk", *, scale: float | None = None, layers: LayerFilter = None
    ) -> None:
        if not roles or not set(roles) <= set("qkvo"):
            raise OptimizerError(f"roles are some of the letters q, k, v, o; got {roles!r}")
        if scale is not None and not scale > 0:
            raise OptimizerError(f"scale is a number above 0, got {scale!r}")
        self.model, self.scale = unwrap(model), scale
        cut = head_blocks(model, layers=layers)
        self._parts: dict[str, list[HeadBlock]] = {
            name: [block for block in blocks if block.role and block.role[0] in roles] for name, blocks in cut.items()
        }
        if not any(self._parts.values()):
            raise OptimizerError(f"{type(self.model).__name__} has no heads of the roles '{roles}' to penalise")

    def __call__(self) -> Tensor:
        """Return the penalty of the weights as they are now."""
        alike: dict[tuple[int, ...], list[Tensor]] = {}
        for matrix in self._heads():
            matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
            alike.setdefault(tuple(matrix.shape), []).append(matrix)
        sums = [self._of(torch.stack(heads)).sum() for heads in alike.values()]
        return torch.stack(sums).sum() / sum(map(len, alike.values()))

    def _heads(self) -> Iterator[Tensor]:
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        for name, blocks in self._parts.items():
            if blocks and is_dtensor(parameters[name]):
                raise OptimizerError(f"'{name}' is sharded: penalise orthogonality under DDP, or control the spectrum")
            for block in blocks:
                view = block.view(parameters[name])
                yield from view if view.ndim == 3 else [view]

    def _of(self, heads: Tensor) -> Tensor:
        gram = heads @ heads.mT
        width = gram.shape[-1]
        square = gram.diagonal(dim1=1, dim2=2).mean(1) if self.scale is None else heads.new_tensor([self.scale**2])
        rest = gram / square[:, None, None] - torch.eye(width, dtype=gram.dtype, device=gram.device)
        return rest.square().sum((1, 2)) / width
