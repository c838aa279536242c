"""Matrix products: MatMul, Gemm, Einsum and their fused forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.costs import NodeSizes, UnknownCostError, cost, macs
from ortfuse.analysis.ranges.queries import Asking
from ortfuse.analysis.ranges.vector_norms import Array, broadcast_norm, constant_array, norm_of, norm_question, norms
from ortfuse.analysis.transfer.broadcasting import broadcast_shapes
from ortfuse.analysis.transfer.onnx_shape_inference import infer
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, transfer
from ortfuse.analysis.transfer.value_fact import Fact, Shape
from ortfuse.ir.dims import DimLike, broadcast, product
from ortfuse.ir.operator_registry import describe
from ortfuse.ir.traits import MICROSOFT


@transfer("MatMul")
def matmul(op: Op) -> Fact:
    """Matrix product."""
    return Fact(op.dtype(0) or op.dtype(1), product_shape(op.shape(0), op.shape(1)))


def product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a matrix product with broadcast batch dimensions, as numpy.matmul defines it."""
    if not a or not b:
        return None
    rows: Shape = a[-2:-1]
    columns: Shape = b[-1:] if len(b) > 1 else ()
    batch = broadcast_shapes(a[:-2], b[:-2])
    return None if batch is None else (*batch, *rows, *columns)


@norms("MatMul")
def matmul_norm(op: Asking) -> float | None:
    """Along the last axis: that of the first operand times the spectral norm of a constant matrix."""
    weight = constant_array(op.fact(1)) if norm_question(op).axis == -1 else None
    if weight is None or weight.ndim != 2:
        return None
    return norm_of(op, 0, part=None) * spectral_norm(weight, norm_question(op).part)


_MOST_WORK = 1 << 29
"""The most multiplications for a spectral norm; beyond that, a larger bound that takes less is used."""


def spectral_norm(matrix: Array, part: int | None) -> float:
    """An upper bound of the spectral norm of a matrix, or of the largest one of its parts of so many columns."""
    wide = matrix.astype(np.float64)
    rows, columns = wide.shape
    width = columns if part is None or columns % part else part
    parts = np.moveaxis(wide.reshape(rows, -1, width), 1, 0)
    if rows * columns * min(width, rows) > _MOST_WORK:
        sums = np.abs(parts)
        return float(np.sqrt(np.max(sums.sum(1).max(1) * sums.sum(2).max(1))))
    small = parts.transpose(0, 2, 1) @ parts if width <= rows else parts @ parts.transpose(0, 2, 1)
    return float(np.sqrt(max(np.max(np.linalg.eigvalsh(small)), 0.0)))


@transfer("MatMulInteger")
def matmul_integer(op: Op) -> Fact:
    """Matrix product of 8-bit integers."""
    return Fact(ir.DataType.INT32, product_shape(op.shape(0), op.shape(1)))


@transfer("Gemm")
def gemm(op: Op) -> Fact:
    """Product of two matrices, each optionally transposed, plus a bias."""
    return Fact(op.dtype(0) or op.dtype(1), gemm_shape(op, op.known_shape(0), op.known_shape(1)))


def gemm_shape(op: Op, a: Shape, b: Shape) -> Shape:
    """The shape of the product of two matrices, each transposed if an attribute says so."""
    if len(a) != 2 or len(b) != 2:
        raise UnknownError
    rows = a[1] if op.attr_int("transA", 0) else a[0]
    return (rows, b[0] if op.attr_int("transB", 0) else b[1])


@norms("Gemm")
def gemm_norm(op: Asking) -> float | None:
    """Along the last axis: the product and the bias."""
    weight = constant_array(op.fact(1)) if norm_question(op).axis == -1 else None
    if weight is None or weight.ndim != 2 or op.attr_int("transA", 0):
        return None
    weight = weight.T if op.attr_int("transB", 0) else weight
    alpha, beta = (abs(float(op.attribute(name) or default)) for name, default in (("alpha", 1.0), ("beta", 1.0)))
    found = alpha * norm_of(op, 0, part=None) * spectral_norm(weight, norm_question(op).part)
    return found + beta * broadcast_norm(op, 2) if op.has(2) else found


transfer("FusedGemm", domain=MICROSOFT)(gemm)


@transfer("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(op: Op) -> Fact:
    """Matrix product of operands whose last two axes (or batch axes, for transBatchA/B) are permuted first."""
    a, b = [_operand(op, index, letter) for index, letter in enumerate("AB")]
    return Fact(op.dtype(0) or op.dtype(1), product_shape(a, b))


def _operand(op: Op, index: int, letter: str) -> Shape:
    shape = op.known_shape(index)
    if op.attr_int(f"transBatch{letter}", 0) and len(shape) > 2:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return _transposed(shape) if op.attr_int(f"trans{letter}", 0) else shape


def _transposed(shape: Shape) -> Shape:
    return shape if len(shape) < 2 else (*shape[:-2], shape[-1], shape[-2])


@transfer("Einsum")
def einsum(op: Op) -> Fact | tuple[Fact, ...]:
    """Sum of products over indices; equations with an ellipsis are left to ONNX."""
    equation = op.attr_str("equation", "").replace(" ", "")
    if "." in equation:
        return infer(op)
    left, arrow, right = equation.partition("->")
    dims: dict[str, list[DimLike]] = {}
    for index, letters in enumerate(left.split(",")):
        shape = op.known_shape(index)
        if len(letters) != len(shape):
            raise UnknownError
        for letter, dim in zip(letters, shape, strict=True):
            dims.setdefault(letter, []).append(dim)
    if not arrow:
        right = "".join(sorted(letter for letter in dims if left.count(letter) == 1))
    # The runtime broadcasts an index of size 1.
    return Fact(op.dtype(0), tuple([reduce(broadcast, dims[letter]) for letter in right]))


def matmul_macs(a: int, b: int) -> Callable[[NodeSizes], DimLike]:
    """A product of matrices, the operands of which are inputs `a` and `b`."""

    def macs(at: NodeSizes) -> DimLike:
        left = at.shape(a)
        if not left or not at.shape(b):
            raise UnknownCostError
        return at.results() * left[-2 if at.integer("transA") and len(left) > 1 else -1]

    return macs


def _einsum_macs(at: NodeSizes) -> DimLike:
    equation = at.text("equation").replace(" ", "")
    if "." in equation or not equation:
        raise UnknownCostError
    terms = equation.partition("->")[0].split(",")
    sizes: dict[str, DimLike] = {}
    for index, letters in enumerate(terms):
        for letter, dim in zip(letters, at.shape(index), strict=True):
            sizes[letter] = dim if sizes.get(letter, 1) == 1 else sizes[letter]
    return product(tuple(sizes.values())) * (len(terms) - 1)


cost("MatMul", "Gemm", "MatMulInteger", f"{MICROSOFT}.FusedMatMul", f"{MICROSOFT}.FusedGemm")(macs(matmul_macs(0, 1)))
cost("Einsum")(macs(_einsum_macs))

describe("MatMul", f"{MICROSOFT}.FusedMatMul", linear=((0,), (1,)))
describe("Gemm", linear=((0, 2), (1, 2)))
