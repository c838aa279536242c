"""Weights of 4 or 8 bits with a scale for each block of a column; what they are multiplied with stays in float32, or nearly so.

x W + b  ~  x ((Q - 2^(bits - 1)) S) + b               level1
            x' ((Q - 2^(bits - 1)) S) + b              level4

Q are integers of that many bits, and S has one number for each block of so many rows of a column. Each scale is, of a few, the
one that loses least in its block. At accuracy level 4 the activation is rounded, too: x' is round(127 x / m) m / 127, where m is
the largest size in as many neighbouring elements of a row. The levels are those of MatMulNBits; level 0 is what the runtime
likes best, which is level 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortfuse.pattern import Match, Pattern, computed, ms, op
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from ._linear import GUARDS, LINEAR, bias, size, x
from ._weights import SMALLEST_SCALE, Array, read_later

SOURCE = "ONNX Runtime operator com.microsoft.MatMulNBits"

BLOCKS = (16, 32, 64, 128, 256)
NEVER_EMPTY = {"*": "the Reshape in the definition takes a size of 0 for one to copy"}

AT_ONCE = 1 << 20
"""How many numbers of a weight are rounded at a time, so that memory is needed for these only."""

FEWEST = np.float32(1e-30)
"""Activations smaller than this are taken for zero."""


def blockwise(array: Array, block: int, bits: int) -> tuple[Array, Array]:
    """The integers [blocks, block, columns] of a matrix, and its scales [blocks, columns], some columns after the other."""
    step = max(1, AT_ONCE // array.shape[0])
    found = [_blockwise(array[:, start : start + step], block, bits) for start in range(0, array.shape[1], step)]
    return np.concatenate([whole for whole, _ in found], axis=-1), np.concatenate(
        [scale for _, scale in found], axis=-1
    )


def _blockwise(array: Array, block: int, bits: int) -> tuple[Array, Array]:
    parts = array.reshape(-1, block, array.shape[1])
    middle = 1 << (bits - 1)
    best: Array | None = None
    for candidate in _scales(parts, bits):
        scale = np.where(np.abs(candidate) < SMALLEST_SCALE, np.float32(SMALLEST_SCALE), candidate)
        whole = np.clip(np.rint(parts / scale[:, None]) + middle, 0, 2 * middle - 1)
        if bits == 8:
            return whole.astype(np.uint8), scale
        lost = np.square((whole - middle) * scale[:, None] - parts).sum(axis=1)
        if best is None:
            best, kept, chosen = lost, scale, whole.astype(np.uint8)
            continue
        better = lost < best
        best = np.where(better, lost, best)
        kept = np.where(better, scale, kept)
        chosen = np.where(better[:, None], whole, chosen).astype(np.uint8)
    return chosen, kept


def _scales(parts: Array, bits: int) -> list[Array]:
    """The scales that are tried: by the largest size, and for few bits also less, or by the end that has a number more."""
    low, high = parts.min(axis=1), parts.max(axis=1)
    largest = np.maximum(-low, high)
    middle = 1 << (bits - 1)
    even = (largest / (middle - 1)).astype(np.float32)
    if bits == 8:
        return [even]
    uneven = (np.where(-low > high, largest, -largest) / middle).astype(np.float32)
    return [even, uneven, *(even * np.float32(part) for part in (0.92, 0.84, 0.76)), uneven * np.float32(0.9)]


def _packed(array: Array, block: int, bits: int) -> Array:
    """The integers as the operator stores them: [columns, blocks, bytes], the first of two in the lower bits."""
    whole = np.ascontiguousarray(blockwise(array, block, bits)[0].transpose(2, 0, 1))
    return whole if bits == 8 else whole[..., ::2] | whole[..., 1::2] << 4


def fills_blocks(block: int) -> Callable[[Match], Refusal | None]:
    """The rows of the weight are whole blocks."""

    def guard(match: Match) -> Refusal | None:
        rows, _ = size(match)
        return match.unless_value("weight", rows % block == 0, f"of a multiple of {block} rows")

    return guard


def _rule(bits: int, block: int, level: int) -> Rule:
    def blocks(match: Match) -> int:
        return size(match)[0] // block

    packed = read_later(
        "Q_packed",
        np.uint8,
        lambda match: (size(match)[1], blocks(match), block * bits // 8),
        lambda array: _packed(array, block, bits),
    )
    scales = read_later(
        "S",
        np.float32,
        lambda match: (size(match)[1], blocks(match)),
        lambda array: blockwise(array, block, bits)[1].T,
    )
    whole = read_later(
        "Q",
        np.uint8,
        lambda match: (blocks(match), block, size(match)[1]),
        lambda array: blockwise(array, block, bits)[0],
    )
    each = read_later(
        "S_each",
        np.float32,
        lambda match: (blocks(match), 1, size(match)[1]),
        lambda array: blockwise(array, block, bits)[1][:, None],
    )
    middle = computed("middle", lambda match: np.float32(1 << (bits - 1)))
    matrix = computed("matrix", lambda match: np.array(size(match), np.int64))
    near_weight = op.Reshape(op.Mul(op.Sub(op.Cast(whole, to=1), middle), each), matrix)
    return Rule(
        name=f"weight_int{bits}.block{block}_level{level}",
        pattern=LINEAR,
        replace=ms.MatMulNBits(
            x,
            packed,
            scales,
            None,
            None,
            bias,
            K=lambda match: size(match)[0],
            N=lambda match: size(match)[1],
            bits=bits,
            block_size=block,
            accuracy_level=level,
        ),
        definition=op.MatMul(_rounded(block) if level == 4 else x, near_weight) + bias,
        guards=(*GUARDS, fills_blocks(block)),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        proof=Proof(shapes={"k": 2 * block, "n": 5}, never_empty=NEVER_EMPTY if level == 4 else {}),
    )


def _rounded(block: int) -> Pattern:
    """The activation in steps of 1/127 of the largest size in its block."""
    parts = op.Reshape(x, computed("parts", lambda match: np.array([-1, size(match)[0] // block, block], np.int64)))
    most = op.Max(op.GlobalMaxPool(op.Abs(parts)), computed("fewest", lambda match: FEWEST))
    top = computed("top", lambda match: np.float32(127))
    steps = op.Round(op.Mul(parts, op.Div(top, most)))
    return op.Reshape(op.Mul(steps, op.Div(most, top)), op.Shape(x))


RULES = [_rule(bits, block, level) for bits in (8, 4) for block in BLOCKS for level in (4, 1)]
