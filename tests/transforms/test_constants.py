from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from graphs import operators
from small_models import apply, floats

from ortfuse.ir.enumerate_tensors import constant_tensor
from ortfuse.transforms import LiftConstants

CHAIN = "agraph (float[2] x) => (float[2] y) { c = Constant <VALUE> () \n y = Add(x, c) }"


def test_a_constant_becomes_an_initializer_that_keeps_its_name() -> None:
    model, counts, _ = apply(
        CHAIN.replace("VALUE", "value = float[2] {1, 2}"),
        LiftConstants(),
        LiftConstants(),
        inputs={"x": floats(2)},
    )
    assert operators(model) == ["Add"]
    np.testing.assert_array_equal(model.graph.initializers["c"].const_value.numpy(), [1, 2])
    assert counts == [1, 0]


@pytest.mark.parametrize(
    ("value", "dtype", "content"),
    [
        ("value_float: float = 1.5", ir.DataType.FLOAT, 1.5),
        ("value_floats: floats = [1.5, 2]", ir.DataType.FLOAT, [1.5, 2]),
        ("value_int: int = 7", ir.DataType.INT64, 7),
        ("value_ints: ints = [7, -1]", ir.DataType.INT64, [7, -1]),
        ('value_string: string = "a"', ir.DataType.STRING, b"a"),
        ('value_strings: strings = ["a", "b"]', ir.DataType.STRING, [b"a", b"b"]),
        ("value = int32[0] {}", ir.DataType.INT32, []),
    ],
)
def test_every_spelling_of_the_value_is_understood(value: str, dtype: ir.DataType, content: object) -> None:
    model, counts, context = apply(
        f"agraph (int64 x) => (int64 y) {{ c = Constant <{value}> () \n unused = Identity(c) \n y = Identity(x) }}",
        LiftConstants(),
    )
    tensor = model.graph.initializers["c"].const_value
    assert counts == [1]
    assert tensor.dtype == dtype
    assert context.facts.is_const(model.graph.initializers["c"])
    np.testing.assert_array_equal(tensor.numpy(), np.asarray(content, dtype=tensor.numpy().dtype))


def test_a_constant_that_is_a_graph_output_stays_a_node() -> None:
    model, counts, _ = apply(
        "agraph (float x) => (float y) { y = Constant <value_float: float = 1.0> () }", LiftConstants()
    )
    assert (operators(model), counts) == (["Constant"], [0])


def test_constants_in_branches_become_initializers_of_the_branch() -> None:
    text = """agraph (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { k = Constant <value = float[2] {1, 2}> () \n a = Add(x, k) },
                    else_branch = e () => (float[2] b) { b = Identity(x) }>
    }"""
    model, counts, _ = apply(text, LiftConstants(), inputs={"x": floats(2), "c": np.array(True)})
    then = model.graph[0].attributes["then_branch"].as_graph()
    assert (counts, list(then.initializers)) == ([1], ["k"])


def test_constants_in_functions_stay_nodes() -> None:
    text = """agraph (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20]> f (a) => (b) { c = Constant <value = float[2] {1, 2}> () \n b = Add(a, c) }"""
    model, counts, _ = apply(text, LiftConstants(), inputs={"x": floats(2)})
    assert (counts, operators(model)) == ([0], ["f", "Constant", "Add"])


def test_values_that_are_sparse_or_given_by_a_caller_are_not_known() -> None:
    sparse = ir.Attr("sparse_value", ir.AttributeType.SPARSE_TENSOR, None)
    reference = ir.RefAttr("value", "weight", ir.AttributeType.TENSOR)
    assert constant_tensor(ir.Node("", "Constant", [], [sparse])) is None
    assert constant_tensor(ir.Node("", "Constant", [], [reference])) is None
