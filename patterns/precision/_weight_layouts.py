"""Guards and shapes for weights other than one matrix on the right of a MatMul: stacks, and matrices on the left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.quantization.quantization_parameters import SMALLEST_SCALE
from ortfuse.quantization.rounded_weights_cache import RoundedTensor
from ortfuse.rewrite.pattern import Match, Pattern, built, computed, const, ms, op, var
from ortfuse.rewrite.pattern.language import Computed
from ortfuse.transforms.cleanup.fold_constant_movement import MovedTensor

from ._block_quantized_weights import Blocks, blocks_of
from ._linear_pattern import LONGEST, in_float32, signed_limit
from ._weight_quantization import Array, PartTensor, is_weight, tensor_of

x = var("x")
weight = const("weight")
BATCHED = op.MatMul(x, weight)
LEFT = op.MatMul(weight, x)

MOST = 256
"""More matrices are not multiplied one by one."""

Source = Callable[[Match], ir.TensorProtocol]
"""A matrix [k, n] that a match multiplies with."""


def shape(match: Match) -> tuple[int, ...]:
    """The shape of the weight."""
    return tuple(tensor_of(match, "weight").shape.numpy())


def is_stack(match: Match) -> Refusal | None:
    """The weight is a stack of several matrices, and the rank of what it is multiplied with is known."""
    found, given = shape(match), match.shape("x")
    if len(found) < 3 or all(size == 1 for size in found[:-2]):
        return match.refuse("shape", "weight", "a stack of several matrices")
    return match.refuse("rank", "x", "known, at least 2") if given is None or len(given) < 2 else None


def axis_of(match: Match) -> int:
    """The one axis that matrices are stacked along, counted from behind; -3 if there is one matrix."""
    stacked = [number for number, size in enumerate(shape(match)[:-2]) if size != 1]
    return stacked[0] - len(shape(match)) if stacked else -3


def has_one_axis(match: Match) -> Refusal | None:
    """Matrices are stacked along one axis, and there are not too many."""
    sizes = [size for size in shape(match)[:-2] if size != 1]
    if len(sizes) > 1:
        return match.refuse("value", "weight", "a stack of matrices along one axis: each is multiplied by itself")
    return match.unless_value("weight", not sizes or sizes[0] <= MOST, f"of at most {MOST} matrices")


def is_on_the_left(match: Match) -> Refusal | None:
    """The weight has two axes at least, and what it is multiplied with is no constant, and has as many."""
    if len(shape(match)) < 2:
        return match.refuse("rank", "weight", "at least 2")
    if match.facts.is_const(match["x"]):
        return match.refuse("value", "x", "computed, no constant")
    given = match.shape("x")
    return match.refuse("rank", "x", "known, at least 2") if given is None or len(given) < 2 else None


GUARDS_OF_STACKS = (in_float32, is_weight("weight"), is_stack)
GUARDS_OF_INTEGER_STACKS = (in_float32, is_weight("weight", LONGEST, -2), is_stack)
GUARDS_OF_LEFT = (in_float32, is_weight("weight"), is_on_the_left)
GUARDS_OF_INTEGER_LEFT = (in_float32, is_weight("weight", LONGEST, -1), is_on_the_left)


@dataclass(frozen=True)
class WholeStack:
    """Rounding of a stack of matrices to 8 bits: the integers, their scales, and what stands for 0.

    Attributes:
        columns: Whether there is a scale for each column of each matrix [..., 1, n], or one for all.
        signed: Whether the integers are signed, with 0 for 0.
    """

    columns: bool
    signed: bool

    def __call__(self, array: Array) -> tuple[Array, Array, Array]:
        """Round a stack."""
        axis = -2 if self.columns else None
        low = np.minimum(array.min(axis=axis, keepdims=self.columns), 0).astype(np.float64)
        high = np.maximum(array.max(axis=axis, keepdims=self.columns), 0).astype(np.float64)
        if self.signed:
            limit = signed_limit()
            scale = np.maximum(np.maximum(-low, high) / limit, SMALLEST_SCALE).astype(np.float32)
            whole = np.clip(np.rint(array / scale), -limit, limit)
            return whole.astype(np.int8), scale, np.zeros(scale.shape, np.int8)
        scale = np.maximum((high - low) / 255, SMALLEST_SCALE).astype(np.float32)
        zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
        return np.clip(np.rint(array / scale) + zero, 0, 255).astype(np.uint8), scale, zero

    def stand_in(self, shape: tuple[int, ...]) -> tuple[Array, Array, Array]:
        """Numbers of the same types and shapes."""
        kind, each = np.int8 if self.signed else np.uint8, self.each(shape)
        return np.ones(shape, kind), np.full(each, 1e-3, np.float32), np.zeros(each, kind)

    def each(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what there is one of for each scale."""
        return (*shape[:-2], 1, shape[-1]) if self.columns else ()

    def parts(self) -> tuple[Pattern, Pattern, Pattern]:
        """The integers, scales and zero points of a weight in a replacement."""
        kind = np.int8 if self.signed else np.uint8

        def part(name: str, number: int, dtype: type[np.generic]) -> Pattern:
            def made(match: Match) -> ir.TensorProtocol:
                own = self.each(shape(match)) if number else shape(match)
                return RoundedTensor(tensor_of(match, "weight"), _TAKE[number], dtype, own, self)

            return computed(name, made)

        return part("W8", 0, kind), part("W8_scale", 1, np.float32), part("W8_zero", 2, kind)


