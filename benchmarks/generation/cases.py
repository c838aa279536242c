"""Decoders with caches of many architectures: small ones with random weights, which differ where the architectures differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cases.caching import CachedDecoder, MaskedCrossDecoder, PositionedDecoder, UnmaskedCrossDecoder, cache_inputs
from cases.seq2seq import T5Head
from drawing import Input
from exporting import Case
from torch import nn

from benchmarks.exports.building import build, layered
from benchmarks.generation.hybrid import hybrid, hybrid_inputs
from benchmarks.generation.layouts import WindowedDecoder
from benchmarks.generation.layouts import cases as layout_cases

VOCABULARY = 120
SIZES = ({"batch": 2, "sequence": 4, "past": 13}, {"batch": 3, "sequence": 1, "past": 20})
CROSS_SIZES = tuple(sizes | {"source": source} for sizes, source in zip(SIZES, (19, 23), strict=True))
ATTENTIONS = ("sdpa", "eager")
EXPORTERS = ("ts", "dynamo")
TOKENS = {"input_ids": Input(("batch", "sequence"), "tokens", high=VOCABULARY)}
EMBEDDINGS = {"inputs_embeds": Input(("batch", "sequence", 64), "normal")}
MASK = {"attention_mask": Input(("batch", "past + sequence"), "mask")}
POSITIONS = {"position_ids": Input(("batch", "sequence"), "tokens", high=60)}
COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip


def _decoder(
    name: str,
    architecture: str,
    changes: Mapping[str, Any] | None = None,
    *,
    positions: bool = False,
    keys: int = 2,
    width: int = 16,
    layers: int = 2,
    attentions: tuple[str, ...] = ATTENTIONS,
    config: str = "",
    embedded: bool = False,
) -> Case:
    """A decoder by the name of its architecture, with the common sizes and what the architecture calls its own."""
    options = {key: value for key, value in {**COMMON, **(changes or {})}.items() if value is not None}
    tokens = EMBEDDINGS if embedded else TOKENS
    base, plain = (PositionedDecoder, [*tokens, *MASK, *POSITIONS]) if positions else (CachedDecoder, [*tokens, *MASK])

    def made(attention: str) -> nn.Module:
        model = build(f"{architecture}ForCausalLM", config or f"{architecture}Config", options, attention)
        return layered(base, plain, layers)(model)

    inputs = tokens | MASK | (POSITIONS if positions else {}) | cache_inputs("past", keys, "past", width, layers)
    return Case(name, made, inputs, SIZES, attentions, EXPORTERS)


def _gpt2(attention: str) -> nn.Module:
    options = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
    return layered(CachedDecoder, [*TOKENS, *MASK], 2)(build("GPT2LMHeadModel", "GPT2Config", options, attention))


def _t5(attention: str) -> nn.Module:
    options = {
        "vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 40,
    }  # fmt: skip
    model = build("T5ForConditionalGeneration", "T5Config", options, attention)
    kind = layered(MaskedCrossDecoder, ["input_ids", "encoder_attention_mask"], 2)
    return kind(model, model.decoder, T5Head(model))


_SEQ2SEQ: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "encoder_ffn_dim": 96, "decoder_start_token_id": 1,
}  # fmt: skip


class _Head(nn.Module):
    """BART's projection to the vocabulary, with its bias."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.head, self.bias = model.lm_head, nn.Parameter(model.final_logits_bias.clone())

    def forward(self, hidden: Any) -> Any:
        return self.head(hidden) + self.bias


def _bart(attention: str) -> nn.Module:
    model = build("BartForConditionalGeneration", "BartConfig", _SEQ2SEQ | {"max_position_embeddings": 512}, attention)
    kind = layered(MaskedCrossDecoder, ["input_ids", "encoder_attention_mask"], 2)
    return kind(model, model.get_decoder(), _Head(model))


def _seq2seq(name: str, architecture: str, config: str) -> Case:
    """The decoder of an encoder-decoder with BART's parts."""

    def made(attention: str) -> nn.Module:
        model = build(architecture, config, _SEQ2SEQ | {"max_position_embeddings": 512, "pad_token_id": 0}, attention)
        kind = layered(MaskedCrossDecoder, ["input_ids", "encoder_attention_mask"], 2)
        return kind(model, model.get_decoder(), _Head(model))

    return Case(name, made, _CROSS, CROSS_SIZES, ("eager",), EXPORTERS)


