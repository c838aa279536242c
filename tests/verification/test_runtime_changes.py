"""That the runtime's own optimisations are found to be what is wrong, and that results avoid them."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.runtime.session import Session

VECTOR = """<ir_version: 8, opset_import: ["": 17]> g (float[n,m] x, float[n] v) => (float[m] y)
    { t = Transpose<perm = [1,0]>(x)  y = MatMul(t, v) }"""
"""The runtime's MatmulTransposeFusion leaves out the transposition."""

SCALED = """<ir_version: 8, opset_import: ["": 18]> g (float[b, n] x) => (float[b, 4] y)
    <float two = {2}, float e = {1e-5}, int64[1] last = {-1}, float[4] s = {1, 2, 3, 4}, float[4] o = {0, 1, 0, 1}> {
    p = Pow(x, two) v = ReduceMean(p, last) w = Add(v, e) r = Sqrt(w) d = Div(x, r) k = Mul(d, s) y = Add(k, o) }"""
"""The runtime fuses the normalisation, whose kernel refuses rows of one number that the scale would stretch to four."""


def proto(text: str) -> onnx.ModelProto:
    return ir.to_proto(ir.from_onnx_text(text))


def pairs(zero_point: str, body: str) -> str:
    return f"""<ir_version: 9, opset_import: ["": 19]> g (float[n, 8, 4] x) => (float[n, ?, ?] y)
        <float s = {{0.02}}, int8 z = {{0}}, int64[3] sh = {{0, 4, 8}}, int64[1] a = {{0}}, int64[1] b = {{3}}, int64[1] c = {{1}}> {{
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s{zero_point}) {body} }}"""


def test_a_result_that_avoids_what_the_runtime_does_is_told_so() -> None:
    result = ortfuse.optimize(proto(VECTOR), verify="whole")
    assert result.verdict is not None
    change = result.verdict.runtime
    assert change is not None
    assert change.is_avoided
    assert change.optimisers == ("MatmulTransposeFusion",)
    assert "ONNX Runtime is to blame, not a rewrite: MatmulTransposeFusion moves output 'y'" in change.text()
    assert "disabled_optimizers" not in result.session


def test_optimisers_that_change_the_result_as_the_original_are_disabled_in_its_settings(tmp_path: Path) -> None:
    result = ortfuse.optimize(proto(VECTOR), passes="dce", verify="whole")
    assert result.verdict is not None
    assert result.verdict.ok
    assert result.session.value("disabled_optimizers") == ("MatmulTransposeFusion",)
    x, v = np.array([[1, 2], [3, 4]], "f4"), np.array([1, 10], "f4")
    onnx.save(result.model, tmp_path / "m.onnx")
    session = ortfuse.session(tmp_path / "m.onnx")
    np.testing.assert_array_equal(session.run(None, {"x": x, "v": v})[0], [31, 42])


def test_inputs_that_the_runtime_refuses_of_the_original_too_are_left_out() -> None:
    result = ortfuse.optimize(proto(SCALED), passes="dce", verify="whole")
    assert result.verdict is not None
    assert result.verdict.ok
    assert result.verdict.runtime is not None
    assert result.verdict.runtime.refusal
    assert result.verdict.runtime.optimisers
    assert not len(result.session)


@pytest.mark.parametrize(
    "body",
    ["e = Transpose<perm = [0, 2, 1]>(d) y = Neg(e)", "e = Reshape(d, sh) y = Neg(e)", "e = Slice(d, a, b, c) y = Neg(e)",
     "e = MaxPool<kernel_shape = [2]>(d) y = Neg(e)"],
)  # fmt: skip
def test_dequantised_numbers_that_are_moved_keep_their_signs(body: str) -> None:
    text = pairs("", body)
    result = ortfuse.optimize(proto(text), verify="whole")
    assert result.verdict is not None
    assert result.verdict.ok
    x = np.random.default_rng(0).standard_normal((2, 8, 4)).astype("f4")
    want = Session(ir.from_onnx_text(text), optimise=False).run({"x": x})["y"]
    np.testing.assert_allclose(Session(ir.from_proto(result.model), optimise=True).run({"x": x})["y"], want, atol=1e-6)
    assert any("ort.explicit_dequantize_zero_point" in note for note in result.report.notes)


def test_verify_names_the_optimiser(tmp_path: Path) -> None:
    path = str(tmp_path / "m.onnx")
    onnx.save(proto(VECTOR), path)
    ended = CliRunner().invoke(app, ["verify", path, path], env={"COLUMNS": "400"})
    assert ended.exit_code == 0
    assert "warning: ONNX Runtime is to blame, not a rewrite: MatmulTransposeFusion" in ended.output


DROPS = """<ir_version: 8, opset_import: ["": 15]> g (float[n, 8] x) => (float[n, 8] y) <float r = {0.5}, bool t = {1}> {
    h = Neg(x) k, mask = Dropout(h, r, t) y = Exp(k) }"""


@pytest.mark.parametrize("tolerance", [None, 1e-3])
def test_a_model_is_equal_to_itself_under_any_tolerance_where_the_runtime_changes_it(tolerance: float | None) -> None:
    verdict = ortfuse.verify(proto(VECTOR), proto(VECTOR), tolerance=tolerance)
    assert verdict.ok
    assert verdict.runtime is not None
    assert verdict.runtime.optimisers == ("MatmulTransposeFusion",)


def test_another_model_differs_under_a_tolerance_where_the_runtime_changes_the_original() -> None:
    other = VECTOR.replace("y = MatMul(t, v)", "k = MatMul(t, v) y = Neg(k)")
    assert not ortfuse.verify(proto(VECTOR), proto(other), tolerance=1e-3).ok


def test_optimisation_under_a_tolerance_blames_the_runtime_for_what_it_changes() -> None:
    result = ortfuse.optimize(proto(VECTOR), passes="dce", verify="whole", tolerance=1e-3)
    assert result.verdict is not None
    assert result.verdict.ok
    assert result.session.value("disabled_optimizers") == ("MatmulTransposeFusion",)


@pytest.mark.parametrize("tolerance", [None, 1e-3])
def test_bisection_blames_the_runtime_for_what_it_changes(tolerance: float | None) -> None:
    found = ortfuse.bisect(proto(VECTOR), passes="dce", tolerance=tolerance)
    assert not found.moved
    assert "ONNX Runtime is to blame, not a rewrite: MatmulTransposeFusion" in found.lines()[-1]


def test_bisection_takes_no_random_numbers_for_a_wrong_rewrite() -> None:
    assert not ortfuse.bisect(proto(DROPS), passes="dce").moved
