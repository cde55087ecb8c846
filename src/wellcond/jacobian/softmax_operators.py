"""J of softmax attention from its factors, side by side or stacked vertically: Gram matrices, triangle, norms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from wellcond._core.linalg import triangular_factor
from wellcond.jacobian.blocked_qr import triangle
from wellcond.jacobian.operator import Blocks, Dense, JacobianOperator, norm_by_products
from wellcond.jacobian.softmax_closed_form import CHUNK_ENTRIES, JacobianBlocks


class SideBySide(Blocks):
    """J of softmax attention side by side, `(R·d_v, r_Q·d + r_K·d + r_V·d_v)`, from its factors."""

    def __init__(self, parts: JacobianBlocks) -> None:
        self.parts = parts
        self.rows, self.width_v, width = parts.m.shape
        self.sizes = (parts.x.shape[1] * width, parts.g.shape[2] * width, parts.px.shape[1] * self.width_v)
        self.shape = (self.rows * self.width_v, sum(self.sizes))

    def row_chunks(self) -> Iterator[Tensor]:
        """Yield all columns of some query rows at a time."""
        for part in self.parts.split(self.width_v * self.shape[1]):
            blocks = (part.query(), part.key(), part.value())
            yield torch.cat([block.flatten(0, 1).flatten(1) for block in blocks], 1)

    def column_chunks(self) -> Iterator[Tensor]:
        """Yield the columns of some input coordinates of one role at a time."""
        yield from chain(self._query_columns(), self._key_columns(), self._value_columns())

    def _query_columns(self) -> Iterator[Tensor]:
        # x is a lower triangle where it was compressed: the later columns of J begin with zeros, so few at a time.
        for x in self._some(self.parts.x, 1):
            yield torch.einsum("nab,ni->ibna", self.parts.m, x).reshape(-1, self.shape[0])

    def _key_columns(self) -> Iterator[Tensor]:
        for g in self._some(self.parts.g, 2):
            q = self.parts.q
            columns = g.permute(2, 3, 0, 1) if q is None else torch.einsum("nai,nb->ibna", g, q)
            yield columns.reshape(-1, self.shape[0])

    def _value_columns(self) -> Iterator[Tensor]:
        for px in self._some(self.parts.px, 1):
            yield torch.einsum("ni,ab->ibna", px, self._eye()).reshape(-1, self.shape[0])

    def _some(self, x: Tensor, dim: int) -> Iterator[Tensor]:
        """Input coordinates, few enough for their columns to fit in a chunk, many enough for products to be fast."""
        least = -(-1024 // self.width_v)
        yield from torch.split(x, max(least, CHUNK_ENTRIES // (self.width_v * self.shape[0])), dim)

    def _eye(self) -> Tensor:
        return torch.eye(self.width_v, dtype=torch.float64, device=self.parts.px.device)

    def norms(self) -> list[float]:
        """Of J_Q and J_K by products with their factors; J_V = I ⊗ PX has the norm of PX."""
        p, (n, a) = self.parts, (self.rows, self.width_v)
        d, q = p.m.shape[2], p.q

        def query(v: Tensor) -> Tensor:
            return torch.einsum("nab,nb->na", p.m, p.x @ v.view(-1, d)).flatten()

        def query_back(u: Tensor) -> Tensor:
            return (p.x.mT @ torch.einsum("nab,na->nb", p.m, u.view(n, a))).flatten()

        def key(v: Tensor) -> Tensor:
            if q is None:
                return p.g.flatten(2).flatten(0, 1) @ v
            return torch.einsum("nai,ni->na", p.g, q @ v.view(-1, d).mT).flatten()

        def key_back(u: Tensor) -> Tensor:
            if q is None:
                return u @ p.g.flatten(2).flatten(0, 1)
            return (torch.einsum("nai,na->ni", p.g, u.view(n, a)).mT @ q).flatten()

        return [
            norm_by_products(query, query_back, (n * a, self.sizes[0]), p.m.device),
            norm_by_products(key, key_back, (n * a, self.sizes[1]), p.m.device),
            norm_by_products(p.px.matmul, p.px.mT.matmul, (n, p.px.shape[1]), p.px.device),
        ]

    def weighted(self, weights: Sequence[float]) -> SideBySide:
        """Multiply one factor of each block."""
        return SideBySide(self.parts.weighted(*weights))

    def row_gram(self) -> Tensor:
        """J Jᵀ = (XXᵀ)[n,m] M_n M_mᵀ + (QQᵀ)[n,m] G_n G_mᵀ + (PX XᵀPᵀ)[n,m] I, without forming J."""
        p, n, d = self.parts, self.rows, self.width_v
        m, g = p.m.flatten(0, 1), p.g.flatten(0, 1).flatten(1)
        xx, pp = p.x @ p.x.mT, p.px @ p.px.mT
        qq = None if p.q is None else p.q @ p.q.mT
        gram = m.new_empty(n, d, n, d)
        step = max(1, CHUNK_ENTRIES // (d * d * n))
        for start in range(0, n, step):
            part, flat = slice(start, start + step), slice(start * d, (start + step) * d)
            here = (m[flat] @ m.mT).view(-1, d, n, d).mul_(xx[part, None, :, None])
            keys = (g[flat] @ g.mT).view(-1, d, n, d)
            here += keys if qq is None else keys.mul_(qq[part, None, :, None])
            here.diagonal(dim1=1, dim2=3).add_(pp[part, :, None])
            gram[part] = here
        return gram.view(n * d, n * d)

    def column_gram(self) -> Tensor:
        """JᵀJ, each of its blocks one product over the query rows; by whole rows where keys are mapped."""
        if self.parts.q is None:
            return super().column_gram()
        gram = self.parts.m.new_zeros(self.shape[1], self.shape[1])
        a, b = self.sizes[0], self.sizes[0] + self.sizes[1]
        places = [(slice(0, a), slice(0, a)), (slice(a, b), slice(a, b)), (slice(b, None), slice(b, None))]
        places += [(slice(0, a), slice(a, b)), (slice(0, a), slice(b, None)), (slice(a, b), slice(b, None))]
        for part in self.parts.split(max(part.shape[1] for part in (self.parts.x, self.parts.px)) ** 2):
            for (row, column), block in zip(places, (*diagonal_grams(part), *_cross_grams(part)), strict=True):
                gram[row, column] += block.reshape(gram[row, column].shape)
        gram[a:b, :a], gram[b:, :b] = gram[:a, a:b].mT, gram[:b, b:].mT
        return gram

    def triangle(self) -> Tensor:
        """R; the value block of a wide J is a Kronecker product, whose triangle costs nothing."""
        if not self.wide:
            return super().triangle()
        px = self.parts.px
        small = px.new_zeros(self.rows, self.rows)
        r = triangular_factor(px.mT)
        small[: len(r)] = r
        others = chain(self._query_columns(), self._key_columns())
        return triangle(others, self.shape[0], torch.kron(small, self._eye()))


class Vertical(JacobianOperator):
    """J of softmax attention stacked vertically, `(3·R·d, r·d)`; all roles read the same coordinates."""

    def __init__(self, parts: JacobianBlocks) -> None:
        self.parts = parts
        rows, width_v, width = parts.m.shape
        self.shape = (3 * rows * width_v, parts.x.shape[1] * width)

    def row_chunks(self) -> Iterator[Tensor]:
        """The three blocks of some query rows."""
        for part in self.parts.split(3 * self.parts.m.shape[1] * self.shape[1]):
            for block in (part.query(), part.key(), part.value()):
                yield block.flatten(0, 1).flatten(1)

    def column_chunks(self) -> Iterator[Tensor]:
        """Columns of the whole matrix; it has fewer rows only where few are sampled."""
        yield from Dense(self.matrix()).column_chunks()

    def column_gram(self) -> Tensor:
        """JᵀJ is the sum of the three blocks' own."""
        if self.parts.q is None:
            return super().column_gram()
        gram = self.parts.m.new_zeros(self.shape[1], self.shape[1])
        for part in self.parts.split(self.parts.x.shape[1] ** 2):
            for block in diagonal_grams(part):
                gram += block.reshape(gram.shape)
        return gram


