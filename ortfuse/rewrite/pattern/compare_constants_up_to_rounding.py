"""Decide whether a constant of a model equals a constant of a formula up to rounding."""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx_ir as ir

_TOLERANCE: dict[ir.DataType | None, float] = {
    ir.DataType.DOUBLE: 1e-12,
    ir.DataType.FLOAT16: 2e-3,
    ir.DataType.BFLOAT16: 1.6e-2,
}
"""Tolerated relative error of a number that its type cannot hold exactly; 2e-6 for float32 and unknown types."""

EPSILON = {
    ir.DataType.DOUBLE: 2.0**-52,
    ir.DataType.FLOAT: 2.0**-23,
    ir.DataType.FLOAT16: 2.0**-10,
    ir.DataType.BFLOAT16: 2.0**-7,
}
"""The machine epsilon of a type: the distance from 1 to the next larger number."""


def close(number: float, wanted: float, dtype: ir.DataType | None) -> bool:
    """Whether `number` is `wanted` as a model in `dtype` would write it.

    If `dtype` holds `wanted` exactly (0, 1, 0.5, ...), the two must be equal; otherwise (√2, 0.044715, ...) `number` may
    differ by as much as rounding to the type, multiplying such constants or dropping a few decimals can change it.
    """
    if number == wanted:
        return True
    if _is_exact(wanted, dtype):
        return False
    return math.isclose(number, wanted, rel_tol=_TOLERANCE.get(dtype, 2e-6), abs_tol=0.0)


@functools.cache
def _is_exact(number: float, dtype: ir.DataType | None) -> bool:
    if dtype is None:
        dtype = ir.DataType.FLOAT
    if not dtype.is_floating_point():
        return True
    return float(np.asarray(number).astype(dtype.numpy())) == number
