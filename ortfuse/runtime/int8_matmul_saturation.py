"""Detect whether the runtime's int8 MatMul saturates 16-bit sums on this processor."""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from ortfuse.runtime.session import Session

_TEXT = """<ir_version: 8, opset_import: ["": 13]>
g (uint8[32,64] a, int8[64,32] b) => (int32[32,32] c) { c = MatMulInteger(a, b) }"""


@functools.cache
def saturates() -> bool:
    """Whether the products of unsigned and signed 8-bit numbers are wrong where two of them together exceed 16 bits.

    So are those of x86 processors without VNNI, whose instruction adds them up in pairs.
    """
    a, b = np.full((32, 64), 255, np.uint8), np.full((64, 32), 127, np.int8)
    found = Session(ir.from_onnx_text(_TEXT), threads=1).run({"a": a, "b": b})["c"]
    return bool((found != 64 * 255 * 127).any())
