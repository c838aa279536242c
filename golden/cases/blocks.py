"""What convolutional networks are built from, each by the structure of its paper, small by default."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class Inputs(nn.Module):
    """A network whose input is called as those of transformers are."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, pixel_values: Tensor) -> Tensor:
        result: Tensor = self.body(pixel_values)
        return result


def unit(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int] = 3,
    stride: int = 1,
    groups: int = 1,
    act: nn.Module | None = None,
) -> nn.Module:
    """Convolution without a bias, normalisation, activation."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (height // 2, width // 2)
    convolution = nn.Conv2d(inputs, outputs, (height, width), stride, padding, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), act or nn.ReLU())


def classifier(*blocks: nn.Module, channels: int, classes: int = 10) -> nn.Module:
    """The blocks, the mean of each channel, a linear layer."""
    return Inputs(nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)))


class RepVgg(nn.Module):
    """The block of RepVGG in training: 3 x 3, 1 x 1 and, if the size stays, identity, each normalised, arXiv:2101.03697."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.wide = unit(inputs, outputs, 3, stride, groups, nn.Identity())
        self.narrow = unit(inputs, outputs, 1, stride, groups, nn.Identity())
        self.same = nn.BatchNorm2d(inputs) if inputs == outputs and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        total = self.wide(x) + self.narrow(x)
        return torch.relu(total if self.same is None else total + self.same(x))


class Gate(nn.Module):
    """Squeeze and excitation, arXiv:1709.01507."""

    def __init__(self, channels: int, gate: nn.Module, act: nn.Module) -> None:
        super().__init__()
        squeezed = max(channels // 4, 2)
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, squeezed, 1), act, nn.Conv2d(squeezed, channels, 1), gate
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.body(x)


class Inverted(nn.Module):
    """The inverted residual of MobileNet and EfficientNet: expanded, depthwise, gated, projected (arXiv:1905.02244)."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int, act: nn.Module, gate: nn.Module
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            unit(inputs, hidden, 1, act=act),
            unit(hidden, hidden, kernel, stride, hidden, act),
            Gate(hidden, gate, nn.SiLU() if isinstance(act, nn.SiLU) else nn.ReLU()),
            unit(hidden, outputs, 1, act=nn.Identity()),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


class Bottleneck(nn.Module):
    """A residual block whose middle convolution is in groups: ResNeXt, arXiv:1611.05431."""

    def __init__(self, inputs: int, hidden: int, outputs: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            unit(inputs, hidden, 1),
            unit(hidden, hidden, 3, stride, groups),
            unit(hidden, outputs, 1, act=nn.Identity()),
        )
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else unit(inputs, outputs, 1, stride, act=nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


class Inception(nn.Module):
    """Branches of several kernels over one input, joined; one kernel is split in two, arXiv:1512.00567."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                unit(inputs, width, 1),
                nn.Sequential(unit(inputs, width, 1), unit(width, width)),
                nn.Sequential(unit(inputs, width, 1), unit(width, width, (1, 5)), unit(width, width, (5, 1))),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), unit(inputs, width, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Renormalised(nn.Module):
    """Images normalised by one set of means and deviations brought to another, a channel at a time, as Inception asks."""

    def forward(self, x: Tensor) -> Tensor:
        means, deviations = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        channels = [
            torch.unsqueeze(x[:, channel], 1) * (deviation / 0.5) + (mean - 0.5) / 0.5
            for channel, (mean, deviation) in enumerate(zip(means, deviations, strict=True))
        ]
        return torch.cat(channels, 1)


class Dense(nn.Module):
    """A layer of DenseNet: normalised and rectified before it convolves, joined to what it read (arXiv:1608.06993)."""

    def __init__(self, channels: int, growth: int, factor: int = 2) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(channels), nn.BatchNorm2d(factor * growth)
        self.narrow = nn.Conv2d(channels, factor * growth, 1, bias=False)
        self.wide = nn.Conv2d(factor * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(torch.relu(self.first(x)))
        return torch.cat([x, self.wide(torch.relu(self.second(y)))], 1)


def transition(inputs: int, outputs: int) -> nn.Module:
    """What stands between the dense blocks of DenseNet."""
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.AvgPool2d(2))


class Shuffled(nn.Module):
    """A unit of ShuffleNet 2: half of the channels pass, then all are mixed (arXiv:1807.11164)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            unit(half, half, 1), unit(half, half, 3, groups=half, act=nn.Identity()), unit(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, 1)
        y = torch.cat([one, self.body(other)], 1)
        batch, channels, height, width = y.shape
        return y.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


class Unet(nn.Module):
    """U-Net with group normalisation: down, through, and up with what was there before (arXiv:1505.04597)."""

    def __init__(self, widths: Sequence[int] = (8, 16), groups: int = 4, classes: int = 2) -> None:
        super().__init__()
        steps = list(itertools.pairwise(widths))
        self.down = nn.ModuleList([self._block(*sizes, groups) for sizes in itertools.pairwise((3, *widths))])
        self.up = nn.ModuleList([nn.ConvTranspose2d(below, above, 2, 2) for above, below in reversed(steps)])
        self.out = nn.ModuleList([self._block(2 * above, above, groups) for above, _ in reversed(steps)])
        self.head = nn.Conv2d(widths[0], classes, 1)

    @staticmethod
    def _block(inputs: int, outputs: int, groups: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(groups, outputs), nn.SiLU())

    def forward(self, pixel_values: Tensor) -> Tensor:
        passed = [self.down[0](pixel_values)]
        for down in self.down[1:]:
            passed.append(down(f.max_pool2d(passed[-1], 2)))
        x = passed.pop()
        for up, out in zip(self.up, self.out, strict=True):
            x = out(torch.cat([up(x), passed.pop()], 1))
        result: Tensor = self.head(x)
        return result


class Super(nn.Module):
    """Super-resolution: residual blocks without normalisation, a pixel shuffle, means subtracted (arXiv:1707.02921)."""

    def __init__(self, channels: int = 8, blocks: int = 1) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.449, 0.437, 0.404]).view(1, 3, 1, 1))
        self.head, self.tail = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 12, 3, padding=1)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv2d(channels, channels, 3, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(channels, channels, 3, padding=1),
                )
                for _ in range(blocks)
            ]
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.head(pixel_values - self.mean)
        for block in self.blocks:
            x = x + 0.1 * block(x)
        return f.pixel_shuffle(self.tail(x), 2) + self.mean


class Style(nn.Module):
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


class Causal(nn.Module):
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
