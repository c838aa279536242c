"""What attention returns besides its result: the keys and values of all steps, and the weights."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from attention_models import BOOLEAN, INPUTS, optimized, with_mask

import ortfuse
from ortfuse.verification import verify

CACHED = """<ir_version: 10, opset_import: ["": 23]>
g (float[b,s,8] q, float[b,s,8] k, float[b,s,8] v, float[b,2,p,4] past_key, float[b,2,p,4] past_value, bool[b,1,s,t] keep)
=> (float[b,s,8] out, float[b,2,t,4] key, float[b,2,t,4] value)
<int64[4] split = {0, 0, 2, 4}, int64[3] merge = {0, 0, 8}, float zero = {0}, float filler = {-1e9}, float half = {0.5}> {
    q4 = Reshape(q, split) k4 = Reshape(k, split) v4 = Reshape(v, split)
    qh = Transpose<perm = [0, 2, 1, 3]>(q4) kh = Transpose<perm = [0, 2, 1, 3]>(k4) vh = Transpose<perm = [0, 2, 1, 3]>(v4)
    key = Concat<axis = 2>(past_key, kh) value = Concat<axis = -2>(past_value, vh)
    kt = Transpose<perm = [0, 1, 3, 2]>(key) qk = MatMul(qh, kt) scaled = Mul(qk, half)
    mask = Where(keep, zero, filler) masked = Add(scaled, mask) soft = Softmax<axis = -1>(masked) y = MatMul(soft, value)
    yt = Transpose<perm = [0, 2, 1, 3]>(y) out = Reshape(yt, merge)
}"""


def cached(past: int, new: int) -> ir.Model:
    sizes = {"s": new, "p": past, "t": past + new}
    text = CACHED
    for symbol, size in sizes.items():
        text = text.replace(f",{symbol}]", f",{size}]").replace(f",{symbol},", f",{size},")
    return ir.from_onnx_text(text)


def step(past: int, new: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(past + new)
    shapes = dict.fromkeys("qkv", (2, new, 8)) | dict.fromkeys(("past_key", "past_value"), (2, 2, past, 4))
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "keep": rng.random((2, 1, new, past + new)) < 0.8}


@pytest.mark.parametrize("past", [1, 6])
@pytest.mark.parametrize("new", [1, 3])
def test_a_cache_is_read_and_written_by_the_operator(past: int, new: int) -> None:
    m = cached(past, new)
    result = ortfuse.optimize(m)
    kinds = [node.op_type for node in result.model.graph]
    assert kinds.count("Attention") == 1
    assert not {"Concat", "Transpose", "Softmax"} & set(kinds)
    assert verify(m, result.model, inputs=[step(past, new)]).ok


def test_a_cache_that_nobody_asks_for_is_still_an_output_of_the_operator() -> None:
    m = cached(3, 2)
    del m.graph.outputs[1:]
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[step(3, 2)]).ok


def with_weights(body: str, weights: str, inputs: str = INPUTS) -> ir.Model:
    """Attention of hidden rows, with `weights` as a second output."""
    m = with_mask(BOOLEAN, guarded=True, inputs=inputs, filler=-np.inf)
    proto = ir.to_proto(m)
    extra = onnx.parser.parse_graph(f"g () => () {{ {body} }}")
    proto.graph.node.extend(extra.node)
    for name in (weights, *(output for node in extra.node for output in node.output)):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def hidden_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 2, 3, 4), "k": (2, 2, 5, 4), "v": (2, 2, 5, 4)}
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    keep = rng.random((2, 1, 3, 5)) < 0.7
    keep[0, 0, 1] = False
    return {**made, "keep": keep, "number": np.zeros((2, 1, 3, 5), np.int64)}


@pytest.mark.parametrize(
    "body", ["", "mean = ReduceMean(p)", "other = MatMul(p, k)"], ids=["output", "mean", "product"]
)
def test_weights_that_are_used_are_an_output_of_the_operator(body: str) -> None:
    m = with_weights(body, "p", re.sub(r"\bt\b", "5", INPUTS) if body else INPUTS)
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[hidden_rows()]).ok
    kinds = [node.op_type for node in result.model.graph]
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds


def test_weights_of_open_length_are_not_handed_to_other_nodes() -> None:
    m = with_weights("five = Constant<value = float[5] {1, 2, 3, 4, 5}>() total = Add(p, five)", "p")
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[hidden_rows()]).ok
    assert "Softmax" in [node.op_type for node in result.model.graph]


def test_weights_before_the_guard_that_makes_hidden_rows_zero_stay() -> None:
    m = with_weights("", "soft")
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[hidden_rows()]).ok
    assert "Softmax" in [node.op_type for node in result.model.graph]


def test_values_computed_from_the_weights_are_not_an_input_of_what_returns_the_weights() -> None:
    m = with_weights("square = MatMul(p, p) again = MatMul(p, square)", "p", INPUTS.replace("t,", "s,"))
    result = ortfuse.optimize(m)
    inputs = {name: array[..., :3, :] if name in "kv" else array[..., :3] for name, array in hidden_rows().items()}
    inputs["q"] = hidden_rows()["q"]
    inputs["k"], inputs["v"] = inputs["k"][..., :4], inputs["v"][..., :4]
    assert verify(m, result.model, inputs=[inputs]).ok


def test_weights_of_merged_heads_and_a_cache_are_returned_too() -> None:
    m = cached(3, 2)
    weights = next(node.outputs[0] for node in m.graph if node.op_type == "Softmax")
    weights.shape, weights.type = ir.Shape(["b", 2, 2, 5]), ir.TensorType(ir.DataType.FLOAT)
    m.graph.outputs.append(weights)
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[step(3, 2)]).ok
    kinds = [node.op_type for node in result.model.graph]
    assert kinds.count("Attention") == 1
    assert not {"Concat", "Transpose", "Softmax"} & set(kinds)


def test_weights_of_one_head_have_no_axis_of_heads() -> None:
    m = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 23]> g (float[b,s,4] q, float[b,t,4] k, float[b,t,4] v) => (float[b,s,4] out, float[b,s,t] p)
        { kt = Transpose<perm = [0, 2, 1]>(k) qk = MatMul(q, kt) p = Softmax<axis = -1>(qk) out = MatMul(p, v) }"""
    )
    kinds = optimized(m)
    assert "Attention" in kinds
    assert "Softmax" not in kinds
