from __future__ import annotations

import numpy as np
import pytest
from graphs import operators
from small_models import apply, floats, model_of

from ortfuse.transforms import DeadCodeElimination


def test_what_no_output_depends_on_goes() -> None:
    text = """agraph (float[2] x, float[2] unused) => (float[2] y) <float[2] w = {1, 2}, float[2] v = {3, 4}> {
        a = Add(x, v) \n b = Neg(a) \n y = Mul(x, w) }"""
    model, counts, _ = apply(
        text, DeadCodeElimination(), DeadCodeElimination(), inputs={"x": floats(2), "unused": floats(2)}
    )
    assert operators(model) == ["Mul"]
    assert list(model.graph.initializers) == ["w"]
    assert [value.name for value in model.graph.inputs] == ["x", "unused"]
    assert counts == [3, 0]


def test_an_initializer_that_is_an_input_is_a_default_and_stays() -> None:
    model, _, _ = apply(
        "agraph (float[2] x, float[2] d = {1, 2}) => (float[2] y) { y = Neg(x) }", DeadCodeElimination()
    )
    assert list(model.graph.initializers) == ["d"]
    assert len(model.graph.inputs) == 2


def test_a_removed_branch_counts_no_more_as_a_use_of_outer_values() -> None:
    text = """agraph (float[2] x, bool c) => (float[2] y) {
        a = Neg(x)
        dead = If (c) <then_branch = t () => (float[2] p) { p = If (c) <
                           then_branch = tt () => (float[2] q) { q = Abs(a) }, else_branch = te () => (float[2] r) { r = Abs(a) }> },
                       else_branch = e () => (float[2] s) { s = Exp(a) }>
        y = Neg(a) }"""
    model, _, _ = apply(text, DeadCodeElimination())
    assert operators(model) == ["Neg", "Neg"]
    assert [use.node.op_type for use in model.graph[0].outputs[0].uses()] == ["Neg"]


def test_dead_nodes_inside_a_live_branch_go_and_what_it_captures_stays() -> None:
    text = """agraph (float[2] x, bool c) => (float[2] y) {
        a = Neg(x) \n b = Abs(x)
        y = If (c) <then_branch = t () => (float[2] p) { dead = Exp(b) \n p = Abs(a) },
                    else_branch = e () => (float[2] s) { s = Exp(a) }> }"""
    model, counts, _ = apply(text, DeadCodeElimination(), inputs={"x": floats(2), "c": np.array(True)})
    assert counts == [2]
    assert sorted(operators(model)) == ["Abs", "Exp", "If", "Neg"]


def test_outputs_of_a_loop_stay_although_unused() -> None:
    text = """agraph (int64 n, float[2] x) => (float[2] y) <bool go = {1}> {
        y, unused = Loop (n, go, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] u) {
            d = Identity(c) \n t = Neg(s) \n u = Abs(s) }> }"""
    model, counts, _ = apply(text, DeadCodeElimination(), inputs={"n": np.array(2), "x": floats(2)})
    assert (counts, operators(model)) == ([0], ["Loop", "Identity", "Neg", "Abs"])


def test_functions_that_nothing_calls_go() -> None:
    text = """agraph (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20, "local" : 1]> f (a) => (b) { dead = Neg(a) \n b = local.g(a) }
        <domain: "local", opset_import: ["" : 20]> g (a) => (b) { b = Exp(a) }
        <domain: "local", opset_import: ["" : 20, "local" : 1]> h (a) => (b) { b = local.k(a) }
        <domain: "local", opset_import: ["" : 20]> k (a) => (b) { b = Exp(a) }"""
    model, counts, _ = apply(text, DeadCodeElimination(), inputs={"x": floats(2)})
    assert [name for _, name, _ in model.functions] == ["f", "g"]
    assert counts == [3]


