"""Parallel axes of products of matrices: rows of the first operand, columns of the second, and matrices of a batch."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.analysis.parallel_axes.parallel_axis import ParallelAxis, aligned, of_first, parallel, size_along
from ortfuse.ir.traits import MICROSOFT

_SINGLE = frozenset({(), (1,)})


@parallel("MatMul", f"{MICROSOFT}.FusedMatMul", "MatMulInteger", f"{MICROSOFT}.MatMulIntegerToFloat")
def _matmul(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """A product of matrices, or of stacks of them."""
    shape, first, second = facts.shape(node.outputs[0]), facts.rank(node.inputs[0]), facts.rank(node.inputs[1])
    if shape is None or first is None or second is None or min(first, second) < 2:
        return None
    rank, others = len(shape), node.inputs[2:]
    if any(value is not None and facts.shape(value) not in _SINGLE for value in others):
        return None  # scales and zero points of rows, or of columns
    fused = node.op_type == "FusedMatMul"
    if fused and any(attribute_value(node, name, facts) for name in ("transBatchA", "transBatchB")):
        return None
    turned = [fused and bool(attribute_value(node, name, facts)) for name in ("transA", "transB")]
    rest = [None] * len(others)
    if axis == rank - 2:
        return ParallelAxis((first - (1 if turned[0] else 2), None, *rest), (axis,), (rank - first, rank - second))
    if axis == rank - 1:
        return ParallelAxis((None, second - (2 if turned[1] else 1), *rest), (axis,), (rank - first, rank - second))
    found = [aligned(value, rank, axis, shape[axis], facts) for value in node.inputs[:2]]
    if found[0] is None or found[1] is None:
        return None
    lacking = (found[0][1], found[1][1], *[0] * len(others))
    return ParallelAxis((found[0][0], found[1][0], *rest), (axis,), lacking)


@parallel("Gemm")
def _gemm(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    turned = [bool(attribute_value(node, name, facts)) for name in ("transA", "transB")]
    size = size_along(node.outputs[0], axis, facts)
    added = node.inputs[2] if len(node.inputs) > 2 else None
    third = None if size is None else aligned(added, 2, axis, size, facts)
    if third is None:
        return None
    own = (int(turned[0]), None) if axis == 0 else (None, int(not turned[1]))
    count = len(node.inputs)
    return ParallelAxis((*own, third[0])[:count], (axis,), (0, 0, third[1])[:count])


@parallel(f"{MICROSOFT}.MatMulNBits")
def _stored_small(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """A product with a matrix that is stored in few bits."""
    rank = facts.rank(node.inputs[0])
    return None if rank is None or axis >= rank - 1 else of_first(node, axis)


@parallel("QuantizeLinear", "DequantizeLinear", f"{MICROSOFT}.QuantizeLinear", f"{MICROSOFT}.DequantizeLinear")
def _quantised(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """Numbers with one scale."""
    if any(value is not None and facts.shape(value) not in _SINGLE for value in node.inputs[1:]):
        return None
    return None if attribute_value(node, "block_size", facts) else of_first(node, axis)


@parallel("Einsum")
def _einsum(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """Every operand that has the letter of the axis has it once."""
    equation = attribute_value(node, "equation", facts)
    text = equation.decode() if isinstance(equation, bytes) else equation
    if not isinstance(text, str) or "->" not in text or "." in text:
        return None
    left, right = text.replace(" ", "").split("->")
    terms, letter = left.split(","), right[axis]
    if len(terms) != len(node.inputs) or any(term.count(letter) > 1 for term in (*terms, right)):
        return None
    found = tuple(term.index(letter) if letter in term else None for term in terms)
    sizes = {size_along(value, one, facts) for value, one in zip(node.inputs, found, strict=True) if one is not None}
    return ParallelAxis(found, (axis,)) if sizes == {size_along(node.outputs[0], axis, facts)} else None
