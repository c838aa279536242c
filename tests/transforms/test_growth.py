"""The bound on what constant folding adds to a model: one for the whole optimisation, and none for weights stored small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import operators, run
from onnx import helper, numpy_helper
from small_models import apply, context_of, floats, model_of
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.transforms import ConstantFolding, DeadCodeElimination, LiftConstants, constant_bytes

COLUMNS = """g (float[64] x) => (float[64] y, float[100, 100] z, float[200, 100] t)
    <float[1] p = {1.5}, int64[2] first = {100, 100}, int64[2] second = {200, 100}> {
    y = Neg(x) a = Expand(p, first) z = Sin(a) b = Expand(p, second) t = Cos(b) }"""


def _weight(model: ir.Model, name: str, array: np.ndarray) -> None:
    """Give an input of the model a constant."""
    value = next(value for value in model.graph.inputs if value.name == name)
    model.graph.inputs.remove(value)
    value.const_value = ir.Tensor(array, name=name)
    model.graph.register_initializer(value)


def _matrix(rows: int, columns: int, dtype: str) -> np.ndarray:
    numbers = np.random.default_rng(0).integers(1, 100, (rows, columns))
    return numbers.astype(dtype)


def _compressed(nodes: str, dtype: str, rows: int = 64, columns: int = 64) -> ir.Model:
    model = model_of(
        f"g (float[2, {rows}] x, {dtype}[{rows}, {columns}] w) => (float[2, n] y) "
        f"<float s = {{0.5}}, float z = {{8}}, int64[2] turn = {{{columns}, {rows}}}> {{ {nodes} }}"
    )
    _weight(model, "w", _matrix(rows, columns, dtype))
    return model


@pytest.mark.parametrize(
    ("nodes", "dtype"),
    [
        ("c = Cast <to = 1> (w) d = Mul(c, s) y = MatMul(x, d)", "int8"),
        ("c = Cast <to = 1> (w) m = Sub(c, z) d = Mul(m, s) y = MatMul(x, d)", "uint8"),
        ("c = Cast <to = 1> (w) d = Div(c, z) t = Transpose <perm = [1, 0]> (d) y = MatMul(x, t)", "int8"),
        ("c = Cast <to = 10> (w) d = Mul(c, h) f = Cast <to = 1> (d) y = MatMul(x, f)", "int8"),
        ("c = Cast <to = 1> (w) r = Reshape(c, turn) y = MatMul(x, r)", "float16"),
        ("c = Cast <to = 1> (w) y = MatMul(x, c)", "float16"),
    ],
)
def test_weights_that_are_stored_small_stay_small(nodes: str, dtype: str) -> None:
    if "h)" in nodes:
        nodes = f"h = Constant <value = float16 {{2}}> () {nodes}"
    model = _compressed(nodes, dtype)
    before = constant_bytes(model)
    original, x = ortfuse.optimize(model, level="disabled").model, floats(2, 64)
    result = ortfuse.optimize(model, verify="whole")
    assert constant_bytes(result.model) < 1.1 * before
    assert "Cast" in operators(result.model)
    (held,) = result.report.not_folded
    assert held.bytes >= 8192
    np.testing.assert_allclose(run(result.model, {"x": x})[0], run(original, {"x": x})[0], rtol=1e-5)


def test_a_given_bound_decompresses_weights_too() -> None:
    model = _compressed("c = Cast <to = 1> (w) d = Mul(c, s) y = MatMul(x, d)", "int8")
    assert operators(ortfuse.optimize(model, max_growth=1 << 14).model) == ["MatMul"]
    assert "Cast" in operators(ortfuse.optimize(model, max_growth=1 << 10).model)


def test_vectors_and_sums_of_weights_that_are_stored_small_are_folded() -> None:
    text = """c = Cast <to = 1> (w) d = Mul(c, s) p = MatMul(x, d) ones = Constant <value_ints = [0]> ()
        r = ReduceSum <keepdims = 0> (c, ones) y = Add(p, r)"""
    model = _compressed(text, "int8")
    context = context_of(model)
    LiftConstants().run(context)
    ConstantFolding().run(context)
    DeadCodeElimination().run(context)
    assert operators(model) == ["Cast", "Mul", "MatMul", "Add"]


def test_the_bound_is_one_for_the_whole_optimisation_however_often_folding_is_run() -> None:
    context = context_of(model_of(COLUMNS))
    first = constant_bytes(context.model)
    for _ in range(3):
        ConstantFolding(max_growth=50_000).run(context)
        context.model.graph.sort()
    assert 39_900 <= constant_bytes(context.model) - first <= 50_000
    assert [one.value for one in context.growth.held_back_values(context.model)] == ["t"]
    ConstantFolding(max_growth=130_000).run(context)
    assert constant_bytes(context.model) - first >= 119_900


def test_a_table_that_would_make_a_small_model_many_times_larger_stays_computed() -> None:
    text = """g (float[1, 256] x) => (float[1, 512] y) <float[256, 4] a = {AAA}, float[4, 512] b = {BBB}> {
        t = MatMul(a, b) e = Exp(t) y = MatMul(x, e) }"""
    model = model_of(text.replace("AAA", ", ".join(["0.1"] * 1024)).replace("BBB", ", ".join(["0.01"] * 2048)))
    report = ortfuse.optimize(model).report
    assert report.after.constants < 2 * report.before.constants
    assert [one.operator for one in report.not_folded] == ["Exp"]


def test_results_that_are_smaller_than_their_operands_are_folded_however_large_those_are() -> None:
    text = """g (float[64] x) => (float[64] y) <float[1] p = {1.5}, int64[2] shape = {64, 4000}, int64[1] axis = {1}> {
        e = Expand(p, shape) s = Sin(e) m = ReduceMean <keepdims = 0> (s, axis) y = Add(x, m) }"""
    model, _, _ = apply(text, ConstantFolding(), inputs={"x": floats(64)})
    assert operators(model) == ["Add"]


def test_layers_with_weights_that_are_stored_small_are_recognised() -> None:
    model = model_of("""g (float[2, 3, 64] x, int8[64, 64] w) => (float[2, 3, 64] y)
        <float s = {0.5}, int64[2] flat = {-1, 64}, int64[3] back = {2, 3, 64}> {
        c = Cast <to = 1> (w) d = Mul(c, s) r = Reshape(x, flat) p = Gemm(r, d) y = Reshape(p, back) }""")
    _weight(model, "w", _matrix(64, 64, "int8"))
    assert operators(ortfuse.optimize(model).model) == ["Cast", "Mul", "MatMul"]


def test_the_report_tells_the_sizes_of_constants_and_files_and_the_reason_for_growth(tmp_path: Path) -> None:
    path, output = tmp_path / "m.onnx", tmp_path / "r.onnx"
    weight = numpy_helper.from_array(_matrix(64, 64, "int8"), "w")
    nodes = [helper.make_node("Cast", ["w"], ["c"], to=1), helper.make_node("MatMul", ["x", "c"], ["y"])]
    values = [helper.make_tensor_value_info(name, 1, [2, 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    result = ortfuse.optimize(path, output=output)
    assert result.file_bytes == (path.stat().st_size, output.stat().st_size)
    assert (result.report.before.constants, result.report.after.constants) == (4096, 4096)
    given = ["optimize", str(path), "-o", str(output)]
    said = CliRunner().invoke(app, given).output
    assert "constants: 4.1 kB -> 4.1 kB" in said
    assert "1 value is not folded, as that would add 12.3 kB to the file (largest: 'c' of Cast 12.3 kB)" in " ".join(
        said.split()
    )
    said = CliRunner().invoke(app, [*given, "--max-growth", "13kB"]).output
    assert "the constants grew: added by fold 12.3 kB (largest: 'c' of Cast 12.3 kB)" in " ".join(said.split())
    assert sum(ortfuse.optimize(path, max_growth=13_000).report.growth().values()) == 16384 - 4096
