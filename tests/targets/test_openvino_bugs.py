"""The known bugs of OpenVINO's provider on the smallest models that show them; skipped where the plugin is missing.

When one of these tests fails, a newer plugin computes what it should: the bug and its constraint can go.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.errors import VerificationError
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.session import Session
from ortfuse.targets import spec_of


def _is_missing() -> str:
    """Why nothing runs on the provider here; "" if it does."""
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        return "needs the package onnxruntime-ep-openvino"
    try:
        with executing_for(spec_of("openvino")):
            Session(
                ir.from_onnx_text(
                    '<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {y = Abs(x)}'
                )
            )
    except VerificationError as error:
        return str(error) if "finds no device" in str(error) else ""
    return ""


MISSING = _is_missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def errors(text: str, inputs: Mapping[str, Any], constants: Sequence[str] = ()) -> float:
    """The largest difference of the first output from that of the CPU provider; some inputs are constants of the model."""
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 11, "com.microsoft": 1]> g {text}')
    for value in [value for value in model.graph.inputs if value.name in constants]:
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(inputs[value.name or ""], name=value.name)
        model.graph.register_initializer(value)
    right = next(iter(Session(model).run(inputs).values()))
    with executing_for(spec_of("openvino")):
        found = next(iter(Session(model).run(inputs).values()))
    return float(np.abs(right.astype(np.float64) - found.astype(np.float64)).max())


@pytest.mark.parametrize(("positions", "is_wrong"), [(np.array([0]), True), (np.arange(4)[None], False)])
def test_one_position_for_all_rows_is_taken_for_each_row(positions: np.ndarray[Any, Any], is_wrong: bool) -> None:
    shape = ", ".join(map(str, positions.shape))
    written = "num_heads = 2, rotary_embedding_dim = 4, interleaved = 0"
    text = f"""(float[1, 4, 8] x, int64[{shape}] p, float[16, 2] c, float[16, 2] s) => (float[1, 4, 8] y) {{
        y = com.microsoft.RotaryEmbedding <{written}> (x, p, c, s)
    }}"""
    inputs = {"x": drawn(1, 4, 8), "p": positions.astype(np.int64), "c": drawn(16, 2), "s": drawn(16, 2)}
    assert (errors(text, inputs) > 0.1) == is_wrong


def test_rotary_embedding_does_not_load_without_a_written_interleaved() -> None:
    text = """(float[1, 4, 8] x, int64[1, 4] p, float[16, 4] c, float[16, 4] s) => (float[1, 4, 8] y) {
        y = com.microsoft.RotaryEmbedding (x, p, c, s)
    }"""
    inputs = {"x": drawn(1, 4, 8), "p": np.arange(4)[None], "c": drawn(16, 4), "s": drawn(16, 4)}
    with pytest.raises(VerificationError, match="Any was not initialized"):
        errors(text, inputs)


LSTM = """(float[%s] x, float[1, 12, 4] w, float[1, 12, 3] r, %s) => (float[a, b, c, d] y) {
    y = LSTM <hidden_size = 3> (x, w, r, , %s)
}"""


@pytest.mark.parametrize(("sizes", "is_wrong"), [("n, 2, 4", True), ("3, 2, 4", False)])
def test_sequence_lengths_are_ignored_where_sizes_are_open(sizes: str, is_wrong: bool) -> None:
    inputs = {"x": drawn(3, 2, 4), "w": drawn(1, 12, 4), "r": drawn(1, 12, 3), "l": np.array([3, 2], np.int32)}
    assert (errors(LSTM % (sizes, "int32[2] l", "l"), inputs, "wr") > 0.1) == is_wrong


def test_peepholes_are_ignored() -> None:
    inputs = {"x": drawn(3, 2, 4), "w": drawn(1, 12, 4), "r": drawn(1, 12, 3), "p": drawn(1, 9)}
    assert errors(LSTM % ("3, 2, 4", "float[1, 9] p", ", , , p"), inputs) > 0.1


def test_a_constant_initial_state_does_not_run_where_the_batch_is_open() -> None:
    inputs = {"x": drawn(3, 2, 4), "w": drawn(1, 12, 4), "r": drawn(1, 12, 3), "h": drawn(1, 2, 3)}
    with pytest.raises(VerificationError, match="memory desc is undefined"):
        errors(LSTM % ("n, m, 4", "float[1, 2, 3] h", ", h"), inputs, "wrh")


@pytest.mark.parametrize(("axis", "is_wrong"), [(1, True), (2, False)])
def test_one_axis_is_normalised_before_opset_13(axis: int, is_wrong: bool) -> None:
    text = f"(float[3, 4, 5] x) => (float[3, 4, 5] y) {{ y = Softmax <axis = {axis}> (x) }}"
    assert (errors(text, {"x": drawn(3, 4, 5)}) > 0.1) == is_wrong


def test_a_vector_of_slopes_is_taken_for_channels() -> None:
    text = "(float[2, 3, 3] x, float[3] s) => (float[2, 3, 3] y) { y = PRelu (x, s) }"
    assert errors(text, {"x": drawn(2, 3, 3), "s": drawn(3)}) > 0.1


def test_large_int64_and_digits_of_float64_are_lost() -> None:
    text = "(int64[1] x) => (int64[1] y) { y = Add (x, x) }"
    assert errors(text, {"x": np.array([3_000_000_000])}) > 1
    text = "(double[1] x) => (double[1] y) { y = Mul (x, x) }"
    assert errors(text, {"x": np.array([1.0000000001])}) > 1e-11


ATTENTION = """<ir_version: 10, opset_import: ["": 17]> g (float[n, k, 8] x) => (float[n, k, 8] y) {
    t = Transpose <perm = [0, 2, 1]> (x)
    a = MatMul (x, t)
    p = Softmax <axis = -1> (a)
    y = MatMul (p, x)
}"""


@pytest.mark.parametrize("mode", [{}, {"SNIPPETS_MODE": "DISABLE"}])
def test_a_run_with_one_key_spoils_later_ones_unless_kernels_are_not_generated(mode: dict[str, str]) -> None:
    model, asked = ir.from_onnx_text(ATTENTION), {"INFERENCE_PRECISION_HINT": "f32", **mode}
    (entry,) = spec_of("openvino").session_settings
    with executing_for(spec_of("openvino")):
        session = Session(model, settings={entry: json.dumps({"CPU": asked})})
    session.run({"x": drawn(1, 1, 8)})
    inputs = {"x": drawn(1, 32, 8)}
    assert np.allclose(session.run(inputs)["y"], Session(model).run(inputs)["y"], atol=1e-4) == bool(mode)
