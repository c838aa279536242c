"""A Gather of all elements in order is a Reshape."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ortfuse

PLACES = "rows = Unsqueeze(scaled, behind) places = Add(rows, columns) y = Gather(line, places)"


def optimised(body: str, columns: str = "0, 1, 2, 3", width: int = 4) -> list[str]:
    """The operators of a view of `x` by steps, after which the result is compared with the original."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        agraph (float[n, 4] x) => (float[y0, y1] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 width = {{{width}}}, int64[1] all = {{-1}}, int64[1] first = {{0}},
         int64[1] behind = {{1}}, int64[{columns.count(",") + 1}] columns = {{{columns}}}> {{
            size = Shape<start = 0, end = 1>(x) n = Squeeze(size) line = Reshape(x, all) {body} }}""")
    result = ortfuse.optimize(model)
    assert ortfuse.verify(model, result.model).ok
    return [node.op_type for node in result.model.graph.node]


def test_a_view_by_the_steps_of_the_line_is_the_line() -> None:
    assert optimised(f"counted = Range(zero, n, one) scaled = Mul(counted, width) {PLACES} ") in ([], ["Identity"])


@pytest.mark.parametrize(
    ("body", "columns"),
    [
        (f"counted = Range(zero, n, one) scaled = Mul(counted, width) {PLACES}", "0, 1, 2"),
        (f"counted = Range(zero, n, one) scaled = Mul(counted, width) {PLACES}", "0, 2, 1, 3"),
        (f"counted = Range(zero, n, one) scaled = Mul(counted, one) {PLACES}", "0, 1, 2, 3"),
        (f"counted = Range(zero, one, one) scaled = Mul(counted, width) {PLACES}", "0, 1, 2, 3"),
    ],
    ids=["not all", "another order", "overlapping", "the first row"],
)
def test_other_elements_are_taken(body: str, columns: str) -> None:
    assert "Gather" in optimised(body, columns) or "Slice" in optimised(body, columns)


def test_what_is_repeated_is_not_counted() -> None:
    """A Range of one number is broadcast: all places are 0."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        agraph (float[4] x) => (float[4] y)
        <int64 zero = {0}, int64 one = {1}, int64[4] same = {0, 0, 0, 0}> {
            counted = Range(zero, one, one) places = Add(counted, same) y = Gather(x, places) }""")
    x = np.arange(4, dtype=np.float32)
    result = ortfuse.optimize(model)
    found = onnx.reference.ReferenceEvaluator(result.model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(found, [0, 0, 0, 0])
