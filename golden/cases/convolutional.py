"""Convolutional networks by the structure of their papers, each with what is its own: branches, shuffles, gates, frames."""

from __future__ import annotations

import transformers as tf
from exporting import Case, Exporter
from torch import nn

from cases.blocks import (
    Bottleneck,
    Causal,
    Dense,
    Inception,
    Inputs,
    Inverted,
    Renormalised,
    RepVgg,
    Shuffled,
    Style,
    Super,
    Unet,
    classifier,
    transition,
    unit,
)
from cases.common import IMAGE_SIZES, TS_AND_DYNAMO, image

NORMALISED: tuple[Exporter, ...] = ("tsbn", "dynamo")
"""Exporters that leave BatchNormalization in the graph, at an old opset and a new one."""


def repvgg() -> nn.Module:
    """RepVGG as trained: five blocks, two of them with identity, one grouped."""
    blocks = [RepVgg(3, 8, 2), RepVgg(8, 8), RepVgg(8, 8, groups=2), RepVgg(8, 16, 2), RepVgg(16, 16)]
    return classifier(*blocks, channels=16)


def mobilenet3() -> nn.Module:
    """MobileNet 3: hard swish, gates of hard sigmoid, depthwise convolutions of 3 and 5."""
    act, gate = nn.Hardswish(), nn.Hardsigmoid()
    blocks = [
        unit(3, 8, 3, 2, act=act),
        Inverted(8, 16, 8, 3, 1, nn.ReLU(), gate),
        Inverted(8, 24, 12, 5, 2, act, gate),
    ]
    return classifier(*blocks, unit(12, 24, 1, act=act), channels=24)


def efficientnet() -> nn.Module:
    """EfficientNet: swish, gates of sigmoid, arXiv:1905.11946."""
    act, gate = nn.SiLU(), nn.Sigmoid()
    blocks = [unit(3, 8, 3, 2, act=act), Inverted(8, 16, 8, 3, 1, act, gate), Inverted(8, 24, 12, 5, 2, act, gate)]
    return classifier(*blocks, unit(12, 24, 1, act=act), channels=24)


def mobilenet2() -> nn.Module:
    """MobileNet 2 with the padding of TensorFlow: more behind than in front."""
    config = tf.MobileNetV2Config(
        image_size=32, depth_multiplier=0.1, expand_ratio=2, finegrained_output=False, num_labels=10
    )
    return tf.MobileNetV2ForImageClassification(config)


def convnext() -> nn.Module:
    """ConvNeXt: depthwise 7 x 7, normalisation of channels, two linear layers, a factor for each channel."""
    config = tf.ConvNextConfig(hidden_sizes=[8, 16], depths=[2, 1], num_stages=2, patch_size=4, num_labels=10)
    return tf.ConvNextForImageClassification(config)


def resnext() -> nn.Module:
    """ResNeXt: bottlenecks in groups, one of them smaller and wider than what it reads."""
    blocks = [Bottleneck(8, 8, 16, groups=4), Bottleneck(16, 8, 16, groups=4), Bottleneck(16, 16, 24, 2, groups=4)]
    return classifier(unit(3, 8, 3, 2), *blocks, channels=24)


def regnet() -> nn.Module:
    """RegNet Y: bottlenecks in groups with gates, arXiv:2003.13678."""
    config = tf.RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], groups_width=4, num_labels=10)
    return tf.RegNetForImageClassification(config)


def inception() -> nn.Module:
    """Inception 3: images renormalised a channel at a time, two layers of branches, a pool between them."""
    first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    return classifier(Renormalised(), first, Inception(8, 4), nn.MaxPool2d(3, 2), Inception(16, 6), channels=24)


def vgg() -> nn.Module:
    """VGG: convolutions with biases, pools, three linear layers, arXiv:1409.1556."""
    return Inputs(
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.AdaptiveAvgPool2d(4), nn.Flatten()),
            *(
                nn.Linear(256, 32),
                nn.ReLU(),
                nn.Dropout(),
                nn.Linear(32, 32),
                nn.ReLU(),
                nn.Dropout(),
                nn.Linear(32, 10),
            ),
        )
    )


def densenet() -> nn.Module:
    """DenseNet: two dense blocks and the transition between them."""
    last = nn.Sequential(nn.BatchNorm2d(12), nn.ReLU())
    return classifier(unit(3, 8, 3, 2), Dense(8, 4), Dense(12, 4), transition(16, 8), Dense(8, 4), last, channels=12)


def shufflenet() -> nn.Module:
    """ShuffleNet 2: two units of one size."""
    return classifier(unit(3, 16, 3, 2), nn.MaxPool2d(3, 2, 1), Shuffled(16), Shuffled(16), channels=16)


def unet_groups() -> nn.Module:
    """U-Net of one step down and one up."""
    return Unet()


def super_resolution() -> nn.Module:
    """EDSR of one residual block."""
    return Super()


def style_transfer() -> nn.Module:
    """One convolution down and one up."""
    return Style()


def temporal() -> nn.Module:
    """Two blocks over rows of an image of three channels, read as three sequences."""
    return Inputs(nn.Sequential(nn.Flatten(2), Causal(3, 8, 1), Causal(8, 8, 2)))


CASES = (
    *(
        Case(build.__name__, build, image(32), IMAGE_SIZES, exporters=NORMALISED)
        for build in (repvgg, mobilenet3, efficientnet, densenet, shufflenet, mobilenet2, resnext, regnet, inception)
    ),
    *(
        Case(build.__name__, build, image(16), IMAGE_SIZES, exporters=TS_AND_DYNAMO)
        for build in (unet_groups, super_resolution, style_transfer, vgg)
    ),
    Case("convnext", convnext, image(32), IMAGE_SIZES, exporters=TS_AND_DYNAMO, layers=3),
    Case("temporal", temporal, image(8), IMAGE_SIZES, exporters=NORMALISED),
)
