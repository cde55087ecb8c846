"""transformers, tiny: the real model classes from small configurations, with their own initialisation moved about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.cases.case import Case, Shape

VOCAB = 31
SIZES = {"vocab_size": VOCAB, "num_hidden_layers": 2, "intermediate_size": 28, "max_position_embeddings": 16}
GROUPED = "separate, grouped-query"


@torch.no_grad()
def randomise(model: nn.Module) -> nn.Module:
    """Move every parameter away from a zero, or from weights so small that attention is nearly uniform."""
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def build(model: str, **config: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        cls = getattr(transformers, model)
        return randomise(cls(cls.config_class(**config)))

    return make


def ids(length: int = 7) -> Tensor:
    return torch.randint(3, VOCAB, (2, length))


def padding(length: int = 7, *, left: bool = False) -> Tensor:
    """A mask that hides three tokens of the second sequence, at its end or its start."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, slice(3) if left else slice(-3, None)] = 0
    return mask


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def text() -> dict[str, Tensor]:
    return {"input_ids": ids()}


def padded() -> dict[str, Tensor]:
    return {"input_ids": ids(), "attention_mask": padding()}


def with_encoder() -> dict[str, Tensor]:
    """A decoder's batch, with an encoder's output whose end is hidden."""
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    return {"input_ids": ids(), "encoder_hidden_states": tokens(2, 5, 20), "encoder_attention_mask": mask}


def two_texts() -> dict[str, Tensor]:
    return {**padded(), "decoder_input_ids": ids(5)}


