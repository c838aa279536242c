"""Lower com.microsoft MatMulNBits to operators of the standard, with its weights as integers.

matmul_nbits(x, B, s, z) + bias = x W' + bias          W[n, k] = (B[n, k] - z[n, k / block]) s[n, k / block]

From opset 21 on, W is DequantizeLinear in blocks, and numbers of 4 bits stay packed. Before, they are 8-bit integers, and W is
Cast, Sub and Mul.

*Requires:* weights that are constants; float32. *Does not handle:* `g_idx`, numbers of other than 4 or 8 bits, zero points that
are no integers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, ms, op, opt, var

from .._shared_guards import constant

PASS = "canonicalize"

x, packed, scales, zeros, bias = var("x"), const("packed"), const("scales"), const("zeros"), var("bias")


def is_float32(match: Match) -> Refusal | None:
    """The numbers and the scales are float32."""
    return match.unless_dtype("x", ir.DataType.FLOAT) or match.unless_dtype("scales", ir.DataType.FLOAT)


def has_whole_numbers(match: Match) -> Refusal | None:
    """Weights, and zero points where there are any, are bytes of one number or two, and a block has whole bytes."""
    bits, block, rows = match["bits"], match["block_size"], match["N"]
    found = match.unless_value("bits", bits in (4, 8), "4 or 8") or match.unless_dtype("packed", ir.DataType.UINT8)
    if found is None and match.get("zeros") is not None:
        found = match.unless_dtype("zeros", ir.DataType.UINT8)
        wanted = rows * (-(-_blocks(match) * bits // 8))
        found = found or match.unless_value("zeros", math.prod(match.shape("zeros") or ()) == wanted, "packed integers")
    return found or match.unless_shape((rows, _blocks(match), block * bits // 8), "packed")


def _blocks(match: Match) -> int:
    found: int = -(-match["K"] // match["block_size"])
    return found


def _numbers(bits: int, bytes_: np.ndarray[Any, Any], columns: int, count: int) -> np.ndarray[Any, Any]:
    """uint8 [columns, count], the numbers in rows of bytes, the lower half of a byte first."""
    rows = bytes_.reshape(columns, -1)
    if bits == 4:
        rows = np.stack([rows & 15, rows >> 4], axis=-1).reshape(columns, -1)
    return np.ascontiguousarray(rows[:, :count])


def _integers(name: str, *, per_block: bool, narrow: bool) -> Pattern:
    """The numbers of weights [N, blocks * block], or of zero points [N, blocks], in 4 bits if they are such and `narrow`."""

    def made(match: Match) -> ir.TensorProtocol:
        bits, columns = match["bits"], match["N"]
        count = _blocks(match) * (1 if per_block else match["block_size"])
        is_given = match.get(name) is not None
        source = match.const(name) if is_given else None
        kind = ir.DataType.UINT4 if bits == 4 and narrow else ir.DataType.UINT8

        def read() -> ir.TensorProtocol:
            if source is None:
                numbers = np.full((columns, count), 1 << (bits - 1), np.uint8)
            else:
                numbers = _numbers(bits, source, columns, count)
            if kind == ir.DataType.UINT8:
                return ir.Tensor(numbers)
            even = np.append(numbers.reshape(-1), np.zeros(numbers.size % 2, np.uint8))
            return ir.PackedTensor(even[::2] | even[1::2] << 4, kind, shape=ir.Shape((columns, count)))

        return ir.LazyTensor(read, dtype=kind, shape=ir.Shape((columns, count)))

    return computed(f"{name}_numbers", made)


def _scales(match: Match) -> Pattern:
    return op.Reshape(scales, constant(match["N"], _blocks(match)))


def _product(match: Match, weights: Pattern) -> Pattern:
    """x W' + bias of W [N, blocks * block]."""
    length = match["K"]
    if _blocks(match) * match["block_size"] != length:
        weights = op.Slice(weights, constant(0), constant(length), constant(1))
    product: Pattern = op.MatMul(x, op.Transpose(weights, perm=(1, 0)))
    return product if match.get("bias") is None else op.Add(product, bias)


