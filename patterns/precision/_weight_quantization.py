"""Quantise weights lazily when they are read, one tensor at a time, from a file that may be larger than memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.quantization.activation_hessian import Factor, Moments
from ortfuse.quantization.quantization_parameters import SMALLEST_SCALE
from ortfuse.quantization.rounded_weights_cache import RoundedTensor, Rounding
from ortfuse.rewrite.pattern import Match, computed
from ortfuse.rewrite.pattern.language import Computed
from ortfuse.transforms.cleanup.fold_constant_movement import KeyedTensor, MovedTensor, key_of

Array = np.ndarray[Any, Any]

_LARGEST = 2.0**100
"""Products of larger numbers are more likely to overflow than to mean anything."""

_finite: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def tensor_of(match: Match, name: str) -> ir.TensorProtocol:
    """A captured constant, not read yet if it is an initializer."""
    found = match[name].const_value
    return ir.Tensor(match.const(name)) if found is None else found


def turned(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The transpose of a matrix, made when it is read."""
    return MovedTensor(tensor, (1, 0), tuple(reversed(tensor.shape.numpy())))


class Compensating(Protocol):
    """A way to round that can make the errors of rows make up for each other."""

    def __call__(self, array: Array) -> tuple[Array, ...]:
        """Integers, scales and what stands for 0."""

    def compensated(self, array: Array, factor: Factor) -> tuple[Array, ...]:
        """The same, by what is known of what comes in."""

    def stand_in(self, shape: tuple[int, ...]) -> tuple[Array, ...]:
        """Numbers of the same types and shapes."""


@dataclass(frozen=True)
class Compensated:
    """Rounding of a matrix whose activations were observed.

    Attributes:
        made: The scales and what stands for 0.
        moments: What is known of what comes in.
        about_zero: Whether nothing else makes up for the means of what comes in.
    """

    made: Compensating
    moments: Moments
    about_zero: bool = False

    def __call__(self, array: Array) -> tuple[Array, ...]:
        """Integers, scales and what stands for 0."""
        factor = self.moments.factor(about_zero=self.about_zero)
        return self.made(array) if factor is None else self.made.compensated(array, factor)

    def stand_in(self, shape: tuple[int, ...]) -> tuple[Array, ...]:
        """Numbers of the same types and shapes."""
        return self.made.stand_in(shape)


def read_later(
    name: str,
    dtype: type[np.generic],
    shape: Callable[[Match], tuple[int, ...]],
    convert: Callable[..., Array],
    of: str = "weight",
    *,
    transposed: bool = False,
    rounding: Callable[[Match], Rounding] | None = None,
) -> Computed:
    """In a replacement: a constant that is computed of a captured one, or of its transpose, each time it is read.

    With a `rounding`, which the match has a say in, `convert` takes what that makes of it.
    """

    def made(match: Match) -> ir.TensorProtocol:
        source = tensor_of(match, of)
        given = turned(source) if transposed else source
        return RoundedTensor(given, convert, dtype, shape(match), None if rounding is None else rounding(match))

    return computed(name, made)


def read_later_as(
    name: str,
    dtype: type[np.generic],
    shape: Callable[[Match], tuple[int, ...]],
    make: Callable[[Match], Callable[[Array], Array]],
    of: str = "weight",
) -> Computed:
    """The same where the match has a say: `make` tells, while the match is there, how the constant is to be computed."""
    return computed(name, lambda match: RoundedTensor(tensor_of(match, of), make(match), dtype, shape(match)))


def part_of(
    name: str,
    dtype: type[np.generic],
    shape: Callable[[Match], tuple[int, ...]],
    number: int,
    rounding: Callable[[Match], Rounding],
) -> Computed:
    """In a replacement: one of the parts that the weight is rounded to, in a way that the match has a say in."""
    return computed(
        name,
        lambda match: RoundedTensor(tensor_of(match, "weight"), _PARTS[number], dtype, shape(match), rounding(match)),
    )


def _take(number: int) -> Callable[..., Array]:
    def take(*parts: Array) -> Array:
        return parts[number]

    return take


_PARTS = tuple(map(_take, range(3)))


class PartTensor(KeyedTensor):
    """One of the parts of a tensor along its first axis, read from it each time."""

    def __init__(self, source: ir.TensorProtocol, number: int) -> None:
        def make() -> ir.Tensor[Array]:
            return ir.Tensor(np.ascontiguousarray(source.numpy()[number]))

        super().__init__(make, source.dtype, ir.Shape(source.shape.numpy()[1:]))
        self.key = (key_of(source), "part", number)


def is_weight(name: str, most_rows: int | None = None, rows: int = 0) -> Callable[[Match], Refusal | None]:
    """The constant is a float32 tensor of finite, not absurdly large numbers; not empty, and not longer than that.

    `rows` is the axis that products are summed along.
    """

    def guard(match: Match) -> Refusal | None:
        if match.get(name) is None:
            return None
        refusal = match.unless_dtype(name, ir.DataType.FLOAT)
        if refusal is not None:
            return refusal
        tensor = tensor_of(match, name)
        if 0 in tensor.shape.numpy():
            return match.refuse("value", name, "not empty")
        if most_rows is not None and tensor.shape.numpy()[rows] > most_rows:
            return match.refuse(
                "value", name, f"of at most {most_rows} rows, so that sums of products fit into 32 bits"
            )
        while isinstance(tensor, MovedTensor):
            tensor = tensor.source  # of the same numbers, and the same from one model to the next
        if tensor not in _finite:
            array = tensor.numpy()
            _finite[tensor] = bool(np.abs(array).max() < _LARGEST)  # false for NaN, too
        return match.unless_value(name, _finite[tensor], "of finite numbers below 2**100")

    return guard


def symmetric(array: Array, axis: int | None, limit: int) -> tuple[Array, Array]:
    """Integers from -limit to limit and their scales: one for each index of `axis` that is kept, or one for all."""
    size = np.maximum(array.max(axis=_others(array, axis)), -array.min(axis=_others(array, axis)))
    scale = np.maximum(size / limit, SMALLEST_SCALE).astype(np.float32)
    return np.clip(np.rint(array / _along(scale, array, axis)), -limit, limit).astype(np.int8), scale


def asymmetric(array: Array, axis: int | None, levels: int) -> tuple[Array, Array, Array]:
    """Integers from 0 to levels, their scales, and what stands for zero."""
    low = np.minimum(array.min(axis=_others(array, axis)), 0.0).astype(np.float64)
    high = np.maximum(array.max(axis=_others(array, axis)), 0.0).astype(np.float64)
    scale = np.maximum((high - low) / levels, SMALLEST_SCALE).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 0, levels).astype(np.uint8)
    whole = np.rint(array / _along(scale, array, axis)) + _along(zero, array, axis)
    return np.clip(whole, 0, levels).astype(np.uint8), scale, zero


def _others(array: Array, axis: int | None) -> tuple[int, ...]:
    return tuple(index for index in range(array.ndim) if axis is None or index != axis % array.ndim)


def _along(vector: Array, array: Array, axis: int | None) -> Array:
    return (
        vector
        if axis is None
        else vector.reshape([-1 if index == axis % array.ndim else 1 for index in range(array.ndim)])
    )