def _taken(number: int) -> Callable[..., Array]:
    return lambda *parts: parts[number]


_TAKE = tuple(map(_taken, range(3)))


def near(whole: Pattern, scale: Pattern, zero: Pattern) -> Pattern:
    """The numbers that integers stand for, in float32."""
    return op.Mul(op.Sub(op.Cast(whole, to=1), op.Cast(zero, to=1)), scale)


def in_blocks(given: Pattern, name: str, matrix: Source, bits: int, block: int, level: int) -> Pattern:
    """The product with a matrix in blocks of few bits, as MatMulNBits stores them.

    Args:
        given: What it is multiplied with [..., k].
        name: What the constants are called.
        matrix: The matrix.
        bits: The bits of a number.
        block: The rows of a block.
        level: The accuracy level of MatMulNBits.
    """
    made = blocks_of(bits, block, zeros=False)

    def packed(match: Match) -> ir.TensorProtocol:
        rows, columns = matrix(match).shape.numpy()
        return RoundedTensor(matrix(match), made.packed, np.uint8, (columns, made.count(rows), block * bits // 8), made)

    def scales(match: Match) -> ir.TensorProtocol:
        rows, columns = matrix(match).shape.numpy()
        return RoundedTensor(matrix(match), made.scales, np.float32, (columns, made.count(rows)), made)

    return ms.MatMulNBits(
        given,
        computed(f"{name}_packed", packed),
        computed(f"{name}_scales", scales),
        K=lambda match: matrix(match).shape.numpy()[0],
        N=lambda match: matrix(match).shape.numpy()[1],
        bits=bits,
        block_size=block,
        accuracy_level=level,
    )


def numbers_of(made: Blocks, array: Array) -> Array:
    """The remainder of a matrix [k, n] that is rounded."""
    whole, scales, zeros = made(array)
    found = (whole.astype(np.float32) - zeros[:, None]) * scales[:, None]
    return found.reshape(-1, array.shape[1])[: array.shape[0]]


def each_matrix(bits: int, block: int, level: int, *, left: bool) -> Pattern:
    """The product with each matrix of a weight by itself, as MatMulNBits takes one, joined along the axis of the stack.

    Args:
        bits: The bits of a number.
        block: The rows of a block.
        level: The accuracy level of MatMulNBits.
        left: Whether the weight is on the left: then both sides are transposed.
    """

    def joined(match: Match) -> Pattern:
        given, lacking = match.shape("x") or (), len(shape(match)) - len(match.shape("x") or ())
        rank = max(len(given), len(shape(match)))
        whole: Pattern = x if lacking <= 0 else op.Unsqueeze(x, computed("axes", lambda match: np.arange(lacking)))
        whole = exchanged(whole, rank) if left else whole
        axis, count = axis_of(match), max((1, *shape(match)[:-2]))
        found = given[axis] if len(given) >= -axis else 1
        if count > 1 and not isinstance(found, int):
            # What is not known may be 1 or all of them: then it is all of them.
            wanted = [count if number - rank == axis else 1 for number in range(rank)]
            whole, found = op.Expand(whole, computed("experts", lambda match: np.array(wanted))), count
        parts = (product(number, whole, axis + rank, found == count > 1) for number in range(count))
        made = op.Concat(*parts, axis=axis + rank) if count > 1 else product(0, whole, 0, is_part=False)
        return exchanged(made, rank) if left else made

    def product(number: int, whole: Pattern, axis: int, is_part: bool) -> Pattern:
        index = computed(f"expert{number}", lambda match: np.array([number]))
        part = op.Gather(whole, index, axis=axis) if is_part else whole
        return in_blocks(part, f"Q{number}", lambda match: one_matrix(match, number, left=left), bits, block, level)

    return built(joined, makes=("Concat", "Expand", "Gather", "Transpose", "Unsqueeze", "com.microsoft.MatMulNBits"))


def exchanged(value: Pattern, rank: int) -> Pattern:
    """A value with its last two axes exchanged."""
    return op.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])


def one_matrix(match: Match, number: int, *, left: bool) -> ir.TensorProtocol:
    """One of the matrices of a weight, transposed if that is on the left."""
    rows, columns = shape(match)[-2:]
    whole = MovedTensor(tensor_of(match, "weight"), None, (max((1, *shape(match)[:-2])), rows, columns))
    part = PartTensor(whole, number)
    return MovedTensor(part, (1, 0), (columns, rows)) if left else part


def numbers_of_each(made: Blocks, *, left: bool) -> Computed:
    """In a definition: the numbers that a weight is rounded to, matrix by matrix."""

    def rounded(match: Match) -> ir.TensorProtocol:
        target = shape(match)
        matrices = [one_matrix(match, number, left=left) for number in range(max((1, *target[:-2])))]

        def make() -> ir.Tensor[Array]:
            found = [numbers_of(made, matrix.numpy()) for matrix in matrices]
            return ir.Tensor(np.stack([one.T if left else one for one in found]).reshape(target))

        return ir.LazyTensor(make, ir.DataType.FLOAT, ir.Shape(target))

    return computed("near", rounded)