def _dequantized(match: Match) -> Pattern:
    numbers = _integers("packed", per_block=False, narrow=True)
    middle = _integers("zeros", per_block=True, narrow=True)
    weights = op.DequantizeLinear(numbers, _scales(match), middle, axis=1, block_size=match["block_size"])
    return _product(match, weights)


def _computed(match: Match) -> Pattern:
    columns, blocks, block = match["N"], _blocks(match), match["block_size"]
    numbers = op.Cast(_integers("packed", per_block=False, narrow=False), to=ir.DataType.FLOAT)
    middle = op.Cast(_integers("zeros", per_block=True, narrow=False), to=ir.DataType.FLOAT)
    in_blocks, single = constant(columns, blocks, block), constant(columns, blocks, 1)
    weights = op.Mul(op.Sub(op.Reshape(numbers, in_blocks), op.Reshape(middle, single)), op.Reshape(scales, single))
    return _product(match, op.Reshape(weights, constant(columns, blocks * block)))


def _constants(build: Any, name: str) -> ir.Value:
    numbers = np.random.default_rng(0).integers(0, 256, build.dims(name))
    value: ir.Value = build.constant(
        (numbers / 4096 + 0.01).astype(np.float32) if name == "scales" else numbers.astype(np.uint8)
    )
    return value


def _sizes(length: int, columns: int, blocks: int, numbers: int, **others: str) -> dict[str, str]:
    return {
        "x": f"b s {length}",
        "packed": f"{columns} {blocks} {numbers}",
        "scales": f"{columns} {blocks}",
    } | others


def _attributes(length: int, columns: int, bits: int) -> dict[str, list[int]]:
    return {"K": [length], "N": [columns], "bits": [bits], "block_size": [32], "accuracy_level": [0]}


def _test(opset: int) -> RuleTest:
    return RuleTest(
        opset=opset,
        shapes=(
            _sizes(64, 5, 2, 16, zeros="5 1", bias="5"),
            _sizes(70, 5, 3, 16, zeros="5 2"),
            _sizes(64, 5, 2, 32, zeros="5 2"),
        ),
        attributes=(_attributes(64, 5, 4), _attributes(70, 5, 4), _attributes(64, 5, 8)),
        inputs={name: (lambda build, name=name: _constants(build, name)) for name in ("packed", "scales", "zeros")},
    )


_PATTERN = ms.MatMulNBits(
    x, packed, scales, opt(zeros), None, opt(bias), K=attr("K"), N=attr("N"), bits=attr("bits"),
    block_size=attr("block_size"), accuracy_level=attr("accuracy_level"), weight_prepacked=0,
)  # fmt: skip

RULES = [
    Rule(
        name="matmul_nbits.lower_to_dequantize_linear",
        formula="com.microsoft.MatMulNBits(x, packed, scales, zeros) + bias",
        pattern=_PATTERN,
        replace=built(_dequantized, makes=("DequantizeLinear", "Reshape", "Slice", "Transpose", "MatMul", "Add")),
        is_refinement=True,
        spells_out=True,
        guards=(is_float32, has_whole_numbers),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source="com.microsoft operator MatMulNBits",
        test=_test(21),
    ),
    Rule(
        name="matmul_nbits.lower_to_integers",
        formula="com.microsoft.MatMulNBits(x, packed, scales, zeros) + bias",
        pattern=_PATTERN,
        replace=built(_computed, makes=("Cast", "Sub", "Mul", "Reshape", "Slice", "Transpose", "MatMul", "Add")),
        is_refinement=True,
        spells_out=True,
        guards=(is_float32, has_whole_numbers),
        exactness=Exactness.ROUNDING,
        source="com.microsoft operator MatMulNBits",
        test=_test(17),
    ),
]
