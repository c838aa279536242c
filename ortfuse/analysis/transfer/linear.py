"""Matrix products: MatMul, Gemm, Einsum and their integer and fused forms."""

from __future__ import annotations

from functools import reduce

import onnx_ir as ir

from ortfuse.analysis.transfer.broadcasting import broadcast_shapes
from ortfuse.analysis.transfer.fact import Fact, Shape
from ortfuse.analysis.transfer.fallback import infer
from ortfuse.analysis.transfer.op import Op, UnknownError, transfer
from ortfuse.ir.dims import DimLike, broadcast
from ortfuse.ir.traits import MICROSOFT


def product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a matrix product with broadcast batch dimensions, as numpy.matmul defines it."""
    if not a or not b:
        return None
    rows: Shape = a[-2:-1]
    columns: Shape = b[-1:] if len(b) > 1 else ()
    batch = broadcast_shapes(a[:-2], b[:-2])
    return None if batch is None else (*batch, *rows, *columns)


@transfer("MatMul")
def matmul(op: Op) -> Fact:
    """Matrix product."""
    return Fact(op.dtype(0) or op.dtype(1), product_shape(op.shape(0), op.shape(1)))


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


transfer("FusedGemm", domain=MICROSOFT)(gemm)


@transfer("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(op: Op) -> Fact:
    """Matrix product of operands whose last two axes (or batch axes, for transBatchA/B) are permuted first."""
    if op.attr_int("transBatchA", 0) or op.attr_int("transBatchB", 0):
        raise UnknownError
    a, b = [
        _transposed(op.known_shape(index)) if op.attr_int(name, 0) else op.known_shape(index)
        for index, name in enumerate(("transA", "transB"))
    ]
    return Fact(op.dtype(0) or op.dtype(1), product_shape(a, b))


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
