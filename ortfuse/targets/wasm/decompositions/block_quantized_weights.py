"""Unpack block-quantised weights of MatMulNBits in operators that the runtime computes once, when it loads the model.

matmul_nbits(x, B) = x ((cast(B) - zero) scale)'          cast(B) [columns, blocks, numbers in a block]

*Requires:* weights that are constants; float32. *Does not handle:* `g_idx`, numbers of 2 bits, zero points that are not integers.

Rationale: in WebAssembly no kernel multiplies with packed weights. MatMulNBits unpacks all of them in each run, which for a
single row takes 13 to 25 times as long as the product. The runtime folds constants when it loads a model: the file keeps its
packed weights, and the session has them in float32, in 8 times the memory. While it folds, it keeps what each of the five
operators made of all weights. WebAssembly has 4 GB for all, and models that would take more than `MOST_BYTES` stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, ms, op, opt, var

MOST_BYTES = 13 << 28
"""The most bytes that all weights of a model may take while they are unpacked: 3.25 GiB."""

FOLDED = 5
"""The operators whose results the runtime keeps until all constants are folded."""

x, packed, scales, zeros, bias = var("x"), const("packed"), const("scales"), const("zeros"), var("bias")

_unpacked_bytes: WeakKeyDictionary[ir.Graph, int] = WeakKeyDictionary()


def is_float32(match: Match) -> Refusal | None:
    """The numbers and the scales are float32."""
    return match.unless_dtype("x", ir.DataType.FLOAT) or match.unless_dtype("scales", ir.DataType.FLOAT)


def has_whole_zeros(match: Match) -> Refusal | None:
    """Zero points are packed as the weights are, where there are any."""
    return None if match.get("zeros") is None else match.unless_dtype("zeros", ir.DataType.UINT8)


def has_bytes(match: Match) -> Refusal | None:
    """Each byte of the weights has one number or two, and a block whole bytes."""
    if match.dtype("packed") != ir.DataType.UINT8:
        return match.refuse("dtype", "packed", ir.DataType.UINT8)
    wanted = (match["N"], _blocks(match), match["block_size"] * match["bits"] // 8)
    return match.unless_value("bits", match["bits"] in (4, 8), "4 or 8") or match.unless_shape(wanted, "packed")


def fits_in_memory(match: Match) -> Refusal | None:
    """All weights of the model fit in memory while they are unpacked."""
    graph = match["packed"].graph
    if graph is None:
        return match.refuse("not_constant", "packed", "an initializer")
    if graph not in _unpacked_bytes:
        _unpacked_bytes[graph] = sum(map(_bytes_unpacked, graph.initializers.values()))
    found = _unpacked_bytes[graph]
    return match.unless_value(
        "packed", found <= MOST_BYTES, f"weights that take at most {MOST_BYTES} bytes while they are unpacked"
    )


def _bytes_unpacked(value: ir.Value) -> int:
    """The bytes of an initializer, those of packed numbers while they are unpacked."""
    tensor = value.const_value
    if tensor is None:
        return 0
    nibbles = {ir.DataType.UINT8: 2, ir.DataType.UINT4: 1, ir.DataType.INT4: 1}.get(tensor.dtype)
    return tensor.nbytes if nibbles is None else FOLDED * 4 * nibbles * math.prod(tensor.shape.numpy())


def _blocks(match: Match) -> int:
    found: int = -(-match["K"] // match["block_size"])
    return found


def _numbers(name: str, shape: Callable[[Match], tuple[int, ...]]) -> Pattern:
    """The numbers in the bytes of a captured constant, which are not copied."""

    def made(match: Match) -> ir.TensorProtocol:
        source = match[name].const_value
        tensor = ir.Tensor(match.const(name)) if source is None else source
        kind, dims = (ir.DataType.UINT4 if match["bits"] == 4 else ir.DataType.UINT8), ir.Shape(shape(match))

        def read() -> ir.TensorProtocol:
            flat = np.ascontiguousarray(tensor.numpy()).reshape(-1)
            if kind == ir.DataType.UINT4:
                return ir.PackedTensor(flat, kind, shape=dims)
            return ir.Tensor(flat.reshape(dims.numpy()))

        return ir.LazyTensor(read, dtype=kind, shape=dims)

    return computed(f"{name}_numbers", made)


def _int64(name: str, numbers: Callable[[Match], list[int]]) -> Pattern:
    return computed(name, lambda match: np.array(numbers(match), np.int64))


def _zero_points(match: Match) -> Any:
    if match.get("zeros") is None:
        return float(1 << (match["bits"] - 1))
    blocks, each = _blocks(match), 8 // match["bits"]
    stored = -(-blocks // each) * each
    found = op.Cast(_numbers("zeros", lambda match: (match["N"], stored, 1)), to=ir.DataType.FLOAT)
    return found if stored == blocks else op.Slice(found, _int64("first", lambda _: [0]), _int64("last", lambda _: [blocks]),
                                                   _int64("axis", lambda _: [1]))  # fmt: skip


def _product(match: Match) -> Pattern:
    length, columns, block = match["K"], match["N"], match["block_size"]
    blocks = _blocks(match)
    numbers = _numbers("packed", lambda match: (columns, blocks, block))
    each = op.Reshape(scales, _int64("scales_shape", lambda _: [columns, blocks, 1]))
    unpacked = op.Mul(op.Sub(op.Cast(numbers, to=ir.DataType.FLOAT), _zero_points(match)), each)
    rows = op.Reshape(unpacked, _int64("rows_shape", lambda _: [columns, blocks * block]))
    if blocks * block != length:
        rows = op.Slice(
            rows, _int64("start", lambda _: [0]), _int64("length", lambda _: [length]), _int64("of", lambda _: [1])
        )
    product: Pattern = op.MatMul(x, op.Transpose(rows, perm=(1, 0)))
    return product if match.get("bias") is None else op.Add(product, bias)


def _constants(build: Any, name: str) -> ir.Value:
    dims = build.dims(name)
    numbers = np.random.default_rng(0).integers(0, 256, dims)
    value: ir.Value = build.constant(
        (numbers / 4096 + 0.01).astype(np.float32) if name == "scales" else numbers.astype(np.uint8)
    )
    return value


def _sizes(length: int, columns: int, blocks: int, numbers: int, rows: str = "b s", **others: str) -> dict[str, str]:
    return {
        "x": f"{rows} {length}",
        "packed": f"{columns} {blocks} {numbers}",
        "scales": f"{columns} {blocks}",
    } | others


RULES = [
    Rule(
        name="matmul_nbits.unpack_at_load",
        formula="MatMulNBits(x, packed, scales, zeros) + bias",
        pattern=ms.MatMulNBits(
            x, packed, scales, opt(zeros), None, opt(bias), K=attr("K"), N=attr("N"), bits=attr("bits"),
            block_size=attr("block_size"), accuracy_level=attr("accuracy_level"), weight_prepacked=0,
        ),
        replace=built(_product, makes=("Cast", "Sub", "Mul", "Reshape", "Slice", "Transpose", "MatMul", "Add")),
        guards=(is_float32, has_whole_zeros, has_bytes, fits_in_memory),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source="com.microsoft operator MatMulNBits",
        test=RuleTest(
            opset=21,
            shapes=(
                _sizes(64, 5, 2, 16, zeros="5 1", bias="5"),
                _sizes(70, 5, 3, 16, zeros="5 2"),
                _sizes(64, 5, 2, 32, zeros="5 2"),
            ),
            attributes=(
                {"K": [64], "N": [5], "bits": [4], "block_size": [32], "accuracy_level": [0, 1]},
                {"K": [70], "N": [5], "bits": [4], "block_size": [32], "accuracy_level": [0]},
                {"K": [64], "N": [5], "bits": [8], "block_size": [32], "accuracy_level": [0]},
            ),
            inputs={name: (lambda build, name=name: _constants(build, name)) for name in ("packed", "scales", "zeros")},
            typical=tuple(
                _sizes(length, columns, length // 32, 16, f"1 {rows}", zeros=f"{columns} {length // 64}")
                for rows, length, columns in ((1, 576, 576), (1, 576, 1536), (1, 1536, 576), (16, 576, 1536), (128, 1024, 1024))
            ),
            typical_attributes=tuple(
                {"K": length, "N": columns, "bits": 4, "block_size": 32, "accuracy_level": 0}
                for length, columns in ((576, 576), (576, 1536), (1536, 576), (576, 1536), (1024, 1024))
            ),
        ),
    ),
]  # fmt: skip
