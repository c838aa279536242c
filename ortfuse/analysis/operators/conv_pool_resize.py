"""Convolutions, pooling and resizing: sliding windows over spatial axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.costs import NodeSizes, Work, cost, macs, nothing, per_result
from ortfuse.analysis.ranges.interval_arithmetic import SLACK
from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.range import Range, between
from ortfuse.analysis.transfer import symbolic_element_arithmetic as el
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, normalize_axes, transfer
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Fact, Shape
from ortfuse.ir.dims import DimLike, ceil_div, floor_div, is_nonnegative, maximum, product, uncut
from ortfuse.ir.operator_registry import describe
from ortfuse.ir.traits import MICROSOFT


@transfer("Conv", "ConvInteger")
def conv(op: Op) -> Fact:
    """Convolution of [N, C, ...] with weights [M, C/group, ...]."""
    dtype = ir.DataType.INT32 if op.node.op_type == "ConvInteger" else op.dtype(0)
    return Fact(dtype, conv_shape(op, op.known_shape(0), op.known_shape(1)))


def conv_shape(op: Op, data: Shape, weight: Shape) -> Shape:
    """The shape of a convolution with the node's attributes."""
    _check_ranks(data, weight)
    kernel = op.attr_ints("kernel_shape") or weight[2:]
    return (data[0], weight[0], *_window_sizes(op, data[2:], kernel))


def _check_ranks(data: Shape, weight: Shape) -> None:
    if len(data) != len(weight) or len(data) < 3:
        raise UnknownError


_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool", "QLinearAveragePool", "NhwcMaxPool"})


