"""Sizes that a user declares as equal, bounded or fixed: known to the rules, obeyed by inputs, told and kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import operators
from onnx.parser import parse_model
from typer.testing import CliRunner

import ortfuse
from ortfuse.api.assess_optimization import at_common_sizes, inputs_to_measure
from ortfuse.api.fallback import runnable
from ortfuse.cli.app import app
from ortfuse.errors import OptionError, VerificationError
from ortfuse.io.declare_sizes import declare_sizes
from ortfuse.ir.declared_sizes import KEY, DeclaredSizes, declared_sizes
from ortfuse.options import Options
from ortfuse.runtime.reference_runs import explored

HEAD = '<ir_version: 10, opset_import: ["": 21]> g '
EXPANDED = (
    HEAD
    + """(float[s54] x, float[s84] y) => (float[n] z) {
    s = Shape(y) e = Expand(x, s) z = Relu(e) }"""
)
CUT = (
    HEAD
    + """(float[batch,sequence] x) => (float[batch,m] z)
<int64[1] zero = {0}, int64[1] most = {512}, int64[1] axis = {1}> { c = Slice(x, zero, most, axis) z = Relu(c) }"""
)
POSITIONS = (
    HEAD
    + """(float[batch,sequence] x) => (float[batch,sequence] z)