def _whisper(attention: str) -> nn.Module:
    options = _SEQ2SEQ | {
        "max_target_positions": 448,
        "max_source_positions": 24,
        "num_mel_bins": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    model = build("WhisperForConditionalGeneration", "WhisperConfig", options, attention)
    return layered(UnmaskedCrossDecoder, ["input_ids"], 2)(model, model.get_decoder(), model.proj_out)


def _hybrid(
    name: str,
    architecture: str,
    changes: Mapping[str, Any],
    layers: tuple[Mapping[str, tuple[int | str, ...]], ...],
    attentions: tuple[str, ...] = ("eager",),
) -> Case:
    """A decoder with states: for each layer, the sizes of the tensors in its cache without the batch."""
    options = {key: value for key, value in {**COMMON, **changes}.items() if value is not None}
    held = hybrid_inputs(layers)
    sizes = ({"batch": 2, "sequence": 4, "past": 13}, {"batch": 3, "sequence": 5, "past": 20})
    return Case(name, hybrid(architecture, options, list(held)), TOKENS | MASK | held, sizes, attentions, EXPORTERS)


_CROSS = (
    TOKENS
    | {"encoder_attention_mask": Input(("batch", "source"), "mask")}
    | cache_inputs("past", 4, "past", 16)
    | cache_inputs("cross", 4, "source", 16)
)
_WHISPER = TOKENS | cache_inputs("past", 4, "past", 16) | cache_inputs("cross", 4, 24, 16)
_OLD: Mapping[str, Any] = {"num_key_value_heads": None, "head_dim": None}
_GPT: Mapping[str, Any] = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "hidden_size": None, "num_hidden_layers": None,
    "num_attention_heads": None, "max_position_embeddings": None,
}  # fmt: skip
_EXPERTS: Mapping[str, Any] = {
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "experts_implementation": "batched_mm",
}  # fmt: skip
_MAMBA: Mapping[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 64,
}  # fmt: skip
_KEYS: Mapping[str, tuple[int | str, ...]] = {"past_key": (2, "past", 16), "past_value": (2, "past", 16)}
_RECURRENT: Mapping[str, tuple[int | str, ...]] = {"conv": (144, 4), "recurrent": (8, 16, 8)}
_WINDOW = ["sliding_attention", "full_attention"]

_LONG = {
    "rope_type": "longrope", "short_factor": [1 + 0.1 * n for n in range(8)],
    "long_factor": [1.5 + 0.5 * n for n in range(8)], "original_max_position_embeddings": 32,
}  # fmt: skip
_SINKS = {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}


def _llama(attention: str, keys: int) -> nn.Module:
    return build("LlamaForCausalLM", "LlamaConfig", {**COMMON, "num_key_value_heads": keys}, attention)


def _windowed(
    architecture: str, changes: Mapping[str, Any] | None = None, config: str = ""
) -> Callable[[str], nn.Module]:
    options = {**COMMON, "sliding_window": 7, **(changes or {})}
    name = config or f"{architecture}Config"
    return lambda attention: WindowedDecoder(build(f"{architecture}ForCausalLM", name, options, attention))


_WINDOWED = {
    "mistral_all": _windowed("Mistral"),
    "gemma2": _windowed("Gemma2", {"layer_types": _WINDOW, "query_pre_attn_scalar": 24}),
    "gemma3": _windowed("Gemma3", {"layer_types": _WINDOW, "query_pre_attn_scalar": 24}, "Gemma3TextConfig"),
    "gpt_oss": _windowed("GptOss", {"layer_types": _WINDOW, **_SINKS}),
}

