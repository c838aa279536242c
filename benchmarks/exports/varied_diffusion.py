"""Models of diffusion: UNets, transformers and coders of latents."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from benchmarks.exports.varied_declare import BATCH, Family, integers, normal, positive

family = Family()
RECIPES = family.recipes
DIFFUSERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "autoencoder_kl": (
        "AutoencoderKL",
        {
            "block_out_channels": (8, 16),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "norm_num_groups": 4,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "latent_channels": 4,
            "sample_size": 16,
        },
        {"sample": normal(2, 3, 16, 16)},
    ),
    "autoencoder_tiny": (
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        {"sample": positive(2, 3, 16, 16)},
    ),
    "vq_model": (
        "VQModel",
        {
            "block_out_channels": (8, 16),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "latent_channels": 3,
            "norm_num_groups": 4,
            "num_vq_embeddings": 16,
        },
        {"sample": normal(2, 3, 16, 16)},
    ),
    "unet_2d": (
        "UNet2DModel",
        {
            "block_out_channels": (8, 16),
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "norm_num_groups": 4,
            "attention_head_dim": 4,
            "sample_size": 16,
            "layers_per_block": 1,
        },
        {"sample": normal(2, 3, 16, 16), "timestep": integers(9, 2)},
    ),
    "unet_1d": (
        "UNet1DModel",
        {
            "block_out_channels": (16, 32),
            "in_channels": 4,
            "out_channels": 4,
            "norm_num_groups": 4,
            "down_block_types": ("DownResnetBlock1D",) * 2,
            "up_block_types": ("UpResnetBlock1D",),
            "use_timestep_embedding": True,
            "mid_block_type": "MidResTemporalBlock1D",
            "out_block_type": "OutConv1DBlock",
            "act_fn": "swish",
            "flip_sin_to_cos": False,
            "freq_shift": 1,
            "time_embedding_type": "positional",
        },
        {"sample": normal(2, 4, 16), "timestep": integers(9, 2)},
    ),
    "dit": (
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 1,
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "num_embeds_ada_norm": 10,
            "norm_num_groups": 4,
        },
        {"hidden_states": normal(2, 4, 8, 8), "timestep": integers(9, 2), "class_labels": integers(9, 2)},
    ),
    "sd3": (
        "SD3Transformer2DModel",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "num_layers": 1,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 16,
            "out_channels": 4,
            "pos_embed_max_size": 16,
        },
        {
            "hidden_states": normal(2, 4, 8, 8),
            "encoder_hidden_states": normal(2, 5, 16),
            "pooled_projections": normal(2, 16),
            "timestep": integers(9, 2),
        },
    ),
    "pixart": (
        "PixArtTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 1,
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 8,
            "cross_attention_dim": 16,
            "caption_channels": 12,
            "use_additional_conditions": False,
        },
        {"hidden_states": normal(2, 4, 8, 8), "encoder_hidden_states": normal(2, 5, 12), "timestep": integers(9, 2)},
    ),
    "controlnet": (
        "ControlNetModel",
        {
            "block_out_channels": (8, 16),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "cross_attention_dim": 16,
            "norm_num_groups": 4,
            "attention_head_dim": 4,
            "layers_per_block": 1,
            "conditioning_embedding_out_channels": (8, 8),
        },
        {
            "sample": normal(2, 4, 8, 8),
            "timestep": integers(9, 2),
            "encoder_hidden_states": normal(2, 5, 16),
            "controlnet_cond": positive(2, 3, 16, 16),
        },
    ),
    "unet_3d": (
        "UNet3DConditionModel",
        {
            "block_out_channels": (8, 16),
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
            "cross_attention_dim": 16,
            "norm_num_groups": 4,
            "attention_head_dim": 4,
            "layers_per_block": 1,
            "sample_size": 8,
        },
        {"sample": normal(2, 4, 2, 8, 8), "timestep": integers(9, 2), "encoder_hidden_states": normal(2, 5, 16)},
    ),
    "prior": (
        "PriorTransformer",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 1,
            "embedding_dim": 12,
            "num_embeddings": 5,
            "additional_embeddings": 4,
        },
        {
            "hidden_states": normal(2, 12),
            "timestep": integers(9, 2),
            "proj_embedding": normal(2, 12),
            "encoder_hidden_states": normal(2, 5, 12),
        },
    ),
}


def diffuser(kind: str, options: dict[str, Any]) -> nn.Module:
    """A model of diffusers by the name of its class."""
    import diffusers

    module: nn.Module = getattr(diffusers, kind)(**options)
    return module


for name, (kind, options, inputs) in DIFFUSERS.items():
    family.add(name, functools.partial(diffuser, kind, options), inputs, dict.fromkeys(inputs, BATCH))
