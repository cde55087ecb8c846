"""`AttentionLayer`, the shared language of the library: one layer of any model, whatever its storage.

Mathematics layout everywhere: tokens are rows and head `h` computes `q = x W_Q^h` with `W_Q^h` of shape `(D, d)`; a
projection reads and writes `(heads, D, d)`. The output projection has the same shape: `W_O^h` is `read()[h].T`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch import nn

from wellcond._core.checked import checked
from wellcond._core.short_repr import short_repr
from wellcond.attention.layouts import Layout, Strided
from wellcond.attention.paths import resolve
from wellcond.attention.projection import Projection
from wellcond.attention.roles import QKV, ROLES
from wellcond.errors import ArgumentError, WeightError

if TYPE_CHECKING:  # replay.py builds on this file
    from wellcond.attention.replay import Replay
    from wellcond.attention.verify import Verification

# What modules call the norm of their queries, or keys.
QK_NORMS = {"query": r"(^|\.)((q|query)_(layer_?)?norm|norm_q)$", "key": r"(^|\.)((k|key)_(layer_?)?norm|norm_k)$"}


@dataclass(frozen=True)
class ResidualBlock:
    """One residual block around attention: what depth-scaled schemes and `without_layernorm` need beyond Q, K, V, O.

    Args:
        name: canonical path of the block's module.
        index: depth of the block in its stack, from 0.
        depth: number of blocks in the stack.
        other_depth: number of blocks in the other stack of an encoder–decoder, else 0.
        stack: `"encoder"` or `"decoder"` where the model has cross-attention, else `""`.
        mlp_in: the MLP's matrices that read the stream (one, or two for a gated MLP), as one-head projections.
        mlp_out: the MLP's matrices that write to the stream.
        norms: canonical paths of the normalisation modules outside the attention layers.
        layer_scale: canonical paths of the LayerScale parameters.
        norm_position: `"pre"` (`x + f(LN(x))`), `"post"` (`LN(x + f(x))`), or `""` where the class does not say.

    >>> import torch, wellcond as wc
    >>> layer = torch.nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
    >>> block = wc.attention_layers(torch.nn.Sequential(layer))[0].block
    >>> block.name, block.index, block.depth, block.norm_position, block.norms
    ('0', 0, 1, 'post', ('0.norm1', '0.norm2'))
    >>> block.mlp_in[0].shape, block.mlp_out[0].shape                   # (1, in, out), and (1, out, in) as for O
    ((1, 12, 20), (1, 12, 20))
    """

    name: str
    index: int
    depth: int
    stack: str
    mlp_in: tuple[Projection, ...]
    mlp_out: tuple[Projection, ...]
    norms: tuple[str, ...]
    layer_scale: tuple[str, ...]
    other_depth: int = 0
    norm_position: str = ""


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer: its four projections per head, and how its output follows from them.

    Roles are algebraic. The value is what is averaged, the query indexes the rows of the averaging matrix, whatever
    the source code calls them. A role the layer does not have is None.

    Args:
        name: canonical path of the attention module.
        kind: `"softmax"`, or what mixes the values instead (`"xca"`, `"channel"`, `"outlook"`, …).
        scale: logit scale before the softmax, None where it has no single number.
        cross: whether keys and values may come from another sequence.
        replay: the layer's own score-and-mix as a function of Q, K, V; None where there is none yet.
        standing: how far the view is known: `"described"` by its class, `"guessed"` from names and sizes, `"verified"`
            or `"refused"` by a pass.
        reason: why it is refused.

    >>> import torch, wellcond as wc
    >>> layer = wc.attention_layers(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True))[0]
    >>> layer.name, layer.kind, layer.num_heads, layer.head_dim, round(layer.scale, 3)
    ('self_attn', 'softmax', 2, 4, 0.5)
    >>> layer.storage
    'fused block'
    """

    name: str
    kind: str
    query: Projection | None
    key: Projection | None
    value: Projection | None
    output: Projection | None = None
    scale: float | None = None
    cross: bool = False
    replay: Replay | None = field(default=None, repr=False, compare=False)
    block: ResidualBlock | None = field(default=None, repr=False, compare=False)
    root: nn.Module | None = field(default=None, repr=False, compare=False)
    standing: str = field(default="described", compare=False)
    reason: str = field(default="", compare=False)

    @property
    def path(self) -> str:
        """Canonical path of the attention module: the name without the number of a second site in one module."""
        return self.name.partition("#")[0]

    @property
    def module(self) -> nn.Module:
        """The attention module, looked up now."""
        if self.root is None:
            raise WeightError(f"the view of '{self.name}' is not bound: get it from wc.attention_layers(model)")
        try:
            return resolve(self.root, self.path)
        except KeyError as error:
            raise WeightError(f"'{self.name}' is no longer in the model ({error}); make the views again") from error

    @property
    def num_heads(self) -> int:
        """`H`, the number of query heads (value heads where there is no query)."""
        first = self.query or self.value
        return first.heads if first else 0

    @property
    def num_kv_heads(self) -> int:
        """`G`, the number of key/value heads."""
        first = self.key or self.value
        return first.heads if first else 0

    @property
    def head_dim(self) -> int:
        """`d`, the width of a query head (value head where there is no query)."""
        first = self.query or self.value
        return first.width if first else 0

    @property
    def width(self) -> int:
        """`D`, the width of what the queries read (values where there is no query)."""
        first = self.query or self.value
        return first.shape[1] if first else 0

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised before their product, so that the scale of Q and K has no effect."""
        norms = (name for name, child in self.module.named_modules() if not isinstance(child, nn.Identity))
        named = any(re.search(QK_NORMS["query"], name) for name in norms)
        return named or self.kind == "xca"

    @property
    def rotary(self) -> bool:
        """Whether queries and keys may be rotated by their positions: the module is given angles."""
        return not {"rope", "position_embeddings"}.isdisjoint(signature(self.module.forward).parameters)

    @property
    def storage(self) -> str:
        """Storage of Q, K and V, in words."""
        slots = [p.weight for _, p in self.projections(*QKV)]
        words = []
        if len({slot.path for slot in slots}) == len(slots):
            words.append("separate")
        else:
            shared = [s.layout for s in slots if s.path == slots[-1].path]
            low, high = sorted(shared, key=lambda layout: layout.starts[0])[:2]
            mixed = low.heads > 1 and low.starts[-1] > high.starts[0]
            words.append("fused head-interleaved" if mixed else "fused block")
            words.extend(["q + fused kv"] if len(shared) == 2 and len(slots) == 3 else [])
        if any(isinstance(slot.layout, Strided) for slot in slots):
            words.append("strided")
        if any(isinstance(slot.layout, Layout) and slot.layout.axis for slot in slots):
            words.append("transposed")
        if self.num_kv_heads != self.num_heads:
            words.append("grouped-query")
        return ", ".join(words)

    def projections(self, *roles: str) -> Iterator[tuple[str, Projection]]:
        """Yield `(role, projection)` for the roles the layer has (all four unless named)."""
        for role in roles or ROLES:
            if not isinstance(role, str) or role not in ROLES:
                raise ArgumentError(f"a role is one of {', '.join(ROLES)}; got {short_repr(role)}")
            projection = getattr(self, role)
            if projection is not None:
                yield role, projection

    @checked
    def bind(self, root: nn.Module, block: ResidualBlock | None = None) -> AttentionLayer:
        """Return the same view attached to a model."""
        bound: dict[str, Any] = {role: replace(p, root=root) for role, p in self.projections()}
        return replace(self, root=root, block=block, **bound)

    @checked
    def verify(self, inputs: Any) -> Verification:
        """Rebuild the module's own output from this view; see `wellcond.attention.observe.verify`.

        Args:
            inputs: a batch for the *model*: a tensor, a tuple of positional or a dict of keyword arguments.
        """
        from wellcond.attention.observe import verify

        return verify(self, inputs)
