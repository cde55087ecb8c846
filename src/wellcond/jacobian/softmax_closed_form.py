r"""The Jacobian of softmax attention in closed form, kept as its factors.

For query row n with probabilities $p_n$ and $\Lambda_n = diag(p_n) - p_n p_n^T$ (see `docs/jacobian.md`):

$J_Q[n] = M_n \otimes x_n$, $M_n = s V^T \Lambda_n \hat K F_n$;
$J_K[n] = s \sum_t (V^T \Lambda_n)_t \otimes x_t \otimes (\hat q_n^T H_t)$, without a key map $G_n \otimes \hat q_n$;
$J_V[n] = I \otimes (P X)_n$,

where F and H are the derivatives of what happens to a query or key before the product (rotation, QK-norm). Sums over
keys are centred: $V^T \Lambda_n Y = \sum_t p_{nt} (v_t - \bar v_n)(y_t - \bar y_n)^T$; the uncentred difference loses
digits of the smallest singular value. Replacing X by L of X = L Oᵀ keeps all singular values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond._core.linalg import triangular_factor
from wellcond.attention.ordinary import with_gradients
from wellcond.attention.replay import Softmax
from wellcond.jacobian.head import Head, per_distinct

CHUNK_ENTRIES = 2**22  # numbers in a temporary tensor


@dataclass(frozen=True)
class JacobianBlocks:
    """The factors of J for R query rows (of all sequences together)."""

    m: Tensor  # `M_n`, `(R, d_v, d)`
    x: Tensor  # what the query rows read, compressed, `(R, r)`
    g: Tensor  # `G_n`, `(R, d_v, r)`, or the whole key block `(R, d_v, r, d)` where keys are mapped one by one
    q: Tensor | None  # mapped queries, `(R, d)`; None where `g` is the whole block
    px: Tensor  # mixed tokens, `(R, r)`

    def query(self) -> Tensor:
        """The whole query block, `(R, d_v, r, d)`."""
        return self.m[:, :, None, :] * self.x[:, None, :, None]

    def key(self) -> Tensor:
        """The whole key block, `(R, d_v, r, d)`."""
        return self.g if self.q is None else self.g[..., None] * self.q[:, None, None, :]

    def value(self) -> Tensor:
        """The whole value block, `(R, d_v, r, d_v)`."""
        eye = torch.eye(self.m.shape[1], dtype=self.px.dtype, device=self.px.device)
        return self.px[:, None, :, None] * eye[:, None, :]

    def weighted(self, query: float, key: float, value: float) -> JacobianBlocks:
        """The factors of J with each block multiplied by a number."""
        return JacobianBlocks(self.m, self.x * query, self.g * key, self.q, self.px * value)

    def split(self, size: int) -> Iterator[JacobianBlocks]:
        """Yield some rows at a time, where a row needs room for `size` numbers."""
        step = max(1, CHUNK_ENTRIES // size)
        for start in range(0, len(self.m), step):
            rows = slice(start, start + step)
            q = None if self.q is None else self.q[rows]
            yield JacobianBlocks(self.m[rows], self.x[rows], self.g[rows], q, self.px[rows])


def closed_form_blocks(head: Head, tokens: dict[str, Tensor], rows: Tensor) -> JacobianBlocks:
    """The factors for some query rows; `tokens` are those of the head, compressed, the queries' at those rows."""
    softmax = head.mixing
    assert isinstance(softmax, Softmax)
    q, k, v = head.project()
    q_hat, f = mapped(softmax.query_map, q)
    k_hat, h = mapped(softmax.key_map, k)
    here = _at_rows(softmax, rows)
    q_hat, keys, values = q_hat[:, rows], k_hat, v[:, 0]
    p = here.probabilities(q_hat[:, None], keys[:, None])[:, 0]
    slope = _slope(here, q_hat, keys).broadcast_to(p.shape)
    # Σ_t p (v − v̄) = 0 unless the slope of the logits differs from key to key.
    even = here.softcap is None and not (isinstance(here.scale, Tensor) and here.scale.shape[-1:] not in ((), (1,)))
    parts: list[tuple[Tensor, Tensor]] = []
    for b in range(len(p)):
        x_k = tokens["key"][b]
        widest = max(x_k.shape[1] * (1 if h is None else k.shape[-1]), k.shape[-1], v.shape[-1])
        step = max(1, CHUNK_ENTRIES // (p.shape[2] * widest))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            means = p[b, part] @ values[b]
            deviations = (p[b, part] * slope[b, part])[..., None] * (values[b] - means[:, None])
            y = keys[b].expand(len(means), -1, -1)
            m = _contract(deviations, y, p[b, part], even)
            m = m if f is None else m @ f[b, rows[part]]
            if h is None:
                g = _contract(deviations, x_k.expand(len(means), -1, -1), p[b, part], even)
            else:
                turned = torch.einsum("cb,tbe->cte", q_hat[b, part], h[b])
                z = (x_k[:, :, None] * turned[:, :, None, :]).flatten(2)
                g = _contract(deviations, z, p[b, part], even).view(*m.shape[:2], x_k.shape[1], -1)
            parts.append((m, g))
    m, g = (torch.cat(each) for each in zip(*parts, strict=True))
    return JacobianBlocks(
        m,
        tokens["query"].flatten(0, 1),
        g,
        q_hat.flatten(0, 1) if h is None else None,
        (p @ tokens["value"]).flatten(0, 1),
    )


def _contract(deviations: Tensor, y: Tensor, p: Tensor, even: bool) -> Tensor:
    """Σ_t deviation_t y_tᵀ for each row: `(c, T, d_v)`, `(c, T, m)`, `(c, T)` to `(c, d_v, m)`."""
    mean = p[:, None] @ y
    out = deviations.mT @ (y - mean)
    return out if even else out + deviations.sum(1)[..., None] * mean


def _at_rows(softmax: Softmax, rows: Tensor) -> Softmax:
    """The softmax of some query rows, maps already applied."""

    def pick(x: Any) -> Any:
        return x[..., rows, :] if isinstance(x, Tensor) and x.ndim >= 2 and x.shape[-2] > 1 else x

    return Softmax(pick(softmax.scale), pick(softmax.bias), softcap=softmax.softcap)


def _slope(softmax: Softmax, q: Tensor, k: Tensor) -> Tensor:
    """Derivative of the logits with respect to q̂·k̂, broadcasting to `(B, N, T)`."""
    scale = softmax.scale if isinstance(softmax.scale, Tensor) else q.new_tensor(softmax.scale)
    scale = scale[:, 0] if scale.ndim == 4 else scale
    if softmax.softcap is None:
        return scale
    return scale * torch.cosh(scale * (q @ k.mT) / softmax.softcap).pow(-2)


def mapped(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor | None]:
    """f(x) and its derivative at each token: `(B, 1, N, d)` to `(B, N, d)` and `(B, N, d, d)`, None for the identity.

    A map of tokens one by one: a cotangent at every token at once gives a row of every token's derivative.
    """
    if is_identity(f, x):
        return x[:, 0].detach(), None
    with with_gradients():
        leaf = x.detach().requires_grad_()
        out = f(leaf)
        rows = []
        for a in range(out.shape[-1]):
            cotangent = torch.zeros_like(out)
            cotangent[..., a] = 1.0
            rows.append(torch.autograd.grad(out, leaf, cotangent, retain_graph=True)[0][:, 0])
    return out[:, 0].detach(), torch.stack(rows, -2)


def is_identity(f: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether a map changes neither values nor gradients here; a norm keeps unit vectors, but not gradients."""
    out, probe, pulled = pull_back_probe(f, x)
    return torch.equal(out, x) and torch.equal(pulled, probe)


def pull_back_probe(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return f(x), a random cotangent that is the same at every call, and the gradient it gives x."""
    with with_gradients():
        leaf = x.detach().requires_grad_()
        out = f(leaf)
        probe = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(0)).to(out.device)
        return out.detach(), probe, torch.autograd.grad(out, leaf, probe)[0]


def compress(tokens: dict[str, Tensor], joint: bool) -> dict[str, Tensor]:
    """L of X = L Oᵀ for what each role reads, `(B, N, min(B·N, D))`; `joint` uses one O for all roles."""
    return per_distinct(tokens, lambda x: triangular_factor(x.mT).mT if len(x) < x.shape[1] else x, joint=joint)
