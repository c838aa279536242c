"""Encoder-decoder models: as a whole, and their halves as a generating runtime runs them."""

from __future__ import annotations

import torch
import transformers as tf
from drawing import Input
from exporting import Case
from torch import nn

from cases.caching import MaskedCrossDecoder, UnmaskedCrossDecoder, cache_inputs
from cases.common import IDS, POSITIONS, SDPA_AND_EAGER, TS_AND_DYNAMO, VOCABULARY

FRAMES = 16  # of Whisper's encoder, after its convolutions
MELS = 8
PAIR_SIZES = ({"batch": 2, "sequence": 9, "target": 6}, {"batch": 3, "sequence": 14, "target": 5})
STEP_SIZES = (
    {"batch": 2, "sequence": 4, "past": 7, "source": 9},
    {"batch": 3, "sequence": 1, "past": 12, "source": 14},
    {"batch": 1, "sequence": 3, "past": 5, "source": 10},
)
WHISPER_STEP_SIZES = ({"batch": 2, "past": 7}, {"batch": 3, "past": 12}, {"batch": 1, "past": 5})


class T5Head(nn.Module):
    """T5's language model head, tied to the embedding and scaled for that."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.lm_head, self.scale = model.lm_head, model.config.d_model**-0.5

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.lm_head(states * self.scale)


def t5_decoder(attention: str) -> nn.Module:
    """T5's decoder with caches: biases of positions that depend on the past's length, gated tanh GELU."""
    config = tf.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        feed_forward_proj="gated-gelu",
        attn_implementation=attention,
    )
    model = tf.T5ForConditionalGeneration(config)
    return MaskedCrossDecoder(model, model.decoder, T5Head(model))


def marian(attention: str) -> nn.Module:
    """Marian, both halves: post-norm, sinusoidal positions from a table, scaled embeddings, swish, a bias on logits."""
    config = tf.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=POSITIONS,
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    return tf.MarianMTModel(config)


def _whisper(attention: str) -> nn.Module:
    config = tf.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=MELS,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=FRAMES,
        max_target_positions=POSITIONS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        attn_implementation=attention,
    )
    return tf.WhisperForConditionalGeneration(config)


def whisper_encoder(attention: str) -> nn.Module:
    """Whisper's encoder: two convolutions, no bias on keys."""
    return _whisper(attention).get_encoder()


def whisper_decoder(attention: str) -> nn.Module:
    """Whisper's decoder for one token with caches of its own past and of the encoder's keys and values."""
    model = _whisper(attention)
    return UnmaskedCrossDecoder(model, model.get_decoder(), model.proj_out)


CASES = (
    Case(
        "whisper_encoder",
        whisper_encoder,
        {"input_features": Input(("batch", MELS, 2 * FRAMES), "normal")},
        ({"batch": 2}, {"batch": 3}),
        SDPA_AND_EAGER,
        TS_AND_DYNAMO,
    ),
    Case(
        "whisper_decoder",
        whisper_decoder,
        {"input_ids": Input(("batch", 1), "tokens", high=VOCABULARY)}
        | cache_inputs("past", 4, "past", 8)
        | cache_inputs("cross", 4, FRAMES, 8),
        WHISPER_STEP_SIZES,
        SDPA_AND_EAGER,
        TS_AND_DYNAMO,
    ),
    Case(
        "t5_decoder",
        t5_decoder,
        {"input_ids": IDS, "encoder_attention_mask": Input(("batch", "source"), "mask")}
        | cache_inputs("past", 4, "past", 8)
        | cache_inputs("cross", 4, "source", 8),
        STEP_SIZES,
        ("sdpa",),
        TS_AND_DYNAMO,
    ),
    Case(
        "marian",
        marian,
        {
            "input_ids": IDS,
            "attention_mask": Input(("batch", "sequence"), "mask"),
            "decoder_input_ids": Input(("batch", "target"), "tokens", high=VOCABULARY),
        },
        PAIR_SIZES,
        ("sdpa",),
        TS_AND_DYNAMO,
    ),
)
