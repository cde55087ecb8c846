"""Model types that hear."""

from __future__ import annotations

from typing import Any

import torch

from tests.census.batch import Batch
from tests.census.overrides.override import Override


def speech(b: Batch) -> dict[str, Any]:
    """What is said, and the first words of its translation."""
    return {"input_features": b.random(2, 32, 160), "decoder_input_ids": b.ids(5), "use_cache": False}


SOUND: dict[str, Override] = {
    "audio-spectrogram-transformer": Override({"max_length": 64, "num_mel_bins": 32}),
    "clvp_encoder": Override({"hidden_size": 128, "num_attention_heads": 2, "projection_dim": 128}),
    "csm": Override(
        inputs=lambda b: {"input_ids": b.integers(40, 2, 7, int(b.config.num_codebooks), low=4), "use_cache": False}
    ),
    "gemma3n_audio": Override(
        inputs=lambda b: {
            "audio_mel": b.random(2, 32, int(b.config.input_feat_size)),
            "audio_mel_mask": torch.zeros(2, 32, dtype=torch.bool),
        }
    ),
    "granite_speech_encoder": Override(
        model="GraniteSpeechCTCEncoder", inputs=lambda b: {"hidden_states": b.random(2, 16, 160)}
    ),
    "granite_speech_plus_encoder": Override(inputs=lambda b: {"hidden_states": b.random(2, 16, 160)}),
    "kyutai_speech_to_text": Override(
        inputs=lambda b: {
            "input_ids": b.integers(40, 2, 7, int(b.config.num_codebooks) + 1, low=4),
            "use_cache": False,
        }
    ),
    "mimi": Override({"upsample_groups": 32}),
    "mimi_decoder": Override({"upsample_groups": 32}),
    "musicgen_melody_decoder": Override(inputs=lambda b: {"input_ids": b.ids().repeat(b.config.num_codebooks, 1)}),
    "qwen2_5_omni_audio_encoder": Override(
        inputs=lambda b: {
            "input_features": b.random(128, 40),
            "feature_lens": torch.tensor([20, 20]),
            "aftercnn_lens": torch.tensor([10, 10]),
        }
    ),
    "qwen3_asr_encoder": Override(
        inputs=lambda b: {
            "input_features": b.random(2, int(b.size("num_mel_bins")), 100),
            "input_features_mask": torch.ones(2, 100, dtype=torch.long),
        }
    ),
    "qwen3_omni_moe_audio_encoder": Override(
        inputs=lambda b: {
            "input_features": b.random(128, 40),
            "feature_lens": torch.tensor([20, 20]),
            "aftercnn_lens": torch.tensor([3, 3]),
        }
    ),
    "speecht5": Override(
        inputs=lambda b: {"input_ids": b.ids(), "decoder_input_values": b.random(2, 5, 80)},
        model="SpeechT5ForTextToSpeech",
    ),
    "voxtral_realtime_encoder": Override(
        inputs=lambda b: {"input_features": b.random(2, int(b.size("num_mel_bins")), 64)}
    ),
    "wav2vec2-bert": Override(inputs=lambda b: {"input_features": b.random(2, 32, 160)}),
    "musicgen_decoder": Override(
        inputs=lambda b: {
            "input_ids": b.ids().repeat(b.config.num_codebooks, 1),
            "encoder_hidden_states": b.random(2, 5, 32),
        }
    ),
    "musicgen": Override(
        model="MusicgenForConditionalGeneration",
        inputs=lambda b: {
            "input_ids": b.ids(),
            "decoder_input_ids": b.integers(60, 2 * int(b.size("num_codebooks")), 5),
            "use_cache": False,
        },
    ),
    "musicgen_melody": Override(
        model="MusicgenMelodyForConditionalGeneration",
        inputs=lambda b: {
            "input_ids": b.ids(),
            "decoder_input_ids": b.integers(60, 2 * int(b.size("num_codebooks")), 5),
            "use_cache": False,
        },
    ),
    "moonshine_streaming": Override({"num_key_value_heads": 4, "encoder_config": {"num_key_value_heads": 4}}),
    "clvp": Override(
        {
            "text_config": {"hidden_size": 128, "num_attention_heads": 2, "projection_dim": 128},
            "speech_config": {"hidden_size": 128, "num_attention_heads": 2, "projection_dim": 128},
            "decoder_config": {"hidden_size": 64, "num_attention_heads": 2},
        },
        inputs=lambda b: {"input_ids": b.ids(), "input_features": b.random(2, 32, 16)},
    ),
    "clap": Override(
        {"audio_config": {"hidden_size": 256, "spec_size": 128, "num_mel_bins": 64}},
        inputs=lambda b: {
            "input_ids": b.ids(),
            "input_features": b.random(2, 1, 128, 64),
            "is_longer": torch.zeros(2, 1, dtype=torch.bool),
        },
    ),
    "clap_audio_model": Override(
        {"spec_size": 128, "num_mel_bins": 64},
        inputs=lambda b: {
            "input_features": b.random(2, 1, 128, 64),
            "is_longer": torch.zeros(2, 1, dtype=torch.bool),
        },
    ),
    "granite_speech5_ctc": Override(
        {"encoder_config": {"num_key_value_heads": 4}}, inputs=lambda b: {"input_features": b.random(2, 64, 320)}
    ),
    "granite_speech5_encoder": Override(
        {"num_key_value_heads": 4}, inputs=lambda b: {"input_features": b.random(2, 64, 320)}
    ),
    "phi4_multimodal_audio": Override(
        {"nemo_conv_channels": 32, "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "input_size": 80},
        inputs=lambda b: {"hidden_states": b.random(2, 64, 80), "mask": torch.ones(2, 64, dtype=torch.bool)},
    ),
    "seamless_m4t": Override(model="SeamlessM4TForSpeechToText", inputs=speech),
    "seamless_m4t_v2": Override(model="SeamlessM4Tv2ForSpeechToText", inputs=speech),
}
