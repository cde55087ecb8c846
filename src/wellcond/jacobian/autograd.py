"""The Jacobian of any attention that reads its tokens linearly: autograd in Q, K and V, then the tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.attention.ordinary import with_gradients
from wellcond.attention.roles import QKV
from wellcond.jacobian.head import Head
from wellcond.jacobian.softmax_closed_form import CHUNK_ENTRIES


def role_blocks(head: Head, tokens: dict[str, Tensor], rows: Tensor) -> list[Tensor]:
    """J_Q, J_K and J_V of some query rows, `(R·d_v, r·d)` each, those the head has; `tokens` are compressed.

    Any such attention has J_W = J_{QKV} (X ⊗ I), so each row of J_{QKV}, which reverse mode gives, is multiplied by X.
    """
    with with_gradients():
        leaves = [part.detach().requires_grad_() if part.numel() else part for part in head.project()]
        out = head.mixing(*leaves)[:, 0, rows].flatten()
        wanted = {role: leaf for role, leaf in zip(QKV, leaves, strict=True) if role in head.weights}
        sizes = {role: (tokens[role].shape[2], leaf.shape[3]) for role, leaf in wanted.items()}
        found = {role: out.new_zeros(len(out), r * d) for role, (r, d) in sizes.items()}
        largest = max(leaf.numel() for leaf in wanted.values())
        step = max(1, min(64, CHUNK_ENTRIES // largest))
        for start in range(0, len(out), step):
            part = slice(start, min(start + step, len(out)))
            cotangents = out.new_zeros(part.stop - start, len(out))
            cotangents[:, part] = torch.eye(part.stop - start, dtype=out.dtype, device=out.device)
            gradients = torch.autograd.grad(
                out, list(wanted.values()), cotangents, retain_graph=True, is_grads_batched=True, allow_unused=True
            )
            for role, gradient in zip(wanted, gradients, strict=True):
                if gradient is not None:
                    block = torch.einsum("cbnd,bnr->crd", gradient[:, :, 0], tokens[role])
                    found[role][part] = block.flatten(1)
    return list(found.values())
