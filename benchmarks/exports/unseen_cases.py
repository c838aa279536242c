"""Small models of architectures that no golden model has: what the rules were not written against.

Each is built from the configuration class of its family with random weights, and exported, checked and counted as the
golden models are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from cases.caching import CachedDecoder, cache_inputs
from cases.common import IDS, IDS_AND_MASK, POSITIONS, TOKEN_SIZES, TS_AND_DYNAMO, VOCABULARY, image
from cases.decoders import CACHE_SIZES, STEP
from cases.seq2seq import PAIR_SIZES
from drawing import Input
from exporting import Case
from torch import nn

from benchmarks.exports.building import build

IMAGE_SIZES = ({"batch": 2}, {"batch": 3})
SAMPLES = {"input_values": Input(("batch", "samples"), "normal")}
SAMPLE_SIZES = ({"batch": 2, "samples": 200}, {"batch": 3, "samples": 317})
PAIR = IDS_AND_MASK | {"decoder_input_ids": Input(("batch", "target"), "tokens", high=VOCABULARY)}

COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DECODER: Mapping[str, Any] = {**COMMON, "use_cache": False}
GROUPED: Mapping[str, Any] = {**DECODER, "num_key_value_heads": 2}
PICTURE: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 10,
}
SPEECH: Mapping[str, Any] = {
    **{key: COMMON[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")},
    "num_attention_heads": 4,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
BOTH: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "use_cache": False,
}


def build_cached(kind: str, config: str, options: Mapping[str, Any], attention: str = "sdpa") -> nn.Module:
    """A causal language model with past keys and values."""
    return CachedDecoder(build(kind, config, {**options, "use_cache": True}, attention))


def _case(name: str, kind: str, config: str, options: Mapping[str, Any], inputs: Any, sizes: Any) -> Case:
    return Case(name, functools.partial(build, kind, config, options), inputs, sizes, ("sdpa",), TS_AND_DYNAMO)


def encoder(name: str, kind: str, config: str, **options: Any) -> Case:
    """A text encoder."""
    return _case(name, kind, config, {**COMMON, **options}, IDS_AND_MASK, TOKEN_SIZES)


def bare(name: str, kind: str, config: str, **options: Any) -> Case:
    """A text model whose configuration has names of its own."""
    return _case(name, kind, config, {"vocab_size": VOCABULARY, **options}, IDS_AND_MASK, TOKEN_SIZES)


def decoder(name: str, kind: str, config: str, **options: Any) -> Case:
    """A causal language model without cache."""
    return _case(name, kind, config, {**DECODER, **options}, IDS_AND_MASK, TOKEN_SIZES)


def cached(name: str, kind: str, config: str, heads: int, width: int, **options: Any) -> Case:
    """A causal language model with `heads` of `width` in its cache."""
    made = functools.partial(build_cached, kind, config, options)
    return Case(name, made, STEP | cache_inputs("past", heads, "past", width), CACHE_SIZES, ("sdpa",), TS_AND_DYNAMO)


def pair(name: str, kind: str, config: str, **options: Any) -> Case:
    """An encoder-decoder model as a whole."""
    return _case(name, kind, config, {**BOTH, **options}, PAIR, PAIR_SIZES)


def picture(name: str, kind: str, config: str, size: int = 32, **options: Any) -> Case:
    """A model of images, with a configuration like ViT's."""
    return _case(name, kind, config, {**PICTURE, **options}, image(size), IMAGE_SIZES)


def pyramid(name: str, kind: str, config: str, size: int, **options: Any) -> Case:
    """A model of images whose configuration has names of its own."""
    return _case(name, kind, config, {"num_labels": 10, **options}, image(size), IMAGE_SIZES)


def speech(name: str, kind: str, config: str, **options: Any) -> Case:
    """A model of samples."""
    return _case(name, kind, config, {**SPEECH, **options}, SAMPLES, SAMPLE_SIZES)


