"""A layer's own score-and-mix, replayed as a function of (Q, K, V).

An adapter says how outputs follow from `Q, K, V`; everything the module was given at run time (masks, rotary angles,
relative positions, a memory) is captured from the module itself while the model runs. Verification, probabilities,
entropy and the Jacobian all use this one replay, so the user's attention kernel is never touched.

Shapes: `q` is `(B, H, N, d)`, `k` and `v` are `(B, G, T, d)`, the result is `(B, H, N, d_v)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from wellcond.attention.projection import Projection
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer
from wellcond.errors import WellcondError

if TYPE_CHECKING:  # verify.py builds on this file
    from wellcond.attention.verify import Verification


MASKED = -60.0  # masks are −inf, −10000, or −100 (Swin): e^−60 is below rounding error


@dataclass
class Call:
    """One call of an attention layer: its arguments, what its projections read, and its output.

    Args:
        layer: the view.
        module: the attention module.
        arguments: its arguments by parameter name (surplus keyword arguments included).
        reads: what each role's own sub-module was given, `(…, D)`; a role is absent if it has no module of its own.
        written: what the output projection's module returned, if it has one.
        repeats: whether the module of a projection was called again, of which `reads` and `written` show nothing.
        output: what the attention module returned.
        replay: the replay that rebuilt this call's own output; None where none did, or nobody has tried.
        verification: how closely it did.
        dtype: to replay in, where it is not the model's own.
    """

    layer: AttentionLayer
    module: Any
    arguments: dict[str, Any]
    reads: dict[str, Tensor] = field(default_factory=dict)
    written: Tensor | None = None
    repeats: bool = False
    output: Any = None
    given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # the same arguments as they were passed
    replay: Replay | None = None
    verification: Verification | None = None
    dtype: torch.dtype | None = None

    def argument(self, *names: str) -> Any:
        """Return the first of these arguments that was given and is not None."""
        return next((self.arguments[n] for n in names if self.arguments.get(n) is not None), None)

    @property
    def verified(self) -> Replay:
        """The replay that rebuilt this call's output, or an error that says why there is none."""
        if self.replay is None:
            raise WellcondError(f"'{self.layer.name}' is not measured: {self.refusal}")
        return self.replay

    @property
    def refusal(self) -> str:
        """Why no replay rebuilt this call's output; empty if one did."""
        return "it was not verified" if self.verification is None else self.verification.words

    def tokens(self) -> dict[str, Tensor]:
        """What Q, K and V read, `(B, N, D)` each."""
        return self.verified.tokens(self)

    def mixing(self) -> Mixing:
        """The score-and-mix of this call."""
        return self.verified.mixing(self)


Mixing = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Attended:
    """How every query attends, `(B, H, N, T)` each.

    Args:
        logits: what the softmax normalises.
        probabilities: its result.
        hidden: where a mask takes a key out whatever the logits are; None if nowhere.
    """

    logits: Tensor
    probabilities: Tensor
    hidden: Tensor | None


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Softmax:
    """`softmax(cap(s · f(q) g(k)ᵀ) + bias) v`: nearly every attention there is.

    Args:
        scale: `s`, a number or a tensor that broadcasts to `(B, H, N, T)`.
        bias: added to the logits: relative positions and masks together (−inf where a key is hidden).
        query_map: `f`, for QK-norm and rotary embedding.
        key_map: `g`, likewise.
        softcap: `c` in `c · tanh(logits / c)`, applied before the bias.

    >>> q = k = v = torch.eye(2).reshape(1, 1, 2, 2)
    >>> Softmax(scale=1.0, bias=causal_mask(2, 2))(q, k, v)[0, 0, 0]         # the first token sees only itself
    tensor([1., 0.])
    """

    scale: float | Tensor
    bias: Tensor | None = None
    query_map: Callable[[Tensor], Tensor] = _same
    key_map: Callable[[Tensor], Tensor] = _same
    softcap: float | None = None

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        """`(B, H, N, T)`, biases and masks included."""
        keys = repeat_groups(self.key_map(k), q.shape[1])
        logits = (self.query_map(q) @ keys.mT) * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if self.bias is None else logits + self.bias

    def probabilities(self, q: Tensor, k: Tensor) -> Tensor:
        """`(B, H, N, T)`, rows sum to one; a query that sees no key (padding on the left) has a row of zeros."""
        return self.normalise(self.logits(q, k))

    def attended(self, q: Tensor, k: Tensor) -> Attended:
        """Logits, probabilities and masks, `(B, H, N, T)`."""
        logits = self.logits(q, k)
        return Attended(
            logits, self.normalise(logits), None if self.hidden is None else self.hidden.expand(logits.shape)
        )

    def normalise(self, logits: Tensor) -> Tensor:
        """Probabilities from logits at hand."""
        if self.bias is None:  # then every query sees every key
            return logits.softmax(-1)
        blind = (logits == float("-inf")).all(-1, keepdim=True)
        return logits.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)

    @property
    def hidden(self) -> Tensor | None:
        """True where the bias takes a key out whatever the logits are, `(…, N, T)` that broadcasts; None if nowhere."""
        return None if self.bias is None else self.bias < MASKED

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values: `(B, H, N, d_v)`."""
        return self.probabilities(q, k) @ repeat_groups(v, q.shape[1])

    def unasked(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values as queries of zero do; without masks that is their mean, at no cost."""
        if self.bias is None and self.query_map is _same:
            mean = repeat_groups(v, q.shape[1]).mean(2, keepdim=True)
            return mean.expand(-1, -1, q.shape[2], -1)
        return self(torch.zeros_like(q), k, v)


