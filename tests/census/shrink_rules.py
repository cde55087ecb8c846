"""The sizes of a tiny model, by the names that configurations of transformers give them."""

from __future__ import annotations

import math
import re
from typing import Any

WIDTH = 32
INNER = 48
HEADS = 4
KV_HEADS = 2
VOCAB = 99
STEM = 16  # width of the first stage of a model in stages
SPECIAL_TOKENS = range(60, VOCAB)  # ids of placeholders that lie outside the small vocabulary are moved here

# (pattern of the field's name, the new value of an integer). The first pattern that fits decides.
RULES: tuple[tuple[str, Any], ...] = (
    (r"mamba_(d_head|head_dim)$", 8),
    (r"(mamba|ssm|time_mix|state)\w*(n_heads|num_heads)$", 8),
    (r"linear_num_value_heads$", 4),
    (r"linear_num_key_heads$", 2),
    (r"linear_\w+_head_dim$", 8),
    (r"(n|num)_(hidden_)?groups?$|topk_group$", 1),
    (r"num_(kv_)?shared_(kv_)?layers$|num_nextn\w*|num_mtp\w*", 0),
    (r"first_k_dense_replace$|num_dense_layers$|first_num_dense\w*", lambda v: min(v, 1)),
    (r"num_encoder_blocks$|num_stages$|num_feature_levels$", lambda v: v),
    (r"num_\w*(layers_per_\w+)$", lambda v: min(v, 2)),
    (r"((^|_)(n|num)_\w*(layers?|blocks?)|(^|_)layers|^(depth|n_layers?)|_depth)$", lambda v: min(v, 2)),
    (r"(key_value|kv)_(attention_)?heads$", lambda v: min(v, HEADS)),
    (r"(heads?|n_head)$", lambda v: v if v == 1 else HEADS),
    (r"(qk_rope_head_dim|rotary_dim|rotary_emb_dim|rope_head_dim)$", lambda v: min(v, 8)),
    (r"(qk_nope_head_dim|v_head_dim)$", lambda v: min(v, 16)),
    (r"(head_dim|d_kv|head_size|kv_channels|qk_head_dim|d_head)$", "head_dim"),
    (r"lora_rank$|low_rank\w*|laurel_rank$|_rank$", lambda v: min(v, 16)),
    (r"(intermediate|ffn|mlp|feed_?forward|^d_ff|inner)\w*(size|dim|width|hidden)?$", lambda v: v if v < 8 else INNER),
    (r"(num|n)\w*experts$|expert_num$|num_local_experts$", lambda v: min(v, 4)),
    (r"experts_per_tok(en)?$|^moe_(topk|top_k|k)$|moe_num_experts_per_tok$", lambda v: min(v, 2)),
    (r"shared_experts?$", lambda v: min(v, 1)),
    (r"codebook_size$", lambda v: min(v, 64)),
    (r"vocab_size\w*$|num_embeddings$|num_tokens$|vocab$|n_words$", lambda v: v if v <= VOCAB else VOCAB),
    (r"(max_\w*position\w*|n_positions|n_ctx|max_seq_len\w*|context_length)$", lambda v: min(v, 128)),
    (r"image_size$|img_size$|input_size$|crop_size$", "image_size"),
    (r"(^|_)(sliding_window|local_attention|attention_window|local_window_size|attention_chunk_size)$", lambda v: 4),
    (r"^window_size$", lambda v: 32 if v > 32 else min(v, 4)),  # a large one counts pixels
    (r"num_pos_feats$", lambda v: WIDTH // 2),
    (r"(mm_tokens_per_image|image_seq_length|image_length|num_image_tokens)$", lambda v: min(v, 4)),
    (r"num_\w*queries$|num_\w*query_tokens$|num_detection_tokens$|num_latents$", lambda v: min(v, 5)),
    (r"(conv_dim|stem_channels|\w*channels_list)$", lambda v: v if v < 32 else WIDTH),
    (
        r"(hidden|embed\w*|model|projection|project|decoder|encoder|proj|text|vision|audio|neck|feature|latent|out(put)?"
        r"|fusion|head_hidden|prompt)_?(size|dim|width|hidden_size|hidden_dim)s?$|^(dim|d_model|n_embd|emb_dim|width|channels)$"
        r"|_(hidden_size|hidden_dim|embed_dim|embedding_size|embedding_dim|hidden_channels)$|^d_\w+$|^embedding_size$",
        lambda v: v if v < 16 else WIDTH,
    ),
)
DEPTHS = re.compile(r"depths?$|layers$|num_blocks$|_depths$|attn_blocks$|blocks_per_stage$")
WIDTHS = re.compile(r"(hidden_size|embed_dim|dim|channel|width|embed_dim|size)s?(_per_stage)?$")
# Fields that a class leaves open though its model needs a number there.
UNSET = {"vocab_size": VOCAB, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
KINDS_OF_LAYERS = ("layer_types", "layers_block_type", "block_types", "mlp_layer_types")


def smaller_list(name: str, values: Any) -> Any:
    """Shrink a list with one entry a stage: depths, heads or widths."""
    if not values or not all(isinstance(v, int) and not isinstance(v, bool) for v in values) or min(values) < 0:
        return values
    if "token" in name or "ind" in name or "stride" in name or "kernel" in name or "patch" in name:
        return values
    if DEPTHS.search(name) and max(values) < 64:
        return type(values)(min(v, 2) for v in values)
    unit = math.gcd(*values)
    if "heads" in name:
        return type(values)(v // unit * (2 if unit > 1 else 1) for v in values)
    if WIDTHS.search(name) and min(values) >= 16 and "image" not in name and "window" not in name:
        return type(values)(v // unit * STEM if min(values) // unit <= 4 else v for v in values)
    return values


def smaller(name: str, value: Any, head_dim: int, patch: int) -> Any:
    """Shrink one integer by the name of its field."""
    if name.endswith(("token_id", "token_index", "token_ids")) or value <= 1:
        return value
    for pattern, rule in RULES:
        if re.search(pattern, name):
            if rule == "head_dim":
                return head_dim
            if rule == "image_size":
                return image_side(patch)
            return rule(value) if callable(rule) else rule
    return value


def image_side(patch: int) -> int:
    """Return the side of a picture: of 4 × 4 patches, or large enough for four stages with windows of 4 × 4."""
    return 128 if patch <= 4 else 4 * small_patch(patch)


def small_patch(patch: int) -> int:
    return patch if patch <= 8 else 8


def moved_tokens(values: dict[str, Any]) -> dict[str, Any]:
    """Give every special token that lies outside the small vocabulary a place of its own in it."""
    free = iter(SPECIAL_TOKENS)
    ids = {
        name: v
        for name, v in values.items()
        if re.search(r"token_(id|index)$|_(token|patch|start|end|break)_id$", name)
    }
    places: dict[int, int] = {}
    for value in ids.values():
        if isinstance(value, int) and value >= VOCAB and value not in places:
            places[value] = next(free)
    return {name: places.get(v, v) for name, v in ids.items() if isinstance(v, int) and v in places}
