"""Upper bounds of the norms of vectors: they hold for every input, and are known where a model normalises."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from ortfuse.analysis.facts import Facts
from ortfuse.io.convert_model_objects import enter

W = np.random.default_rng(3).standard_normal((12, 24)).astype(np.float32)

BOUNDED = {
    "a layer norm": "y = LayerNormalization<axis = -1>(x, gain, shift)",
    "an RMS norm": "y = RMSNormalization<axis = -1>(x, gain)",
    "a product": "n = LayerNormalization<axis = -1>(x, gain, shift) y = MatMul(n, w)",
    "a linear layer": "n = LayerNormalization<axis = -1>(x, gain, shift) m = MatMul(n, w) y = Add(m, bias)",
    "heads": """n = LayerNormalization<axis = -1>(x, gain, shift) m = MatMul(n, w) a = Add(m, bias)
        r = Reshape(a, heads) y = Transpose<perm = [0, 2, 1, 3]>(r)""",
    "packed": """n = RMSNormalization<axis = -1>(x, gain) m = MatMul(n, w) r = Reshape(m, packed)
        t = Transpose<perm = [2, 0, 3, 1, 4]>(r) y = Gather<axis = 0>(t, zero)""",
    "split": """n = RMSNormalization<axis = -1>(x, gain) m = MatMul(n, w) y, u = Split<axis = -1, num_outputs = 2>(m)""",
    "split heads": """n = RMSNormalization<axis = -1>(x, gain) m = MatMul(n, w)
        s, u = Split<axis = -1, num_outputs = 2>(m) r = Reshape(s, halves) y = Transpose<perm = [0, 2, 1, 3]>(r)""",
    "merged": """n = RMSNormalization<axis = -1>(x, gain) m = MatMul(n, w) r = Reshape(m, heads) y = Reshape(r, flat)""",
    "rotated": """n = RMSNormalization<axis = -1>(x, gain) a, b = Split<axis = -1, num_outputs = 2>(n) c = Neg(b)
        h = Concat<axis = -1>(c, a) co = Cos(x) si = Sin(x) p = Mul(n, co) q = Mul(h, si) y = Add(p, q)""",
    "scaled": "n = RMSNormalization<axis = -1>(x, gain) s = Sigmoid(x) a = Mul(n, s) y = Div(a, eight)",
    "unit vectors": "y = LpNormalization<axis = -1>(x)",
    "unit vectors by hand": "l = ReduceL2(x, last) d = Max(l, small) y = Div(x, d)",
    "unit vectors clipped": "l = ReduceL2(x, last) d = Clip(l, small) y = Div(x, d)",
    "a softmax": "y = Softmax(x)",
    "ranges": "y = Tanh(x)",
    "chosen": "n = RMSNormalization<axis = -1>(x, gain) t = Tanh(x) k = Greater(x, zero1) y = Where(k, n, t)",
    "a Gemm": "n = RMSNormalization<axis = -1>(x, gain) f = Reshape(n, rows) y = Gemm<alpha = 0.5>(f, w, bias)",
    "expanded": "n = RMSNormalization<axis = -1>(x, gain) u = Unsqueeze(n, one) y = Expand(u, many)",
    "a constant": "y = Identity(w)",
}

UNBOUNDED = {
    "an input": "y = Neg(x)",
    "a residual": "n = RMSNormalization<axis = -1>(x, gain) y = Add(n, x)",
    "another axis": "n = LayerNormalization<axis = 1>(x, wide) y = Transpose<perm = [0, 2, 1]>(n)",
    "a square": "n = RMSNormalization<axis = -1>(x, gain) y = Mul(n, x)",
    "a quotient": "n = RMSNormalization<axis = -1>(x, gain) s = Sigmoid(x) y = Div(n, s)",
    "a norm of something else": "z = Exp(x) l = ReduceL2(x, last) d = Max(l, small) y = Div(z, d)",
    "a norm along another axis": "l = ReduceL2(x, one) d = Max(l, small) y = Div(x, d)",
    "a norm that is clipped above": "l = ReduceL2(x, last) d = Clip(l, small, eight) y = Div(x, d)",
}


def _model(nodes: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 23]> g (float[2, 5, 12] x) => (float[k] y) {{ {nodes} }}'
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    constants = {
        "gain": np.linspace(-2, 3, 12, dtype=np.float32), "shift": np.ones(12, np.float32), "w": W,
        "bias": np.full(24, 0.5, np.float32), "heads": np.array([2, 5, 3, 8]), "packed": np.array([2, 5, 3, 2, 4]),
        "halves": np.array([2, 5, 3, 4]), "flat": np.array([2, 5, 24]), "rows": np.array([10, 12]), "zero": np.array(0),
        "zero1": np.float32(0), "eight": np.float32(8), "last": np.array([-1]), "one": np.array([1]),
        "small": np.float32(1e-3), "many": np.array([2, 3, 5, 12]), "wide": np.ones((5, 12), np.float32),
    }  # fmt: skip
    used = {name for node in proto.graph.node for name in node.input}
    for name, array in constants.items():
        if name in used:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return proto


@pytest.mark.parametrize("nodes", BOUNDED.values(), ids=BOUNDED)
@pytest.mark.parametrize("axis", [-1, -2])
def test_no_vector_is_longer_than_its_bound(nodes: str, axis: int) -> None:
    proto = _model(nodes)
    model = enter(proto)[0]
    bound = Facts(model).norm(model.graph.outputs[0], axis)
    if axis == -1:
        assert bound is not None
    evaluator = ReferenceEvaluator(proto)
    for size in (1e-3, 1.0, 1e4):
        x = (np.random.default_rng(1).standard_normal((2, 5, 12)) * size).astype(np.float32)
        x[0, 0] = np.eye(12)[0] * size
        found = np.linalg.norm(np.asarray(evaluator.run(None, {"x": x})[0], np.float64), axis=axis).max()
        assert bound is None or found <= 1.001 * bound


@pytest.mark.parametrize("nodes", UNBOUNDED.values(), ids=UNBOUNDED)
def test_what_is_not_normalised_has_no_bound(nodes: str) -> None:
    model = enter(_model(nodes))[0]
    assert Facts(model).norm(model.graph.outputs[0], -1) is None


def test_bounds_of_heads_are_those_of_their_own_columns() -> None:
    weight = np.zeros((12, 24), np.float32)
    weight[:, 8:16] = 1.0
    proto = _model(BOUNDED["heads"])
    next(tensor for tensor in proto.graph.initializer if tensor.name == "w").CopyFrom(
        numpy_helper.from_array(weight, "w")
    )
    model = enter(proto)[0]
    whole = np.linalg.norm(weight, 2) * (np.sqrt(12) * 3 + np.sqrt(12)) + 0.5 * np.sqrt(8)
    assert Facts(model).norm(model.graph.outputs[0], -1) == pytest.approx(whole)