def repeat_groups(x: Tensor, heads: int) -> Tensor:
    """Give each query head its key/value head: `(B, G, T, d)` to `(B, H, T, d)`, neighbours sharing one."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def causal_mask(n: int, t: int, like: Tensor | None = None) -> Tensor:
    """`(n, t)` additive mask: 0 on and below the diagonal, −inf above."""
    ones = torch.ones(n, t, dtype=torch.bool, device=None if like is None else like.device)
    return additive(ones.tril(), like)


def additive(mask: Tensor, like: Tensor | None = None) -> Tensor:
    """Turn a mask that is True where attention is allowed into an additive one; an additive one is returned as is."""
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros(mask.shape, device=mask.device, dtype=None if like is None else like.dtype)
    return zeros.masked_fill(~mask, float("-inf"))


def as_sequences(x: Tensor) -> Tensor:
    """`(…, D)` to `(B, N, D)`: a grid becomes a sequence, a bare sequence a batch of one."""
    return x[None] if x.ndim == 2 else x.flatten(1, -2)


def shared_tensors(tokens: dict[str, Tensor]) -> dict[str, Tensor]:
    """One tensor for roles that read the same tokens.

    >>> x = shared_tensors({"query": torch.ones(2), "key": torch.ones(2), "value": torch.zeros(2)})
    >>> x["query"] is x["key"], x["query"] is x["value"]
    (True, False)
    """
    found: list[Tensor] = []
    shared = {}
    for role, x in tokens.items():
        same = next((y for y in found if y is x or (y.shape == x.shape and torch.equal(x, y))), None)
        found.append(x)
        shared[role] = x if same is None else same
    return shared


def tokens_by_projection(call: Call) -> dict[str, Tensor]:
    """Return what Q, K and V read, as their own sub-modules saw it: `(B, N, D)` each."""
    return {role: as_sequences(call.reads[role]) for role, _ in call.layer.projections(*QKV)}


def tokens_from(argument: str) -> Callable[[Call], dict[str, Tensor]]:
    """Q, K and V all read one argument of the module (used where the weights are not called as modules)."""

    def tokens(call: Call) -> dict[str, Tensor]:
        x = as_sequences(call.arguments[argument])
        return {role: x for role, _ in call.layer.projections(*QKV)}

    return tokens


def concatenate_heads(call: Call, mixed: Tensor) -> Tensor:
    """`(B, H, N, d)` to `(B, N, H·d)`: what the output projection reads unless the adapter says otherwise."""
    return mixed.transpose(1, 2).flatten(2)


def output_of_layer(call: Call) -> Tensor:
    """Return what a rebuilt output is compared with: the output projection's result, else the module's."""
    if call.written is not None:
        return call.written
    output = call.output[0] if isinstance(call.output, (tuple, list)) else call.output
    return output if isinstance(output, Tensor) else output[0]


@dataclass(frozen=True)
class Replay:
    """A layer's output as a function of its projections; every part sees the captured `Call`.

    Args:
        mixing: the score-and-mix of this call: a `Softmax`, or any function of `(q, k, v)`.
        tokens: what the projections read, `{role: (B, N, D)}`.
        assemble: from the mixed values `(B, H, N, d)` to what the output projection reads, `(…, H·d)`.
        finish: from the output projection's result to what `target` returns.
        target: the module's own result.
        guess: whether it is made from names and sizes, so that more is asked of it.
    """

    mixing: Callable[[Call], Mixing]
    tokens: Callable[[Call], dict[str, Tensor]] = tokens_by_projection
    assemble: Callable[[Call, Tensor], Tensor] = concatenate_heads
    finish: Callable[[Call, Tensor], Tensor] = lambda call, x: x
    target: Callable[[Call], Tensor] = output_of_layer
    guess: bool = False


def project(projection: Projection, tokens: Tensor) -> Tensor:
    """Apply a query, key or value view in the tokens' dtype: `(B, N, D)` to `(B, heads, N, d)`, bias included."""
    bias = projection.read_bias()
    flat = linear(tokens, projection.matrix().mT.to(tokens), None if bias is None else bias.flatten().to(tokens))
    return flat.view(*flat.shape[:2], projection.heads, projection.width).transpose(1, 2)


def project_out(projection: Projection, mixed: Tensor) -> Tensor:
    """Apply an output view in the dtype of `(…, H·d)`, heads in the order of the view: `(…, D)`, bias included."""
    bias = projection.read_bias()
    return linear(mixed, projection.matrix().to(mixed), None if bias is None else bias.to(mixed))
