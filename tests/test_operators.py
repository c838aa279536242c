"""A sample of the conformance grid, the same at every run (in full: python -m benchmarks.trust.operators)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import pytest

from benchmarks.trust.grid.cells import Sample, cells
from benchmarks.trust.grid.known import is_known
from benchmarks.trust.grid.trying import failures
from ortfuse import explain, optimize
from ortfuse.execution.session import Session


def test_what_is_known_of_operators_agrees_with_the_runtime() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for cell in cells(Sample(one_in=1600)):
        found = failures(cell)
        counts["tried" if found is None else "run"] += 1
        wrong += [f"{cell}: {one.kind}: {one.details}" for one in found or () if not is_known(cell, one)]
    assert not wrong, "\n".join(wrong[:20])
    assert counts["run"] > 30, counts


@pytest.mark.parametrize(
    "body",
    [
        "n = RandomNormal <shape = [2, 8]> () t = Transpose(n) m = MatMul(x, t) y = Shape(m)",
        "n = RandomUniform <shape = [2, 8]> () g = Gelu(n) s = Softmax(n) u = Mul(g, s) y = Cast <to = 7> (u)",
        "n = RandomNormal <shape = [2, 8]> () p = ReduceMean(n) q = Sub(n, p) r = Sqrt(q) s = Div(q, r) y = Shape(s)",
    ],
)
def test_nodes_without_inputs_are_nodes_like_others(body: str) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> g (float[2, 8] x) => (int64[?] y) {{ {body} }}'
    )
    onnx.checker.check_model(optimize(model, level="all", verify="sites").model)
    assert explain(model) is not None


def test_a_product_of_constants_that_no_float_holds_is_no_attribute() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2, 8] x, float[8, 2] w) => (float[2, 2] y)
        <float a = {1e30}, float b = {1e30}> { m = MatMul(x, w) p = Mul(m, a) y = Mul(p, b) }"""
    result = optimize(onnx.parser.parse_model(text), level="all").model
    x, w = np.full((2, 8), 1e-30, np.float32), np.full((8, 2), 1e-20, np.float32)
    expected = np.full((2, 2), np.float32(8e-50) * np.float32(1e30), np.float32)
    (found,) = Session(result.SerializeToString(), optimise=False).run({"x": x, "w": w}).values()
    np.testing.assert_array_equal(found, expected)
