"""A GatherND or Gather over a grid of rows and columns, as many as other inputs have, is a Slice or Unsqueeze."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ortfuse

MODEL = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[b, n] x, float[m] tokens, float[k] keys) => (float[m, 1, 1, k] z) {
        zero = Constant<value_int = 0>() one = Constant<value_int = 1>() behind = Constant<value_ints = [1, 2, 3]>()
        before = Constant<value_ints = [0, 1, 2]>() last = Constant<value_ints = [-1]>()
        m0 = Shape(tokens) m1 = Squeeze(m0) k0 = Shape(keys) k1 = Squeeze(k0)
        r0 = Range(zero, m1, one) r1 = Unsqueeze(r0, behind) c0 = Range(zero, k1, one) c1 = Unsqueeze(c0, before)
        widest = Max(r1, c1) sizes = Shape(widest)
        r2 = Expand(r1, sizes) r3 = Unsqueeze(r2, last) c2 = Expand(c1, sizes) c3 = Unsqueeze(c2, last)
        places = Concat<axis = -1>(r3, c3) z = GatherND(x, places)
    }"""
)


def run(model: onnx.ModelProto, rows: int, columns: int) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
    feeds |= {"tokens": np.zeros(rows, np.float32), "keys": np.zeros(columns, np.float32)}
    result: np.ndarray = session.run(None, feeds)[0]
    return result


@pytest.fixture(scope="module")
def optimised() -> onnx.ModelProto:
    model = ortfuse.optimize(MODEL).model
    assert isinstance(model, onnx.ModelProto)
    return model


def test_the_corner_is_cut_out_without_a_grid_of_places(optimised: onnx.ModelProto) -> None:
    found = Counter(node.op_type for node in optimised.graph.node)
    assert found == Counter({"Shape": 2, "Concat": 2, "Slice": 1, "Reshape": 1})


@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (2, 3), (1, 1), (0, 2), (2, 0), (0, 0), (0, 9), (9, 0)])
def test_as_many_as_there_are_or_fewer(optimised: onnx.ModelProto, rows: int, columns: int) -> None:
    expected = run(MODEL, rows, columns)
    np.testing.assert_array_equal(run(optimised, rows, columns), expected, strict=True)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 5), (4, 3), (6, 2), (2, 6), (12, 1), (1, 12)])
def test_more_than_there_are_fails_as_before(optimised: onnx.ModelProto, rows: int, columns: int) -> None:
    for model in (MODEL, optimised):
        with pytest.raises(Exception, match=r"GatherND|invalid ind|Reshape|reshape"):
            run(model, rows, columns)
