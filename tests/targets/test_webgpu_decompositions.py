"""Decompositions for WebGPU: operators without kernels are made of others, so that the processor computes none of them."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
from graphs import operators

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.runtime.session import Session
from ortfuse.targets import Target

LACKING = """<ir_version: 10, opset_import: ["": 17]>
g (float[n, 4] x, float[n, 4] z) => (float[n, 4] y, bool[n, 4] b) {
    i = Selu (x)  j = Softsign (i)  k = Celu (z)  l = Shrink (k)  m = Sign (x)  o = Round (z)  s = Sum (j, l, m, o)
    p = Greater (x, z)  q = Less (j, l)  r = Or (p, q)  t = Xor (r, p)  u = Not (t)  b = Xor (u, q)  y = Identity (s) }"""
"""Operators for which WebGPU has no kernels."""

TRUTHS = """<ir_version: 10, opset_import: ["": 17]>
g (float[n, 4] x) => (float[n, 5] y)
<float nil = {0}, int64[1] none = {0}, int64[1] one = {1}, int64[1] most = {9}, float low = {-9}, float[1, 5] w = {1, 2, 3, 4, 5}> {
    p = Greater (x, nil)  first = Slice (p, none, one, one)  all = Concat <axis = 1> (first, p)
    y = Where (all, w, low) }"""
"""Truth values of numbers of the GPU, moved."""


EXPERTS = """<ir_version: 10, opset_import: ["": 17]>
g (float[n, 6] x, float[n, 6, 4] z) => (float[n, 2, 6] y, float[n, 2, 4] rows, float[n, 2] column)
<int64[1] two = {2}, int64 six = {6}, int64[2] ends = {0, 1}, int64[1] last = {-1}, int64[3] wide = {1, 1, 4}, int64 three = {3}> {
    v, i = TopK (x, two)  one = OneHot (i, six, ends)  y = Cast <to = 1> (one)
    j = Unsqueeze (i, last)  k = Tile (j, wide)  rows = GatherElements <axis = 1> (z, k)
    down = Div (i, three)  across = Mod (i, three)  f = Cast <to = 1> (down)  g = Cast <to = 1> (across)  column = Add (f, g) }"""
"""Indices of TopK, and arithmetic on them."""

GUARDED = """<ir_version: 10, opset_import: ["": 17]>
g (float[n, 4] x, bool[n, 4] seen) => (float[n, 4] y) <float nil = {0}, float low = {-inf}> {
    s = Where (seen, x, low)  p = Softmax (s)  none = IsNaN (p)  y = Where (none, nil, p) }"""
"""Attention weights of queries that may see nothing."""


@pytest.mark.parametrize("text", [EXPERTS, GUARDED])
def test_the_processor_computes_no_indices_of_top_k_and_no_guards_of_softmax(text: str) -> None:
    made = ortfuse.optimize(ir.from_onnx_text(text), target="webgpu", loaded=False)
    assert ortfuse.verify(ir.from_onnx_text(text), made.model).ok
    target, facts = Target("webgpu"), Facts(made.model)
    assert not {"OneHot", "Mod", "IsNaN"} & {*operators(made.model)}
    assert all(target.check_node(node, made.model.opset_imports, facts) is None for node in made.model.graph)


def test_guarded_weights_are_zero_where_nothing_is_seen() -> None:
    made = ortfuse.optimize(ir.from_onnx_text(GUARDED), target="webgpu", loaded=False).model
    x = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [np.inf, 1, 1, 1], [np.finfo(np.float32).min] * 4], np.float32)
    given = {"x": x, "seen": np.array([[True, False, True, True], [False] * 4, [True] * 4, [True] * 4])}
    found, expected = (Session(model).run(given)["y"] for model in (made, ir.from_onnx_text(GUARDED)))
    np.testing.assert_array_equal(found, expected)


def test_operators_without_kernels_are_made_of_others() -> None:
    made = ortfuse.optimize(ir.from_onnx_text(LACKING), target="webgpu", loaded=False)
    assert ortfuse.verify(ir.from_onnx_text(LACKING), made.model).ok
    target, facts = Target("webgpu"), Facts(made.model)
    assert all(target.check_node(node, made.model.opset_imports, facts) is None for node in made.model.graph)


FLOAT_ENDS = [0.5, 1.5, 2.5, 2.0**22 + 0.5, 2.0**22 + 1.5, 2.0**23 - 0.5, 2.0**23 + 1, 1e30, math.inf]


@pytest.mark.parametrize(
    "operator", ["Round", "Sign", "Celu <alpha = 0.00000001>", "Celu <alpha = 1e30>", "Shrink <lambd = 2.5>"]
)
def test_decompositions_are_right_at_the_ends_of_float32(operator: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 17]> g (float[n] x) => (float[n] y) {{ y = {operator} (x) }}"""
    made = ortfuse.optimize(ir.from_onnx_text(text), target="webgpu", loaded=False).model
    assert operator.split()[0] not in operators(made)
    given = {"x": np.array([*FLOAT_ENDS, *(-number for number in FLOAT_ENDS), 0, math.nan], np.float32)}
    found, expected = (Session(model).run(given)["y"] for model in (made, ir.from_onnx_text(text)))
    np.testing.assert_array_equal(found, expected)


