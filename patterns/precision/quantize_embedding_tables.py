"""Quantise embedding tables to 4 or 8 bits with a scale for each block of a row, and dequantise the gathered rows.

T[x]  ~  ((Q - 2^(bits - 1)) S)[x]

Q and S are what MatMulNBits takes as its weight (`weight_only_quantization`). A table that is also the weight of a
MatMul is stored once if both have the same bits and blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, built, computed, const, ms, op, var

from ._block_quantized_weights import BLOCKS, blocks_of, fills_a_block
from ._linear_pattern import size
from ._weight_quantization import Array, is_weight, read_later

SOURCE = "ONNX Runtime operator com.microsoft.GatherBlockQuantized"

x = var("x")
weight = const("weight", "v k")
FIRST = computed("first", lambda match: np.array([0], np.int64))
LENGTH = computed("length", lambda match: np.array([size(match)[1]], np.int64))
LAST = computed("last", lambda match: np.array([-1], np.int64))
LOOKUP = op.Gather(weight, x, axis=0)


def rank_is_known(match: Match) -> Refusal | None:
    """The rank of the indices is known."""
    return match.refuse("rank", "x") if match.rank("x") is None else None


def _rule(bits: int, block: int) -> Rule:
    made = blocks_of(bits, block, zeros=False)

    def blocks(match: Match) -> int:
        return made.count(size(match)[1])

    def rows(match: Match) -> Array:
        return np.array([*[0] * (match.rank("x") or 0), blocks(match) * block], np.int64)

    def as_long_as_rows(match: Match) -> Pattern:
        return whole_rows if size(match)[1] == blocks(match) * block else op.Slice(whole_rows, FIRST, LENGTH, LAST)

    stored: dict[str, Any] = {"transposed": True, "rounding": lambda match: made}
    packed = read_later(
        "Q_packed",
        np.uint8,
        lambda match: (size(match)[0], blocks(match), block * bits // 8),
        made.packed,
        **stored,
    )
    scales = read_later("S", np.float32, lambda match: (size(match)[0], blocks(match)), made.scales, **stored)
    by_block = computed("by_block", lambda match: np.array([size(match)[0], blocks(match), 1], np.int64))
    whole = read_later("Q", np.uint8, lambda match: (blocks(match), block, size(match)[0]), made.whole, **stored)
    scale = read_later("S_each", np.float32, lambda match: (blocks(match), 1, size(match)[0]), made.each, **stored)
    middle = computed("middle", lambda match: np.float32(made.middle))
    filled = computed("filled", lambda match: np.array([blocks(match) * block, size(match)[0]], np.int64))
    near_blocks = op.Reshape(op.Mul(op.Sub(op.Cast(whole, to=1), middle), scale), filled)
    near = op.Transpose(op.Slice(near_blocks, FIRST, LENGTH, FIRST), perm=(1, 0))
    found = ms.GatherBlockQuantized(
        packed, x, op.Reshape(scales, by_block), gather_axis=0, quantize_axis=2, block_size=block, bits=bits
    )
    whole_rows = op.Reshape(found, computed("rows", rows))
    return Rule(
        name=f"embedding_int{bits}.block{block}",
        pattern=LOOKUP,
        replace=built(as_long_as_rows, makes=("Reshape", "Slice")),
        definition=op.Gather(near, x, axis=0),
        guards=(is_weight("weight"), rank_is_known, fills_a_block(block, lambda match: size(match)[1])),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        test=RuleTest(
            shapes=tuple({"x": "b s", "v": 7, "k": size} for size in (2 * block, block + 5)), inputs={"x": "int64"}
        ),
    )


RULES = [_rule(bits, block) for bits in (8, 4) for block in BLOCKS]
