"""Options that change the inputs and outputs of a model: kept outputs, dropped inputs, shapes of inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx.parser import parse_model
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import OptionError

TWO = """<ir_version: 10, opset_import: ["": 21]>
g (float[b,s] x, float[b,s] mask, float[b,t] other) => (float[b,s] y, float[b,t] z, float[b,s] w) {
    y = Relu(x) z = Neg(other) w = Add(x, mask) }"""
LENGTH = """<ir_version: 10, opset_import: ["": 21]>
g (float[b,s] x, int64[b,s] ids, float[] open) => (float[b,s] y, float[] z)
<int64 one = {1}, int64 zero = {0}> {
    n = Shape(ids) m = Gather(n, one) r = Range(zero, m, one) f = Cast<to = 1>(r) y = Add(x, f) z = Relu(open) }"""
BODY = """<ir_version: 10, opset_import: ["": 21]>
g (bool c, float[2] x, float[2] k) => (float[2] y, float[2] z) {
    y = Relu(x)
    z = If(c) <then_branch = a () => (float[2] p) { p = Neg(k) }, else_branch = b () => (float[2] q) { q = Identity(x) }> }"""


def optimized(text: str, **options: Any) -> ortfuse.Result:
    return ortfuse.optimize(parse_model(text), verify=True, **options)


def signature(result: ortfuse.Result) -> tuple[list[str], list[str]]:
    graph = result.model.graph
    return [value.name for value in graph.input], [value.name for value in graph.output]


def shape(result: ortfuse.Result, name: str) -> list[int | str]:
    value = next(one for one in result.model.graph.input if one.name == name)
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("names", ["y", ["y"], "y,w", ["w", "y"]])
def test_outputs_are_kept_in_their_order_with_what_they_need(names: Any) -> None:
    result = optimized(TWO, keep_outputs=names)
    kept = ["y", "w"] if "w" in names or names == "y,w" else ["y"]
    assert signature(result) == (["x", "mask", "other"], kept)
    assert "Neg" not in {node.op_type for node in result.model.graph.node}
    assert [note for note in result.report.notes if "outputs removed" in note and "z" in note]


def test_inputs_that_nothing_reads_are_dropped() -> None:
    assert signature(optimized(TWO, keep_outputs="y", drop_inputs=True)) == (["x"], ["y"])
    assert signature(optimized(BODY, keep_outputs="y", drop_inputs=True)) == (["x"], ["y"])
    assert signature(optimized(BODY, keep_outputs="z", drop_inputs=True)) == (["c", "x", "k"], ["z"])
    assert signature(optimized(TWO))[0] == ["x", "mask", "other"]


def test_inputs_that_rewrites_make_idle_are_dropped_too() -> None:
    result = optimized(LENGTH, fix={"s": 4, "open": (3,)}, drop_inputs=True)
    assert signature(result) == (["x", "open"], ["y", "z"])
    assert result.verdict is not None
    assert result.verdict.state == "equal"


def test_an_unknown_output_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"no output 'yy'; it has y, z, w; did you mean 'y'\?"):
        optimized(TWO, keep_outputs=["yy"])


@pytest.mark.parametrize("given", ["2x4", (2, 4), [2, 4]])
def test_a_fixed_shape_of_an_input_fixes_its_open_dimensions(given: Any) -> None:
    result = optimized(LENGTH, fix={"ids": given, "open": (3,)})
    assert shape(result, "x") == shape(result, "ids") == [2, 4]
    assert shape(result, "open") == [3]


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"idz": "2x4"}, "no input 'idz' that could be 2x4; it has x, ids, open"),
        ({"ids": "2x4x1"}, "the input ids is declared as bxs, and cannot be 2x4x1"),
        ({"ids": "2x4", "s": 5}, "s has two sizes, 5 and 4"),
        ({"ids": "2xy"}, "write a size or the shape of an input"),
        ({"x": "0x4"}, "b cannot be 0"),
    ],
)
def test_shapes_that_an_input_cannot_have_are_errors(fixed: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        optimized(LENGTH, fix=fixed)


def test_the_command_line_takes_lists_and_shapes(tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "r.onnx"
    onnx.save(parse_model(LENGTH), source)
    arguments = ["optimize", str(source), "-o", str(target), "--outputs", "y", "--drop-inputs"]
    found = CliRunner().invoke(app, [*arguments, "--fix", "b=2,s=4"])
    assert found.exit_code == 0, found.output
    assert [value.name for value in onnx.load(target).graph.input] == ["x"]
    found = CliRunner().invoke(app, [*arguments, "--fix", "ids=2x4"])
    assert found.exit_code == 0, found.output
    assert [dim.dim_value for dim in onnx.load(target).graph.output[0].type.tensor_type.shape.dim] == [2, 4]
    assert CliRunner().invoke(app, [*arguments, "--fix", "ids=2y4"]).exit_code == 2
