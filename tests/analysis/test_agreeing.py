"""Sizes of inputs that products need to be equal, and where nothing may be concluded."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import symbol

REFUSED = re.compile("mismatch|dimension")


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "mine" : 1]> {text}')


def agreeing(text: str) -> dict[str, str]:
    facts = Facts(ir.from_proto(parsed(text)))
    return {name: str(size) for name, size in facts.agreeing.items()}


def test_the_columns_of_one_operand_are_the_rows_of_the_other() -> None:
    model = ir.from_proto(parsed("g (float[b, s, k] x, float[b, n, 8] y) => (z) { z = MatMul(x, y) }"))
    facts = Facts(model)
    assert facts.shape(model.graph.inputs[1]) == (symbol("b"), symbol("k"), 8)
    assert facts.agreeing == {"n": symbol("k")}
    assert Facts(model, as_declared=True).shape(model.graph.inputs[1]) == (symbol("b"), symbol("n"), 8)


def test_lengths_of_caches_agree_through_what_is_computed_from_them() -> None:
    text = """
    g (float[b, 2, q, 16] x, float[b, 2, s2, 16] keys, float[b, 2, s74, 16] values, float[b, 2, s80, 16] more) => (z, w)
    {
        k = Concat <axis = 2> (keys, x)  v = Concat <axis = 2> (values, x)  m = Concat <axis = 2> (more, x)
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        scores = MatMul(x, kt)
        weights = Softmax <axis = -1> (scores)
        z = MatMul(weights, v)
        w = MatMul(weights, m)
    }
    """
    assert agreeing(text) == {"s74": "s2", "s80": "s2"}


def test_what_is_joined_has_the_other_sizes_of_a_part_that_is_not_empty() -> None:
    text = """
    g (float[s, t] x, float[b, 4] y, float[n, m] w) => (z)
    { c = Concat <axis = 1> (x, y)  z = Gemm <transA = 1> (c, w) }
    """
    assert agreeing(text) == {"n": "b"}


def test_the_runtime_does_not_look_at_the_other_sizes_of_an_empty_part() -> None:
    model = parsed("g (float[s, t] x, float[b, r] y) => (float[p, q] z) { z = Concat <axis = 1> (x, y) }")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (z,) = session.run(None, {"x": np.ones((5, 0), np.float32), "y": np.ones((2, 3), np.float32)})
    assert z.shape == (2, 3)


def test_a_size_that_a_table_fixes_is_a_number() -> None:
    assert agreeing("g (float[b, k] x) => (z) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { z = MatMul(x, w) }") == {"k": "3"}


def test_an_unknown_size_takes_the_name_of_the_one_that_it_equals() -> None:
    model = ir.from_proto(parsed("g (float[b, s] x, float[n, 4] y) => (z) { z = MatMul(x, y) }"))
    model.graph.inputs[0].shape = ir.Shape([None, None])
    assert Facts(model).shape(model.graph.inputs[0])[1] == symbol("n")  # type: ignore[index]


@pytest.mark.parametrize(
    "transposed, found", [("", {"n": "k"}), ("transA = 1", {"n": "s"}), ("transB = 1", {"m": "k"})]
)
def test_gemm_may_transpose(transposed: str, found: dict[str, str]) -> None:
    attributes = f"<{transposed}>" if transposed else ""
    assert agreeing(f"g (float[s, k] x, float[n, m] y) => (z) {{ z = Gemm {attributes} (x, y) }}") == found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("g (float[b, k] x, float[b, n] y) => (z) { z = Add(x, y) }", id="stretched"),
        pytest.param("g (float[b, k] x, float[n, m] y) => (z) { z = Relu(x) u = MatMul(x, y) }", id="not needed"),
        pytest.param(
            "g (float[b, k] x, float[n, m] y) => (z) { u = MatMul(x, y) z = Shape(u) }", id="needed for its shape"
        ),
        pytest.param(
            """
            g (float[b, k] x, float[n, m] y, bool c) => (z)
            { z = If (c) <then_branch = t () => (u) { u = MatMul(x, y) }, else_branch = e () => (v) { v = Neg(x) }> }
            """,
            id="in a branch",
        ),
        pytest.param(
            """
            g (float[b, k] x, float[n, m] y, bool c) => (z)
            {
                u = MatMul(x, y)
                z = If (c) <then_branch = t () => (v) { v = Neg(u) }, else_branch = e () => (w) { w = Neg(x) }>
            }
            """,
            id="needed in a branch",
        ),
        pytest.param(
            """
            g (float[b, k] x, float[n, m] y) => (z) <int64 first = {0}, int64[1] axis = {0}, int64[1] rows = {1}>
            {
                u = MatMul(x, y)  whole = Cast <to = 7> (u)  flat = Flatten <axis = 0> (whole)  row = Squeeze(flat, axis)
                number = Gather(row, first)  columns = Unsqueeze(number, axis)
                shape = Concat <axis = 0> (rows, columns)
                z = Reshape(x, shape)
            }
            """,
            id="needed for a shape",
        ),
        pytest.param(
            """
            g (float[b, r] x, float[s, t] y, float[n, m] w) => (z)
            { c = Concat <axis = 1> (x, y)  z = Gemm <transA = 1> (c, w) }
            """,
            id="joined with what may be empty",
        ),
        pytest.param("g (float[b, k] x, float[n, m] y) => (z) { z = mine.MatMul(x, y) }", id="another domain"),
        pytest.param(
            "g (float[a, c, 2] x, float[d, e] y) => (z) <int64[2] t = {-1, 6}> { f = Reshape(x, t) z = MatMul(y, f) }",
            id="more than two sizes",
        ),
    ],
)
def test_nothing_is_concluded_where_a_run_could_succeed(text: str) -> None:
    assert agreeing(text) == {}


@pytest.mark.parametrize("rows, columns", [(0, 3), (3, 0), (2, 3), (1, 3), (3, 1)])
@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_the_runtime_refuses_sizes_that_differ_empty_ones_too(operator: str, rows: int, columns: int) -> None:
    model = parsed(f"g (float[a, b] x, float[c, d] y) => (float[e, f] z) {{ z = {operator}(x, y) }}")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    with pytest.raises(Exception, match=REFUSED):
        session.run(None, {"x": np.ones((2, columns), np.float32), "y": np.ones((rows, 2), np.float32)})
    for empty in ((0, 2), (2, 0)):
        with pytest.raises(Exception, match=REFUSED):
            shapes = (empty[0], columns), (rows, empty[1])
            session.run(None, {"x": np.ones(shapes[0], np.float32), "y": np.ones(shapes[1], np.float32)})


def test_the_runtime_makes_a_shape_without_the_product_it_is_computed_from() -> None:
    model = parsed(
        """
        g (float[b, k] x, float[n, m] y) => (float[p, q] z) <int64 first = {0}, int64[1] axis = {0}, int64[1] rows = {1}>
        {
            u = MatMul(x, y)  whole = Cast <to = 7> (u)  flat = Flatten <axis = 0> (whole)  row = Squeeze(flat, axis)
            number = Gather(row, first)  columns = Unsqueeze(number, axis)
            shape = Concat <axis = 0> (rows, columns)
            z = Reshape(x, shape)
        }
        """
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (z,) = session.run(None, {"x": np.ones((2, 3), np.float32), "y": np.ones((4, 5), np.float32)})
    assert z.shape == (1, 6)


def test_a_size_of_0_leaves_formulas_that_divide_by_it() -> None:
    model = parsed('g (float["n//k", k] x, float[n] w) => (z) <float[0, 2] table = {}> { z = MatMul(x, table) }')
    facts = Facts(ir.from_proto(model))
    assert facts.agreeing == {"k": 0}


def test_bodies_of_functions_know_of_them() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """
            <ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
            g (float[b, k] x, float[n, 4] y) => (z) { z = mine.Product(x, y) u = MatMul(x, y) w = Add(z, u) }
            <domain: "mine", opset_import: ["" : 20]> Product (p, q) => (r) { r = MatMul(p, q) }
            """
        )
    )
    model.graph.outputs.append(model.graph.node(2).outputs[0])
    facts = Facts(model)
    (body,) = model.functions.values()
    assert [str(facts.shape(value)) for value in body.inputs] == ["(Dim(b), Dim(k))", "(Dim(k), 4)"]


def test_what_was_found_of_unknown_sizes_is_not_taken_for_that_of_others_when_facts_are_renewed() -> None:
    model = ir.from_proto(parsed("g (float[a, b] x, float[n, 4] y) => (z) { z = MatMul(x, y) }"))
    model.graph.inputs[0].shape = ir.Shape([None, None])
    facts = Facts(model)
    assert facts.agreeing == {}
    facts.renew()
    shape = facts.shape(model.graph.inputs[0])
    assert shape is not None
    assert [shape[1], facts.shape(model.graph.inputs[1])] == [symbol("n"), (symbol("n"), 4)]
    assert shape[0] != symbol("n")
