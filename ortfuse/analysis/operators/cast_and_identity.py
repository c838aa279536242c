"""Operators that change at most the element type: Cast, CastLike and Identity."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.ranges.bounds_by_sizes import Ends, bounds, bounds_of, is_wide
from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.range import Range, one_of, stored
from ortfuse.analysis.ranges.vector_norms import norm_of, norms
from ortfuse.analysis.transfer import symbolic_element_arithmetic as el
from ortfuse.analysis.transfer.evaluate_small_tensors import Arrays, Computed, evaluates
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, transfer
from ortfuse.analysis.transfer.value_fact import FLOATS, INTEGERS, Fact
from ortfuse.ir.dims import DimLike


@transfer("Cast")
def cast(op: Op) -> Fact:
    """Conversion to the type given by the attribute."""
    return cast_to(op.fact(0), op.attr_dtype("to"))


def cast_to(fact: Fact, dtype: ir.DataType | None) -> Fact:
    """The fact of a value converted to `dtype` (Cast, CastLike)."""
    if dtype is not None and fact.dtype == dtype:
        return fact
    found = fact.elements() if dtype in INTEGERS or dtype in FLOATS else None
    if found is not None:
        convert = partial(el.cast, source=fact.dtype, target=dtype)
        found = tuple([convert(element) for element in found])
    return Fact(dtype, fact.shape, found)


_WIDE = (ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)

_ROUNDED_TWICE = {(source, ir.DataType.BFLOAT16) for source in _WIDE} | {(ir.DataType.DOUBLE, ir.DataType.FLOAT16)}
"""Conversions that runtimes make through float32, which may round differently from a direct conversion."""


_CONVERTED = {*INTEGERS, *FLOATS, ir.DataType.FLOAT16}
"""The types whose conversion is the same everywhere; that of narrower ones is not, as for zeros below zero."""


@evaluates("Cast", "CastLike")
def cast_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Computed:
    """The converted elements, if every machine converts them alike."""
    return [_cast(arrays[0], op.dtype(), results[0].dtype)]


def _cast(array: np.ndarray, source: ir.DataType | None, dtype: ir.DataType | None) -> np.ndarray | None:
    if not {source, dtype} <= _CONVERTED or dtype is None:
        return None
    target = dtype.numpy()
    if source == ir.DataType.DOUBLE and dtype == ir.DataType.FLOAT16:
        return None  # runtimes convert float64 to float16 through float32, which rounds twice
    if array.dtype.kind == "f" and dtype in INTEGERS and dtype != ir.DataType.BOOL:
        limits = np.iinfo(target)
        inside = np.isfinite(array) & (array > float(limits.min)) & (array < float(limits.max))
        if not inside.all():
            return None  # the result of an out-of-range conversion depends on the machine
    return array.astype(target)


@ranges("Cast", "CastLike", by_element=True)
def cast_range(op: Asking) -> Range | None:
    """Conversions. The result for a float beyond the range of an integer type depends on the machine."""
    source, target = op.dtype(0), op.result_dtype
    found = op.range(0)
    if source is None:
        return None
    if target == ir.DataType.BOOL:
        truths = ({0} if found.holds(0) else set()) | ({1} if found.nan or found != one_of(0) else set())
        return one_of(*truths)
    if (source, target) in _ROUNDED_TWICE:
        return None
    if not target.is_integer() or not source.is_floating_point():
        return stored(found.pieces, target, found.nan)
    if not found.is_finite:
        return None
    return stored([(math.trunc(low), math.trunc(high)) for low, high in found.pieces], target)


@bounds("Cast")
def cast_bounds(op: Asking) -> Ends:
    """The same numbers, if they fit into the type."""
    found = bounds_of(op, 0)
    if not (is_wide(op) or all(map(_fits, found))):
        raise UnknownError
    return found


_SMALL_NUMBER = 1 << 27
"""Two sizes, which are below 10^9, and a number up to this fit into 32 bits; of sums in 32 bits nothing is said."""


def _fits(end: DimLike) -> bool:
    """Whether it is that small: a number, or the sum of two sizes at most and a number."""
    if isinstance(end, int):
        return abs(end) <= _SMALL_NUMBER
    sizes = [coefficient for monomial, coefficient in end.terms if monomial]
    single = all(len(monomial) <= 1 and all(not one.args for one in monomial) for monomial, _ in end.terms)
    numbers = [coefficient for monomial, coefficient in end.terms if not monomial]
    return single and sum(map(abs, sizes)) <= 2 and all(abs(number) <= _SMALL_NUMBER for number in numbers)


@norms("Cast")
def cast_norm(op: Asking) -> float | None:
    """The answer for the operand, rounded."""
    dtype = op.result.dtype
    return 1.01 * norm_of(op, 0) if dtype is not None and dtype.is_floating_point() else None


@transfer("CastLike")
def cast_like(op: Op) -> Fact:
    """Conversion to the type of the second input."""
    return cast_to(op.fact(0), op.dtype(1))


@transfer("Identity")
def identity(op: Op) -> Fact:
    """The input itself."""
    return op.fact(0)


@ranges("Identity", by_element=True)
def identity_range(op: Asking) -> Range | None:
    """The operand itself."""
    return op.range(0)