def _window_sizes(op: Op, sizes: Shape, kernel: Sequence[DimLike], *, ceil: bool = False) -> Shape:
    """The number of windows along each spatial axis (ONNX, Conv and the pooling operators)."""
    rank = len(sizes)
    if len(kernel) != rank:
        raise UnknownError
    strides = op.attr_ints("strides") or (1,) * rank
    dilations = op.attr_ints("dilations") or (1,) * rank
    pads = op.attr_ints("pads") or (0,) * (2 * rank)
    auto = op.attr_str("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        if op.node.op_type in _POOLS and set(dilations) != {1}:
            return (UNKNOWN,) * rank  # the runtime pads pools as if they were not dilated
        return tuple([ceil_div(size, stride) for size, stride in zip(sizes, strides, strict=True)])
    padded = list(sizes)
    if auto == "NOTSET":
        padded = [size + pads[axis] + pads[axis + rank] for axis, size in enumerate(sizes)]
    counts: list[DimLike] = []
    for axis, size in enumerate(padded):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if not ceil:
            count = _pool_count if op.node.op_type in _POOLS else _floor_count
            counts.append(count(sizes[axis], size - sizes[axis], reach, strides[axis]))
        else:
            counts.append(_ceil_count(sizes[axis] + pads[axis], size - reach, strides[axis]))
    return tuple(counts)


def _pool_count(size: DimLike, padding: DimLike, reach: DimLike, stride: int) -> DimLike:
    """Windows of pooling in floor mode. The runtime's pools divide towards zero, and reject axes of size 0."""
    count = floor_div(size + padding - reach, stride) + 1
    if is_nonnegative(size + padding - reach):
        return count
    if not isinstance(padding, int) or not isinstance(reach, int):
        return UNKNOWN
    short = reach - padding - 1  # how much an input of size 1 is too short
    if short <= 0:
        return maximum(count, 0)
    return maximum(count, 1) if short < stride else UNKNOWN


def _floor_count(size: DimLike, padding: DimLike, reach: DimLike, stride: int) -> DimLike:
    """Windows in floor mode; 0 if there is no room for any, since no runtime creates a tensor of negative size.

    With stacked convolutions this would give max(0, ...) of max(0, f). The inner max is dropped if the outer one is 0 for an
    input of size 0, because then it is 0 for every negative f too.
    """
    if isinstance(padding, int) and isinstance(reach, int) and padding < reach:
        size = uncut(size)
    return maximum(floor_div(size + padding - reach, stride) + 1, 0)


def _ceil_count(reachable: DimLike, room: DimLike, stride: int) -> DimLike:
    """Windows in ceil mode: the last one may extend beyond the end, but must start within the input or its leading padding."""
    count = ceil_div(room, stride) + 1
    slack = reachable - 1 - (count - 1) * stride
    if is_nonnegative(slack):
        return count
    return count - 1 if is_nonnegative(-slack - 1) else UNKNOWN


transfer("FusedConv", domain=MICROSOFT)(conv)


@transfer("NhwcFusedConv", "NhwcConv", domain=MICROSOFT)
def nhwc_conv(op: Op) -> Fact:
    """Convolution of [N, ..., C]."""
    data, weight = op.known_shape(0), op.known_shape(1)
    _check_ranks(data, weight)
    channels_last = op.node.op_type == "NhwcConv"
    kernel = op.attr_ints("kernel_shape") or (weight[1:-1] if channels_last else weight[2:])
    return Fact(op.dtype(0), (data[0], *_window_sizes(op, data[1:-1], kernel), weight[0]))


@transfer("ConvTranspose")
def conv_transpose(op: Op) -> Fact:
    """Transposed convolution of [N, C, ...] with weights [C, M/group, ...]."""
    data, weight = op.known_shape(0), op.known_shape(1)
    _check_ranks(data, weight)
    sizes, rank = data[2:], len(data) - 2
    kernel = op.attr_ints("kernel_shape") or weight[2:]
    strides = op.attr_ints("strides") or (1,) * rank
    dilations = op.attr_ints("dilations") or (1,) * rank
    pads = op.attr_ints("pads") or (0,) * (2 * rank)
    extra = op.attr_ints("output_padding") or (0,) * rank
    given = op.attr_ints("output_shape")
    if given:
        spatial: Shape = given[-rank:]
    elif op.attr_str("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        # A kernel that reaches less far than the stride would have to be trimmed by less than nothing.
        reach = [(kernel[i] - 1) * dilations[i] + 1 + extra[i] for i in range(rank)]
        full = [isinstance(far, int) and far >= stride for far, stride in zip(reach, strides, strict=True)]
        spatial = tuple([sizes[i] * strides[i] if full[i] else UNKNOWN for i in range(rank)])
    else:
        padded = op.attr_str("auto_pad", "NOTSET") == "NOTSET"
        trim = [pads[i] + pads[i + rank] if padded else 0 for i in range(rank)]
        spatial = tuple(
            [(sizes[i] - 1) * strides[i] + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - trim[i] for i in range(rank)]
        )
    return Fact(op.dtype(0), (data[0], weight[1] * op.attr_int("group", 1), *spatial))


def pooled_shape(op: Op) -> Shape:
    """The shape of the results of pooling over sliding windows of an image with channels second."""
    shape = op.known_shape()
    kernel = op.attr_ints("kernel_shape")
    if kernel is None:
        raise UnknownError
    return (*shape[:2], *_window_sizes(op, shape[2:], kernel, ceil=op.attr_int("ceil_mode", 0) == 1))


@transfer("MaxPool", "AveragePool", "LpPool")
def pool(op: Op) -> tuple[Fact, ...]:
    """Pooling over sliding windows; MaxPool also returns the positions."""
    dims = pooled_shape(op)
    return Fact(op.dtype(), dims), Fact(ir.DataType.INT64, dims)


@transfer("NhwcMaxPool", domain=MICROSOFT)
def nhwc_pool(op: Op) -> Fact:
    """Pooling of [N, ..., C]."""
    shape, kernel = op.known_shape(), op.attr_ints("kernel_shape")
    if kernel is None:
        raise UnknownError
    sizes = _window_sizes(op, shape[1:-1], kernel, ceil=op.attr_int("ceil_mode", 0) == 1)
    return Fact(op.dtype(), (shape[0], *sizes, shape[-1]))


@cost("AveragePool", "MaxPool", "LpPool")
def pool_work(at: NodeSizes) -> Work:
    """Return the work of one operation for each element under the kernel."""
    kernel = _clipped_kernel(at.integers("kernel_shape"), at.shape(0))
    return Work(0, at.results() * product(kernel))


def _clipped_kernel(kernel: Sequence[int], shape: Shape) -> list[DimLike]:
    """A kernel, no larger than what it is moved over."""
    sizes = zip(kernel, shape[2:], strict=False)
    return [min(side, size) if isinstance(size, int) else side for side, size in sizes]


@transfer("Resize", "Upsample")
def resize(op: Op) -> Fact:
    """Resizing by scales or to sizes, of all axes or of `axes`."""
    data = op.fact(0)
    shape = op.known_shape()
    axes = op.attr_ints("axes")
    axes = normalize_axes(axes, len(shape)) if axes else tuple(range(len(shape)))
    dims = list(shape)
    found = _resized_by_size(op, shape, axes) or _resized_by_scale(op, shape, axes)
    for axis, dim in zip(axes, found or (UNKNOWN,) * len(axes), strict=True):
        dims[axis] = dim
    return Fact(data.dtype, tuple(dims))


def _resized_by_size(op: Op, shape: Shape, axes: tuple[int, ...]) -> Shape | None:
    sizes = op.integers(3)
    if sizes is None or len(sizes) != len(axes) or op.attr_str("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    return tuple([UNKNOWN if size is None else size for size in sizes])


def _resized_by_scale(op: Op, shape: Shape, axes: tuple[int, ...]) -> Shape | None:
    if op.has(3):
        return None
    if op.attr_str("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    given = op.fact(1 if op.node.op_type == "Upsample" or op.version < 11 else 2)
    scales = given.elements()
    if scales is None or len(scales) != len(axes):
        return None
    numbers = given.array()
    found: list[Any] = []
    for position, (axis, scale) in enumerate(zip(axes, scales, strict=True)):
        dim, size = el.floor(el.multiply(shape[axis], scale)), shape[axis]
        if dim is None and isinstance(size, int) and numbers is not None:
            dim = _floored_product(size, float(numbers.reshape(-1)[position]))
        found.append(dim)
    return tuple([dim if isinstance(dim, DimLike) else UNKNOWN for dim in found])


_EXACT = 1 << 24
"""Up to here float32 holds every integer."""


def _floored_product(size: int, scale: float) -> int | None:
    """The product with a factor, rounded down; `None` where that depends on the precision of the product."""
    if not 0 <= scale * size < _EXACT:
        return None
    made = {int(np.float32(scale) * np.float32(size)), int(scale * size)}
    return made.pop() if len(made) == 1 else None


_ACTIVATED = {
    "Relu": (0.0, math.inf),
    "Sigmoid": (-SLACK, 1.0 + SLACK),
    "HardSigmoid": (-SLACK, 1.0 + SLACK),
    "Tanh": (-1.0 - SLACK, 1.0 + SLACK),
}


@ranges(f"{MICROSOFT}.FusedConv")
def fused_activation_range(op: Asking) -> Range | None:
    """The range after the activation that a convolution ends with."""
    found = _ACTIVATED.get(op.attr_str("activation", ""))
    return None if found is None else between(*found, nan=True)


def _convolution_macs(weight: int) -> Callable[[NodeSizes], DimLike]:
    """Each result is a sum over the channels of its group and the kernel."""
    return lambda at: at.results() * product(at.shape(weight)[1:])


def _transposed_convolution_macs(at: NodeSizes) -> DimLike:
    """Each element of the input goes to all channels of its group and all of the kernel."""
    return at.size(0) * product(at.shape(1)[1:])


cost("Conv", "ConvInteger", "DeformConv", f"{MICROSOFT}.FusedConv", f"{MICROSOFT}.CausalConvWithState")(
    macs(_convolution_macs(1))
)
cost("QLinearConv", f"{MICROSOFT}.QLinearConv")(macs(_convolution_macs(3)))
cost("ConvTranspose")(macs(_transposed_convolution_macs))
cost("Resize", "Upsample")(per_result(0))
cost("GridSample")(per_result(8))
cost("ReorderInput", "ReorderOutput")(nothing)

describe("Col2Im", size_operands=(1, 2))
describe("Resize", size_operands=(1, 2, 3))
describe("Upsample", size_operands=(1,))

describe("AveragePool", "Resize", linear=((0,),))
describe("Conv", channel_axes=(1, 1, 1), linear=((0, 2), (1, 2)))
describe("ConvTranspose", channel_axes=(1, 1, 0), linear=((0, 2), (1, 2)))
describe("Upsample", traits="smooth")