def diagonal_grams(part: JacobianBlocks) -> tuple[Tensor, Tensor, Tensor]:
    """J_QᵀJ_Q, J_KᵀJ_K and J_VᵀJ_V of some rows, indices (i, b, j, c)."""
    m, x, g, q, px = part.m, part.x, part.g, part.q, part.px
    assert q is not None
    eye = torch.eye(m.shape[1], dtype=m.dtype, device=m.device)
    return (
        torch.einsum("nij,nbc->ibjc", _outer(x, x), m.mT @ m),
        torch.einsum("nij,nbc->ibjc", g.mT @ g, _outer(q, q)),
        torch.einsum("ij,bc->ibjc", px.mT @ px, eye),
    )


def _cross_grams(part: JacobianBlocks) -> tuple[Tensor, Tensor, Tensor]:
    """J_QᵀJ_K, J_QᵀJ_V and J_KᵀJ_V of some rows, indices (i, b, j, c)."""
    m, x, g, q, px = part.m, part.x, part.g, part.q, part.px
    assert q is not None
    return (
        torch.einsum("nic,nbj->ibjc", _outer(x, q), m.mT @ g),
        torch.einsum("nij,ncb->ibjc", _outer(x, px), m),
        torch.einsum("nbj,nci->ibjc", _outer(q, px), g),
    )


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[:, :, None] * b[:, None, :]
