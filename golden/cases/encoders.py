"""Text encoders."""

from __future__ import annotations

import transformers as tf
from torch import nn

from cases.common import POSITIONS, SDPA_AND_EAGER, VOCABULARY, text, with_raw


def roberta(attention: str) -> nn.Module:
    """RoBERTa with its masked language model head; positions count the tokens that are no padding."""
    config = tf.RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
        attn_implementation=attention,
    )
    return tf.RobertaForMaskedLM(config)


def deberta() -> nn.Module:
    """DeBERTa-v2: content to position and position to content, buckets of logarithmic size, shared projections."""
    config = tf.DebertaV2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        relative_attention=True,
        position_buckets=8,
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        type_vocab_size=0,
    )
    return tf.DebertaV2Model(config)


def t5_encoder(attention: str) -> nn.Module:
    """T5's encoder: RMS norms, unscaled attention, relative position buckets shared by the layers, ReLU."""
    config = tf.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        attn_implementation=attention,
    )
    return tf.T5EncoderModel(config)


def clip_text(attention: str) -> nn.Module:
    """CLIP's text tower: causal, quick GELU, pooled at the token of the largest id."""
    config = tf.CLIPTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        projection_dim=16,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation=attention,
    )
    return tf.CLIPTextModel(config)


CASES = (
    *with_raw(text("t5_encoder", t5_encoder)),
    text("clip_text", clip_text),
    text("roberta", roberta, attentions=SDPA_AND_EAGER),
    text("deberta", deberta, attentions=()),
)
