"""Operators that create tensors, and random ones: Constant, Range, OneHot, EyeLike, RandomNormal, Bernoulli, Dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.costs import cost, nothing
from ortfuse.analysis.operators.reshape_and_transpose import rank_of_target
from ortfuse.analysis.ranges.bounds_by_sizes import Ends, bounds, bounds_of, demand_wide
from ortfuse.analysis.ranges.queries import Asking, columns, is_last, ranges
from ortfuse.analysis.ranges.range import Range, between, of_array, one_of
from ortfuse.analysis.transfer.evaluate_small_tensors import Arrays, moves_elements
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, transfer
from ortfuse.analysis.transfer.value_fact import (
    INTEGERS,
    MAX_ELEMENTS,
    UNKNOWN,
    Elements,
    Fact,
    Quotient,
    Shape,
    fact_of_tensor,
    static_shape,
    static_size,
)
from ortfuse.ir.dims import Dim, DimLike, at_most, ceil_div, floor_div, maximum
from ortfuse.ir.operator_registry import describe

_CONSTANT_TYPES = {
    "value_int": ir.DataType.INT64,
    "value_ints": ir.DataType.INT64,
    "value_float": ir.DataType.FLOAT,
    "value_floats": ir.DataType.FLOAT,
    "value_string": ir.DataType.STRING,
    "value_strings": ir.DataType.STRING,
}

_NUMBERS = ("value_int", "value_float", "value_string")


@transfer("Constant")
def constant(op: Op) -> Fact:
    """The tensor in one of the node's attributes."""
    for name, attribute in op.node.attributes.data.items():
        if attribute.is_ref():  # given where the function is called
            return Fact(_CONSTANT_TYPES.get(name), () if name in _NUMBERS else None)
        if name == "value":
            return fact_of_tensor(attribute.value)
        if name in _CONSTANT_TYPES:
            return _fact_of_python(attribute.value, _CONSTANT_TYPES[name])
    raise UnknownError


def _fact_of_python(value: Any, dtype: ir.DataType) -> Fact:
    array = np.array(value, dtype=object if dtype == ir.DataType.STRING else dtype.numpy())
    return Fact(dtype, array.shape, array=array)


@transfer("ConstantOfShape")
def constant_of_shape(op: Op) -> Fact:
    """A tensor of the shape in input 0 in which all elements are equal (float 0 without `value`)."""
    dims = op.integers(0)
    fill = op.attribute("value")
    dtype = ir.DataType.FLOAT if fill is None else fill.dtype
    if dims is None:
        return Fact(dtype, rank_of_target(op.shape(0)))
    shape = tuple([UNKNOWN if dim is None else dim for dim in dims])
    return Fact(dtype, shape, _filled(fill, dtype, shape))


def _filled(fill: ir.TensorProtocol | None, dtype: ir.DataType, shape: Shape) -> Elements | None:
    size = static_size(shape)
    if size is None or size > MAX_ELEMENTS or dtype not in INTEGERS:
        return None
    return (0 if fill is None else int(fill.numpy().reshape(-1)[0]),) * size


@moves_elements("ConstantOfShape")
def constant_of_shape_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    """One number everywhere."""
    fill = op.attribute("value")
    value = np.zeros(1, dtype=np.float32) if fill is None else fill.numpy().reshape(-1)
    return [np.full(static_shape(results[0].shape) or (), value[0], dtype=value.dtype)]


@ranges("ConstantOfShape")
def constant_of_shape_range(op: Asking) -> Range | None:
    """One number everywhere."""
    tensor = op.attribute("value")
    return one_of(0.0) if tensor is None else of_array(tensor.numpy())


_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


@transfer("Range")
def range_(op: Op) -> Fact:
    """``start, start + delta, ...`` up to but excluding the limit."""
    dtype = op.dtype(0) or op.dtype(1) or op.dtype(2)
    if dtype in _FLOATS:
        return Fact(dtype, (_float_steps(op),))
    start, limit, delta = [_single(op, index) for index in range(3)]
    if start is None or limit is None or not isinstance(delta, int) or delta == 0:
        return Fact(dtype, (UNKNOWN,))
    length = maximum(0, ceil_div(limit - start, delta) if delta > 0 else floor_div(start - limit - delta - 1, -delta))
    elements: Elements | None = None
    if isinstance(length, int) and length <= MAX_ELEMENTS:
        elements = tuple([start + index * delta for index in range(length)])
    return Fact(dtype, (length,), elements)


