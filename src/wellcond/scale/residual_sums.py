r"""Find where a layer's output joins the residual stream while a model runs, and how large both are there.

Names differ from model to model, sums do not: what a layer gives is followed through views, scales and norms to the
first sum with something of its shape that was there before the layer ran. The branch gain is
g = RMS(what is added) ÷ RMS(stream).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, float64, linalg, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from wellcond.attention.paths import inside, resolve
from wellcond.attention.storage import split_path
from wellcond.attention.view import AttentionLayer
from wellcond.scale.mean_over_processes import mean_over_processes

# Operations that are linear in what they are given, when all else is constant.
LINEAR = frozenset(
    [
        "_unsafe_view",
        "clone",
        "_to_copy",
        "roll",
        "constant_pad_nd",
        "index",
        "index_select",
        "mul",
        "mul_",
        "div",
        "div_",
        "neg",
        "native_dropout",
    ]
)
JOINING = frozenset(["cat", "stack", "sum", "mean"])  # what comes out is of several tensors, or of all tokens


@dataclass(frozen=True)
class ResidualSum:
    """One layer's output where it is added to the stream."""

    branch: float  # root mean square of what is added
    stream: float  # root mean square of what it is added to
    linear: bool  # whether what is added is proportional to what the layer gave
    alone: bool  # whether nothing else, such as a parallel MLP, was added to it before

    @property
    def gain(self) -> float | None:
        """g; None where the stream is zero."""
        return self.branch / self.stream if self.stream else None

    def mean_gain(self) -> float | None:
        """Return g of mean squares over all processes, each of which has to ask."""
        branch, stream = mean_over_processes([self.branch**2, self.stream**2])
        return math.sqrt(branch / stream) if branch is not None and stream else None


AtSum = Callable[[AttentionLayer, ResidualSum], float]  # what to multiply the branch by in the sum


@dataclass(frozen=True)
class _Followed:
    layer: int
    linear: bool = True
    own: float | None = None  # root mean square before something else was added; None while nothing was


@contextmanager
def residual_sums(layers: Sequence[AttentionLayer], at_sum: AtSum | None = None) -> Iterator[dict[str, ResidualSum]]:
    """Yield a dictionary that has, after a pass, the sum of each layer whose first call reached one, by name.

    The pass records no gradients. `at_sum` is asked at each sum for a number to multiply the branch by there.

    >>> import torch, wellcond as wc
    >>> model = nn.TransformerEncoderLayer(8, 2, batch_first=True)  # in training: evaluation has a fused kernel
    >>> with torch.no_grad(), residual_sums(wc.attention_layers(model)) as found:
    ...     y = model(torch.ones(1, 5, 8))
    >>> round(found["self_attn"].stream, 6), found["self_attn"].linear
    (1.0, True)
    """
    follow = _Follow(layers, at_sum)
    handles: list[Any] = []
    try:
        for index, layer in enumerate(layers):
            handles.append(layer.module.register_forward_pre_hook(partial(follow.enter, index)))
            handles += [module.register_forward_hook(partial(follow.mark, index)) for module in _writers(layer)]
        with follow:
            yield follow.found
    finally:
        for handle in handles:
            handle.remove()


def _writers(layer: AttentionLayer) -> list[nn.Module]:
    """Modules whose output may be the layer's: its output projection, unless a function applies it, else itself."""
    if layer.output is None or layer.root is None:
        return [layer.module]
    path = split_path(layer.output.weight.path)[0]
    owner = resolve(layer.root, path)
    return [owner, layer.module] if inside(path, layer.path) and owner is not layer.module else [owner]


class _Follow(TorchDispatchMode):
    """Follows the outputs of layers to the sums that they enter."""

    def __init__(self, layers: Sequence[AttentionLayer], at_sum: AtSum | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers, self.at_sum = layers, at_sum
        self.found: dict[str, ResidualSum] = {}
        self.time = 0
        self.entered: dict[int, int] = {}  # by layer, when its first call began
        self.marked: set[int] = set()
        self.made = WeakIdKeyDictionary()  # when each tensor was
        self.followed = WeakIdKeyDictionary()
        self.touched = WeakIdKeyDictionary()  # what was computed from a followed tensor and is not followed itself

    def enter(self, index: int, *_: Any) -> None:
        self.entered.setdefault(index, self.time)

    def mark(self, index: int, module: nn.Module, args: Any, output: Any) -> None:
        if index in self.entered and index not in self.marked:
            first = next((x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()), None)
            if first is not None:
                self.marked.add(index)
                self.followed[first] = _Followed(index)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.time += 1
        given = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        mine = [x for x in given if x in self.followed]
        touched, name = any(x in self.touched for x in given), str(func.overloadpacket.__name__)
        if not mine or name.endswith("_like") or name.startswith("new_"):  # of a shape, with other numbers
            return self._stamp(func(*args, **kwargs), touched)
        x, state = mine[0], self.followed[mine[0]]
        if name in ("add", "add_") and len(given) == 2 and len(mine) == 1:
            return self._add(func, args, kwargs, x, state)
        result = self._stamp(func(*args, **kwargs))
        made = next((y for y in tree_leaves(result) if isinstance(y, Tensor) and y.is_floating_point()), None)
        plain = func.is_view or name in ("_unsafe_view", "clone")
        linear = plain or (name in LINEAR and not touched)
        # Where branches are joined, or the sum of two of them is changed, what each adds is not known.
        lost = name in JOINING or len(mine) > 1 or (state.own is not None and not plain)
        if made is not None and not lost and (linear or made.numel() == x.numel()):
            self.followed[made] = _Followed(state.layer, state.linear and linear, state.own)
            return result
        return self._stamp(result, touched=True)

    def _stamp(self, result: Any, touched: bool = False) -> Any:
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                if x not in self.made:
                    self.made[x] = self.time
                if touched:
                    self.touched[x] = True
        return result

    def _add(self, func: Any, args: Any, kwargs: Any, x: Tensor, state: _Followed) -> Any:
        """A sum of the branch with the stream, with another branch, or with a bias."""
        other = args[1] if args[0] is x else args[0]
        if other.shape != x.shape or isinstance(other, nn.Parameter):
            return self._keep(func(*args, **kwargs), _Followed(state.layer, False, state.own))
        weight = kwargs.get("alpha", 1) if args[1] is x else 1
        own = abs(weight) * rms(x) if state.own is None else state.own
        later = other in self.made and self.made[other] > self.entered[state.layer]
        if later:  # another branch on its way to the stream
            return self._keep(func(*args, **kwargs), _Followed(state.layer, state.linear, own))
        layer = self.layers[state.layer]
        total = ResidualSum(own, rms(other), state.linear, state.own is None)
        self.found[layer.name] = total
        factor = self.at_sum(layer, total) if self.at_sum is not None else 1.0
        if factor != 1.0:
            args = tuple(a * factor if a is x else a for a in args)
        return self._stamp(func(*args, **kwargs))

    def _keep(self, result: Tensor, state: _Followed) -> Tensor:
        self.followed[result] = state
        return self._stamp(result)  # type: ignore[no-any-return]


def rms(x: Tensor) -> float:
    """Root mean square of the entries."""
    return float(linalg.vector_norm(x, dtype=float64)) / math.sqrt(max(x.numel(), 1))
