"""Decoders of real size, with positions for 4,200 tokens: their weights are random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cases.caching import CachedDecoder, cache_inputs
from drawing import Input
from exporting import Case
from torch import nn

from benchmarks.exports.building import build, layered

LONG = 4352
SIZES = ({"batch": 2, "sequence": 4, "past": 13}, {"batch": 3, "sequence": 1, "past": 20})
COMMON: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": LONG,
}


def _inputs(words: int) -> dict[str, Input]:
    tokens = {"input_ids": Input(("batch", "sequence"), "tokens", high=words)}
    return tokens | {"attention_mask": Input(("batch", "past + sequence"), "mask")}


def _case(
    name: str, kind: str, config: str, options: Mapping[str, Any], keys: int, layers: int, words: int, size: int = 64
) -> Case:
    def made(attention: str) -> nn.Module:
        return layered(CachedDecoder, [*_inputs(words)], layers)(build(kind, config, options, attention))

    return Case(
        name,
        made,
        _inputs(words) | cache_inputs("past", keys, "past", size, layers),
        SIZES,
        ("sdpa",),
        ("ts", "dynamo"),
    )


LATENTS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
"""Sizes of what multi-head latent attention caches of each token: the latents, and the part of keys that is rotated."""


def _latent(attention: str) -> nn.Module:
    """The attention of DeepSeek-V2-Lite, with dense layers."""
    options = {
        **COMMON,
        **LATENTS,
        "num_key_value_heads": 16,
        "head_dim": None,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "first_k_dense_replace": 8,
        "n_group": 1,
        "topk_group": 1,
    }
    model = build("DeepseekV3ForCausalLM", "DeepseekV3Config", options, attention)
    return layered(CachedDecoder, [*_inputs(32000)], 8)(model)


CASES = (
    Case(
        "deepseek",
        _latent,
        _inputs(32000)
        | {
            f"past_{kind}_{layer}": Input(("batch", 1, "past", width), "normal")
            for layer in range(8)
            for kind, width in zip(("key", "value"), LATENTS.values(), strict=True)
        },
        SIZES,
        ("sdpa",),
        ("dynamo",),
    ),
    _case("gpt2", "GPT2LMHeadModel", "GPT2Config", {"n_positions": LONG}, 12, 12, 50257),
    _case("llama", "LlamaForCausalLM", "LlamaConfig", COMMON, 4, 8, 32000),
    _case("qwen3", "Qwen3ForCausalLM", "Qwen3Config", COMMON, 4, 8, 32000),
    _case("mistral", "MistralForCausalLM", "MistralConfig", COMMON | {"sliding_window": 512}, 4, 8, 32000),
    _case(
        "gemma3",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **COMMON,
            "vocab_size": 64000,
            "hidden_size": 640,
            "intermediate_size": 2048,
            "num_key_value_heads": 1,
            "num_attention_heads": 4,
            "head_dim": 256,
            "sliding_window": 512,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2,
        },
        1,
        8,
        64000,
        256,
    ),
)
