"""Decoder-only language models."""

from __future__ import annotations

from typing import Any

import transformers as tf
from drawing import Input
from exporting import Case
from torch import nn

from cases.caching import CachedDecoder, PositionedDecoder, cache_inputs
from cases.common import IDS, POSITIONS, SDPA_AND_EAGER, TS_AND_DYNAMO, VOCABULARY, text, with_raw

CACHE_SIZES = (
    {"batch": 2, "sequence": 4, "past": 7},
    {"batch": 3, "sequence": 1, "past": 12},
    {"batch": 1, "sequence": 5, "past": 8},
)
STEP = {"input_ids": IDS, "attention_mask": Input(("batch", "past + sequence"), "mask")}


def _options(attention: str, *, cache: bool) -> dict[str, Any]:
    """What every rotary decoder's configuration here has: 2 layers, 4 heads of 8 of which 2 have keys and values."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "use_cache": cache,
        "attn_implementation": attention,
    }


def gpt2(attention: str, *, cache: bool = False) -> nn.Module:
    """GPT-2 with its language model head tied to the embedding, 4 heads of 8, learned positions, tanh GELU."""
    config = tf.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=cache,
        attn_implementation=attention,
    )
    return tf.GPT2LMHeadModel(config)


def gpt2_cache(attention: str) -> nn.Module:
    """GPT-2 with past keys and values and positions given."""
    return PositionedDecoder(gpt2(attention, cache=True))


def llama(attention: str, *, cache: bool = False) -> nn.Module:
    """Llama: RMS norms, half-rotation rotary, SwiGLU, 2 query heads for each key head."""
    return tf.LlamaForCausalLM(tf.LlamaConfig(**_options(attention, cache=cache)))


def llama_cache(attention: str) -> nn.Module:
    """Llama with past keys and values; positions follow from the past's length."""
    return CachedDecoder(llama(attention, cache=True))


def gemma(attention: str) -> nn.Module:
    """Gemma: gains of 1 + w, embeddings scaled by sqrt(hidden), GEGLU, one key head, head width not hidden / heads."""
    options = _options(attention, cache=False) | {"num_key_value_heads": 1, "head_dim": 16}
    return tf.GemmaForCausalLM(tf.GemmaConfig(**options))


def gemma_cache(attention: str) -> nn.Module:
    """Gemma with past keys and values and positions given, which the rotary angles are computed from."""
    options = _options(attention, cache=True) | {"num_key_value_heads": 1, "head_dim": 16}
    return PositionedDecoder(tf.GemmaForCausalLM(tf.GemmaConfig(**options)))


def cohere(attention: str) -> nn.Module:
    """Cohere: interleaved rotary, LayerNorm without bias, attention and feed-forward side by side, scaled logits."""
    options = _options(attention, cache=False) | {"num_key_value_heads": 4}
    return tf.CohereForCausalLM(tf.CohereConfig(**options))


def glm(attention: str) -> nn.Module:
    """GLM: interleaved rotary on half of each head, biased projections, gate and up in one product."""
    options = _options(attention, cache=False) | {"attention_bias": True, "partial_rotary_factor": 0.5}
    return tf.GlmForCausalLM(tf.GlmConfig(**options))


def gptj(attention: str) -> nn.Module:
    """GPT-J: interleaved rotary on half of each head from a gathered table, attention and feed-forward side by side."""
    config = tf.GPTJConfig(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=32,
        n_layer=2,
        n_head=4,
        rotary_dim=4,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
        attn_implementation=attention,
    )
    return tf.GPTJForCausalLM(config)


def phi(attention: str) -> nn.Module:
    """Phi: half-rotation rotary on half of each head, LayerNorm, attention and feed-forward side by side, tanh GELU."""
    options = _options(attention, cache=False) | {"num_key_value_heads": 4, "partial_rotary_factor": 0.5}
    return tf.PhiForCausalLM(tf.PhiConfig(**options))


def mixtral(attention: str) -> nn.Module:
    """Mixtral: 4 experts of which each token takes 2, gathered and multiplied as one batch."""
    options = _options(attention, cache=False) | {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
    }
    config = tf.MixtralConfig(**options, experts_implementation="batched_mm")
    return tf.MixtralForCausalLM(config)


def deepseek_v3_cache(attention: str) -> nn.Module:
    """DeepSeek-V3 with dense layers: latents of 16 and a rotated part of 8 are cached, of which 4 heads are computed."""
    options = _options(attention, cache=True) | {
        "num_key_value_heads": 4,
        "head_dim": None,
        "q_lora_rank": 12,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "first_k_dense_replace": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
    }
    return CachedDecoder(tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**options)))


LATENTS = {
    f"past_{kind}_{layer}": Input(("batch", 1, "past", width), "normal")
    for layer in range(2)
    for kind, width in (("key", 16), ("value", 8))
}
POSITIONED = STEP | {"position_ids": Input(("batch", "sequence"), "tokens", high=POSITIONS)}

CASES = (
    *with_raw(text("llama", llama)),
    *with_raw(Case("llama_cache", llama_cache, STEP | cache_inputs("past", 2, "past", 8), CACHE_SIZES, SDPA_AND_EAGER)),
    Case("llama_cache", llama_cache, STEP | cache_inputs("past", 2, "past", 8), CACHE_SIZES, ("sdpa",), ("unnamed",)),
    *with_raw(text("gpt2", gpt2)),
    *with_raw(
        Case("gpt2_cache", gpt2_cache, POSITIONED | cache_inputs("past", 4, "past", 8), CACHE_SIZES, SDPA_AND_EAGER)
    ),
    text("gemma", gemma),
    Case(
        "gemma_cache",
        gemma_cache,
        POSITIONED | cache_inputs("past", 1, "past", 16),
        CACHE_SIZES,
        ("sdpa",),
        TS_AND_DYNAMO,
    ),
    Case("deepseek_v3_cache", deepseek_v3_cache, STEP | LATENTS, CACHE_SIZES, ("sdpa",), ("dynamo",)),
    text("cohere", cohere),
    text("glm", glm),
    text("gptj", gptj, attentions=("eager",)),
    text("phi", phi),
    text("mixtral", mixtral),
)
