"""A sample of the conformance grid, the same at every run (in full: python -m benchmarks.trust.operators)."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import pytest

from benchmarks.trust.grid.cells import Sample, cells
from benchmarks.trust.grid.known import is_known
from benchmarks.trust.grid.pairs import LABEL, pair
from benchmarks.trust.grid.seeds import versions
from benchmarks.trust.grid.trying import failures
from ortfuse import explain, optimize
from ortfuse.runtime.session import Session


def test_what_is_known_of_operators_agrees_with_the_runtime() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for cell in cells(Sample(one_in=4000)):
        found = failures(cell)
        counts["tried" if found is None else "run"] += 1
        wrong += [f"{cell}: {one.kind}: {one.details}" for one in found or () if not is_known(cell, one)]
    assert not wrong, "\n".join(wrong[:20])
    assert counts["run"] > 30, counts


def test_what_is_known_of_two_operators_in_a_row_agrees_with_the_runtime() -> None:
    found = {cell.label: failures(cell) for number in range(12) if (cell := pair(f"{LABEL}/0/{number}")) is not None}
    assert sum(wrong is not None for wrong in found.values()) > 3
    assert not any(found.values()), found


def test_an_operator_is_tried_at_the_opsets_that_have_it() -> None:
    assert versions("", "SequenceAt") == [11]
    assert versions("", "Clip")[:2] == [7, 11]
    assert versions("com.microsoft", "Gelu") == [1]


@pytest.mark.parametrize("operator", ["SequenceAt", "SequenceEmpty", "OptionalGetElement", "ai.onnx.ml.Scaler"])
def test_operators_on_other_things_than_tensors_have_cells(operator: str) -> None:
    tried = islice(cells(Sample(), frozenset((operator,))), 0, 60, 10)
    assert [] in [failures(cell) for cell in tried]


def test_constant_text_is_compared_as_text() -> None:
    text = (cell for cell in cells(Sample(), frozenset(("Identity",))) if cell.label.endswith("=string/constant"))
    assert [failures(cell) for cell in islice(text, 2)] == [[], []]


@pytest.mark.parametrize("kind", ["bfloat16", "float8e4m3fn", "uint4"])
def test_element_types_that_numpy_lacks_have_cells(kind: str) -> None:
    chosen = cells(Sample(), frozenset(("DequantizeLinear", "Cast")))
    tried = islice((cell for cell in chosen if f"={kind}/unknown" in cell.label), 3)
    assert [] in [failures(cell) for cell in tried]


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