CASES = (
    decoder("qwen2", "Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2),
    decoder("qwen3", "Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=8),
    decoder("mistral", "MistralForCausalLM", "MistralConfig", num_key_value_heads=2, head_dim=8, sliding_window=6),
    decoder("phi3", "Phi3ForCausalLM", "Phi3Config", num_key_value_heads=2),
    decoder("stablelm", "StableLmForCausalLM", "StableLmConfig", num_key_value_heads=2, partial_rotary_factor=0.5),
    decoder("olmo2", "Olmo2ForCausalLM", "Olmo2Config", num_key_value_heads=2),
    decoder("granite", "GraniteForCausalLM", "GraniteConfig", num_key_value_heads=2, attention_multiplier=0.3),
    decoder("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", rotary_pct=0.5),
    decoder("nemotron", "NemotronForCausalLM", "NemotronConfig", num_key_value_heads=2, head_dim=8),
    decoder("gemma2", "Gemma2ForCausalLM", "Gemma2Config", num_key_value_heads=2, head_dim=8, sliding_window=6),
    decoder("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", num_key_value_heads=2, head_dim=8, sliding_window=6),
    decoder("cohere2", "Cohere2ForCausalLM", "Cohere2Config", num_key_value_heads=2, head_dim=8, sliding_window=6),
    decoder("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", num_key_value_heads=2, sliding_window=None),
    decoder("smollm3", "SmolLM3ForCausalLM", "SmolLM3Config", num_key_value_heads=2, no_rope_layers=[1, 0]),
    decoder("persimmon", "PersimmonForCausalLM", "PersimmonConfig", partial_rotary_factor=0.5),
    bare("bloom", "BloomForCausalLM", "BloomConfig", hidden_size=32, n_layer=2, n_head=4, use_cache=False),
    decoder("opt", "OPTForCausalLM", "OPTConfig", ffn_dim=64, word_embed_proj_dim=32),
    decoder("falcon", "FalconForCausalLM", "FalconConfig", multi_query=True, new_decoder_architecture=False),
    decoder(
        "falcon_alibi",
        "FalconForCausalLM",
        "FalconConfig",
        alibi=True,
        multi_query=True,
        new_decoder_architecture=False,
    ),
    bare(
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        "GPTBigCodeConfig",
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        use_cache=False,
    ),
    bare(
        "gpt_neo",
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        window_size=6,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64,
        use_cache=False,
    ),
    bare("mpt", "MptForCausalLM", "MptConfig", d_model=32, n_layers=2, n_heads=4, max_seq_len=64, use_cache=False),
    bare(
        "codegen",
        "CodeGenForCausalLM",
        "CodeGenConfig",
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        rotary_dim=4,
        use_cache=False,
    ),
    cached("qwen3_cache", "Qwen3ForCausalLM", "Qwen3Config", 2, 8, **GROUPED, head_dim=8),
    cached("mistral_cache", "MistralForCausalLM", "MistralConfig", 2, 8, **GROUPED, head_dim=8, sliding_window=None),
    cached("gpt_neox_cache", "GPTNeoXForCausalLM", "GPTNeoXConfig", 4, 8, **DECODER, rotary_pct=0.5),
    cached("phi3_cache", "Phi3ForCausalLM", "Phi3Config", 2, 8, **GROUPED),
    cached("opt_cache", "OPTForCausalLM", "OPTConfig", 4, 8, **DECODER, ffn_dim=64, word_embed_proj_dim=32),
    encoder("albert", "AlbertModel", "AlbertConfig", embedding_size=16),
    encoder("electra", "ElectraModel", "ElectraConfig", embedding_size=16),
    bare(
        "distilbert",
        "DistilBertModel",
        "DistilBertConfig",
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=64,
    ),
    encoder("mpnet", "MPNetModel", "MPNetConfig"),
    bare("xlnet", "XLNetModel", "XLNetConfig", d_model=32, n_layer=2, n_head=4, d_inner=64),
    encoder(
        "modernbert",
        "ModernBertModel",
        "ModernBertConfig",
        local_attention=8,
        global_attn_every_n_layers=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    encoder("longformer", "LongformerModel", "LongformerConfig", attention_window=4),
    encoder("convbert", "ConvBertModel", "ConvBertConfig", embedding_size=32, head_ratio=2, conv_kernel_size=3),
    encoder("mobilebert", "MobileBertModel", "MobileBertConfig", embedding_size=16, intra_bottleneck_size=16),
    encoder("blip_text", "BlipTextModel", "BlipTextConfig", encoder_hidden_size=32),
    encoder("siglip_text", "SiglipTextModel", "SiglipTextConfig", projection_size=32),
    pair("bart", "BartForConditionalGeneration", "BartConfig"),
    pair("mbart", "MBartForConditionalGeneration", "MBartConfig"),
    pair("pegasus", "PegasusForConditionalGeneration", "PegasusConfig"),
    pair("m2m100", "M2M100ForConditionalGeneration", "M2M100Config"),
    picture("beit", "BeitForImageClassification", "BeitConfig", use_relative_position_bias=True),
    picture("deit", "DeiTForImageClassification", "DeiTConfig"),
    picture("dinov2", "Dinov2ForImageClassification", "Dinov2Config"),
    picture("siglip_vision", "SiglipVisionModel", "SiglipVisionConfig"),
    picture("clip_vision", "CLIPVisionModel", "CLIPVisionConfig"),
    picture(
        "dpt",
        "DPTForDepthEstimation",
        "DPTConfig",
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        fusion_hidden_size=16,
        neck_hidden_sizes=[8, 8, 16, 16],
        reassemble_factors=[4, 2, 1, 0.5],
    ),
    picture("yolos", "YolosForObjectDetection", "YolosConfig", image_size=[32, 32], num_detection_tokens=5),
    pyramid(
        "convnext",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        32,
        hidden_sizes=[8, 16],
        depths=[1, 2],
        num_stages=2,
    ),
    pyramid(
        "mobilevit",
        "MobileViTForImageClassification",
        "MobileViTConfig",
        64,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 48],
        image_size=64,
        expand_ratio=2.0,
    ),
    pyramid(
        "swinv2",
        "Swinv2ForImageClassification",
        "Swinv2Config",
        32,
        image_size=32,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        mlp_ratio=2.0,
    ),
    pyramid(
        "pvt_v2",
        "PvtV2ForImageClassification",
        "PvtV2Config",
        32,
        image_size=32,
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
    ),
    pyramid(
        "levit",
        "LevitForImageClassification",
        "LevitConfig",
        64,
        image_size=64,
        hidden_sizes=[16, 24, 32],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        attention_ratio=[2, 2, 2],
        mlp_ratio=[2, 2, 2],
        down_ops=[["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 3, 4, 2, 2]],
    ),
    speech("hubert", "HubertModel", "HubertConfig"),
    speech("wavlm", "WavLMModel", "WavLMConfig", num_buckets=16, max_bucket_distance=20),
    _case(
        "ast",
        "ASTForAudioClassification",
        "ASTConfig",
        {**{k: PICTURE[k] for k in PICTURE if k != "image_size"}, "max_length": 24, "num_mel_bins": 16},
        {"input_values": Input(("batch", 24, 16), "normal")},
        IMAGE_SIZES,
    ),
    _case(
        "siglip_ids",
        "SiglipTextModel",
        "SiglipTextConfig",
        {**COMMON, "projection_size": 32},
        {"input_ids": IDS},
        TOKEN_SIZES,
    ),
)