def layers(pattern: str, *shapes: Shape) -> tuple[tuple[str, Shape], ...]:
    """The same shape twice, or one for each layer."""
    return tuple((pattern.format(i), shape) for i, shape in enumerate(shapes * (2 // len(shapes))))


def encoder_decoder(encoder: str, decoder: str, cross: str, shape: Shape) -> tuple[tuple[str, Shape], ...]:
    crossing = Shape(shape.heads, shape.kv_heads, shape.width, shape.head_dim, cross=True, storage=shape.storage)
    pairs = [((decoder.format(i), shape), (cross.format(i), crossing)) for i in range(2)]
    return (*layers(encoder, shape), *pairs[0], *pairs[1])


BERT = {**SIZES, "hidden_size": 20, "num_attention_heads": 4}
GPT2 = {"vocab_size": VOCAB, "n_layer": 2, "n_embd": 20, "n_head": 4, "n_positions": 16}
LLAMA = {**SIZES, "hidden_size": 30, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4}
QWEN = {**SIZES, "hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2}
BART = {
    "vocab_size": VOCAB,
    "d_model": 20,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 28 for side in ("encoder", "decoder")},
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TWENTY = Shape(4, 4, 20, 5, storage="separate")
LLAMA_SHAPE = Shape(6, 3, 30, 4, storage=GROUPED)
BART_LAYERS = ("encoder.layers.{}.self_attn", "decoder.layers.{}.self_attn", "decoder.layers.{}.encoder_attn", TWENTY)

HF_CASES: tuple[Case, ...] = (
    Case("hf-bert", build("BertModel", **BERT), padded, layers("encoder.layer.{}.attention", TWENTY)),
    Case(
        "hf-bert-cross",
        build("BertModel", **BERT, is_decoder=True, add_cross_attention=True),
        with_encoder,
        (
            ("encoder.layer.0.attention", TWENTY),
            ("encoder.layer.0.crossattention", Shape(4, 4, 20, 5, cross=True, storage="separate")),
            ("encoder.layer.1.attention", TWENTY),
            ("encoder.layer.1.crossattention", Shape(4, 4, 20, 5, cross=True, storage="separate")),
        ),
    ),
    Case("hf-roberta", build("RobertaModel", **BERT), padded, layers("encoder.layer.{}.attention", TWENTY)),
    Case(
        "hf-distilbert",
        build("DistilBertModel", vocab_size=VOCAB, dim=20, n_heads=4, n_layers=2, hidden_dim=28),
        padded,
        layers("transformer.layer.{}.attention", TWENTY),
    ),
    Case("hf-mpnet", build("MPNetModel", **BERT), padded, layers("encoder.layer.{}.attention.attn", TWENTY)),
    Case(
        "hf-modernbert",  # layer 0 sees everything, layer 1 a window
        build(
            "ModernBertModel",
            **{**SIZES, "hidden_size": 24, "num_attention_heads": 3, "pad_token_id": 0},
            layer_types=["full_attention", "sliding_attention"],
            local_attention=4,
        ),
        padded,
        layers("layers.{}.attn", Shape(3, 3, 24, 8)),
    ),
    Case(
        "hf-nystromformer",  # without padding, which transformers 5 itself cannot broadcast to the landmarks
        build("NystromformerModel", **BERT, num_landmarks=2, segment_means_seq_len=8, conv_kernel_size=3),
        lambda: {"input_ids": ids(8)},
        layers("encoder.layer.{}.attention", Shape(4, 4, 20, 5, kind="nystrom", storage="separate")),
    ),
    Case(
        "hf-gpt2",  # the logits of layer i are divided by i + 1
        build("GPT2LMHeadModel", **GPT2, scale_attn_by_inverse_layer_idx=True),
        text,
        layers("transformer.h.{}.attn", Shape(4, 4, 20, 5, storage="fused block, transposed")),
    ),
    Case(
        "hf-gpt2-cross",
        build("GPT2Model", **GPT2, add_cross_attention=True),
        with_encoder,
        tuple(
            pair
            for i in range(2)
            for pair in (
                (f"h.{i}.attn", Shape(4, 4, 20, 5, storage="fused block, transposed")),
                (
                    f"h.{i}.crossattention",
                    Shape(4, 4, 20, 5, cross=True, storage="fused block, q + fused kv, transposed"),
                ),
            )
        ),
    ),
    Case(
        "hf-gpt-neo",  # no scale; layer 1 sees a window
        build(
            "GPTNeoModel",
            vocab_size=VOCAB,
            hidden_size=20,
            num_layers=2,
            num_heads=4,
            intermediate_size=28,
            attention_types=[[["global", "local"], 1]],
            window_size=3,
            max_position_embeddings=16,
        ),
        padded,
        layers("h.{}.attn.attention", TWENTY),
    ),
    Case(
        "hf-gpt-bigcode",
        build("GPTBigCodeModel", **GPT2),
        padded,
        layers("h.{}.attn", Shape(4, 1, 20, 5, storage="fused block, grouped-query")),
    ),
    Case(
        "hf-gpt-neox",  # a quarter of each head is rotated
        build("GPTNeoXModel", **{**SIZES, "hidden_size": 24, "num_attention_heads": 3}),
        text,
        layers("layers.{}.attention", Shape(3, 3, 24, 8, storage="fused head-interleaved")),
    ),
    Case(
        "hf-opt",
        build(
            "OPTModel",
            **{**BERT, "word_embed_proj_dim": 20, "ffn_dim": 28, "do_layer_norm_before": False},
        ),
        padded,
        layers("decoder.layers.{}.self_attn", TWENTY),
    ),
    Case(
        "hf-gptj",  # without a replay: its rotation is inside the module
        build("GPTJModel", vocab_size=VOCAB, n_embd=24, n_head=3, n_layer=2, n_positions=16, rotary_dim=4),
        lambda: {**padded(), "use_cache": False},  # it is run again and again
        layers("h.{}.attn", Shape(3, 3, 24, 8, storage="separate")),
    ),
    Case(
        "hf-bloom",
        build("BloomModel", vocab_size=VOCAB, hidden_size=20, n_layer=2, n_head=4),
        padded,
        layers("h.{}.self_attention", Shape(4, 4, 20, 5, storage="fused head-interleaved")),
    ),
    Case(
        "hf-falcon",
        build(
            "FalconModel",
            **{**SIZES, "hidden_size": 24, "num_attention_heads": 6, "num_kv_heads": 2},
            new_decoder_architecture=True,
        ),
        padded,
        layers("h.{}.self_attention", Shape(6, 2, 24, 4, storage="fused head-interleaved, grouped-query")),
    ),
    Case(
        "hf-falcon-alibi",
        build("FalconModel", **{**SIZES, "hidden_size": 24, "num_attention_heads": 6}, alibi=True),
        padded,
        layers("h.{}.self_attention", Shape(6, 1, 24, 4, storage="fused block, grouped-query")),
    ),
    Case(
        "hf-llama",  # with padding on the left, some queries see nothing
        build("LlamaModel", **LLAMA),
        lambda: {"input_ids": ids(), "attention_mask": padding(left=True)},
        layers("layers.{}.self_attn", LLAMA_SHAPE),
    ),
    Case(
        "hf-mistral",
        build("MistralForCausalLM", **LLAMA, sliding_window=3),
        text,
        layers("model.layers.{}.self_attn", LLAMA_SHAPE),
    ),
    Case(
        "hf-phi3",
        build("Phi3Model", **QWEN, **SPECIAL),
        padded,
        layers("layers.{}.self_attn", Shape(6, 2, 24, 4, storage="fused block, grouped-query")),
    ),
    Case(
        "hf-qwen2",
        build("Qwen2Model", **QWEN),
        text,
        layers("layers.{}.self_attn", Shape(6, 2, 24, 4, storage=GROUPED)),
    ),
    Case(
        "hf-qwen3",  # the eager kernel, which is given its mask
        build("Qwen3Model", **LLAMA, attn_implementation="eager"),
        padded,
        layers("layers.{}.self_attn", LLAMA_SHAPE),
    ),
    Case(
        "hf-qwen2.5-vl-vision",  # two pictures packed into one sequence; layer 0 sees windows
        build(
            "Qwen2_5_VisionTransformerPretrainedModel",
            depth=2,
            hidden_size=24,
            num_heads=3,
            intermediate_size=28,
            out_hidden_size=20,
            patch_size=2,
            window_size=8,
            fullatt_block_indexes=[1],
        ),
        lambda: {"hidden_states": tokens(48, 24), "grid_thw": torch.tensor([[1, 4, 8], [1, 4, 4]])},
        layers("blocks.{}.attn", Shape(3, 3, 24, 8)),
    ),
    Case(
        "hf-qwen3.5",  # gated
        build("Qwen3_5TextModel", **LLAMA, layer_types=["full_attention"] * 2),
        text,
        layers("layers.{}.self_attn", LLAMA_SHAPE),
    ),
    Case(
        "hf-gemma2",  # softcap, and a scale that is not 1/√d; layer 0 sees a window
        build("Gemma2Model", **LLAMA, **SPECIAL, sliding_window=3, query_pre_attn_scalar=7, attn_logit_softcapping=2.0),
        text,
        layers("layers.{}.self_attn", LLAMA_SHAPE),
    ),
    Case(
        "hf-olmo2",  # a norm over all heads together
        build("Olmo2Model", **QWEN, **SPECIAL),
        padded,
        layers("layers.{}.self_attn", Shape(6, 2, 24, 4, storage=GROUPED)),
    ),
    Case(
        "hf-cohere2",  # neighbours are rotated, and only in the window layer
        build(
            "Cohere2Model",
            **{**LLAMA, **SPECIAL},
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=3,
        ),
        padded,
        layers("layers.{}.self_attn", LLAMA_SHAPE),
    ),
    Case(
        "hf-gpt-oss",  # sinks
        build(
            "GptOssModel",
            **{**LLAMA, **SPECIAL, "num_local_experts": 2, "num_experts_per_tok": 1},
            experts_implementation="eager",
            sliding_window=3,
        ),
        padded,
        layers("layers.{}.self_attn", LLAMA_SHAPE),
    ),
    Case(
        "hf-t5",
        build("T5Model", vocab_size=VOCAB, d_model=20, d_kv=6, num_heads=4, num_layers=2, d_ff=28),
        two_texts,
        encoder_decoder(
            "encoder.block.{}.layer.0.SelfAttention",
            "decoder.block.{}.layer.0.SelfAttention",
            "decoder.block.{}.layer.1.EncDecAttention",
            Shape(4, 4, 20, 6, storage="separate"),
        ),
    ),
    Case(
        "hf-bart",
        build("BartModel", **BART, **SPECIAL, max_position_embeddings=16, scale_embedding=True),
        two_texts,
        encoder_decoder(*BART_LAYERS),
    ),
    Case(
        "hf-whisper",
        build("WhisperModel", **BART, **SPECIAL, num_mel_bins=6, max_source_positions=8, decoder_start_token_id=1),
        lambda: {"input_features": tokens(2, 6, 16), "decoder_input_ids": ids(5)},
        encoder_decoder(*BART_LAYERS),
    ),
    Case(
        "hf-vit",
        build(
            "ViTModel",
            hidden_size=20,
            num_attention_heads=4,
            num_hidden_layers=2,
            intermediate_size=28,
            image_size=8,
            patch_size=4,
        ),
        lambda: {"pixel_values": tokens(2, 3, 8, 8)},
        layers("layers.{}.attention", TWENTY),
    ),
    Case(
        "hf-swin",  # the second block of the first stage is shifted
        build("SwinModel", image_size=16, patch_size=2, embed_dim=12, depths=[2, 1], num_heads=[3, 4], window_size=4),
        lambda: {"pixel_values": tokens(2, 3, 16, 16)},
        (
            ("encoder.layers.0.blocks.0.attention", Shape(3, 3, 12, 4, storage="separate")),
            ("encoder.layers.0.blocks.1.attention", Shape(3, 3, 12, 4, storage="separate")),
            ("encoder.layers.1.blocks.0.attention", Shape(4, 4, 24, 6, storage="separate")),
        ),
    ),
)