<int64 one = {1}, int64 zero = {0}> {
    s = Shape(x) n = Gather(s, one) r = Range(zero, n, one) f = Cast<to = 1>(r) z = Add(x, f) }"""
)
PRODUCT = HEAD + "(float[a,b] x) => (float[a,2] z) <float[3,2] w = {1,2,3,4,5,6}> { z = MatMul(x, w) }"
UNNAMED = HEAD + "(float[] x) => (float[] z) { z = Relu(x) }"


def proto(text: str) -> onnx.ModelProto:
    return parse_model(text)


def shapes(result: ortfuse.Result) -> list[list[Any]]:
    return [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in result.model.graph.input
    ]


@pytest.mark.parametrize(
    ("text", "declared", "made"),
    [
        (EXPANDED, {"same": {"s54": "s84"}}, ["Relu"]),
        (CUT, {"size_range": {"sequence": "1:512"}}, ["Relu"]),
        (POSITIONS, {"fix": {"sequence": 4}}, ["Add"]),
    ],
)
def test_rules_know_what_is_declared(text: str, declared: Mapping[str, Any], made: list[str]) -> None:
    assert operators(ortfuse.optimize(proto(text))) != made
    result = ortfuse.optimize(proto(text), **declared, verify=True)
    assert operators(result) == made
    assert result.verdict is not None
    assert result.verdict.state == "equal"


@pytest.mark.parametrize(
    "further",
    [{"size_range": {"sequence": (1, 513)}}, {"size_range": {"sequence": (0, 3)}}, {"fix": {"sequence": 600}}],
)
def test_bounds_for_which_a_model_was_made_hold_on(further: Mapping[str, Any]) -> None:
    made = ortfuse.optimize(proto(CUT), size_range={"sequence": (1, 512)}).model
    with pytest.raises(OptionError, match="1:512"):
        ortfuse.optimize(made, **further)
    assert operators(ortfuse.optimize(made, size_range={"sequence": (2, 9)})) == ["Relu"]
    joined = ortfuse.optimize(made, same={"sequence": "batch"})
    assert declared_sizes(ir.from_proto(joined.model)).size_range["batch"] == (1, 512)


def test_a_range_that_is_too_wide_proves_nothing() -> None:
    assert "Slice" in operators(ortfuse.optimize(proto(CUT), size_range={"sequence": (1, 513)}))


def test_a_fixed_size_is_one_of_the_result() -> None:
    result = ortfuse.optimize(proto(POSITIONS), fix={"sequence": 4, "batch": 2})
    assert shapes(result) == [[2, 4]]
    output = result.model.graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in output] == [2, 4]


def test_equal_sizes_have_one_name_in_the_result() -> None:
    assert shapes(ortfuse.optimize(proto(EXPANDED), same={"s54": "s84"})) == [["s84"], ["s84"]]


def test_a_size_may_be_a_formula_of_others() -> None:
    text = (
        HEAD
        + """(float[total] m, float[past] p, float[new] q) => (float[k] z) {
        c = Concat<axis=0>(p, q) s = Shape(c) e = Expand(m, s) z = Add(e, c) }"""
    )
    result = ortfuse.optimize(proto(text), same={"total": "past + new"}, verify=True)
    assert operators(result) == ["Concat", "Add"]


def test_axes_without_a_name_can_be_declared() -> None:
    text = HEAD + "(float[?,3] x, float[?,3] y) => (float[?,3] z) { s = Shape(y) e = Expand(x, s) z = Relu(e) }"
    model = proto(text.replace("?", "u"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].ClearField("dim_param")
    assert operators(ortfuse.optimize(model, same={"x[0]": "y[0]"})) == ["Relu"]
    assert shapes(ortfuse.optimize(model, fix={"x[0]": 5}))[0] == [5, 3]


@pytest.mark.parametrize(("low", "high"), [(1, 6), (9, 11), (130, 140)])
def test_generated_inputs_obey_bounds(low: int, high: int) -> None:
    model = ir.from_proto(proto(CUT))
    declare_sizes(model, DeclaredSizes(size_range={"sequence": (low, high)}))
    found = explored(model, sizes={"batch": 2}).experiments
    assert found
    assert all(low <= trial.inputs["x"].shape[1] <= high for trial in found)
    with pytest.raises(VerificationError, match=f"declared to be within {low}:{high}, which 200 is not"):
        explored(model, sizes={"sequence": 200})


def test_generated_inputs_have_equal_sizes_where_they_are_declared() -> None:
    model = ir.from_proto(proto(EXPANDED))
    declare_sizes(model, DeclaredSizes(same={"s54": "s84"}))
    found = explored(model).experiments
    assert {trial.inputs["x"].shape for trial in found} > {(1,)}
    assert all(trial.inputs["x"].shape == trial.inputs["y"].shape for trial in found)


@pytest.mark.parametrize(
    ("text", "declared", "message"),
    [
        (CUT, {"fix": {"length": 4}}, "fix: the inputs have no open dimension 'length'; there are batch, sequence"),
        (CUT, {"same": {"batch": "length"}}, "same: the inputs have no open dimension 'length'"),
        (CUT, {"size_range": {"length": "1:2"}}, "size_range: the inputs have no open dimension 'length'"),
        (CUT, {"size_range": {"batch": "3:2"}}, "3 is more than 2; write the least size first"),
        (CUT, {"size_range": {"batch": "3"}}, "write the least and the largest size, such as 1:512"),
        (CUT, {"same": {"batch": "4"}}, "batch is to be a number; write --fix batch=4"),
        (CUT, {"same": {"batch": "batch + 1"}}, "cannot be solved"),
        (CUT, {"fix": {"sequence": 600}, "size_range": {"sequence": "1:512"}}, "is within 1:512, and is fixed to 600"),
        (EXPANDED, {"same": {"s54": "s84"}, "fix": {"s54": 2, "s84": 3}}, "fixed to 2 and 3"),
        (EXPANDED, {"same": {"s54": "s84"}, "size_range": {"s54": "1:2", "s84": "3:4"}}, "no size is within the bounds"),
        (PRODUCT, {"fix": {"b": 4}}, "b is 3 in every run that succeeds; it cannot be 4"),
        (PRODUCT, {"same": {"b": "a + 4"}}, "b is 3 in every run that succeeds; it cannot be a + 4"),
        (PRODUCT, {"size_range": {"b": "4:8"}}, "b is 3 in every run that succeeds, which is not within 4:8"),
        (HEAD + "(float[n] x) => (float[n] z) <float[3] w = {1,2,3}> { z = Add(x, w) }", {"fix": {"n": 4}},
         "the model cannot have the sizes that are declared"),
    ],
)  # fmt: skip
def test_wrong_declarations_are_refused(text: str, declared: Mapping[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("+", r"\+")):
        ortfuse.optimize(proto(text), **declared)


def test_inputs_of_the_user_that_do_not_obey_are_refused() -> None:
    for x, y, message in ((2, 3, "which is 2 here"), (9, 9, "declared to be within 1:4")):
        given = [{"x": np.ones(x, np.float32), "y": np.ones(y, np.float32)}]
        with pytest.raises(VerificationError, match=message):
            ortfuse.optimize(proto(EXPANDED), same={"s54": "s84"}, size_range={"s84": "1:4"}, verify=True, inputs=given)


def test_what_is_declared_is_reported_and_kept_with_the_result(tmp_path: Path) -> None:
    onnx.save(proto(CUT), tmp_path / "m.onnx")
    command = [
        "optimize",
        "m.onnx",
        "-o",
        "r.onnx",
        "--size-range",
        "sequence=1:512",
        "--fix",
        "batch=2",
        "--json",
        "r.json",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        said = " ".join(result.output.split())
        assert "taken for granted, as --size-range sequence=1:512 says" in said
        assert "taken for granted, as --fix batch=2 says" in said
        assert json.loads((tmp_path / "r.json").read_text())["options"] == {
            "output": "r.onnx", "size_range": {"sequence": [1, 512]}, "fix": {"batch": 2},
        }  # fmt: skip
    written = onnx.load(tmp_path / "r.onnx")
    assert {one.key: one.value for one in written.metadata_props}[KEY]
    loaded = ortfuse.load(tmp_path / "r.onnx")
    assert declared_sizes(loaded).size_range == {"sequence": (1, 512)}
    verdict = ortfuse.verify(tmp_path / "m.onnx", tmp_path / "r.onnx")
    assert verdict.ok, verdict.summary()


def test_a_file_of_options_declares_sizes(tmp_path: Path) -> None:
    path = tmp_path / "o.toml"
    path.write_text('same = {a = "b"}\nsize_range = {s = "1:4", t = [2, 3]}\nfix = {n = 4}\n')
    options = ortfuse.Options.load(path)
    assert options.declared == DeclaredSizes({"a": "b"}, {"s": (1, 4), "t": (2, 3)}, {"n": 4})
    path.write_text(options.to_toml())
    assert ortfuse.Options.load(path) == options


@pytest.mark.parametrize("text", ["{", "[]", '{"size_range": {"s": [3, 1], "t": "x", "u": [-1, 2]}, "fix": 3}'])
def test_damaged_metadata_declare_nothing(text: str) -> None:
    model = ir.from_proto(proto(CUT))
    model.metadata_props[KEY] = text
    assert not declared_sizes(model)


@pytest.mark.parametrize(
    ("text", "declared", "sizes"),
    [
        (PRODUCT, {"fix": {"a": 5}}, "a=5"),
        (PRODUCT, {"size_range": {"a": (200, 300)}}, "a=200"),
        (POSITIONS, {"fix": {"sequence": 16}}, "sequence=16"),
        (POSITIONS, {"size_range": {"sequence": (1, 100)}}, "sequence=100"),
    ],
)
def test_models_side_by_side_run_at_the_sizes_declared_of_any(text: str, declared: dict[str, Any], sizes: str) -> None:
    model = proto(text)
    models = [model, ortfuse.optimize(model, **declared).model]
    drawn = at_common_sizes([runnable(one) for one in models])
    inputs = inputs_to_measure(Options(), drawn)[1]["x"]
    name, size = sizes.split("=")
    axis = [dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim].index(name)
    assert inputs.shape[axis] == int(size)
    found = ortfuse.benchmark(dict(zip("ab", models, strict=True)), rounds=1)
    assert [row.name for row in found.latency] == ["a", "b"] and sizes in found.inputs
    assert ortfuse.diff(*models, run=True).tensors is not None


def test_models_side_by_side_run_at_the_sizes_fixed_in_a_shape() -> None:
    fixed = proto(PRODUCT.replace("float[a,b] x", "float[5,3] x").replace("float[a,2] z", "float[5,2] z"))
    drawn = at_common_sizes([runnable(proto(PRODUCT)), runnable(fixed)])
    assert inputs_to_measure(Options(), drawn)[1]["x"].shape == (5, 3)
    assert len(ortfuse.benchmark({"a": proto(PRODUCT), "b": fixed}, rounds=1).latency) == 2


def test_a_size_that_is_given_stays_the_users() -> None:
    model = proto(PRODUCT)
    fixed = ortfuse.optimize(model, fix={"a": 5}).model
    found = ortfuse.benchmark({"a": model, "b": fixed}, rounds=1, sizes={"a": 5})
    assert "a=5" in found.inputs
    with pytest.raises(VerificationError, match="Got: 6 Expected: 5"):
        ortfuse.benchmark({"a": model, "b": fixed}, rounds=1, sizes={"a": 6})


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match="sequence cannot be 0 in every run"):
        ortfuse.optimize(proto(CUT), fix={"sequence": 0})
