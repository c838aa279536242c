"""What a file says of itself beside its inputs is a claim: lies change neither what is computed nor the signature."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import run
from small_models import floats

import ortfuse

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
GELU = "float h = {0.5}, float o = {1.0}, float r = {1.4142135}"

LIES = {
    "sizes of an intermediate": """g (float[b, s] x) => (float[b, s] y) <float[7, 1] z, float[7, 1] e, int64[2] t = {0, -1}> {
        z = Exp(x) \n e = Reshape(z, t) \n y = Mul(x, e) }""",
    "a unit axis that is none": """g (float[b, s] x, int64[2] t) => (float[b, s] y) <float[1, 1] z, int64[2] one = {1, 1}> {
        z = Reshape(x, t) \n e = Reshape(z, t) \n y = Add(x, e) }""",
    "the rank of an output": f"g (float[b, s] x) => (float[1, 2, 3] y) <{GELU}> {{ d = Div(x, r) \n e = Erf(d) \n f = Add(e, o) \n m = Mul(x, f) \n y = Mul(m, h) }}",
    "the size of an output": f"g (float[b, s] x) => (float[9, 9] y) <{GELU}> {{ d = Div(x, r) \n e = Erf(d) \n f = Add(e, o) \n m = Mul(x, f) \n y = Mul(m, h) }}",
    "names of an intermediate": """g (float[b, s] x) => (float["batch", "seq"] y) <float["seq", "batch"] z, float["k", "k"] w> {
        z = Exp(x) \n w = Identity(z) \n y = Neg(w) }""",
    "the size of the -1 of a Reshape": """g (float[b, s] x, int64[2] t) => (float[k, l] y) <float[3, 2] z, int64[2] m = {-1, 2}> {
        z = Reshape(x, t) \n n = Shape(z) \n f = Reshape(z, m) \n y = Reshape(f, n) }""",
    "the body of a loop": """g (float[b, s] x) => (float[b, s] y) <int64 n = {3}, bool go = {1}> {
        y = Loop (n, go, x) <body = body (int64 i, bool c, float[1, 1] p) => (bool d, float[5] q) {
            d = Identity(c) \n n1 = Shape(p) \n z = ConstantOfShape(n1) \n w = Add(p, z) \n q = Add(w, w) }> }""",
}


def _signature(proto: onnx.ModelProto) -> list[bytes]:
    return [value.SerializeToString() for value in (*proto.graph.input, *proto.graph.output)]


def _compare(proto: onnx.ModelProto, inputs: dict[str, Any]) -> None:
    before = run(proto, inputs)
    signature = _signature(proto)
    result = ortfuse.optimize(proto, level="all").model
    assert _signature(result) == signature
    for old, new in zip(before, run(result, inputs), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)
        assert new.dtype == old.dtype


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_makes_no_difference(lie: str) -> None:
    proto = onnx.parser.parse_model(HEAD + LIES[lie])
    inputs: dict[str, Any] = {"x": floats(2, 3), "t": np.array([2, 3], np.int64)}
    _compare(proto, {value.name: inputs[value.name] for value in proto.graph.input})


@pytest.mark.parametrize(
    "name", ["?0", "?", "0", "1", "-1", "n+1", "n - 1", "2*n", "min(n, 1)", "a b", " n", "n ", "None", ""]
)
def test_a_strange_name_of_a_size_is_a_name(name: str) -> None:
    text = """g (float[P, 4] x, float[P] v, float[n] k) => (float[P, 4] y, float[P] z, float[c, 4] w)
        <int64[1] axis = {0}, int64[1] flat = {-1}> {
        e = Exp(x) \n y = Neg(e) \n w = ReduceSum (e, axis)
        m = NonZero(k) \n u = Cast <to = 1> (m) \n f = Reshape(u, flat) \n l = Shape(v) \n z = Expand(f, l) }"""
    proto = onnx.parser.parse_model(HEAD + text)
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = name if dim.dim_param == "P" else dim.dim_param
    for size in (3, 1):
        _compare(proto, {"x": floats(size, 4), "v": floats(3), "k": np.ones(1, np.float32)})
