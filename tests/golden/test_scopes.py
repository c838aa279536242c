"""Fusions inside an If, a Loop and a model function, which is inlined."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.ir.walk import scopes
from ortfuse.verification import verify

GELU = "d = Div(x, root) e = Erf(d) p = Add(e, one) m = Mul(x, p) {out} = Mul(m, half)"
NORM = """mean = ReduceMean<axes = [-1]>(g) dev = Sub(g, mean) sq = Mul(dev, dev) var = ReduceMean<axes = [-1]>(sq)
          ve = Add(var, eps) std = Sqrt(ve) n = Div(dev, std) s = Mul(n, scale) {out} = Add(s, bias)"""
CONSTANTS = """<float root = {1.4142135}, float one = {1.0}, float half = {0.5}, float eps = {0.00001},
    float[4] scale = {1.0, 2.0, 3.0, 4.0}, float[4] bias = {0.1, 0.2, 0.3, 0.4}>"""
LOCAL = """root = Constant<value = float {1.4142135}>() one = Constant<value = float {1.0}>() half = Constant<value = float {0.5}>()
    eps = Constant<value = float {0.00001}>() scale = Constant<value = float[4] {1.0, 2.0, 3.0, 4.0}>()
    bias = Constant<value = float[4] {0.1, 0.2, 0.3, 0.4}>()"""
BODY = f"{GELU.format(out='g')} {NORM.format(out='OUT')}"

IF = f"""<ir_version: 8, opset_import: ["": 17]> g (float[b,4] x, bool c) => (float[b,4] y) {CONSTANTS} {{
    y = If (c) <then_branch = t () => (float[b,4] r) {{ {BODY.replace("OUT", "r")} }},
                else_branch = f () => (float[b,4] q) {{ q = Neg(x) }}>
}}"""

LOOP = f"""<ir_version: 8, opset_import: ["": 17]> g (float[b,4] x0, int64 trips, bool go) => (float[b,4] y) {CONSTANTS} {{
    y = Loop (trips, go, x0) <body = body (int64 i, bool c, float[b,4] x) => (bool k, float[b,4] r) {{
        k = Identity(c) {BODY.replace("OUT", "r")} }}>
}}"""

FUNCTION = f"""<ir_version: 8, opset_import: ["": 17, "local": 1]> g (float[b,4] z) => (float[b,4] y) {{ y = local.block(z) }}
<domain: "local", opset_import: ["": 17]> block (x) => (r) {{ {LOCAL} {BODY.replace("OUT", "r")} }}"""


@pytest.mark.parametrize("text", [IF, LOOP, FUNCTION], ids=["If", "Loop", "function"])
def test_nodes_are_fused_where_they_are(text: str) -> None:
    proto = onnx.parser.parse_model(text)
    onnx.checker.check_model(proto)
    model = ir.from_proto(proto)
    result = ortfuse.optimize(model)
    is_outer = text == FUNCTION
    found = [scope.graph for scope in scopes(result.model) if (scope.graph is result.model.graph) is is_outer]
    operators = [node.op_type for graph in found for node in graph]
    assert "LayerNormalization" in operators
    assert "Gelu" in operators
    assert not {"Erf", "ReduceMean", "Sqrt"} & set(operators)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    inputs = {"x": x, "c": np.array(True), "x0": x, "trips": np.array(3), "go": np.array(True), "z": x}
    given = {value.name: inputs[value.name or ""] for value in model.graph.inputs}
    verdict = verify(model, result.model, inputs=[given], reference=False)
    assert verdict.ok, verdict.summary()
