"""GPT-2 of transformers, as wide and deep as wanted, with QK-norm and LayerScale if they are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.lab.models.switches import branch_scale, first_scale, head_norms, normalises
from wellcond.lab.tasks.checks import library


def gpt(
    shape: Mapping[str, int], width: int = 128, depth: int = 4, heads: int = 4, dropout: float = 0.0,
    qk_norm: bool = False, layer_scale: float | None = None,
) -> nn.Module:  # fmt: skip
    """Build GPT-2 of transformers for the task's words and length.

    GPT-2 has neither QK-norm nor LayerScale, so they are hooks on what its modules write; the model's own weights begin
    the same with and without them.

    Args:
        shape: of the task: vocabulary and tokens.
        width: of the tokens.
        depth: number of blocks.
        heads: of attention.
        dropout: everywhere.
        qk_norm: normalise queries and keys in each head.
        layer_scale: what the factors of the branches begin with; none unless it is given.
    """
    transformers = library("transformers", "hf")
    model: Any = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=shape["vocabulary"], n_positions=shape["tokens"], n_embd=width, n_layer=depth, n_head=heads,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
            bos_token_id=None, eos_token_id=None,  # of GPT-2's own vocabulary, which transformers warns of
        )
    )  # fmt: skip
    for block in model.transformer.h:
        if normalises(qk_norm):
            block.attn.q_norm, block.attn.k_norm = head_norms(width // heads, qk_norm)
            block.attn.c_attn.register_forward_hook(partial(_normalised, heads, block.attn.q_norm, block.attn.k_norm))
        if first_scale(layer_scale) is not None:
            block.scale_1, block.scale_2 = branch_scale(width, layer_scale), branch_scale(width, layer_scale)
            block.attn.register_forward_hook(partial(_scaled, block.scale_1))
            block.mlp.register_forward_hook(partial(_scaled, block.scale_2))
    built: nn.Module = model
    return built


def _normalised(
    heads: int, query_norm: nn.Module, key_norm: nn.Module, module: nn.Module, args: Any, fused: Tensor
) -> Tensor:
    """Normalise, head by head, the queries and keys of `(B, N, 3 width)`: queries, keys and values side by side."""
    query, key, value = (part.reshape(*part.shape[:-1], heads, -1) for part in fused.chunk(3, -1))
    return torch.cat([part.flatten(-2) for part in (query_norm(query), key_norm(key), value)], -1)


def _scaled(scale: nn.Module, module: nn.Module, args: Any, output: Any) -> Any:
    """Scale what a branch gives: a tensor, or the first of several things."""
    return (scale(output[0]), *output[1:]) if isinstance(output, tuple) else scale(output)
