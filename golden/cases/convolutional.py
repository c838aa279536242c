"""Convolutional networks by the structure of their papers, each with what is its own: branches, shuffles, gates, frames."""

from __future__ import annotations

import torch
import transformers as tf
from exporting import Case, Exporter
from torch import Tensor, nn
from torch.nn import functional as f

from cases.common import IMAGE_SIZES, TS_AND_DYNAMO, image

NORMALISED: tuple[Exporter, ...] = ("tsbn", "dynamo")
"""Exporters that leave BatchNormalization in the graph, at an old opset and a new one."""


def _unit(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: nn.Module | None = None
) -> nn.Module:
    """Convolution without a bias, normalisation, activation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), act or nn.ReLU())


class _RepVgg(nn.Module):
    """The block of RepVGG in training: 3 x 3, 1 x 1 and, if the size stays, identity, each normalised, arXiv:2101.03697."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.wide = _unit(inputs, outputs, 3, stride, groups, nn.Identity())
        self.narrow = _unit(inputs, outputs, 1, stride, groups, nn.Identity())
        self.same = nn.BatchNorm2d(inputs) if inputs == outputs and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        total = self.wide(x) + self.narrow(x)
        return torch.relu(total if self.same is None else total + self.same(x))


def _classifier(*blocks: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class _Inputs(nn.Module):
    """A network whose input is called as those of transformers are."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, pixel_values: Tensor) -> Tensor:
        result: Tensor = self.body(pixel_values)
        return result


def repvgg() -> nn.Module:
    """RepVGG as trained: five blocks, two of them with identity, one grouped."""
    blocks = [_RepVgg(3, 8, 2), _RepVgg(8, 8), _RepVgg(8, 8, groups=2), _RepVgg(8, 16, 2), _RepVgg(16, 16)]
    return _Inputs(_classifier(*blocks, channels=16))


class _Gate(nn.Module):
    """Squeeze and excitation, arXiv:1709.01507."""

    def __init__(self, channels: int, gate: nn.Module, act: nn.Module) -> None:
        super().__init__()
        squeezed = max(channels // 4, 2)
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, squeezed, 1), act, nn.Conv2d(squeezed, channels, 1), gate
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.body(x)


class _Inverted(nn.Module):
    """The inverted residual of MobileNet and EfficientNet: expanded, depthwise, gated, projected (arXiv:1905.02244)."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int, act: nn.Module, gate: nn.Module
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _unit(inputs, hidden, 1, act=act),
            _unit(hidden, hidden, kernel, stride, hidden, act),
            _Gate(hidden, gate, nn.SiLU() if isinstance(act, nn.SiLU) else nn.ReLU()),
            _unit(hidden, outputs, 1, act=nn.Identity()),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


def mobilenet3() -> nn.Module:
    """MobileNet 3: hard swish, gates of hard sigmoid, depthwise convolutions of 3 and 5."""
    act, gate = nn.Hardswish(), nn.Hardsigmoid()
    blocks = [
        _unit(3, 8, 3, 2, act=act),
        _Inverted(8, 16, 8, 3, 1, nn.ReLU(), gate),
        _Inverted(8, 24, 12, 5, 2, act, gate),
    ]
    return _Inputs(_classifier(*blocks, _unit(12, 24, 1, act=act), channels=24))


def efficientnet() -> nn.Module:
    """EfficientNet: swish, gates of sigmoid, arXiv:1905.11946."""
    act, gate = nn.SiLU(), nn.Sigmoid()
    blocks = [_unit(3, 8, 3, 2, act=act), _Inverted(8, 16, 8, 3, 1, act, gate), _Inverted(8, 24, 12, 5, 2, act, gate)]
    return _Inputs(_classifier(*blocks, _unit(12, 24, 1, act=act), channels=24))


def convnext() -> nn.Module:
    """ConvNeXt: depthwise 7 x 7, normalisation of channels, two linear layers, a factor for each channel."""
    config = tf.ConvNextConfig(hidden_sizes=[8, 16], depths=[2, 1], num_stages=2, patch_size=4, num_labels=10)
    return tf.ConvNextForImageClassification(config)


class _Dense(nn.Module):
    """A layer of DenseNet: normalised and rectified before it convolves, joined to what it read (arXiv:1608.06993)."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(channels), nn.BatchNorm2d(2 * growth)
        self.narrow = nn.Conv2d(channels, 2 * growth, 1, bias=False)
        self.wide = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(torch.relu(self.first(x)))
        return torch.cat([x, self.wide(torch.relu(self.second(y)))], 1)


def densenet() -> nn.Module:
    """DenseNet: two dense blocks and the transition between them."""
    transition = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1, bias=False), nn.AvgPool2d(2))
    last = nn.Sequential(nn.BatchNorm2d(12), nn.ReLU())
    return _Inputs(
        _classifier(_unit(3, 8, 3, 2), _Dense(8, 4), _Dense(12, 4), transition, _Dense(8, 4), last, channels=12)
    )


class _Shuffled(nn.Module):
    """A unit of ShuffleNet 2: half of the channels pass, then all are mixed (arXiv:1807.11164)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            _unit(half, half, 1), _unit(half, half, 3, groups=half, act=nn.Identity()), _unit(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, 1)
        y = torch.cat([one, self.body(other)], 1)
        batch, channels, height, width = y.shape
        return y.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


def shufflenet() -> nn.Module:
    """ShuffleNet 2: two units of one size."""
    return _Inputs(_classifier(_unit(3, 16, 3, 2), nn.MaxPool2d(3, 2, 1), _Shuffled(16), _Shuffled(16), channels=16))


class _Unet(nn.Module):
    """U-Net with group normalisation: down, through, and up with what was there before (arXiv:1505.04597)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.through = self._block(3, 8), self._block(8, 16)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), self._block(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())

    def forward(self, pixel_values: Tensor) -> Tensor:
        wide = self.down(pixel_values)
        narrow = self.through(f.max_pool2d(wide, 2))
        result: Tensor = self.head(self.out(torch.cat([self.up(narrow), wide], 1)))
        return result


class _Super(nn.Module):
    """Super-resolution: residual blocks without normalisation, a pixel shuffle, means subtracted (arXiv:1707.02921)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.449, 0.437, 0.404]).view(1, 3, 1, 1))
        self.head, self.tail = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.one, self.other = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.head(pixel_values - self.mean)
        x = x + 0.1 * self.other(torch.relu(self.one(x)))
        return f.pixel_shuffle(self.tail(x), 2) + self.mean


