"""Compute results of integer operators before rounding, to recognise ties.

The runtime adds the products of integers up exactly and rounds once, so that a result may come out in two ways only where it lies
in the middle of two steps, as with QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.ir.traits import MICROSOFT
from ortfuse.runtime.int8_matmul_saturation import saturates
from ortfuse.runtime.session import Session

Array = np.ndarray[Any, Any]
Operands = Sequence[Array | None]

OPSET = 13
"""An opset with Conv as QLinearConv computes it."""


def before_rounding(node: ir.Node, operands: Operands) -> tuple[Array, Array] | None:
    """The float32 numbers that a node rounds, and the size of a step; `None` if they are not known.

    Args:
        node: A node that computes quantised numbers from quantised numbers.
        operands: Its inputs.
    """
    rule = _RULES.get((node.domain, node.op_type))
    if rule is None or saturates():
        return None
    found, step = rule(node, operands)
    return None if found is None or step is None or step.size != 1 else (found.astype(np.float32), step.reshape(()))


def _convolution(node: ir.Node, operands: Operands) -> tuple[Array | None, Array | None]:
    x, w = _real(operands, 0), _real(operands, 3, channel=0)
    if x is None or w is None or operands[1] is None or operands[4] is None:
        return None, None
    arrays = {"x": x, "w": w}
    if len(operands) > 8 and operands[8] is not None:
        arrays["b"] = operands[8] * np.asarray(operands[1], np.float64).reshape(()) * operands[4].reshape(-1)
    values = {
        name: ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
        for name, array in arrays.items()
    }
    spelled = ir.Node("", "Conv", list(values.values()), attributes=list(node.attributes.values()))
    made = spelled.outputs[0]
    made.name, made.type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(list(values.values()), [made], nodes=[spelled], opset_imports={"": OPSET}, name="convolution")
    try:
        given = {name: array.astype(np.float32) for name, array in arrays.items()}
        return Session(ir.Model(graph, ir_version=8), optimise=False).run(given)["y"], operands[6]
    except VerificationError:
        return None, None


def _product(node: ir.Node, operands: Operands) -> tuple[Array | None, Array | None]:
    a, b = _real(operands, 0), _real(operands, 3, channel=-1)
    return (None if a is None or b is None else np.matmul(a, b)), operands[6]


def _sum(node: ir.Node, operands: Operands) -> tuple[Array | None, Array | None]:
    a, b = _real(operands, 0), _real(operands, 3)
    return (None if a is None or b is None else a + b), operands[6]


def _factor(node: ir.Node, operands: Operands) -> tuple[Array | None, Array | None]:
    a, b = _real(operands, 0), _real(operands, 3)
    return (None if a is None or b is None else a * b), operands[6]


def _real(operands: Operands, first: int, channel: int | None = None) -> Array | None:
    """The numbers that a quantised operand with its scale and zero point stands for, which may differ along one axis."""
    integers, scale, zero = operands[first : first + 3]
    if integers is None or scale is None:
        return None
    parts = [np.asarray(scale, np.float64), np.asarray(0 if zero is None else zero, np.float64)]
    for number, part in enumerate(parts):
        if part.size == 1:
            parts[number] = part.reshape(())
        elif channel is None or part.ndim != 1 or part.size != integers.shape[channel]:
            return None
        else:
            sizes = [1] * integers.ndim
            sizes[channel] = part.size
            parts[number] = part.reshape(sizes)
    return np.asarray((integers.astype(np.float64) - parts[1]) * parts[0])


_RULES: dict[tuple[str, str], Callable[[ir.Node, Operands], tuple[Array | None, Array | None]]] = {
    ("", "QLinearConv"): _convolution,
    ("", "QLinearMatMul"): _product,
    (MICROSOFT, "QLinearAdd"): _sum,
    (MICROSOFT, "QLinearMul"): _factor,
}
