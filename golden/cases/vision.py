"""Image models."""

from __future__ import annotations

import transformers as tf
from exporting import Case
from torch import nn

from cases.common import IMAGE_SIZES, SDPA_AND_EAGER, TS_AND_DYNAMO, image, with_raw


def vit(attention: str) -> nn.Module:
    """ViT classifier of 16 patches, pre-norm."""
    config = tf.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=10,
        attn_implementation=attention,
    )
    return tf.ViTForImageClassification(config)


def swin(attention: str) -> nn.Module:
    """Swin classifier of two stages of two layers, windows of 4x4, the second layer of the first stage shifted."""
    config = tf.SwinConfig(
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        mlp_ratio=2.0,
        num_labels=10,
        attn_implementation=attention,
    )
    return tf.SwinForImageClassification(config)


def segformer(attention: str) -> nn.Module:
    """SegFormer with its decoder: keys and values of a reduced image, depthwise convolutions between the products."""
    config = tf.SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[4, 2],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=32,
        num_labels=10,
        attn_implementation=attention,
    )
    return tf.SegformerForSemanticSegmentation(config)


def detr(attention: str) -> nn.Module:
    """DETR: a small ResNet, an encoder that adds positions to queries and keys, a decoder of 6 object queries."""
    backbone = tf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = tf.DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_queries=6,
        num_labels=10,
        attn_implementation={"": attention, "backbone_config": "eager"},
    )
    return tf.DetrForObjectDetection(config)


def sam_encoder(attention: str) -> nn.Module:
    """SAM's image encoder: one layer of padded windows, one of the whole image, relative positions as bias."""
    config = tf.SamVisionConfig(
        hidden_size=32,
        output_channels=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=40,
        patch_size=8,
        window_size=3,
        global_attn_indexes=[1],
        mlp_dim=64,
        attn_implementation=attention,
    )
    return tf.SamVisionModel(config)


CASES = (
    *with_raw(Case("vit", vit, image(32), IMAGE_SIZES)),
    Case("swin", swin, image(32), IMAGE_SIZES, SDPA_AND_EAGER, TS_AND_DYNAMO),
    Case("segformer", segformer, image(64), IMAGE_SIZES, ("sdpa",), TS_AND_DYNAMO),
    Case("detr", detr, image(64), IMAGE_SIZES, ("sdpa",), TS_AND_DYNAMO),
    Case("sam_encoder", sam_encoder, image(40), IMAGE_SIZES, SDPA_AND_EAGER, TS_AND_DYNAMO),
)