CASES = (
    *layout_cases(_llama, _WINDOWED, TOKENS | MASK | POSITIONS),
    Case("gpt2", _gpt2, TOKENS | MASK | cache_inputs("past", 4, "past", 16), SIZES, ATTENTIONS, EXPORTERS),
    _decoder("gptneox", "GPTNeoX", _OLD | {"rotary_pct": 0.5}, keys=4),
    _decoder("gptj", "GPTJ", _OLD | {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "rotary_dim": 8}, keys=4, positions=True, attentions=("eager",)),
    _decoder("llama", "Llama"),
    _decoder("llama_positions", "Llama", positions=True),
    _decoder("llama_embeds", "Llama", positions=True, embedded=True),
    _decoder("opt_embeds", "OPT", _OLD | {"ffn_dim": 96, "word_embed_proj_dim": 64}, keys=4, embedded=True),
    _decoder("llama_scaled", "Llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}),
    _decoder("mistral", "Mistral", {"sliding_window": 7}),
    _decoder("qwen2", "Qwen2", {"layer_types": ["full_attention"] * 2}),
    _decoder("qwen3", "Qwen3"),
    _decoder("gemma2", "Gemma2", {"sliding_window": 7, "layer_types": _WINDOW, "query_pre_attn_scalar": 24}, attentions=("eager",)),
    _decoder("gemma3", "Gemma3", {"sliding_window": 7, "layer_types": _WINDOW, "query_pre_attn_scalar": 24}, config="Gemma3TextConfig"),
    _decoder("phi", "Phi", _OLD | {"partial_rotary_factor": 0.5}, keys=4),
    _decoder("phi3", "Phi3", {"head_dim": None, "num_key_value_heads": 2}),
    _decoder("falcon_alibi", "Falcon", _OLD | {"alibi": True, "new_decoder_architecture": False, "multi_query": False, "bias": True, "parallel_attn": False}, keys=4),
    _decoder("falcon_rotary", "Falcon", _OLD | {"new_decoder_architecture": True, "num_kv_heads": 2}, keys=4),
    _decoder("bloom", "Bloom", _OLD | {"n_layer": 2, "n_head": 4}, keys=4, attentions=("eager",)),
    _decoder("mpt", "Mpt", _OLD | {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512}, keys=4, attentions=("eager",)),
    _decoder("opt", "OPT", _OLD | {"ffn_dim": 96, "word_embed_proj_dim": 64}, keys=4),
    _decoder("gpt_oss", "GptOss", {"sliding_window": 7, "layer_types": _WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}, attentions=("eager",)),
    _decoder("mixtral", "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}),
    _decoder("glm4", "Glm4", {"partial_rotary_factor": 0.5}),
    _decoder("glm", "Glm", {"partial_rotary_factor": 0.5}),
    _decoder("cohere", "Cohere"),
    _decoder("olmo2", "Olmo2"),
    _decoder("smollm3", "SmolLM3", {"no_rope_layers": [1, 0]}),
    _decoder("stablelm", "StableLm", {"partial_rotary_factor": 0.5}),
    _decoder("granite", "Granite", {"attention_multiplier": 0.2, "residual_multiplier": 0.7, "logits_scaling": 1.5, "embedding_multiplier": 2.0}),
    _decoder("starcoder2", "Starcoder2", {"sliding_window": None}),
    _hybrid("lfm2", "Lfm2", {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False}, ({"conv": (64, 3)}, _KEYS), ATTENTIONS),
    _hybrid("falcon_h1", "FalconH1", _MAMBA | {"mamba_d_ssm": 64, "mamba_n_heads": 4}, ({**_KEYS, "conv": (80, 4), "recurrent": (4, 16, 8)},) * 2),
    _hybrid("bamba", "Bamba", _MAMBA | {"attn_layer_indices": [1], "head_dim": None}, (_RECURRENT, _KEYS)),
    _hybrid("granitemoehybrid", "GraniteMoeHybrid", _MAMBA | {"layer_types": ["mamba", "attention"], "head_dim": None, "num_local_experts": 0, "shared_intermediate_size": 96}, (_RECURRENT, _KEYS)),
    _hybrid("nemotron_h", "NemotronH", {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 64}, (_RECURRENT, _KEYS)),
    _hybrid("qwen3_next", "Qwen3Next", _EXPERTS | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32}, ({"conv": (128, 4), "recurrent": (4, 16, 16)}, _KEYS)),
    _decoder("nemotron", "Nemotron", attentions=("eager",)),
    _decoder("bigcode", "GPTBigCode", _OLD | _GPT | {"multi_query": True}, keys=1, attentions=("eager",)),
    _decoder("codegen", "CodeGen", _OLD | _GPT | {"rotary_dim": 8}, keys=4, positions=True, attentions=("eager",)),
    _decoder("gptneo", "GPTNeo", _OLD | _GPT | {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 512, "attention_types": [[["global", "local"], 1]], "window_size": 7}, keys=4, attentions=("eager",)),
    _decoder("xglm", "XGLM", _OLD | {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4, "hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None}, keys=4, attentions=("eager",)),
    _decoder("biogpt", "BioGpt", _OLD, keys=4, attentions=("eager",)),
    _decoder("persimmon", "Persimmon", _OLD | {"partial_rotary_factor": 0.5}, keys=4, attentions=("eager",)),
    _decoder("olmo", "Olmo", {"clip_qkv": 2.0}, attentions=("eager",)),
    _decoder("olmo3", "Olmo3", {"sliding_window": 7, "layer_types": _WINDOW}, attentions=("eager",)),
    _decoder("olmoe", "Olmoe", _EXPERTS | {"head_dim": None}, attentions=("eager",)),
    _decoder("qwen3_moe", "Qwen3Moe", _EXPERTS, attentions=("eager",)),
    _decoder("modernbert", "ModernBertDecoder", {"local_attention": 8, "layer_types": _WINDOW, "head_dim": None, "num_key_value_heads": None}, keys=4, attentions=("eager",)),
    _decoder("hunyuan", "HunYuanDenseV1", attentions=("eager",)),
    _decoder("exaone4", "Exaone4", {"sliding_window": 7, "layer_types": _WINDOW}, attentions=("eager",)),
    _decoder("gemma4", "Gemma4", {"sliding_window": 7, "layer_types": _WINDOW, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0, "global_head_dim": 16}, config="Gemma4TextConfig", attentions=("eager",)),
    _decoder("helium", "Helium", attentions=("eager",)),
    _decoder("arcee", "Arcee", attentions=("eager",)),
    _decoder("apertus", "Apertus", {"head_dim": None}, attentions=("eager",)),
    _decoder("afmoe", "Afmoe", _EXPERTS | {"sliding_window": 7, "layer_types": _WINDOW, "num_dense_layers": 2, "n_group": 1, "topk_group": 1}, attentions=("eager",)),
    _decoder("cohere2", "Cohere2", {"sliding_window": 7, "layer_types": _WINDOW, "head_dim": None}, attentions=("eager",)),
    _decoder("granitemoe", "GraniteMoe", {**_SINKS, "head_dim": None}, attentions=("eager",)),
    _decoder("phi3_longrope", "Phi3", {"head_dim": None, "rope_scaling": _LONG, "original_max_position_embeddings": 32}, attentions=("eager",)),
    _decoder("ernie45", "Ernie4_5", attentions=("eager",)),
    _decoder("seedoss", "SeedOss", attentions=("eager",)),
    _decoder("qwen2moe", "Qwen2Moe", _EXPERTS | {"shared_expert_intermediate_size": 32, "head_dim": None, "layer_types": ["full_attention"] * 2}, attentions=("eager",)),
    _decoder("phimoe", "Phimoe", {**_SINKS, "head_dim": None}, attentions=("eager",)),
    _decoder("bitnet", "BitNet", {"head_dim": None}, attentions=("eager",)),
    _decoder("ministral", "Ministral", {"sliding_window": 7, "layer_types": _WINDOW}, attentions=("eager",)),
    _decoder("vaultgemma", "VaultGemma", {"sliding_window": 7, "layer_types": _WINDOW, "query_pre_attn_scalar": 24}, attentions=("eager",)),
    _decoder("gptneox_japanese", "GPTNeoXJapanese", _OLD | {"rotary_pct": 0.5, "intermediate_multiple_size": 2}, keys=4, attentions=("eager",)),
    _decoder("hunyuan_moe", "HunYuanMoEV1", {"num_experts": 4, "moe_topk": 2, "experts_implementation": "batched_mm"}, attentions=("eager",)),
    _decoder("diffllama", "DiffLlama", attentions=("eager",)),
    _decoder("doge", "Doge", {"head_dim": None}, attentions=("eager",)),
    _decoder("trocr", "TrOCR", _OLD | {"d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None, "is_decoder": True}, keys=4, attentions=("eager",)),
    _seq2seq("marian", "MarianMTModel", "MarianConfig"),
    _seq2seq("pegasus", "PegasusForConditionalGeneration", "PegasusConfig"),
    _seq2seq("mbart", "MBartForConditionalGeneration", "MBartConfig"),
    Case("t5", _t5, _CROSS, CROSS_SIZES, ATTENTIONS, EXPORTERS),
    Case("bart", _bart, _CROSS, CROSS_SIZES, ATTENTIONS, EXPORTERS),
    Case("whisper", _whisper, _WHISPER, SIZES, ATTENTIONS, EXPORTERS),
)  # fmt: skip
