"""One head on some sequences: all that its Jacobian depends on, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from wellcond.attention.precise import widened
from wellcond.attention.replay import Call, Mixing, Softmax, capture, project
from wellcond.attention.view import AttentionLayer
from wellcond.checked import Positive, Seed, checked
from wellcond.errors import NotFiniteError, WellcondError
from wellcond.jacobian.tensors import check_tensors
from wellcond.linalg import EPS, exact, span

ROLES = ("query", "key", "value")
LARGE = 1e4


@dataclass(frozen=True)
class Head:
    """A head's tokens, weights and mixing.

    Args:
        tokens: what each role reads, `(B, N, D)`; a role that the head does not have is absent.
        weights: `(D, d)` of each role.
        biases: `(d,)` of each role that has one; they are constants, not among the weights that J is about.
        mixing: the head's own score-and-mix of `(B, 1, N, d)`, `(B, 1, T, d)`, `(B, 1, T, d_v)`.
        resolution: relative rounding of the tokens where they were computed: a LayerNorm's sum of zero is 1e-7 in
            float32, and that is no direction of the tokens.
    """

    tokens: dict[str, Tensor]
    weights: dict[str, Tensor]
    biases: dict[str, Tensor]
    mixing: Mixing
    resolution: float = EPS

    @property
    def rows(self) -> int:
        """How many query rows each sequence has."""
        return next(iter(self.tokens.values())).shape[1]

    @property
    def sequences(self) -> int:
        """How many sequences there are."""
        return next(iter(self.tokens.values())).shape[0]

    @property
    def value_width(self) -> int:
        """`d_v`, the width of the head's output."""
        return self.weights["value"].shape[1]

    def project(self, weights: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V, each `(B, 1, N, d)`; empty for a role that is absent."""
        weights = weights or self.weights
        parts = []
        for role in ROLES:
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
        """The same architecture on tokens that span the same space, with generic, well conditioned numbers.

        `joint` gives all roles the same coordinates.
        """
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=torch.float64, generator=generator).to(self.tokens["value"].device)

        tokens = {
            role: basis * (basis.shape[0] * basis.shape[1]) ** 0.5  # entries of about unit variance
            for role, basis in per_distinct(self.tokens, lambda x: span(x, self.resolution), joint=joint).items()
        }
        weights = {
            role: draw(x.shape[2], self.weights[role].shape[1]) / x.shape[2] ** 0.5 for role, x in tokens.items()
        }
        biases = {role: draw(len(bias)) * bool(bias.any()) for role, bias in self.biases.items()}
        twin = replace(self, tokens=tokens, weights=weights, biases=biases)
        return twin._enlarged() if type(self.mixing) is Softmax else twin

    def _enlarged(self) -> Head:
        """The same with queries and keys so large that the eps of a QK-norm is no direction of its own."""
        assert isinstance(self.mixing, Softmax)
        tokens, biases = dict(self.tokens), dict(self.biases)
        maps = (self.mixing.query_map, self.mixing.key_map)
        for role, f, z in zip(ROLES, maps, self.project(), strict=False):
            if f(LARGE * z).norm() < 2 * f(z).norm():  # it normalises
                tokens[role] = tokens[role] * LARGE
                biases |= {role: biases[role] * LARGE} if role in biases else {}
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
        {role: exact(w) for role, w in zip(ROLES, (w_q, w_k, w_v), strict=True)},
        {role: exact(b) for role, b in (biases or {}).items()},
        Softmax(scale, bias, softcap=softcap, **maps),
    )
    q, k, _ = head.project()
    largest = float(scale.abs().max()) if isinstance(scale, Tensor) else scale
    if not math.isfinite(float(q.abs().max()) * float(k.abs().max()) * q.shape[3] * largest):
        raise NotFiniteError("the logits overflow: there is no Jacobian; lower the scale, or the weights")
    return head


@checked
def head_of(layer: AttentionLayer, inputs: Any, head: int = 0, *, sequences: Sequence[int] | None = None) -> Head:
    """One head of a real layer, on what it reads while the model runs on `inputs`.

    Args:
        layer: a view from `wc.attention_layers`.
        inputs: a batch for the *model*, or a `Call` captured before.
        head: index of the query head; a grouped-query head has the keys and values of its group.
        sequences: which of the batch's sequences (windows, where the layer attends in windows); all if None.

    >>> import wellcond as wc
    >>> layer = wc.attention_layers(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True))[0]
    >>> head_of(layer, torch.randn(3, 5, 8), 1, sequences=[0]).output().shape
    torch.Size([1, 5, 4])
    """
    return next(heads_of(layer, inputs, [head], sequences=sequences))


@checked
def heads_of(
    layer: AttentionLayer, inputs: Any, heads: Sequence[int] | None = None, *, sequences: Sequence[int] | None = None
) -> Iterator[Head]:
    """Some heads of a layer (all if None), one after the other; see `head_of`."""
    call = inputs if isinstance(inputs, Call) else capture([layer], inputs)[0]
    if call is None:
        raise WellcondError(f"'{layer.name}' was not called on this input; give one that reaches it")
    if layer.replay is None:
        raise WellcondError(f"'{layer.name}' ({layer.kind}) has no replay, so its Jacobian is not known")
    precise = widened(call)
    roles = dict(layer.projections(*ROLES))
    tokens = {role: x for role, x in layer.replay.tokens(precise).items() if role in roles}
    chosen = torch.tensor(range(len(tokens["value"])) if sequences is None else list(sequences), dtype=torch.long)
    if not len(chosen) or not 0 <= int(chosen.min()) <= int(chosen.max()) < len(tokens["value"]):
        raise WellcondError(f"'{layer.name}' read {len(tokens['value'])} sequences, there are no {chosen.tolist()}")
    whole = {role: project(projection, tokens[role]) for role, projection in roles.items()}
    if not all(bool(torch.isfinite(x).all()) for x in whole.values()):
        raise NotFiniteError(f"what '{layer.name}' reads, or its weights, are not finite: it has no Jacobian")
    weights = {role: projection.read().to(tokens[role]) for role, projection in roles.items()}
    biases = {role: bias.to(tokens[role]) for role, p in roles.items() if (bias := p.read_bias()) is not None}
    mixing = layer.replay.mixing(precise)
    resolution = next(iter(layer.replay.tokens(call).values())).dtype
    some = _shared({role: x[chosen] for role, x in tokens.items()})
    for head in range(layer.num_heads) if heads is None else heads:
        if not 0 <= head < layer.num_heads:
            raise WellcondError(f"'{layer.name}' has {layer.num_heads} heads, there is no head {head}")
        index = {role: head // (layer.num_heads // projection.heads) for role, projection in roles.items()}
        yield Head(
            some,
            {role: weight[index[role]] for role, weight in weights.items()},
            {role: bias[index[role]] for role, bias in biases.items()},
            one_head(mixing, whole, chosen, head, index),
            torch.finfo(resolution).eps,
        )


def _shared(tokens: dict[str, Tensor]) -> dict[str, Tensor]:
    """One tensor for roles that read the same tokens."""
    found: list[Tensor] = []
    shared = {}
    for role, x in tokens.items():
        same = next((y for y in found if y.shape == x.shape and torch.equal(x, y)), None)
        found.append(x)
        shared[role] = x if same is None else same
    return shared


def one_head(mixing: Mixing, whole: dict[str, Tensor], chosen: Tensor, head: int, index: dict[str, int]) -> Mixing:
    """The mixing of one head on some sequences, the others' Q, K and V held fixed at `whole`, `(B, heads, N, d)`."""

    def put(role: str, x: Tensor) -> Tensor:
        if role not in whole:
            return x
        if whole[role].shape[:2] == (1, 1):
            return x
        return whole[role].index_put((chosen, torch.tensor(index[role])), x[:, 0])

    def take(x: Tensor, h: int) -> Tensor:
        return x[chosen, h][:, None]

    if type(mixing) is not Softmax:
        return lambda q, k, v: take(mixing(put("query", q), put("key", k), put("value", v)), head)

    def part(x: Any) -> Any:
        """The part of a tensor that broadcasts to `(B, H, N, T)`."""
        if not isinstance(x, Tensor) or x.ndim == 0:
            return x
        x = x.reshape((1,) * (4 - x.ndim) + x.shape)
        x = x if x.shape[1] == 1 else x[:, head : head + 1]
        return x if x.shape[0] == 1 else x[chosen]

    return Softmax(
        part(mixing.scale),
        part(mixing.bias),
        lambda q: take(mixing.query_map(put("query", q)), head),
        lambda k: take(mixing.key_map(put("key", k)), index["key"]),
        mixing.softcap,
    )
