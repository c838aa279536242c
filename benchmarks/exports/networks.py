"""Full-size convolutional and recurrent networks: those of transformers by their configurations, others by their papers."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from cases.blocks import Dense, Super, Unet, classifier, transition, unit
from cases.common import IMAGE_SIZES, image
from cases.detection import Detector
from cases.recurrent import LAYERS, LanguageModel, Speech, Unrolled
from drawing import Input
from exporting import Case, Exporter
from torch import nn

from benchmarks.exports.building import built

LABELS = 1000
ANY_LENGTH: tuple[Exporter, ...] = ("ts",)
"""The exporters that leave recurrent layers as operators: torch.export unrolls them, which a free length does not allow."""
CELLS = 50
"""The steps of the unrolled network."""
VOCABULARY = 10_000

EFFICIENTNET = {
    "width_coefficient": 1.0,
    "depth_coefficient": 1.0,
    "image_size": 224,
    "hidden_dim": 1280,
    "num_labels": LABELS,
}


def densenet121(growth: int = 32) -> nn.Module:
    """DenseNet-121, arXiv:1608.06993."""
    channels = 2 * growth
    blocks: list[nn.Module] = [unit(3, channels, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for number, layers in enumerate((6, 12, 24, 16)):
        if number:
            blocks.append(transition(channels, channels // 2))
            channels //= 2
        blocks += [Dense(channels + growth * layer, growth, 4) for layer in range(layers)]
        channels += growth * layers
    return classifier(*blocks, nn.BatchNorm2d(channels), nn.ReLU(), channels=channels, classes=LABELS)


def unet() -> nn.Module:
    """U-Net of four steps down and up, normalised in groups of eight."""
    return Unet((32, 64, 128, 256, 512), 8)


def super_resolution() -> nn.Module:
    """EDSR in its small form: 16 blocks of 64 channels."""
    return Super(64, 16)


def yolo() -> nn.Module:
    """A detector of the size of YOLO 8 nano: 80 classes, 16 bins."""
    return Detector(320, (16, 32, 64, 128, 256), (1, 2, 2, 1), 80, 16)


def speech() -> nn.Module:
    """80 features of sound, two layers of LSTM in both directions, characters."""
    return Speech(nn.LSTM, 80, 256, 512, 29)


def gru() -> nn.Module:
    """A language model of two layers of GRU."""
    return LanguageModel(nn.GRU(256, 512, LAYERS, batch_first=True), VOCABULARY, 256, 512)


def cells() -> nn.Module:
    """A language model of one layer of LSTM whose cells are unrolled."""
    return LanguageModel(Unrolled(nn.LSTMCell, 256, 256, 1), VOCABULARY, 256, 256)


def _cases() -> Iterator[Case]:
    pictures = {
        "mobilenet2": built("MobileNetV2ForImageClassification", "MobileNetV2Config", num_labels=LABELS),
        "efficientnet": built("EfficientNetForImageClassification", "EfficientNetConfig", **EFFICIENTNET),
        "convnext": built("ConvNextForImageClassification", "ConvNextConfig", num_labels=LABELS),
        "regnet": built("RegNetForImageClassification", "RegNetConfig", num_labels=LABELS),
        "densenet121": densenet121,
    }
    for name, build in pictures.items():
        yield Case(name, build, image(224), IMAGE_SIZES)
    yield Case("unet", unet, image(128), IMAGE_SIZES)
    yield Case("yolo", yolo, image(320), IMAGE_SIZES)
    yield Case("super_resolution", super_resolution, image(64), IMAGE_SIZES)
    sound = {"features": Input(("batch", "frames", 80), "normal")}
    sizes = ({"batch": 2, "frames": 100}, {"batch": 3, "frames": 131})
    yield Case("speech", speech, sound, sizes, exporters=ANY_LENGTH, layers=LAYERS)
    tokens = functools.partial(Input, kind="tokens", high=VOCABULARY)
    yield Case(
        "gru",
        gru,
        {"input_ids": tokens(("batch", "sequence"))},
        ({"batch": 2, "sequence": 24}, {"batch": 3, "sequence": 17}),
        exporters=ANY_LENGTH,
        layers=LAYERS,
    )
    yield Case("lstm_cells", cells, {"input_ids": tokens(("batch", CELLS))}, IMAGE_SIZES, layers=1)


CASES = tuple(_cases())