_MOST_STEPS = 2**31


def _float_steps(op: Op) -> DimLike:
    """The number of steps between constants, as the runtime rounds it: the difference in the type, the rest in float64."""
    start, limit, delta = numbers = [_float(op, index) for index in range(3)]
    if limit is None and start == 0 and delta == 1:
        return _float_count(op)
    if any(number is None or not np.isfinite(number) for number in numbers) or not delta:
        return UNKNOWN
    with np.errstate(over="ignore"):
        steps = np.ceil(np.float64(limit - start) / np.float64(delta))
    return int(max(steps, 0)) if steps < _MOST_STEPS else UNKNOWN


def _float(op: Op, index: int) -> Any:
    array = op.fact(index).array()
    return None if array is None or array.size != 1 else array.reshape(-1)[0]


def _float_count(op: Op) -> DimLike:
    """A size as a float (see `Quotient`), up to which is counted."""
    elements = op.fact(1).elements()
    element = elements[0] if elements and len(elements) == 1 else None
    if isinstance(element, Quotient) and element.denominator == 1:
        element = element.numerator
    return maximum(0, element) if isinstance(element, int | Dim) else UNKNOWN


def _single(op: Op, index: int) -> DimLike | None:
    elements = op.elements(index)
    element = elements[0] if elements else None
    return element if isinstance(element, int | Dim) else None


@ranges("Range")
def range_range(op: Asking) -> Range | None:
    """The numbers from start to limit. With floats, rounding errors add up, so the limit may be exceeded slightly."""
    start, limit, step = op.range(0), op.range(1), op.range(2)
    floating = op.result_dtype.is_floating_point()
    if start.nan or step.nan:
        return None
    if step.low > 0:
        return between(start.low, math.inf if floating else max(start.high, limit.high - 1))
    if step.high < 0:
        return between(-math.inf if floating else min(start.low, limit.low + 1), start.high)
    return None


@columns("Range")
def range_column(op: Asking) -> Range | None:
    """The first column is the start."""
    return None if is_last(op) else op.range(0)


@bounds("Range")
def range_bounds(op: Asking) -> Ends:
    """From the start up to the last number before the limit, upwards."""
    demand_wide(op)
    start, limit, step = bounds_of(op, 0), bounds_of(op, 1), bounds_of(op, 2)
    if not at_most(1, step.low):
        raise UnknownError
    return Ends(start.low, limit.high - 1)


@transfer("EyeLike")
def eye_like(op: Op) -> Fact:
    """A matrix of the input's shape, zero except for ones on a diagonal."""
    return Fact(op.attr_dtype("dtype", op.dtype()), op.shape())


@ranges("EyeLike")
def eye_like_range(op: Asking) -> Range | None:
    """Ones and zeros."""
    return one_of(0, 1)


@transfer("RandomNormalLike", "RandomUniformLike", "Bernoulli")
def random_like(op: Op) -> Fact:
    """Random numbers in the input's shape."""
    return Fact(op.attr_dtype("dtype", op.dtype()), op.shape())


@transfer("RandomNormal", "RandomUniform")
def random(op: Op) -> Fact:
    """Random numbers in a given shape."""
    return Fact(op.attr_dtype("dtype", ir.DataType.FLOAT), op.attr_ints("shape"))


@transfer("Dropout")
def dropout(op: Op) -> tuple[Fact, ...]:
    """The input (in training with elements dropped), and the mask."""
    data = op.fact(0)
    mask = data.dtype if op.version < 10 else ir.DataType.BOOL
    training = (op.version < 7 and not op.attr_int("is_test", 0)) or (op.has(2) and op.integers(2) != (0,))
    return Fact(data.dtype, data.shape) if training else data, Fact(mask, data.shape)


@ranges("OneHot")
def one_hot_range(op: Asking) -> Range | None:
    """One of two given numbers."""
    return op.range(2)


cost("ConstantOfShape", "Dropout", "EyeLike", "OneHot", "Range")(nothing)

describe("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", size_operands=(0,))
describe("DFT", "OneHot", size_operands=(1,))
describe("MelWeightMatrix", "Range", size_operands=(0, 1, 2))
describe("STFT", size_operands=(1, 3))

describe("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", float32_unless="output_datatype")
