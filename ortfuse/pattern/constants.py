"""Whether a number in a model is the number of a formula."""

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
"""Relative error of a number that its type does not hold exactly; 2e-6 for float32 and what is not known."""

EPSILON = {
    ir.DataType.DOUBLE: 2.0**-52,
    ir.DataType.FLOAT: 2.0**-23,
    ir.DataType.FLOAT16: 2.0**-10,
    ir.DataType.BFLOAT16: 2.0**-7,
}
"""The distance of 1 from the next larger number of a type."""


def close(number: float, wanted: float, dtype: ir.DataType | None) -> bool:
    """Whether `number` is how a model in `dtype` writes `wanted`.

    A number that `dtype` holds exactly (0, 1, 0.5, ...) must be that number; another one (√2, 0.044715, ...) may be off by
    what rounding to the type, a product of such constants or a few decimals less can change.
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
