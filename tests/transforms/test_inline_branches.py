"""Ifs with a constant condition: the branch that is taken stands in their place, and everything else about them is gone."""

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import operators
from onnxruntime import InferenceSession

import ortfuse

HEADER = '<ir_version: 9, opset_import: ["": 18, "m": 1]>'
BRANCHES = "then_branch = a () => (float[n] r) {{ {0} }}, else_branch = b () => (float[n] q) {{ q = Neg(x) }}"


def made(body: str) -> onnx.ModelProto:
    """The optimized model; its outputs are compared with the original's."""
    text = f"{HEADER} g (float[n] x, bool c) => (float[n] out) {body}"
    model = onnx.parser.parse_model(text)
    result = ortfuse.optimize(model, verify="whole").model
    feeds = {"x": np.array([-2.0, 0.5, 3.0], np.float32), "c": np.array(True)}
    sides = [
        InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for one in (model, result)
    ]
    np.testing.assert_array_equal(*sides)
    return result


@pytest.mark.parametrize(("constant", "kept"), [("1", "Exp"), ("0", "Neg")])
def test_the_branch_that_is_taken_replaces_the_if(constant: str, kept: str) -> None:
    body = f"<bool always = {{{constant}}}> {{ out = If (always) <{BRANCHES.format('r = Exp(x)')}> }}"
    assert operators(made(body), nested=False) == [kept]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("s = Shape(x) n = ReduceProd<keepdims = 0>(s) k = Greater(n, minus)", "Exp"),
        ("s = Size(x) k = Less(s, minus)", "Neg"),
        ("a = Abs(x) m = ReduceSum<keepdims = 0>(a) h = Softmax(x) t = ReduceMax<keepdims = 0>(h) k = Greater(t, five)", "Neg"),
    ],
)  # fmt: skip
def test_a_condition_may_be_known_from_sizes_and_ranges(condition: str, kept: str) -> None:
    constants = "<int64 minus = {-1}, float five = {5.0}>"
    body = f"{constants} {{ {condition} out = If (k) <{BRANCHES.format('r = Exp(x)')}> }}"
    assert operators(made(body), nested=False) == [kept]


@pytest.mark.parametrize(
    ("inner", "kept"), [("c", ["Exp", "Tanh"]), ("not_c", ["Cos", "Exp"])], ids=["the same", "the opposite"]
)
def test_the_condition_of_the_if_around_is_known(inner: str, kept: str) -> None:
    branch = "r = If (INNER) <then_branch = d () => (float[n] t) { u = Exp(x) t = Tanh(u) }, else_branch = e () => (float[n] v) { w = Exp(x) v = Cos(w) }>"
    text = BRANCHES.format(branch.replace("INNER", inner))
    body = f"{{ not_c = Not(c) out = If (c) <{text}> }}"
    (found,) = [node for node in made(body).graph.node if node.op_type == "If"]
    (taken,) = [one.g for one in found.attribute if one.name == "then_branch"]
    assert sorted(node.op_type for node in taken.node) == kept


def test_a_branch_may_return_what_it_did_not_compute() -> None:
    body = f"<bool always = {{1}}> {{ y = Exp(x) out = If (always) <{BRANCHES.format('r = Identity(y)')}> }}"
    assert operators(made(body), nested=False) == ["Exp"]


def test_a_computed_condition_is_left_alone() -> None:
    assert operators(made(f"{{ out = If (c) <{BRANCHES.format('r = Exp(x)')}> }}"), nested=False) == ["If"]


def test_what_was_hidden_in_a_branch_is_fused_with_what_is_around_it() -> None:
    body = f"<bool always = {{1}}> {{ s = Sigmoid(x) out = If (always) <{BRANCHES.format('r = Mul(x, s)')}> }}"
    assert len(operators(made(body), nested=False)) == 1


def test_branches_in_branches_and_the_constants_in_them() -> None:
    inner = (
        "two = Constant<value = float {2.0}>() r = If (c) <then_branch = d () => (float[n] t) { d2 = Add(x, x) t = Sub(d2, x) }, \
             else_branch = e () => (float[n] u) { u = Div(x, two) }>"
    )
    body = f"<bool always = {{1}}> {{ k = Exp(x) y = If (always) <{BRANCHES.format(inner)}> out = Mul(y, k) }}"
    assert sorted(operators(made(body), nested=False)) == ["Exp", "If", "Mul"]


def test_in_functions_too() -> None:
    function = '<domain: "m", opset_import: ["": 18]> f (x) => (r) { t = Constant<value = bool {1}>() \
                r = If (t) <then_branch = a () => (z) { k = Constant<value = float {3.0}>() z = Mul(x, k) }, \
                            else_branch = b () => (w) { w = Neg(x) }> }'
    body = f"{{ y = m.f(x) out = Tanh(y) }} {function}"
    result = made(body)
    nodes = [*result.graph.node, *(node for one in result.functions for node in one.node)]
    assert "If" not in {node.op_type for node in nodes}


def test_the_change_is_checked_site_by_site() -> None:
    body = f"<bool always = {{1}}> {{ out = If (always) <{BRANCHES.format('y = Exp(x) r = Neg(y)')}> }}"
    text = f"{HEADER} g (float[n] x, bool c) => (float[n] out) {body}"
    result = ortfuse.optimize(onnx.parser.parse_model(text), verify="sites")
    assert operators(result.model, nested=False) == ["Exp", "Neg"]
