"""The known bugs of the target wasm on the smallest models that show them, run in Node.js; skipped without it or the package.

When one of these tests fails, a newer package computes what it should: the bug can go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.errors import OrtfuseError
from ortfuse.runtime import node_sessions
from ortfuse.runtime.bench import executed_ops
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.session import Session
from ortfuse.targets import Quirk, spec_of

Arrays = Mapping[str, np.ndarray[Any, Any]]


def _missing() -> str:
    try:
        node_sessions.find_node()
        node_sessions.find_package("onnxruntime-web")
    except node_sessions.NodeError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())
KNOWN = spec_of("wasm").known_bugs


def _model(text: str, opset: int = 17) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> g {text}')


def _run(model: ir.Model, inputs: Arrays, *, optimise: bool = True) -> list[np.ndarray[Any, Any]]:
    with executing_for(spec_of("wasm")):
        return list(Session(model.clone(), optimise=optimise, threads=1).run(inputs).values())


def _goes_wrong(model: ir.Model, inputs: Arrays) -> bool:
    """Whether the runtime's own optimisations change the first output beyond rounding."""
    right, found = (_run(model, inputs, optimise=optimise)[0] for optimise in (False, True))
    return not np.allclose(found, right, atol=1e-6)


def _executed(model: ir.Model, inputs: Arrays) -> list[str]:
    with executing_for(spec_of("wasm")):
        return list(executed_ops(model, inputs))


def test_attention_gives_zeros_for_a_hidden_row() -> None:
    model = _model(
        "(float[1, 2, 4] q, float[1, 3, 4] k, float[1, 3, 4] v, bool[2, 3] keep) => (float[1, 2, 4] y) {"
        " y = Attention <q_num_heads = 1, kv_num_heads = 1> (q, k, v, keep) }",
        23,
    )
    ones = {name: np.ones((1, length, 4), np.float32) for name, length in (("q", 2), ("k", 3), ("v", 3))}
    found = _run(model, {**ones, "keep": np.array([[False] * 3, [True] * 3])})[0]
    assert (found[0].tolist() == [[0] * 4, [1] * 4]) == (Quirk.ZEROES_MASKED_ROWS in KNOWN)


def test_zeros_around_an_image_are_merged_into_a_pool() -> None:
    model = _model(
        "(float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y) <int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}> {"
        " p = Pad (x, pads)  y = MaxPool <kernel_shape = [3, 3]> (p) }"
    )
    assert _goes_wrong(model, {"x": -np.ones((1, 1, 2, 2), np.float32)}) == (Quirk.MERGES_ZEROS_INTO_MAX_POOL in KNOWN)


def test_a_transposed_matrix_times_a_vector_is_not_transposed() -> None:
    model = _model(
        "(float[n, m] x, float[n] v) => (float[m] y) { t = Transpose <perm = [1, 0]> (x)  y = MatMul (t, v) }"
    )
    inputs = {"x": np.array([[1, 2], [3, 4]], np.float32), "v": np.array([1, 10], np.float32)}
    assert _goes_wrong(model, inputs) == (Quirk.LOSES_TRANSPOSITION_BEFORE_VECTOR in KNOWN)


def test_a_factor_of_a_float64_product_is_rounded() -> None:
    model = _model(
        "(double[2, 3] x, double[3, 2] w) => (double[2, 2] y) <double c = {0.1}> { s = Mul (x, c)  y = MatMul (s, w) }"
    )
    inputs = {"x": np.ones((2, 3)), "w": np.ones((3, 2))}
    right, found = (_run(model, inputs, optimise=optimise)[0] for optimise in (False, True))
    assert (np.abs(right - found).max() > 1e-10) == (Quirk.ROUNDS_FACTORS_OF_PRODUCTS in KNOWN)


def test_a_float16_product_of_a_moved_batch_axis_crashes_or_goes_wrong() -> None:
    model = _model(
        "(float16[a, b, 4] x, float16[4, 3] w, float16[n, 1] p) => (float16[b, a, 3] y, float16[n, 1] q)"
        " <float16[1, 1] one = {1}> { t = Transpose <perm = [1, 0, 2]> (x)  y = MatMul (t, w)  q = MatMul (p, one) }",
        20,
    )
    x = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    inputs = {"x": x, "w": np.eye(4, 3, dtype=np.float16), "p": np.ones((2, 1), np.float16)}
    try:
        is_wrong = _goes_wrong(model, inputs)
    except OrtfuseError:
        is_wrong = True
    assert is_wrong == (Quirk.CRASHES_ON_MOVED_BATCH_AXIS in KNOWN)


def test_half_precision_is_computed_in_float32_between_casts() -> None:
    model = _model("(float16[2, 8] x) => (float16[2, 8] y) { t = Sqrt (x)  y = Exp (t) }")
    found = _executed(model, {"x": np.ones((2, 8), np.float16)})
    assert ("Cast" in found) == (Quirk.COMPUTES_HALF_IN_FLOAT32 in KNOWN)


def _pairs(first: str, second: str) -> ir.Model:
    return _model(
        f"(float[2, 30] x) => (float[2, 30] y) <float step = {{0.05}}, {first} zero = {{3}}, float other = {{0.03}},"
        f" {second} middle = {{9}}> {{ q = QuantizeLinear (x, step, zero)  d = DequantizeLinear (q, step, zero)"
        " r = QuantizeLinear (d, other, middle)  e = DequantizeLinear (r, other, middle)  y = Relu (e) }",
        21,
    )


NUMBERS = {"x": np.random.default_rng(0).standard_normal((2, 30)).astype(np.float32) * 3}


def test_quantised_pairs_next_to_each_other_become_one() -> None:
    merged = _executed(_pairs("uint8", "uint8"), NUMBERS).count("QuantizeLinear") < 2
    assert merged == (Quirk.MERGES_QUANTISED_PAIRS in KNOWN)


def test_signed_pairs_become_unsigned() -> None:
    model = _model(
        f"(float[2, 30] x) => (float[2, 30] y) <float step = {{0.05}}, int8 zero = {{3}}> {{"
        f" q = QuantizeLinear <output_dtype = {int(ir.DataType.INT8)}> (x, step, zero)"
        " d = DequantizeLinear (q, step, zero)  y = Relu (d) }",
        21,
    )
    right = _run(model, NUMBERS, optimise=False)[0]
    turned = False
    try:
        turned = not np.array_equal(_run(model, NUMBERS)[0], right)
    except OrtfuseError:
        turned = True
    assert turned == (Quirk.TURNS_SIGNED_PAIRS in KNOWN)


def test_signed_numbers_without_a_zero_point_lose_their_signs() -> None:
    model = _model(
        "(float[n, 2] x) => (float[2, n] y) <float s = {0.5}, int8 z = {0}> {"
        " q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s)  t = Transpose <perm = [1, 0]> (d)  y = Neg (t) }",
        19,
    )
    assert _goes_wrong(model, {"x": np.array([[-1, 2]], np.float32)}) == (Quirk.LOSES_ABSENT_ZERO_POINTS in KNOWN)
