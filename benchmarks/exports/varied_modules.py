"""Modules of PyTorch, each alone."""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.exports.varied_declare import BATCH_LENGTH, Family, normal

family = Family()
RECIPES = family.recipes
X = {"x": normal(2, 6, 8)}
ALL = {"x": BATCH_LENGTH}
IMAGE = {"x": normal(2, 6, 8, 8)}
HEADS = {name: normal(2, 4, 6, 8) for name in "qkv"}
HEAD_AXES = {name: {0: "batch", 2: "length"} for name in "qkv"}


class _Of(nn.Module):
    """A module whose input is called `x`."""

    def __init__(self, made: nn.Module) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.made(x)
        return found


for _name, _made in {
    "elu": nn.ELU(0.7),
    "selu": nn.SELU(),
    "celu": nn.CELU(0.8),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "silu": nn.SiLU(),
    "mish": nn.Mish(),
    "softplus": nn.Softplus(),
    "softsign": nn.Softsign(),
    "hardswish": nn.Hardswish(),
    "hardsigmoid": nn.Hardsigmoid(),
    "hardtanh": nn.Hardtanh(-2, 3),
    "relu6": nn.ReLU6(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "rrelu": nn.RReLU(),
    "prelu": nn.PReLU(6, 0.2),
    "prelu_one": nn.PReLU(),
    "threshold": nn.Threshold(0.0, 0.0),
    "hardshrink": nn.Hardshrink(),
    "softshrink": nn.Softshrink(),
    "tanhshrink": nn.Tanhshrink(),
    "logsigmoid": nn.LogSigmoid(),
    "softmin": nn.Softmin(-1),
    "softmax2d": nn.Softmax2d(),
    "log_softmax": nn.LogSoftmax(1),
    "glu": nn.GLU(1),
    "channel_shuffle": nn.ChannelShuffle(2),
    "group_norm": nn.GroupNorm(3, 6),
    "group_norm_plain": nn.GroupNorm(2, 6, affine=False),
    "instance_norm": nn.InstanceNorm2d(6, affine=True),
    "instance_norm_tracked": nn.InstanceNorm2d(6, track_running_stats=True),
    "local_response_norm": nn.LocalResponseNorm(3),
    "layer_norm_2d": nn.LayerNorm((8, 8)),
    "rms_norm": nn.RMSNorm(8),
    "rms_norm_plain": nn.RMSNorm((8, 8), elementwise_affine=False),
    "pixel_unshuffle": nn.PixelUnshuffle(2),
    "upsample_nearest": nn.UpsamplingNearest2d(scale_factor=2),
    "upsample_bilinear": nn.UpsamplingBilinear2d(scale_factor=2),
    "zero_pad": nn.ZeroPad2d(1),
    "reflection_pad": nn.ReflectionPad2d(2),
    "adaptive_average": nn.AdaptiveAvgPool2d(1),
    "adaptive_max": nn.AdaptiveMaxPool2d(1),
    "lp_pool": nn.LPPool2d(2, 2),
    "average_ceil": nn.AvgPool2d(3, 2, ceil_mode=True),
    "fold_unfold": nn.Unfold(3, padding=1),
}.items():
    family.add(f"module_{_name}", lambda made=_made: _Of(made), IMAGE)
