"""Decide which element types hold every number of another, so that a Cast loses nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

_DIGITS = {
    ir.DataType.BFLOAT16: 8,
    ir.DataType.FLOAT16: 11,
    ir.DataType.FLOAT: 24,
    ir.DataType.DOUBLE: 53,
}
"""The binary digits of the numbers of each type, which therefore holds all integers of as many digits."""

_WIDER = {
    ir.DataType.BFLOAT16: {ir.DataType.FLOAT, ir.DataType.DOUBLE},
    ir.DataType.FLOAT16: {ir.DataType.FLOAT, ir.DataType.DOUBLE},
    ir.DataType.FLOAT: {ir.DataType.DOUBLE},
}
"""The types that hold all numbers of a floating-point type."""


def _is_integer(dtype: ir.DataType) -> bool:
    return dtype is ir.DataType.BOOL or bool(dtype.is_integer() and dtype.bitwidth >= 8)


def _limits(dtype: ir.DataType) -> tuple[int, int]:
    if dtype == ir.DataType.BOOL:
        return 0, 1
    found = np.iinfo(dtype.numpy())
    return int(found.min), int(found.max)


def holds_all(dtype: ir.DataType, other: ir.DataType) -> bool:
    """Whether every number of `other` is one of `dtype`."""
    if dtype == other:
        return True
    if not _is_integer(other):
        return dtype in _WIDER.get(other, ())
    low, high = _limits(other)
    if dtype in _DIGITS:
        return max(-low, high + 1) <= 1 << _DIGITS[dtype]
    lowest, highest = _limits(dtype) if _is_integer(dtype) else (0, 0)
    return lowest <= low and high <= highest


def converts_alike(before: ir.DataType, between: ir.DataType, after: ir.DataType) -> bool:
    """Whether numbers of a type become the same ones of the last type, directly and by way of a type that holds them all.

    Between integers bits are cut off, from whatever type; the runtime rounds to float16 by way of float32.
    """
    if not holds_all(between, before):
        return False
    cut = _is_integer(before) and ((_is_integer(between) and _is_integer(after)) or after == ir.DataType.FLOAT)
    return holds_all(after, before) or cut
