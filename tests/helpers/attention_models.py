"""Attention on four axes, written as text with scores, masks and softmax spelled out, and what is made of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import ortfuse
from ortfuse.verification import verify

INPUTS = "float[b,2,s,4] q, float[b,2,t,4] k, float[b,2,t,4] v"


def scores_to_result(guarded: bool = False) -> str:
    guard = "isnan = IsNaN(soft) p = Where(isnan, zero, soft)" if guarded else "p = Identity(soft)"
    return f"soft = Softmax<axis = -1>(masked) {guard} out = MatMul(p, v)"


def model(body: str, inputs: str = INPUTS, dtype: str = "float", **constants: Any) -> ir.Model:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g ({inputs}) => ({dtype}[b,2,s,4] out)
        {{ kt = Transpose<perm = [0, 1, 3, 2]>(k) {body} }}"""
    )
    kind = np.float16 if dtype == "float16" else np.float32
    for name, number in {"zero": 0.0, "half": 0.5, **constants}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number, kind), name))
    return ir.from_proto(proto)


def optimized(m: ir.Model) -> list[str]:
    result = ortfuse.optimize(m)
    assert verify(m, result.model).ok
    return [node.op_type for node in result.model.graph]


def with_mask(
    mask: str, dtype: str = "float", guarded: bool = False, inputs: str = INPUTS, **constants: Any
) -> ir.Model:
    keys = "5" if ",5," in inputs else "t"
    inputs = f"{inputs.replace('float', dtype)}, bool[b,1,s,{keys}] keep, int64[b,1,s,{keys}] number"
    body = f"{mask} qk = MatMul(q, kt) scaled = Mul(qk, half) masked = Add(scaled, mask) {scores_to_result(guarded)}"
    return model(body, inputs, dtype, **constants)


LOWEST = float(np.finfo(np.float32).min)
BOOLEAN = "mask = Where(keep, zero, filler)"
