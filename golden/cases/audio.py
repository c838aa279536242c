"""Speech encoders on samples."""

from __future__ import annotations

from typing import Any

import transformers as tf
from drawing import Input
from exporting import Case
from torch import nn

from cases.common import TS_AND_DYNAMO

SAMPLES = {"input_values": Input(("batch", "samples"), "normal")}
SAMPLE_SIZES = ({"batch": 2, "samples": 200}, {"batch": 3, "samples": 317})


def _options(attention: str) -> dict[str, Any]:
    return {
        "vocab_size": 20,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "conv_dim": (16, 16, 16),
        "conv_stride": (5, 2, 2),
        "conv_kernel": (10, 3, 2),
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4,
        "attn_implementation": attention,
    }


def wav2vec2(attention: str) -> nn.Module:
    """Wav2Vec2 with its CTC head: group norm over time after the first convolution, convolved positions."""
    return tf.Wav2Vec2ForCTC(tf.Wav2Vec2Config(**_options(attention)))


def wav2vec2_conformer(positions: str) -> nn.Module:
    """Wav2Vec2-Conformer with its CTC head: attention between two half feed-forwards, convolutions with GLU."""
    options = _options("eager") | {"position_embeddings_type": positions, "conv_depthwise_kernel_size": 5}
    options |= {"max_source_positions": 128}
    return tf.Wav2Vec2ConformerForCTC(tf.Wav2Vec2ConformerConfig(**options))


def wav2vec2_conformer_relative() -> nn.Module:
    """Wav2Vec2-Conformer with relative positions as in Transformer-XL, shifted by reshaping."""
    return wav2vec2_conformer("relative")


def wav2vec2_conformer_rotary() -> nn.Module:
    """Wav2Vec2-Conformer with rotary positions, turned before the projections."""
    return wav2vec2_conformer("rotary")


CASES = (
    Case("wav2vec2", wav2vec2, SAMPLES, SAMPLE_SIZES, ("sdpa",), TS_AND_DYNAMO),
    Case("wav2vec2_conformer_relative", wav2vec2_conformer_relative, SAMPLES, SAMPLE_SIZES, exporters=TS_AND_DYNAMO),
    Case("wav2vec2_conformer_rotary", wav2vec2_conformer_rotary, SAMPLES, SAMPLE_SIZES, exporters=TS_AND_DYNAMO),
)