class _Style(nn.Module):
    """Style transfer: reflected frames, instance normalisation, nearest neighbours enlarged (arXiv:1610.07629)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Conv2d(3, 8, 5), nn.Conv2d(8, 16, 3, 2), nn.Conv2d(16, 8, 3)
        self.norms = nn.ModuleList([nn.InstanceNorm2d(size, affine=True) for size in (8, 16, 8)])
        self.last = nn.Conv2d(8, 3, 5)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.one(f.pad(pixel_values / 2.0, (2, 2, 2, 2), "reflect"))))
        x = torch.relu(self.norms[1](self.two(f.pad(x, (1, 1, 1, 1), "reflect"))))
        x = f.interpolate(x, scale_factor=2.0, mode="nearest")
        x = torch.relu(self.norms[2](self.three(f.pad(x, (1, 1, 1, 1), "reflect"))))
        result: Tensor = self.last(f.pad(x, (2, 2, 2, 2), "reflect")) * 2.0
        return result


class _Causal(nn.Module):
    """A temporal convolutional network: padded on both sides, trimmed behind (arXiv:1803.01271)."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.trim = 2 * dilation
        self.convolution = nn.Conv1d(inputs, outputs, 3, padding=self.trim, dilation=dilation)
        self.norm = nn.BatchNorm1d(outputs)
        self.short = nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.convolution(x)[:, :, : -self.trim])
        return torch.relu(torch.relu(y) + self.short(x))


def unet_groups() -> nn.Module:
    """U-Net of one step down and one up."""
    return _Unet()


def super_resolution() -> nn.Module:
    """EDSR of one residual block."""
    return _Super()


def style_transfer() -> nn.Module:
    """One convolution down and one up."""
    return _Style()


def temporal() -> nn.Module:
    """Two blocks over rows of an image of three channels, read as three sequences."""
    return _Inputs(nn.Sequential(nn.Flatten(2), _Causal(3, 8, 1), _Causal(8, 8, 2)))


CASES = (
    *(
        Case(build.__name__, build, image(32), IMAGE_SIZES, exporters=NORMALISED)
        for build in (repvgg, mobilenet3, efficientnet, densenet, shufflenet)
    ),
    *(
        Case(build.__name__, build, image(16), IMAGE_SIZES, exporters=TS_AND_DYNAMO)
        for build in (unet_groups, super_resolution, style_transfer)
    ),
    Case("convnext", convnext, image(32), IMAGE_SIZES, exporters=TS_AND_DYNAMO, layers=3),
    Case("temporal", temporal, image(8), IMAGE_SIZES, exporters=NORMALISED),
)
