"""Watch the arithmetic of a forward pass: every softmax of scores that mixes something which depends on the input.

It works on calls of torch functions (`TorchFunctionMode`), follows marks on tensors from call to call, and knows no
class and no attribute name of any model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.census.marks import Marks, mark, marks, tensors_in
from tests.census.sites import Mixture, Place, Product, Site
from tests.census.steer import SDPA, Steer, Weights, copied

SOFTMAX = {"softmax", "log_softmax", "_safe_softmax", "_softmax", "softmax_", "_masked_softmax", "softmin"}
PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum", "__matmul__", "__rmatmul__", "mm", "addmm", "tensordot", "addbmm"}
TIMES = {"mul", "__mul__", "__rmul__", "multiply", "__imul__", "mul_"}
SUMS = {"sum", "mean"}
DIVISIONS = {"div", "true_divide", "__truediv__", "divide", "div_", "__itruediv__"}
MAPS = {"linear", "conv1d", "conv2d", "conv3d"}
# A probability stays one, entry by entry, through every function but these.
ENDS = {*PRODUCTS, *SUMS, *MAPS, "topk", "argmax", "cumsum", "embedding", "layer_norm"}
READS = ("__get__", "__set__", "size", "dim", "stride", "is_floating_point")
MOST_TALKING_HEADS = 16


class Watch(TorchFunctionMode):
    """Collect the sites of the calls made while it is active.

    Args:
        place: called at a softmax, returns where it is.
        steer: what the pass does otherwise than the model.
    """

    def __init__(self, place: Callable[[], Place], steer: Steer) -> None:
        super().__init__()
        self.place, self.steer = place, steer
        self.sites: list[Site] = []
        self.mixtures: list[Mixture] = []
        self.weights: list[Weights] = []
        self.products = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in READS:
            result = func(*args, **kwargs)
            if isinstance(result, Tensor) and isinstance(args[0], Tensor):  # `.T`, `.mT`, `.data`
                mark(result, marks(args[0]))
            return result
        tensors = list(tensors_in((args, kwargs)))
        factors = self.factors(name, tensors)
        args, kwargs = self.steer.arguments(name, args, kwargs, factors, self.products, len(self.weights))
        result = func(*args, **kwargs)
        outputs = list(tensors_in(result))
        if not outputs:
            return result
        mixed, normalised = len(self.mixtures), len(self.weights)
        new = self.follow(name, args, kwargs, tensors, factors, outputs[0])
        if len(self.mixtures) > mixed:
            result = self.steer.mixture(mixed, result)
        elif len(self.weights) > normalised:
            result = self.steer.probabilities(normalised, result)
        outputs = list(tensors_in(result))
        for output in outputs:
            mark(output, new)
        if name.endswith("_") or name == "__setitem__":
            written = tensors[0] if tensors else outputs[0]
            mark(written, new)
            if written._base is not None:
                mark(written._base, new)
        return result

    def factors(self, name: str, tensors: list[Tensor]) -> tuple[Tensor, Tensor] | None:
        """Return the factors where a call multiplies two activations, of which one may come from learned tokens."""
        if name == SDPA:
            return tensors[0], tensors[1]
        if name not in PRODUCTS or len(tensors) < 2:
            return None
        a, b = tensors[-2:]
        known = marks(a), marks(b)
        activations = all(m.depends or m.mapped for m in known) and any(m.depends for m in known)
        return (a, b) if activations else None

    def follow(self, name: str, args: Any, kwargs: Any, tensors: Any, factors: Any, output: Tensor) -> Marks:
        """Return the marks of a result, and note a site or a mixture where one is complete."""
        known = [marks(t) for t in tensors]
        new = Marks(depends=any(m.depends for m in known), mapped=any(m.mapped for m in known))
        new.mapped |= name in MAPS or (name in PRODUCTS and not new.depends)
        product = self.product(factors, output) if factors and name != SDPA else None
        if name == SDPA:
            self.sdpa(args, kwargs, tensors, output)
        elif name in SOFTMAX and known:
            dim = kwargs.get("dim", next((a for a in args[1:] if isinstance(a, int)), -1))
            new.sites = (self.site("softmax", tensors[0], known[0], dim if dim is not None else -1, output),)
        elif name in DIVISIONS and len(known) == 2 and known[0].exponential is not None and known[0].depends:
            argument = known[0].exponential
            new.sites = (self.site("exp", argument, marks(argument), -1, output),)
        elif name in PRODUCTS and len(tensors) >= 2:
            a, b = tensors[-2:]
            for probabilities, value in ((a, b), (b, a)):
                if marks(probabilities).sites and marks(value).depends and not marks(value).sites:
                    self.mix(marks(probabilities).sites, value, output)
            new.products = () if product is None else (product,)
        elif name not in ENDS or mixes_heads(name, tensors):
            self.pass_on(name, known, new)
            if name == "exp" and known:
                new.exponential = tensors[0]
        elif name in SUMS:
            self.mix(tuple(dict.fromkeys(s for m in known for s in m.times)), None, output)
        return new

    def pass_on(self, name: str, known: list[Marks], new: Marks) -> None:
        """Keep the marks that stay with every entry."""
        new.products = tuple(dict.fromkeys(p for m in known for p in m.products))
        new.sites = tuple(dict.fromkeys(s for m in known for s in m.sites))
        new.times = tuple(dict.fromkeys(s for m in known for s in m.times))
        new.exponential = next((m.exponential for m in known if m.exponential is not None), None)
        if name in TIMES and len(known) == 2 and bool(known[0].sites) != bool(known[1].sites):
            other = known[1] if known[0].sites else known[0]
            if other.depends and not other.times:
                new.times = new.sites

    def product(self, factors: tuple[Tensor, Tensor], output: Tensor) -> Product:
        product = Product(self.products, *(t.clone() for t in (*factors, output)))
        self.products += 1
        return product

    def site(self, how: str, logits: Tensor, known: Marks, dim: int, probabilities: Tensor) -> Site:
        self.weights.append(probabilities.clone())
        return Site(self.place(), how, logits.clone(), dim % max(logits.ndim, 1), known.products)

    def mix(self, sites: tuple[Site, ...], value: Tensor | None, result: Tensor) -> None:
        """Note that these probabilities average a value here."""
        if sites:
            mixture = Mixture(len(self.mixtures), None if value is None else value.clone(), result.clone())
            self.mixtures.append(mixture)
            for site in sites:
                site.mixtures.append(mixture)
                self.sites += [] if site in self.sites else [site]

    def sdpa(self, args: Any, kwargs: Any, tensors: list[Tensor], output: Tensor) -> None:
        named = dict(zip(("query", "key"), args, strict=False)) | kwargs
        query, key = named["query"], named["key"]
        shared = key if key.ndim < 3 else key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        logits = query @ shared.transpose(-1, -2)
        product = self.product((query, key), logits)
        self.weights.append(copied((args, kwargs)))
        self.mix((Site(self.place(), "sdpa", logits, logits.ndim - 1, (product,)),), tensors[2], output)


def mixes_heads(name: str, tensors: list[Tensor]) -> bool:
    """Return whether a linear map takes a few channels of a 4-dimensional tensor to as many, as talking heads do."""
    if name not in ("linear", "conv2d") or len(tensors) < 2 or tensors[0].ndim < 4:
        return False
    rows, columns, *kernel = tensors[1].shape
    return rows == columns <= MOST_TALKING_HEADS and all(size == 1 for size in kernel)