def test_a_guard_of_softmax_over_merged_axes_stays() -> None:
    text = """<ir_version: 7, opset_import: ["": 12]> g (float[2, 2, 3] x) => (float[2, 2, 3] y) <float nil = {0}> {
        p = Softmax <axis = 1> (x)  none = IsNaN (p)  y = Where (none, nil, p) }"""
    made = ortfuse.optimize(ir.from_onnx_text(text), target="webgpu", loaded=False).model
    assert "IsNaN" in operators(made)


@pytest.mark.parametrize("operator", ["Selu <gamma = 70000.0>", "Shrink <bias = 70000.0>", "Celu <alpha = 70000.0>"])
def test_parameters_that_halves_do_not_hold_stay(operator: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 17]> g (float16[n] x) => (float16[n] y) {{ y = {operator} (x) }}"""
    made = ortfuse.optimize(ir.from_onnx_text(text), target="webgpu", loaded=False).model
    assert operators(made) == [operator.split()[0]]


def test_a_limit_between_two_halves_is_exceeded_by_the_same_numbers() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]>
        g (float16[n] x) => (float16[n] y) { y = Shrink <lambd = 0.3> (x) }"""
    made = ortfuse.optimize(ir.from_onnx_text(text), target="webgpu", loaded=False).model
    limits = [
        value.const_value.numpy().item() for value in made.graph.initializers.values() if value.const_value is not None
    ]
    above = float(np.nextafter(np.float16(max(limits)), np.float16(1)))
    assert max(limits) < 0.3 < above


def test_truth_values_of_the_gpu_are_moved_as_floats() -> None:
    made = ortfuse.optimize(ir.from_onnx_text(TRUTHS), target="webgpu", loaded=False).model
    types = {node.op_type: node.outputs[0].dtype for node in made.graph}
    assert types["Slice"] == types["Concat"] == ir.DataType.FLOAT
    given = TRUTHS.replace("float[n, 4] x)", "bool[n, 4] p)").replace("p = Greater (x, nil)", "")
    made = ortfuse.optimize(ir.from_onnx_text(given), target="webgpu", loaded=False).model
    assert {node.op_type: node.outputs[0].dtype for node in made.graph}["Slice"] == ir.DataType.BOOL


def test_truth_values_of_inputs_are_cut_where_they_were_gathered() -> None:
    """The processor does both: less of it is better, though WebGPU has no kernel for either."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 18]>
        g (int64[b, n] ids, bool[c, n] mask) => (bool[b, 1, 1, n] y)
        <int64 zero = {0}, int64 one = {1}, int64[3] behind = {1, 2, 3}, int64[3] before = {0, 1, 2}, int64[1] last = {-1}> {
            s = Shape <start = 0, end = 1> (ids)  rows = Squeeze (s)  t = Shape <start = 1, end = 2> (mask)  columns = Squeeze (t)
            i = Range (zero, rows, one)  j = Range (zero, columns, one)  k = Unsqueeze (i, behind)  l = Unsqueeze (j, before)
            m = Max (k, l)  shape = Shape (m)  p = Expand (k, shape)  q = Expand (l, shape)
            u = Unsqueeze (p, last)  v = Unsqueeze (q, last)  index = Concat <axis = -1> (u, v)  y = GatherND (mask, index) }"""
    )
    found = operators(ortfuse.optimize(model, target="webgpu", loaded=False).model)
    assert "GatherND" not in found
    assert "Slice" in found
