"""One linear map of attention seen per head, `(heads, D, d)`, whatever parameter holds it and however.

A view holds a path, not a tensor: the parameter is looked up at each use, because sharding, compiling and
`load_state_dict(assign=True)` replace it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond._core.deferred_torch import is_dtensor
from wellcond._core.short_repr import short_repr
from wellcond.attention.layouts import AnyLayout, Layout
from wellcond.attention.storage import assign_, fetch, full, write_refusal
from wellcond.errors import WeightError


def fits(values: Tensor, dtype: torch.dtype) -> bool:
    """Return whether values are finite floating-point numbers that a dtype can hold.

    >>> fits(torch.tensor([1e6]), torch.float32), fits(torch.tensor([1e6]), torch.float16)
    (True, False)
    """
    if not values.is_floating_point() or values.numel() == 0:
        return values.is_floating_point()
    # Where nothing can overflow, a finite sum says enough, in a fraction of the time.
    if torch.finfo(dtype).max >= torch.finfo(values.dtype).max and torch.isfinite(values.sum()):
        return True
    low, high = torch.aminmax(values)  # a NaN shows in both
    return max(-float(low), float(high)) <= torch.finfo(dtype).max


@dataclass(frozen=True)
class Slot:
    """One role's numbers inside one parameter: the parameter's canonical path, and a layout."""

    path: str
    layout: AnyLayout


@dataclass(frozen=True)
class Projection:
    """A linear map of the model seen per head, as `(heads, D, d)`.

    `D` is the width of the model's side and `d` the width of a head's side, also for the output projection.

    >>> import torch, wellcond as wc
    >>> layer = wc.attention_layers(torch.nn.MultiheadAttention(6, 2))[0]
    >>> weight = layer.key.read()
    >>> weight.shape
    torch.Size([2, 6, 3])
    >>> torch.equal(weight[1], layer.root.in_proj_weight[9:12].T)       # head 1 of the key block
    True
    >>> layer.key.write_(torch.zeros(2, 6, 3))
    """

    weight: Slot
    bias: str | None = None
    bias_layout: Layout | None = None  # None: the bias is not split into heads (an output projection's)
    root: nn.Module | None = field(default=None, repr=False, compare=False)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.weight.layout.heads

    @property
    def width(self) -> int:
        """`d`, the width of one head."""
        return self.weight.layout.width

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(heads, D, d)`, known on the meta device too."""
        return self.weight.layout.shape(self.parameter())

    @property
    def stored_shape(self) -> tuple[int, int]:
        """`(in, out)` of the whole stored matrix, which may hold several roles; of these heads alone in a bank."""
        return self.weight.layout.stored_shape(self.parameter())

    def parameter(self) -> Tensor:
        """Return the tensor that holds the weights now."""
        return fetch(self._root(), self.weight.path)

    def read(self) -> Tensor:
        """Return a copy of the weights, `(heads, D, d)`, gathered if they are sharded."""
        return self.weight.layout.read(self._numbers())

    def matrix(self) -> Tensor:
        """Return the weights as one matrix, `(D, heads·d)`, to be read only: it may be the parameter's own memory."""
        return self.weight.layout.matrix(self._numbers())

    def read_bias(self) -> Tensor | None:
        """Return a copy of the bias: `(heads, d)`, or `(D,)` for an output projection; None where there is none."""
        if self.bias is None:
            return None
        stored = full(fetch(self._root(), self.bias))
        return stored.clone() if self.bias_layout is None else self.bias_layout.read_vector(stored)

    @checked
    def bias_zeroed(self, stored: Tensor) -> Tensor:
        """A copy of the stored bias with this projection's part zero; other roles' parts keep their bits."""
        if stored.ndim != 1:
            raise WeightError(f"a bias is a vector, got {short_repr(stored)}")
        if self.bias_layout is None:
            return torch.zeros_like(stored)
        zeroed = stored.clone()
        self.bias_layout.write_vector_(zeroed, zeroed.new_zeros(self.heads, self.width))
        return zeroed

    def refusal(self) -> str | None:
        """Return why the weights may not be written, or None."""
        return write_refusal(self._root(), self.weight.path)

    @checked
    def check(self, weight: Tensor) -> None:
        """Raise unless `weight` may be written here."""
        reason = self.refusal()
        if reason:
            raise WeightError(reason)
        if weight.is_meta:
            raise WeightError(f"'{self.weight.path}' takes a tensor with numbers, got a meta tensor")
        if tuple(weight.shape) != self.shape:
            raise WeightError(f"'{self.weight.path}' takes (heads, D, d) = {self.shape}, got {tuple(weight.shape)}")
        if not fits(weight, self.parameter().dtype):
            raise WeightError(
                f"the new weights for '{self.weight.path}' are not finite floating-point numbers in the range of its "
                f"{self.parameter().dtype}"
            )

    @checked
    @torch.no_grad()
    def write_(self, weight: Tensor) -> None:
        """Write `(heads, D, d)`, cast to the storage; everything else in the parameter keeps its bits."""
        self.check(weight)
        self.store_(weight)

    @torch.no_grad()
    def store_(self, weight: Tensor) -> None:
        """`write_` without its checks, for a caller that has made them."""
        target = self.parameter()
        if is_dtensor(target):
            whole = full(target).clone()
            self.weight.layout.write_(whole, weight)
            assign_(target, whole)
        else:
            self.weight.layout.write_(target.detach(), weight)

    @torch.no_grad()
    def store_bias_(self, bias: Tensor) -> None:
        """Write what `read_bias` returns, cast to the storage; other roles' parts keep their bits."""
        assert self.bias is not None
        target = fetch(self._root(), self.bias)
        if self.bias_layout is not None:
            whole = full(target).clone()
            self.bias_layout.write_vector_(whole, bias)
            bias = whole
        assign_(target, bias)

    def _numbers(self) -> Tensor:
        """The stored tensor whole, on this process."""
        stored = self.parameter()
        if stored.is_meta:
            raise WeightError(
                f"'{self.weight.path}' is on the meta device, so it has no numbers: materialise the model first"
            )
        return full(stored)

    def _root(self) -> nn.Module:
        if self.root is None:
            raise WeightError(f"the view of '{self.weight.path}' is not bound: get it from wc.attention_layers(model)")
        return self.root
