"""Tests that attention whose mask hides keys by a number beyond float16 becomes half, and computes the same for every row."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.quantization.half.clamp_attention_biases import clamp_attention_biases
from ortfuse.runtime.session import Session

HIDDEN = """<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>
g (float[b,s,16] q, float[b,s,16] k, float[b,s,16] v, bool[b,1,s,s] seen, float[{bias}] position) => (float[b,s,16] y)
<float lowest = {{-3.4e38}}, float deep = {{-1e38}}> {{
    hides = Where(seen, position, lowest)
    bias = Max(hides, deep)
    y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , bias)
}}"""
ROTATED = """<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>
g (float[b,s,16] q, float[b,s,16] k, float[b,s,16] v, bool[b,2,s,s] seen) => (float[b,s,16] y)
<float zero = {0}, float lowest = {-3.4e38}> {
    bias = Where(seen, zero, lowest)
    y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , bias)
}"""


def _inputs(heads: int, length: int = 5) -> dict[str, np.ndarray]:
    """Inputs where the first query sees nothing, and the others see themselves at least."""
    generator = np.random.default_rng(0)
    seen = generator.random((2, 1, length, length)) < 0.5
    seen |= np.eye(length, dtype=bool)
    seen[:, :, 0] = False
    found = {name: 3 * generator.standard_normal((2, length, 16), np.float32) for name in "qkv"}
    position = generator.standard_normal((1, heads, length, length), np.float32)
    return {**found, "seen": seen, "position": position}


@pytest.mark.parametrize("heads", [1, 2])
def test_rows_that_are_hidden_altogether_stay_the_mean_of_the_values(heads: int) -> None:
    model = ir.from_onnx_text(HIDDEN.format(bias=f"1,{heads},s,s"))
    inputs = _inputs(heads)
    before = Session(model).run(inputs)["y"]
    assert clamp_attention_biases(model) == 1
    numbers = [value.const_value.numpy() for value in model.graph.initializers.values() if value.uses()]
    assert min(array.min() for array in numbers) == -65504
    after = Session(model).run(inputs)["y"]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(after[:, 0], inputs["v"].mean(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "numbers",
    ["float lowest = {-1e5}", "float lowest = {-3.4e38}, float padded = {-1e9}"],
    ids=["scores count beside it", "two of which one is preferred"],
)
def test_a_hidden_row_whose_weights_are_not_alike_is_left_alone(numbers: str) -> None:
    inner = "Where(padding, zero, padded)" if "padded" in numbers else "Identity(zero)"
    text = f"""<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>
    g (float[b,s,16] q, float[b,s,16] k, float[b,s,16] v, bool[b,1,s,s] seen, bool[b,1,s,s] padding) => (float[b,s,16] y)
    <float zero = {{0}}, {numbers}> {{
        inner = {inner}
        bias = Where(seen, inner, lowest)
        y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , bias)
    }}"""
    assert clamp_attention_biases(ir.from_onnx_text(text)) == 0


def test_a_causal_mask_needs_no_other_query() -> None:
    text = """<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>
    g (float[b,5,16] q, float[b,5,16] k, float[b,5,16] v) => (float[b,5,16] y) {
        bias = Constant<value = float[1,1,5,5] {
            0,-1e38,-1e38,-1e38,-1e38, 0,0,-1e38,-1e38,-1e38, 0,0,0,-1e38,-1e38, 0,0,0,0,-1e38, 0,0,0,0,0}>()
        same = Identity(bias)
        y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , same)
    }"""
    from onnx_ir.passes.common import LiftConstantsToInitializersPass

    model = LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(ir.from_onnx_text(text)).model
    assert clamp_attention_biases(model) == 1
    assert [node.op_type for node in model.graph] == ["Identity", "MultiHeadAttention"]


def test_a_mask_that_differs_between_heads_is_left_alone() -> None:
    assert clamp_attention_biases(ir.from_onnx_text(ROTATED)) == 0


def test_a_bias_that_something_else_reads_is_left_alone() -> None:
    model = ir.from_onnx_text(
        HIDDEN.format(bias="1,1,s,s").replace("=> (float[b,s,16] y)", "=> (float[b,s,16] y, float[b,1,s,s] bias)")
    )
    assert clamp_attention_biases(model) == 0
