"""timm's attentions that are not a softmax over tokens: over channels, over a neighbourhood, over talking heads."""

from __future__ import annotations

from torch import Tensor, nn

from wellcond.attention.replay import Call, Mixing


def xca(call: Call) -> Mixing:
    """XCiT's cross-covariance attention: softmax(τ q̂ᵀ k̂) over channels, with each channel a unit vector of tokens."""

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = (nn.functional.normalize(x, dim=-2) for x in (q, k))
        weights: Tensor = (q.mT @ k * call.module.temperature).softmax(-1)
        return v @ weights.mT

    return mix


def channel(call: Call) -> Mixing:
    """DaViT's channel attention: output channel `i` is Σⱼ softmax(s qᵀ k)ᵢⱼ vⱼ, a mean of channels, not of tokens.

    So the query is what indexes the rows of the `(d, d)` weights, the key their columns, the value what they average.
    Version 1 computes softmax(s kᵀ v) qᵀ: what it names k is the query, v the key and q the value. Version 2 names them
    as here, and scales by the number of tokens to the power −½ where version 1 has a fixed number.
    """

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = getattr(call.module, "scale", None)
        if scale is None:
            scale = (q.shape[-2] if call.module.dynamic_scale else q.shape[-1]) ** -0.5
        weights: Tensor = (q.mT @ k * scale).softmax(-1)
        return v @ weights.mT

    return mix


def talking_heads(call: Call) -> Mixing:
    """CaiT: the heads' logits are mixed by one `(H, H)` map before the softmax, their probabilities by another."""
    module = call.module

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = (q @ k.mT * module.scale).movedim(1, -1)
        weights: Tensor = module.proj_w(module.proj_l(logits).softmax(-2)).movedim(-1, 1)
        return weights @ v

    return mix


def outlook(call: Call) -> Mixing:
    """VOLO: around each centre, k² × k² weights made from the centre's token average the k × k values around it.

    The averages around all centres are added where they overlap (unfold, average, fold).
    """
    module, x = call.module, call.arguments["x"]
    window, size = module.kernel_size**2, x.shape[1:3]
    centres = module.pool(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).flatten(1, 2)

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, _, width = v.shape
        logits = module.attn(centres).unflatten(-1, (heads, window, window)).transpose(1, 2)
        weights = (logits * module.scale).softmax(-1)
        around = module.unfold(v.mT.reshape(batch, heads * width, *size))
        around = around.unflatten(1, (heads, width, window)).permute(0, 1, 4, 3, 2)
        means = (weights @ around).permute(0, 1, 4, 3, 2).flatten(1, 3)
        unfold = {"kernel_size": module.kernel_size, "padding": module.padding, "stride": module.stride}
        mixed = nn.functional.fold(means, size, **unfold)
        return mixed.reshape(batch, heads, width, -1).mT

    return mix