@pytest.mark.parametrize(
    ("outputs", "node", "left"),
    [
        ("y, i", "MaxPool <kernel_shape = [2]> (x)", 1),
        ("y, m, s", "LayerNormalization <axis = -1> (x, w)", 1),
        ("y, m", "Dropout(x)", 1),
        ("y, m, s, z", "com.microsoft.SkipLayerNormalization (x, x, w)", 1),
        ("v, y", "TopK <axis = -1> (x, k)", 2),
        ("v, y", "Split <axis = -1, num_outputs = 2> (x)", 2),
    ],
)
def test_unused_optional_outputs_go_and_required_ones_stay(outputs: str, node: str, left: int) -> None:
    kind = "int64" if "TopK" in node else "float"
    text = f"agraph (float[1, 2, 4] x) => ({kind}[a, b, c] y) <float[4] w = {{1, 2, 3, 4}}, int64[1] k = {{2}}> {{ {outputs} = {node} }}"
    model, counts, _ = apply(text, DeadCodeElimination(), DeadCodeElimination(), inputs={"x": floats(1, 2, 4)})
    assert len(model.graph[0].outputs) == left
    assert counts[1] == 0


HEADS = "float[2,1,32] q, float[2,1,32] k, float[2,1,32] v, float[2,4,5,8] p, float[2,4,5,8] t"
GROUPS = "float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, float[2,2,5,8] p, float[2,2,5,8] t"


@pytest.mark.parametrize(
    ("inputs", "node"),
    [
        ("float[9,8] e, float[7,8] p, float[8] w", "y, m = com.microsoft.EmbedLayerNormalization(i, , e, p, , w, w)"),
        (HEADS, "y, u, m = com.microsoft.MultiHeadAttention <num_heads = 4> (q, k, v, , , , p, t)"),
        (HEADS, "y, u, m = com.microsoft.DecoderMaskedMultiHeadAttention <num_heads = 4, past_present_share_buffer = 1>"
                " (q, k, v, , , p, t, n)"),
        (GROUPS, "y, u, m = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, p, t, l, s)"),
        ("float[2,1,8] x, float[8,24] w, float[24] b, float[2,2,2,5,4] p",
         "y, m = com.microsoft.Attention <num_heads = 2> (x, w, b, , p)"),
    ],
)  # fmt: skip
def test_unused_outputs_that_the_runtime_needs_stay(inputs: str, node: str) -> None:
    constants = "int32[1,3] i = {1, 2, 3}, int32[1] n = {3}, int32[2] l = {5, 5}, int32[1] s = {6}"
    given = {one.name: floats(*map(int, one.shape)) for one in model_of(f"g ({inputs}) => () {{ }}").graph.inputs}
    model, _, _ = apply(
        f"g ({inputs}) => (float[a, b, c] y) <{constants}> {{ {node} }}", DeadCodeElimination(), inputs=given
    )
    assert model.graph[0].outputs[-1].name == "m"


def test_an_optional_output_before_a_used_one_loses_its_name() -> None:
    text = """agraph (float[3, 1, 2] x) => (float[1, 1, 4] h) <float[1, 16, 2] w, float[1, 16, 4] r> {
        y, h, c = LSTM <hidden_size = 4> (x, w, r) }"""
    text = text.replace("float[1, 16, 2] w", "float[1, 16, 2] w = {" + ", ".join(["0.5"] * 32) + "}")
    text = text.replace("float[1, 16, 4] r", "float[1, 16, 4] r = {" + ", ".join(["0.25"] * 64) + "}")
    model, counts, _ = apply(text, DeadCodeElimination(), inputs={"x": floats(3, 1, 2)})
    assert [output.name for output in model.graph[0].outputs] == ["", "h"]
    assert counts == [2]


def test_outputs_that_decide_whether_batch_normalization_trains_stay() -> None:
    text = """<ir_version: 10, opset_import: ["" : 15]>
        agraph (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 2, 3}> {
        y, m, v = BatchNormalization <training_mode = 1> (x, w, w, w, w) }"""
    model, counts, _ = apply(text, DeadCodeElimination())
    assert (counts, len(model.graph[0].outputs)) == ([0], 3)
