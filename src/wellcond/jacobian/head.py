"""`Head`: all that the Jacobian of one head on some sequences depends on, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wellcond._core.argument_types import Positive, Seed
from wellcond._core.checked import checked
from wellcond._core.linalg import EPS, exact, orthonormal_basis
from wellcond.attention.replay import Mixing, Softmax
from wellcond.attention.roles import QKV
from wellcond.errors import NotFiniteError
from wellcond.jacobian.head_checks import check_tensors

ENLARGED = 1e4  # factor on queries and keys next to which the eps of a QK-norm vanishes


@dataclass(frozen=True, eq=False)  # tensors are equal element by element
class Head:
    """A head's tokens, weights and mixing.

    Args:
        tokens: what each role reads, `(B, N, D)`; a role that the head does not have is absent.
        weights: `(D, d)` of each role.
        biases: `(d,)` of each role that has one; they are constants, not among the weights that J is about.
        mixing: the head's own score-and-mix of `(B, 1, N, d)`, `(B, 1, T, d)`, `(B, 1, T, d_v)`.
        resolution: relative rounding of the tokens where they were computed: a LayerNorm's sum of zero is 1e-7 in
            float32, and that is no direction of the tokens.
        outputs: number of output rows, where queries are pooled to fewer than there are tokens.
    """

    tokens: dict[str, Tensor]
    weights: dict[str, Tensor]
    biases: dict[str, Tensor]
    mixing: Mixing
    resolution: float = EPS
    outputs: int | None = None

    @property
    def rows(self) -> int:
        """Number of output rows of each sequence."""
        return next(iter(self.tokens.values())).shape[1] if self.outputs is None else self.outputs

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return next(iter(self.tokens.values())).shape[0]

    @property
    def value_width(self) -> int:
        """`d_v`, the width of the head's output."""
        return self.weights["value"].shape[1]

    def project(self, weights: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V, each `(B, 1, N, d)`; empty for a role that is absent."""
        weights = weights or self.weights
        parts = []
        for role in QKV:
            if role not in weights:
                parts.append(torch.empty(0))
                continue
            out = self.tokens[role] @ weights[role]
            parts.append((out + self.biases[role] if role in self.biases else out)[:, None])
        q, k, v = parts
        return q, k, v

    def output(self, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """A, `(B, N, d_v)`, as a function of the weights."""
        return self.mixing(*self.project(weights))[:, 0]

    @checked
    def twin(self, seed: Seed = 0, *, joint: bool = False) -> Head:
        """Return a head of the same architecture on tokens that span the same space, with generic numbers.

        `joint` gives all roles the same coordinates.
        """
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=torch.float64, generator=generator).to(self.tokens["value"].device)

        bases = per_distinct(self.tokens, lambda x: orthonormal_basis(x, self.resolution), joint=joint)
        # Entries of about unit variance.
        tokens = {role: basis * (basis.shape[0] * basis.shape[1]) ** 0.5 for role, basis in bases.items()}
        weights = {
            role: draw(x.shape[2], self.weights[role].shape[1]) / x.shape[2] ** 0.5 for role, x in tokens.items()
        }
        biases = {role: draw(len(bias)) * bool(bias.any()) for role, bias in self.biases.items()}
        twin = replace(self, tokens=tokens, weights=weights, biases=biases)
        return twin._enlarged() if type(self.mixing) is Softmax else twin

    def _enlarged(self) -> Head:
        """Enlarge queries and keys so that the eps of a QK-norm is no direction of its own."""
        assert isinstance(self.mixing, Softmax)
        tokens, biases = dict(self.tokens), dict(self.biases)
        maps = (self.mixing.query_map, self.mixing.key_map)
        for role, f, z in zip(QKV, maps, self.project(), strict=False):
            if f(ENLARGED * z).norm() < 2 * f(z).norm():  # it normalises
                tokens[role] = tokens[role] * ENLARGED
                biases |= {role: biases[role] * ENLARGED} if role in biases else {}
        return replace(self, tokens=tokens, biases=biases)


def per_distinct(tokens: dict[str, Tensor], f: Callable[[Tensor], Tensor], *, joint: bool) -> dict[str, Tensor]:
    """Apply a map of rows to what each role reads, `(B, N, D)` to `(B, N, r)`: once per tensor, or to all together."""
    distinct = list({id(x): x for x in tokens.values()}.values())
    found: dict[int, Tensor] = {}
    for group in [distinct] if joint else [[x] for x in distinct]:
        rows = f(torch.cat([x.flatten(0, 1) for x in group]))
        for x, part in zip(group, torch.split(rows, [x.shape[0] * x.shape[1] for x in group]), strict=True):
            found[id(x)] = part.reshape(*x.shape[:2], -1)
    return {role: found[id(x)] for role, x in tokens.items()}


@checked
def softmax_head(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    *,
    memory: Tensor | None = None,
    scale: float | Tensor | None = None,
    biases: Mapping[str, Tensor] | None = None,
    bias: Tensor | None = None,
    query_map: Callable[[Tensor], Tensor] | None = None,
    key_map: Callable[[Tensor], Tensor] | None = None,
    softcap: Positive | None = None,
) -> Head:
    """A head of softmax attention from plain tensors.

    Args:
        x: tokens, `(N, D)` or `(B, N, D)`.
        w_q: `(D, d)`.
        w_k: `(D, d)`.
        w_v: `(D, d_v)`.
        memory: what keys and values read in cross-attention, `(T, D)` or `(B, T, D)`; `x` if None.
        scale: of the logits; `d^-1/2` if None.
        biases: `(d,)` by role.
        bias: added to the logits; −inf hides a key.
        query_map: what happens to the queries before the product.
        key_map: the same of the keys.
        softcap: c of c · tanh(logits / c).

    >>> head = softmax_head(torch.randn(5, 8), *torch.randn(3, 8, 2))
    >>> head.output().shape
    torch.Size([1, 5, 2])
    """
    check_tensors(x, memory, (w_q, w_k, w_v), biases or {}, {"scale": scale, "bias": bias})
    queries = exact(x if x.ndim == 3 else x[None])
    keys = queries if memory is None else exact(memory if memory.ndim == 3 else memory[None])
    scale = w_q.shape[1] ** -0.5 if scale is None else scale if isinstance(scale, Tensor) else float(scale)
    maps = {name: f for name, f in (("query_map", query_map), ("key_map", key_map)) if f is not None}
    head = Head(
        {"query": queries, "key": keys, "value": keys},
        {role: exact(w) for role, w in zip(QKV, (w_q, w_k, w_v), strict=True)},
        {role: exact(b) for role, b in (biases or {}).items()},
        Softmax(scale, bias, softcap=softcap, **maps),
    )
    q, k, _ = head.project()
    largest = float(scale.abs().max()) if isinstance(scale, Tensor) else scale
    if not math.isfinite(float(q.abs().max()) * float(k.abs().max()) * q.shape[3] * largest):
        raise NotFiniteError("the logits overflow: there is no Jacobian; lower the scale, or the weights")
    return head
