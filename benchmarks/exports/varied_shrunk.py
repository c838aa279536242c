"""Small models of the architectures of transformers that no golden model has, from their configurations' own fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from benchmarks.exports.varied_recipes import Built, Recipe

GOLDEN = {
    "bert",
    "resnet",
    "roberta",
    "deberta",
    "clip_text_model",
    "t5",
    "segformer",
    "swin",
    "vit",
    "detr",
    "sam_vision_model",
    "wav2vec2",
    "wav2vec2-conformer",
    "whisper",
    "gpt2",
    "llama",
    "gemma",
    "cohere",
    "glm",
    "gptj",
    "phi",
    "mixtral",
    "marian",
    "convnext",
    "regnet",
    "mobilenet_v2",
    "efficientnet",
}
"""Architectures of the golden models."""

HUGE = {"timm_backbone", "timm_wrapper", "layoutlmv2", "esmfold2"}
"""Architectures that need packages that are not installed, or cannot be made small."""

VOCABULARY, POSITIONS, WIDTH, HEADS = 100, 64, 32, 4

SMALL: Mapping[str, Any] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size", "vocab_size_per_layer_input", "n_words"), VOCABULARY),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_source_positions"), POSITIONS
    ),
    **dict.fromkeys(
        ("hidden_size", "d_model", "dim", "n_embd", "emb_dim", "embed_dim", "model_dim", "lru_width"), WIDTH
    ),
    **dict.fromkeys(("word_embed_proj_dim", "projection_size", "attention_hidden_size", "projection_dim"), WIDTH),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "n_inner"), 64),
    **dict.fromkeys(("d_inner", "hidden_dim", "ffn_hidden_size", "shared_intermediate_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), 2),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers", "depth", "num_blocks"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), HEADS),
    **dict.fromkeys(("decoder_attention_heads", "linear_num_value_heads", "mamba_n_heads", "n_mamba_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads", "mamba_num_heads", "num_kv_heads"), 2),
    **dict.fromkeys(
        ("head_dim", "d_kv", "linear_key_head_dim", "linear_value_head_dim", "mamba_d_head", "v_head_dim"), 8
    ),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "mamba_head_dim", "global_head_dim", "kv_channels"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "embedding_size", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "n_group", "moe_topk_group"), 2),
    **dict.fromkeys(("n_shared_experts", "topk_group", "first_k_dense_replace", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "moe_dim", "expert_dim"), 32),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size", "d_state"), 8),
    **dict.fromkeys(("mamba_expand", "expand"), 2),
    **dict.fromkeys(("mamba_n_groups", "n_groups"), 1),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 4),
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention", "local_window_size"), 6),
    **dict.fromkeys(("image_size", "img_size", "input_size"), 64),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), 4),
    **dict.fromkeys(("use_cache", "output_router_logits", "use_mamba_kernels", "use_kernels"), False),
    "block_size": 4,
    "type_vocab_size": 2,
    "num_labels": 5,
    "patch_size": 8,
    "num_channels": 3,
    "num_buckets": 16,
    "relative_attention_num_buckets": 8,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 3,
    "num_mel_bins": 16,
    "max_target_positions": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
ODD: Mapping[str, Mapping[str, Any]] = {
    "mamba2": {"num_heads": 8},
    "hiera": {"embed_dim": 8},
}
"""Sizes of single architectures."""

WIDTHS = (
    "hidden_sizes",
    "embed_dims",
    "embed_dim",
    "encoder_hidden_size",
    "out_channels",
    "stage_out_channels",
    "dims",
)
KINDS = ("MODEL", "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQUENCE_CLASSIFICATION", "MODEL_FOR_TOKEN_CLASSIFICATION")
KINDS_OF_IMAGES = ("MODEL_FOR_IMAGE_CLASSIFICATION", "MODEL_FOR_SEMANTIC_SEGMENTATION", "MODEL_FOR_OBJECT_DETECTION")
_ELSEWHERE = ("MODEL_FOR_DEPTH_ESTIMATION", "MODEL_FOR_IMAGE_TO_IMAGE", "MODEL_FOR_AUDIO_CLASSIFICATION")


def config_of(architecture: str) -> Any:
    """The configuration of an architecture with its sizes made small."""
    kind = CONFIG_MAPPING[architecture]
    parameters = inspect.signature(kind.__init__).parameters
    chosen: dict[str, Any] = {}
    for name, parameter in parameters.items():
        default = parameter.default
        if isinstance(default, list | tuple):
            chosen |= _short_list(name, default)
        elif (
            name in SMALL and not isinstance(SMALL[name], tuple) and not (default is None and name.startswith("num_k"))
        ):
            chosen[name] = SMALL[name]
    return kind(**{**chosen, **ODD.get(architecture, {})})


def _short_list(name: str, default: Any) -> dict[str, Any]:
    if name in SMALL and isinstance(SMALL[name], tuple):
        return {name: SMALL[name]}
    if name in ("depths", "num_blocks", "layer_depths") or name.endswith("depths"):
        return {name: [1 + (position == 1) for position in range(len(default))]}
    if name in WIDTHS and all(isinstance(item, int) for item in default):
        return {name: [8 << position for position in range(len(default))]}
    if name in ("image_size", "patch_size"):
        return {name: [SMALL[name]] * len(default)}
    return {}


def class_of(architecture: str, kinds: tuple[str, ...]) -> Any:
    """The first class that the architecture has of these kinds.

    Raises:
        KeyError: it has none.
    """
    import transformers

    for kind in kinds:
        names = getattr(modeling_auto, f"{kind}_MAPPING_NAMES").get(architecture)
        if names is not None:
            return getattr(transformers, names if isinstance(names, str) else names[0])
    raise KeyError(f"{architecture} has none of {', '.join(kinds)}")


def build(architecture: str, kinds: tuple[str, ...], attention: str) -> Built:
    """The model of an architecture with random weights, and inputs for it."""
    config = config_of(architecture)
    made = class_of(architecture, kinds)
    module: nn.Module
    try:
        module = made._from_config(config, attn_implementation=attention)
    except ValueError:
        module = made._from_config(config, attn_implementation="eager")
    return module, inputs_of(module, config)


def inputs_of(module: nn.Module, config: Any) -> dict[str, torch.Tensor]:
    """Inputs by what the model's forward takes.

    Raises:
        NotImplementedError: it takes something else than tokens, pictures or samples.
    """
    main = str(module.main_input_name)
    accepted = inspect.signature(module.forward).parameters
    if main == "input_ids" and "input_ids" in accepted:
        return _tokens(accepted, config)
    if main == "pixel_values":
        return {"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), *_picture(config))}
    if main == "input_values":
        return {"input_values": torch.randn(2, 400)}
    if main == "input_features":
        width = getattr(config, "num_mel_bins", None) or getattr(config, "feature_projection_input_dim", 16)
        return {"input_features": torch.randn(2, 32, width)}
    raise NotImplementedError(main)


def _tokens(accepted: Mapping[str, Any], config: Any) -> dict[str, torch.Tensor]:
    values = {"input_ids": torch.randint(3, VOCABULARY, (2, 8))}
    if "attention_mask" in accepted:
        values["attention_mask"] = torch.tensor([[1] * 8, [1] * 6 + [0] * 2])
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        values["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 5))
    return values


def _picture(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", None) or 64
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) else (int(size), int(size))


AXES: Mapping[str, Mapping[int, str]] = {
    "input_ids": {0: "batch", 1: "sequence"},
    "attention_mask": {0: "batch", 1: "sequence"},
    "decoder_input_ids": {0: "batch", 1: "target"},
    "pixel_values": {0: "batch"},
    "input_values": {0: "batch", 1: "samples"},
    "input_features": {0: "batch"},
}


def _is_composite(architecture: str) -> bool:
    """Whether the configuration consists of others, which are not made small."""
    return bool(getattr(CONFIG_MAPPING[architecture], "sub_configs", None))


def _recipes() -> dict[str, Recipe]:
    found = {}
    for number, architecture in enumerate(sorted(modeling_auto.MODEL_MAPPING_NAMES)):
        if architecture in GOLDEN | HUGE or architecture not in CONFIG_MAPPING or _is_composite(architecture):
            continue
        texts = KINDS[number % 4 :] + KINDS[: number % 4]
        kinds = (*KINDS_OF_IMAGES, *_ELSEWHERE[number % 3 :], *texts)
        name = architecture.replace("-", "_")
        found[name] = Recipe(functools.partial(build, architecture, kinds), AXES)
    return found


RECIPES = _recipes()
