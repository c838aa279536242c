"""Upper bounds of attention scores whose inputs are finite.

|layernorm(x) g + b| <= sqrt(n) max |g| + max |b|       |x / rms(x) g| <= sqrt(n) max |g|           of n numbers each
|x W| <= max |x| max over columns of the sums of |W|            |x y| <= n max |x| max |y|
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts, Range
from ortfuse.analysis.ranges.queries import Asking
from ortfuse.analysis.ranges.range import between
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError

_SLACK = 1.001
"""The allowance for rounding."""


def _bounded(most: float) -> Range | None:
    return between(-_SLACK * most, _SLACK * most) if math.isfinite(most) else None


def _most(op: Asking, index: int) -> float:
    """The largest magnitude of an operand."""
    found = op.range(index)
    return max(abs(float(found.low)), abs(float(found.high)))


def _length(op: Asking, index: int, first: int) -> int:
    """The number of elements along the axes of an operand from `first` on."""
    sizes = (op.fact(index).shape or (None,))[first:]
    if not sizes or not all(isinstance(size, int) for size in sizes):
        raise UnknownError
    return math.prod(size for size in sizes if isinstance(size, int))


def _normalised(op: Asking) -> Range | None:
    axis = op.node.attributes.get_int("axis", -1)
    terms = [_most(op, index) for index, value in enumerate(op.node.inputs[1:], 1) if value is not None]
    factor, term = (*terms, 0.0)[:2] if terms else (1.0, 0.0)
    return _bounded(math.sqrt(_length(op, 0, axis)) * factor + term)


def _product(op: Asking) -> Range | None:
    gemm = op.node.op_type == "Gemm"
    flags = {name: bool(op.node.attributes.get_int(name, 0)) for name in ("transA", "transB")} if gemm else {}
    weight = op.values.constant(op.fact(1)) if op.fact(1).is_constant else None
    if weight is not None and weight.ndim == 2:
        columns = np.abs(weight.astype(np.float64)).sum(1 if flags.get("transB") else 0)
        most = _most(op, 0) * float(columns.max(initial=0.0))
    elif flags.get("transA"):
        return None
    else:
        most = _most(op, 0) * _most(op, 1) * _length(op, 0, -1)
    if gemm:
        alpha, beta = (abs(op.node.attributes.get_float(name, 1.0)) for name in ("alpha", "beta"))
        given = len(op.node.inputs) > 2 and op.node.inputs[2] is not None and beta
        most = alpha * most + (beta * _most(op, 2) if given else 0.0)
    return _bounded(most)


def _rotated(op: Asking) -> Range | None:
    """Sums of two numbers of the first operand times a number of the second and of the third, if these are not looked up."""
    if op.node.domain or len(op.node.inputs) > 3:
        return None
    return _bounded(_most(op, 0) * (_most(op, 1) + _most(op, 2)))


_BOUNDS = {
    "RotaryEmbedding": _rotated,
    **dict.fromkeys(("Sin", "Cos"), lambda op: between(-1.0, 1.0)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _normalised),
    **dict.fromkeys(("MatMul", "Gemm"), _product),
}


def finite(op: Asking, found: Range | None) -> Range | None:
    """The assumption: what is normalised or multiplied is finite."""
    bound = _BOUNDS.get(op.node.op_type)
    if found is not None or bound is None:
        return found
    try:
        return bound(op)
    except UnknownError:
        return None


def lowest(value: ir.Value, facts: Facts) -> float | None:
    """A number than which no element is lower, if all are finite; `None` if none is known."""
    found = facts.range(value, assuming=finite)
    return None if found is None or found.nan or not math.isfinite(found.low) else float(found.low)
