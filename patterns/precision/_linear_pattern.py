"""Pattern of linear layers that schemes lower: x W + b, with a constant W of one matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.quantization.activation_hessian import Factor
from ortfuse.quantization.gptq import compensated
from ortfuse.quantization.rounded_weights_cache import Rounding
from ortfuse.rewrite.pattern import Match, const, op, opt, var
from ortfuse.rewrite.pattern.language import Computed
from ortfuse.runtime.int8_matmul_saturation import saturates

from ._weight_quantization import Array, Compensated, asymmetric, is_weight, part_of, symmetric, tensor_of

x = var("x", "... m k")
weight = const("weight", "k n")
bias = opt(var("bias", "n"))
LINEAR = op.MatMul(x, weight) + bias

LONGEST = 1 << 15
"""The most products of two 8-bit numbers whose sum a 32-bit integer holds, whatever they are."""

SHAPES = {"k": 24, "n": 5}


def size(match: Match) -> tuple[int, int]:
    """The rows and columns of the weight."""
    rows, columns = tensor_of(match, "weight").shape.numpy()
    return rows, columns


def in_float32(match: Match) -> Refusal | None:
    """All of it is in float32, which the integer kernels read and write."""
    return match.unless_dtype("x", ir.DataType.FLOAT) or match.unless_dtype("root", ir.DataType.FLOAT)


GUARDS = (in_float32, is_weight("weight"))
GUARDS_OF_INTEGERS = (in_float32, is_weight("weight", LONGEST))


def signed_limit() -> int:
    """The largest signed weight: 63 where the sum of two products with unsigned numbers would saturate."""
    return 63 if saturates() else 127


def per_column(match: Match) -> tuple[int, ...]:
    """The shape of what there is one of for each column of the weight."""
    return (size(match)[1],)


@dataclass(frozen=True)
class Whole8:
    """Rounding of a matrix to 8 bits: the integers, their scales, and what stands for 0.

    Attributes:
        columns: Whether there is a scale for each column, or one for all.
        signed: Whether the integers are signed, with 0 for 0.
        rows: Factors that each row is multiplied with first, as bytes of float32.
        largest: The largest signed integer; by default what the runtime's kernels take on this machine.
    """

    columns: bool
    signed: bool
    rows: bytes | None = None
    largest: int | None = None

    @property
    def _limit(self) -> int:
        return signed_limit() if self.largest is None else self.largest

    def __call__(self, array: Array) -> tuple[Array, Array, Array]:
        """Round a matrix."""
        axis = 1 if self.columns else None
        if self.rows is not None:
            array = array * np.frombuffer(self.rows, np.float32)[:, None]
        if not self.signed:
            return asymmetric(array, axis, 255)
        whole, scale = symmetric(array, axis, self._limit)
        return whole, scale, np.zeros(scale.shape, np.int8)

    def compensated(self, array: Array, factor: Factor) -> tuple[Array, Array, Array]:
        """The same, with integers by which the errors of rows make up for each other."""
        whole, scale, zero = self(array)
        limit, each = self._limit if self.signed else 0, (1, array.shape[1])
        offset = np.broadcast_to(zero.astype(np.int16) + np.int16(limit), each)
        better = compensated(array, np.broadcast_to(scale, each), offset, len(array), 2 * limit or 255, factor)
        return (better - np.int16(limit)).astype(whole.dtype), scale, zero

    def stand_in(self, shape: tuple[int, ...]) -> tuple[Array, Array, Array]:
        """Numbers of the same types and shapes."""
        kind, each = np.int8 if self.signed else np.uint8, shape[1:] if self.columns else ()
        return np.ones(shape, kind), np.full(each, 1e-3, np.float32), np.zeros(each, kind)


def weight8(
    *,
    columns: bool,
    signed: bool,
    rows: Callable[[Match], Array] | None = None,
    alone: bool = True,
    limit: int | None = None,
) -> tuple[Computed, Computed, Computed]:
    """The weight in 8 bits, with its scales and zero points: one for each column, or one for all.

    `rows` are factors that each row is multiplied with first. A weight that is `alone`, not the first part of a sum, is rounded
    so that the errors of rows make up for each other, as far as what comes in was seen. `limit` is the largest signed integer, if
    it is not what the kernels of this machine take.
    """

    def rounding(match: Match) -> Rounding:
        factors = None if rows is None else rows(match).astype(np.float32).tobytes()
        made = Whole8(columns, signed, factors, limit)
        moments = match.observed_moments("x", size(match)[0]) if alone and rows is None else None
        return made if moments is None else Compensated(made, moments, about_zero=True)

    kind = np.int8 if signed else np.uint8
    shape = per_column if columns else lambda match: ()
    return (
        part_of("W8", kind, size, 0, rounding),
        part_of("W8_scale", np.float32, shape, 1, rounding),
        part_of("W8_zero", kind, shape, 2, rounding),
    )
