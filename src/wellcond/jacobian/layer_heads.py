"""Heads of a real layer: what each reads while the model runs, its weights and its own mixing, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond._core.checked import checked
from wellcond.attention.higher_precision import widened
from wellcond.attention.observe import verified_call
from wellcond.attention.ordinary import ordinary
from wellcond.attention.recorded.replay import RecordedMixing
from wellcond.attention.replay import Call, Mixing, Softmax, project, shared_tensors
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer
from wellcond.errors import NotFiniteError, WellcondError
from wellcond.jacobian.head import Head


@checked
@ordinary()
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
    """Yield heads of a layer (all if None), one after the other; see `head_of`."""
    call = inputs if isinstance(inputs, Call) else verified_call(layer, inputs)
    precise = widened(call)
    roles = dict(layer.projections(*QKV))
    tokens = {role: x for role, x in precise.tokens().items() if role in roles}
    chosen = torch.tensor(range(len(tokens["value"])) if sequences is None else list(sequences), dtype=torch.long)
    if not len(chosen) or not 0 <= int(chosen.min()) <= int(chosen.max()) < len(tokens["value"]):
        raise WellcondError(f"'{layer.name}' read {len(tokens['value'])} sequences, there are no {chosen.tolist()}")
    whole = {role: project(projection, tokens[role]) for role, projection in roles.items()}
    if not all(bool(torch.isfinite(x).all()) for x in whole.values()):
        raise NotFiniteError(f"what '{layer.name}' reads, or its weights, are not finite: it has no Jacobian")
    weights = {role: projection.read().to(tokens[role]) for role, projection in roles.items()}
    biases = {role: bias.to(tokens[role]) for role, p in roles.items() if (bias := p.read_bias()) is not None}
    mixing = precise.mixing()
    resolution = next(iter(call.tokens().values())).dtype
    some = shared_tensors({role: x[chosen] for role, x in tokens.items()})
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
            mixing.rows if isinstance(mixing, RecordedMixing) else None,
        )


def one_head(mixing: Mixing, whole: dict[str, Tensor], chosen: Tensor, head: int, index: dict[str, int]) -> Mixing:
    """The mixing of one head on some sequences, the others' Q, K and V held fixed at `whole`, `(B, heads, N, d)`."""

    def put(role: str, x: Tensor) -> Tensor:
        if role not in whole or whole[role].shape[:2] == (1, 1):
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
