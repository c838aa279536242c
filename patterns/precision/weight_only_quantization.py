"""Quantise weights to 4 or 8 bits with a scale for each block of a column; activations stay in float32, or nearly so.

x W + b  ~  x ((Q - Z) S) + b               level1
            x' ((Q - Z) S) + b              level4

Q are integers of that many bits. S has one scale for each block of rows of a column (the last may have fewer): of a few
candidates, the one with the smallest error there. Z is 2^(bits - 1) or, in names with `zeros`, an integer for each block.
At accuracy level 4 the activation is rounded, too: x' is round(127 x / m) m / 127, where m is the largest magnitude in as many
neighbouring elements of a row. The levels are those of MatMulNBits; the others are computed as level 1.

If the mean m of each column of x was observed, m (W - (Q - Z) S) is added to b, so that the result is unbiased.
Q are then chosen so that the errors of rows compensate each other on the observed inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortfuse.quantization.rounded_weights_cache import ROUNDED, Rounding
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, built, computed, ms, op

from ._block_quantized_weights import BLOCKS, blocks_of, fills_a_block
from ._linear_pattern import GUARDS, LINEAR, bias, per_column, size, x
from ._weight_quantization import Array, Compensated, part_of, read_later, tensor_of

SOURCE = "ONNX Runtime operator com.microsoft.MatMulNBits"

NEVER_EMPTY = {"*": "the Reshape in the definition takes a size of 0 for one to copy"}

FIRST = computed("first", lambda match: np.array([0], np.int64))
LENGTH = computed("length", lambda match: np.array([size(match)[0]], np.int64))
ROWS = computed("rows", lambda match: np.array([0], np.int64))
COLUMNS = computed("columns", lambda match: np.array([1], np.int64))

FEWEST = np.float32(1e-30)
"""Activations smaller than this are taken for zero."""


def _rule(bits: int, block: int, level: int, *, zeros: bool = False) -> Rule:
    made = blocks_of(bits, block, zeros=zeros)

    def blocks(match: Match) -> int:
        return made.count(size(match)[0])

    def stored(match: Match) -> tuple[int, ...]:
        return size(match)[1], blocks(match), block * bits // 8

    def each(match: Match) -> tuple[int, ...]:
        return blocks(match), 1, size(match)[1]

    def rounding(match: Match) -> Rounding:
        moments = match.observed_moments("x", size(match)[0]) if _takes_means(match) else None
        return made if moments is None else Compensated(made, moments)

    packed = read_later("Q_packed", np.uint8, stored, made.packed, rounding=rounding)
    scales = read_later("S", np.float32, lambda match: (size(match)[1], blocks(match)), made.scales, rounding=rounding)
    packed_zeros = read_later(
        "Z_packed",
        np.uint8,
        lambda match: (size(match)[1], -(-blocks(match) * bits // 8)),
        made.packed_zeros,
        rounding=rounding,
    )
    whole = read_later(
        "Q", np.uint8, lambda match: (blocks(match), block, size(match)[1]), made.whole, rounding=rounding
    )
    zero = read_later("Z", np.uint8, each, made.each_zero, rounding=rounding)
    scale = read_later("S_each", np.float32, each, made.each, rounding=rounding)
    filled = computed("filled", lambda match: np.array([blocks(match) * block, size(match)[1]], np.int64))
    added = _corrected(rounding)
    near_blocks = op.Reshape(op.Mul(op.Sub(op.Cast(whole, to=1), op.Cast(zero, to=1)), scale), filled)
    near_weight = op.Slice(near_blocks, FIRST, LENGTH, ROWS)
    return Rule(
        name=f"weight_int{bits}.block{block}_level{level}{'_zeros' if zeros else ''}",
        pattern=LINEAR,
        replace=ms.MatMulNBits(
            x,
            packed,
            scales,
            packed_zeros if zeros else None,
            None,
            added,
            K=lambda match: size(match)[0],
            N=lambda match: size(match)[1],
            bits=bits,
            block_size=block,
            accuracy_level=level,
        ),
        definition=op.MatMul(rounded_in_blocks(block, lambda match: size(match)[0]) if level == 4 else x, near_weight)
        + added,
        guards=(*GUARDS, fills_a_block(block)),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        is_fitted=True,
        test=RuleTest(
            shapes=({"k": 2 * block, "n": 5}, {"k": block + 5, "n": 17}), never_empty=NEVER_EMPTY if level == 4 else {}
        ),
    )


@dataclass(frozen=True)
class Corrected:
    """The bias with what the product lacks for the mean of what comes in, computed of the weight.

    Attributes:
        rounding: How the weight is rounded.
        means: The mean of each column of what comes in, as bytes of float64.
        given: The bias, or zeros, as bytes of float32.
        weight: The weight.
    """

    rounding: Rounding
    means: bytes
    given: bytes
    weight: ir.TensorProtocol = field(compare=False)

    def __call__(self, array: Array) -> tuple[Array]:
        """Return the bias for a matrix, corrected by the mean error of its rounded weight."""
        whole, scales, zeros = ROUNDED.of(self.weight, self.rounding)
        near = (whole.astype(np.float32) - zeros[:, None]) * scales[:, None]
        near = near.reshape(-1, array.shape[1])[: array.shape[0]]
        lacking = np.einsum("k,kn->n", np.frombuffer(self.means), array - near)
        return (np.frombuffer(self.given, np.float32) + lacking,)

    def stand_in(self, shape: tuple[int, ...]) -> tuple[Array]:
        """The bias as it was."""
        return (np.frombuffer(self.given, np.float32),)


def _takes_means(match: Match) -> bool:
    """Whether the bias takes in what the product lacks for the mean of what comes in."""
    is_known = match.get("bias") is None or match.const("bias") is not None
    return is_known and match.observed_means("x", size(match)[0]) is not None


def _corrected(rounding: Callable[[Match], Rounding]) -> Pattern:
    """The bias, with what the product lacks for the mean of what comes in."""

    def corrections(match: Match) -> Corrected:
        means, columns = match.observed_means("x", size(match)[0]), size(match)[1]
        given = np.zeros(columns) if match.get("bias") is None else np.broadcast_to(match.const("bias"), columns)
        return Corrected(
            rounding(match),
            np.asarray(means, np.float64).tobytes(),
            given.astype(np.float32).tobytes(),
            tensor_of(match, "weight"),
        )

    corrected = part_of("corrected", np.float32, per_column, 0, corrections)

    def chosen(match: Match) -> Pattern:
        return corrected if _takes_means(match) else bias

    return built(chosen, makes=())


def rounded_in_blocks(block: int, length: Callable[[Match], int]) -> Pattern:
    """The activation, with rows of a `length`, in steps of 1/127 of the largest size in its block."""

    def filled(match: Match) -> int:
        return -(-length(match) // block) * block

    rows = op.Reshape(x, computed("rows_of_x", lambda match: np.array([-1, length(match)], np.int64)))
    lacking = computed("lacking", lambda match: np.array([0, 0, 0, filled(match) - length(match)], np.int64))
    in_blocks = computed("in_blocks", lambda match: np.array([-1, filled(match) // block, block], np.int64))
    in_rows = computed("in_rows", lambda match: np.array([-1, filled(match)], np.int64))
    parts = op.Reshape(op.Pad(rows, lacking), in_blocks)
    most = op.Max(op.GlobalMaxPool(op.Abs(parts)), computed("fewest", lambda match: FEWEST))
    top = computed("top", lambda match: np.float32(127))
    steps = op.Round(op.Mul(parts, op.Div(top, most)))
    whole_rows = op.Reshape(op.Mul(steps, op.Div(most, top)), in_rows)
    rows_of = computed("row_length", lambda match: np.array([length(match)], np.int64))
    return op.Reshape(op.Slice(whole_rows, FIRST, rows_of, COLUMNS), op.Shape(x))


RULES = [
    *(_rule(bits, block, level) for bits in (8, 4) for block in BLOCKS for level in (4, 1)),
    *(_rule(4, block, level, zeros=True) for block in BLOCKS for level in (4, 1)),
]
