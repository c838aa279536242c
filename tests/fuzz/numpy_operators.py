"""Operators of linear chains by their definitions, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def value_of(op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any], *, absolute: bool = False) -> Array:
    """Return the result of an operator; with `absolute`, of one that adds what it would take away."""
    function = _ABSOLUTE.get(op_type) if absolute else None
    result: Array = (function or _OPERATORS[op_type])(*inputs, **attributes)
    return result


def _batch_norm(x: Array, scale: Array, shift: Array, mean: Array, variance: Array, **more: Any) -> Array:
    shape = (-1,) + (1,) * (x.ndim - 2)
    factor = scale / np.sqrt(variance + float(np.float32(more.get("epsilon", 1e-5))))
    return x * factor.reshape(shape) + (shift - mean * factor).reshape(shape)


def _absolute_batch_norm(x: Array, scale: Array, shift: Array, mean: Array, variance: Array, **more: Any) -> Array:
    return _batch_norm(x, scale, shift, -mean, variance, **more)


def _padded(x: Array, pads: Sequence[int], number: float = 0.0) -> Array:
    count = len(pads) // 2
    return np.pad(x, [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)], constant_values=number)


def _windows(x: Array, taps: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """The windows of an image: [batch, channels, *outputs, *taps]."""
    reach = [(tap - 1) * gap + 1 for tap, gap in zip(taps, dilations, strict=True)]
    axes = tuple(range(2, x.ndim))
    found = np.lib.stride_tricks.sliding_window_view(x, reach, axis=axes)
    steps = tuple(slice(None, None, step) for step in strides)
    return found[(slice(None), slice(None), *steps, *(slice(None, None, gap) for gap in dilations))]


def _conv(x: Array, weight: Array, bias: Array | None = None, **how: Any) -> Array:
    rank, groups = x.ndim - 2, how.get("group", 1)
    ones = [1] * rank
    image = _padded(x, how.get("pads") or [0] * 2 * rank)
    windows = _windows(image, weight.shape[2:], how.get("strides") or ones, how.get("dilations") or ones)
    outputs = weight.shape[0] // groups
    parts = []
    for group in range(groups):
        inside = windows[:, group * weight.shape[1] : (group + 1) * weight.shape[1]]
        kernel = weight[group * outputs : (group + 1) * outputs]
        axes = [1, *range(2 + rank, 2 + 2 * rank)]
        parts.append(np.moveaxis(np.tensordot(inside, kernel, (axes, [1, *range(2, 2 + rank)])), -1, 1))
    result = np.concatenate(parts, axis=1)
    return result if bias is None else result + bias.reshape(-1, *ones)


def _conv_transpose(x: Array, weight: Array, bias: Array | None = None, **how: Any) -> Array:
    rank, groups = x.ndim - 2, how.get("group", 1)
    strides, taps = how.get("strides") or [1] * rank, weight.shape[2:]
    sizes = [(size - 1) * step + tap for size, step, tap in zip(x.shape[2:], strides, taps, strict=True)]
    result = np.zeros((x.shape[0], weight.shape[1] * groups, *sizes))
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    for group in range(groups):
        part = x[:, group * inputs : (group + 1) * inputs]
        kernel = weight[group * inputs : (group + 1) * inputs]
        for tap in itertools.product(*map(range, taps)):
            places = tuple(
                slice(start, start + size * step, step)
                for start, size, step in zip(tap, x.shape[2:], strides, strict=True)
            )
            made = np.moveaxis(np.tensordot(part, kernel[(slice(None), slice(None), *tap)], ([1], [0])), -1, 1)
            result[(slice(None), slice(group * outputs, (group + 1) * outputs), *places)] += made
    pads = how.get("pads") or [0] * 2 * rank
    ends = [size - back for size, back in zip(sizes, pads[rank:], strict=True)]
    result = result[(..., *(slice(front, end) for front, end in zip(pads[:rank], ends, strict=True)))]
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


def _average_pool(x: Array, **how: Any) -> Array:
    taps, pads = how["kernel_shape"], how["pads"]
    rest = tuple(range(-len(taps), 0))
    windows = _windows(_padded(x, pads), taps, how["strides"], [1] * len(taps))
    if how.get("count_include_pad"):
        return windows.mean(rest)
    counts = _windows(_padded(np.ones_like(x), pads), taps, how["strides"], [1] * len(taps))
    return windows.sum(rest) / counts.sum(rest)


def _max_pool(x: Array, **how: Any) -> Array:
    taps = how["kernel_shape"]
    windows = _windows(_padded(x, how["pads"], -np.inf), taps, how["strides"], [1] * len(taps))
    return windows.max(tuple(range(-len(taps), 0)))


def _reshape(x: Array, sizes: Array) -> Array:
    return x.reshape([x.shape[number] if size == 0 else size for number, size in enumerate(sizes.tolist())])


def _pad(x: Array, pads: Array, *rest: Any, mode: str = "constant") -> Array:
    widths = list(zip(pads[: x.ndim].tolist(), pads[x.ndim :].tolist(), strict=True))
    return np.pad(x, widths, mode=mode)  # type: ignore[call-overload,no-any-return]


def _slice(x: Array, start: Array, end: Array, axis: Array, *rest: Any) -> Array:
    places = [slice(None)] * x.ndim
    places[int(axis[0])] = slice(int(start[0]), int(end[0]))
    return x[tuple(places)]


def _gemm(a: Array, b: Array, c: Array | None = None, **how: Any) -> Array:
    left = a.T if how.get("transA") else a
    right = b.T if how.get("transB") else b
    product = how.get("alpha", 1.0) * (left @ right)
    return product if c is None else product + how.get("beta", 1.0) * c


_OPERATORS: dict[str, Any] = {
    "Mul": lambda a, b: a * b, "Div": lambda a, b: a / b, "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b,
    "Neg": lambda a: -a, "Relu": lambda a: np.maximum(a, 0), "Identity": lambda a: a, "MatMul": lambda a, b: a @ b,
    "Gemm": _gemm, "BatchNormalization": _batch_norm, "Conv": _conv, "ConvTranspose": _conv_transpose,
    "AveragePool": _average_pool, "MaxPool": _max_pool, "Reshape": _reshape, "Pad": _pad, "Slice": _slice,
    "GlobalAveragePool": lambda a: a.mean(tuple(range(2, a.ndim)), keepdims=True),
    "ReduceMean": lambda a, axes, keepdims: a.mean(tuple(axes), keepdims=bool(keepdims)),
    "Gather": lambda a, places, axis: np.take(a, places, axis), "Concat": lambda *a, axis: np.concatenate(a, axis),
    "Transpose": lambda a, perm: a.transpose(perm),
}  # fmt: skip

_ABSOLUTE: dict[str, Any] = {
    "Sub": lambda a, b: a + b,
    "Neg": lambda a: a,
    "BatchNormalization": _absolute_batch_norm,
}
