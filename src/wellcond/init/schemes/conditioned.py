"""Conditioned initialisation: semi-orthogonal queries and keys, identity values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.init.identity import identity_law
from wellcond.init.laws import Law, SemiOrthogonal, Shape
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Laws, Scheme

Kind = Literal["orthogonal", "identity", "keep"]


@register_scheme(
    "conditioned",
    citation="Conditioned Initialization for Attention",
    published="query and key semi-orthogonal, value identity, strength 1, output untouched; the same for every model",
)
@dataclass(frozen=True)
class Conditioned(Scheme):
    r"""Each head's W_Q and W_K semi-orthogonal, W_V a rectangular identity.

    $W_Q^i = U_r V_r^\top$ for the thin SVD of a Gaussian draw (Haar), independently for every head and for K, and
    $W_V^i = \lambda I_{D \times d}$. W_O, MLP, norms, embeddings and biases stay.

    Args:
        query: `"orthogonal"`, `"identity"` or `"keep"`.
        key: as for the query.
        value: `"shared"`: every head reads coordinates 0…d−1, as the paper writes; `"block"`: head i reads
            i·d…(i+1)·d−1, so that the whole value map is the identity; or `"orthogonal"`, `"keep"`.
        value_strength: λ, the singular values of the value map.
        output: `"keep"`, or `"orthogonal"` (the paper saw no difference).

    >>> import torch, wellcond as wc
    >>> model = torch.nn.MultiheadAttention(8, 2)
    >>> plan = wc.init_(model, "conditioned", seed=0)
    >>> q = wc.attention_layers(model)[0].query.read()
    >>> torch.allclose(q.mT @ q, torch.eye(4), atol=1e-6)
    True
    """

    query: Kind = "orthogonal"
    key: Kind = "orthogonal"
    value: Literal["shared", "block", "orthogonal", "keep"] = "shared"
    value_strength: float = 1.0
    output: Literal["keep", "orthogonal"] = "keep"

    def __post_init__(self) -> None:
        """λ = 0 would switch attention off."""
        if self.value_strength == 0:
            raise SchemeError("'conditioned' takes a value_strength other than 0: a zero value map passes nothing on")

    def applies(self, layer: AttentionLayer) -> str | None:
        """Everywhere; the block value map needs heads · d ≤ D."""
        heads, rows, columns = layer.value.shape if layer.value is not None else (0, 0, 0)
        if self.value == "block" and heads * columns > rows:
            return f"a block identity needs heads · d ≤ D, here {heads} · {columns} > {rows}"
        return None

    def laws(self, layer: AttentionLayer) -> Laws:
        """One law per role."""
        kinds = {"query": self.query, "key": self.key, "value": self.value, "output": self.output}
        return {
            (role,): self._law(role, kinds[role], p.shape) for role, p in layer.projections() if kinds[role] != "keep"
        }

    def _law(self, role: str, kind: str, shape: Shape) -> Law:
        strength = self.value_strength if role == "value" else 1.0
        if kind == "orthogonal":
            return SemiOrthogonal(strength)
        return identity_law(shape, strength, block=kind == "block")
