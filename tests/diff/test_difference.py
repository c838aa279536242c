"""The differences of two models: nodes, attributes, constants, interface, and the first tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from rich.console import Console

import ortfuse
from ortfuse.cli.app import main
from ortfuse.errors import VerificationError

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,3] x) => (float[n,3] y)
<float[3,3] w = {1,0,0,0,1,0,0,0,1}, float[3] b = {1,2,3}, float[3] c = {4,5,6}> {
    h = MatMul(x, w) a = Add(h, b) r = Relu(a) s = Softmax<axis=1>(r) k = MatMul(s, w) y = Mul(k, c) }"""


def edited(*pairs: tuple[str, str]) -> onnx.ModelProto:
    text = TEXT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return parse_model(text)


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with other names for everything but its inputs and outputs."""
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    for number, tensor in enumerate(model.graph.initializer):
        _rename(model, tensor.name, f"weight_{number}")
        tensor.name = f"weight_{number}"
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{number}"
        for name in list(node.output):
            if name not in kept:
                _rename(model, name, f"value_{number}")
    return model


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def test_models_that_are_the_same_are_said_to_be_the_same() -> None:
    found = ortfuse.diff(edited(), edited())
    assert found.same
    assert found.summary() == "they have the same nodes, attributes, constants, inputs and outputs"


@pytest.mark.parametrize("names", ["the same", "other"])
def test_another_weight_is_told_with_its_node_and_how_far_it_is_apart(names: str) -> None:
    other = edited(("b = {1,2,3}", "b = {1,2.5,4}"))
    found = ortfuse.diff(edited(), renamed(other) if names == "other" else other)
    assert not found.same
    assert found.structure.same_nodes
    (constant,) = found.structure.constants
    assert (constant.constant, constant.operator, constant.operand) == ("b", "Add", 1)
    assert (constant.elements, constant.largest) == (2, 1.0)
    assert found.structure.renamed == (4 + 1 if names == "other" else 0)


def test_a_weight_of_another_shape_or_type_is_told() -> None:
    (shape,) = ortfuse.diff(edited(), edited(("float[3] c = {4,5,6}", "float[1,3] c = {4,5,6}"))).structure.constants
    assert (shape.first, shape.second, shape.elements) == ("float[3]", "float[1,3]", None)
    (kind,) = ortfuse.diff(edited(), edited(("float[3] c = {4,5,6}", "double[3] c = {4,5,6}"))).structure.constants
    assert (kind.first, kind.second, kind.elements) == ("float[3]", "double[3]", 0)


@pytest.mark.parametrize("names", ["the same", "other"])
def test_another_attribute_is_told(names: str) -> None:
    other = edited(("axis=1", "axis=0"))
    found = ortfuse.diff(edited(), renamed(other) if names == "other" else other).structure
    (attribute,) = found.attributes
    assert (attribute.operator, attribute.attribute, attribute.first, attribute.second) == ("Softmax", "axis", "1", "0")
    assert found.same_nodes


def test_the_content_of_a_tensor_attribute_counts() -> None:
    numbers = [0.0] * 400
    texts = [
        edited(("a = Add(h, b)", f"q = Constant<value = float[400] {{{','.join(map(str, [*numbers[1:], last]))}}}>() a = Add(h, b)"),
               ("r = Relu(a)", "z = ReduceSum<keepdims=0>(q) r = Relu(a)"), ("y = Mul(k, c)", "u = Mul(k, c) y = Add(u, z)"))
        for last in (0.0, 1.0)
    ]  # fmt: skip
    (constant,) = ortfuse.diff(*texts).structure.constants
    assert (constant.constant, constant.elements, constant.largest) == ("q", 1, 1.0)


def test_constants_in_the_bodies_of_control_flow_are_compared() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (bool c, float[3] x) => (float[3] y) {
        y = If<then_branch = t () => (float[3] p) { k = Constant<value = float[3] {1,2,3}>() p = Add(x, k) },
               else_branch = e () => (float[3] q) { q = Neg(x) }>(c) }"""
    found = ortfuse.diff(parse_model(text), parse_model(text.replace("{1,2,3}", "{1,2,4}")))
    assert [one.constant for one in found.structure.constants] == ["k"]


def test_operands_from_elsewhere_are_told() -> None:
    found = ortfuse.diff(edited(), edited(("s = Softmax<axis=1>(r)", "s = Softmax<axis=1>(a)"))).structure
    assert [(one.operator, one.operand, one.first, one.second) for one in found.operands] == [("Softmax", 0, "r", "a")]


def test_inputs_outputs_and_opsets_are_compared() -> None:
    found = ortfuse.diff(edited(), edited(("float[n,3] x", "float[4,3] x"), ('"": 21', '"": 20'))).structure
    assert found.interface == ["ai.onnx: opset 21 in A, opset 20 in B", "input x: FLOAT[n,3] in A, FLOAT[4,3] in B"]


@pytest.mark.parametrize("names", ["the same", "other"])
def test_the_first_tensor_that_differs_comes_from_the_place_that_does(names: str) -> None:
    other = edited(("b = {1,2,3}", "b = {1,2,4}"), ("c = {4,5,6}", "c = {4,5,7}"))
    given = {"x": np.ones((2, 3), np.float32)}
    found = ortfuse.diff(edited(), renamed(other) if names == "other" else other, inputs=[given]).tensors
    assert found is not None
    first = found.first
    assert first is not None
    assert (first.tensor, first.operator, first.difference.expected) == ("a", "Add", "4")
    assert [one.tensor for one in found.differing] == ["a", "r", "s", "k", "y"]
    assert (found.compared, found.unmatched, found.input_sets) == (6, 0, 1)


def test_the_tolerance_says_what_differs() -> None:
    other = edited(("b = {1,2,3}", "b = {1,2,3.003}"))
    given: Mapping[str, Any] = {"inputs": [{"x": np.ones((2, 3), np.float32)}]}
    assert ortfuse.diff(edited(), other, **given).tensors.first.tensor == "a"  # type: ignore[union-attr]
    assert not ortfuse.diff(edited(), other, tolerance=1e-2, **given).tensors.differing  # type: ignore[union-attr]


def test_tensors_of_an_optimised_model_are_those_that_both_compute() -> None:
    model = edited(("r = Relu(a)", "i = Identity(a) r = Relu(i)"))
    found = ortfuse.diff(model, ortfuse.optimize(model).model, run=True).tensors
    assert found is not None
    assert found.compared >= 4
    assert not found.differing
    assert found.unmatched > 0


def test_a_weight_that_took_in_a_scale_is_no_tensor_that_differs() -> None:
    scaled = edited(("<float[3,3] w", "<float[3,3] v = {4,0,0,0,5,0,0,0,6}, float[3,3] w"),
                    ("k = MatMul(s, w) y = Mul(k, c)", "q = MatMul(s, v) y = Identity(q)"))  # fmt: skip
    found = ortfuse.diff(edited(), scaled, run=True).tensors
    assert found is not None
    assert not found.differing


def test_float_models_are_compared_with_half_ones_by_the_tolerance_of_half() -> None:
    half = onnx.helper.make_model(edited().graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    for tensor in half.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16), tensor.name))
    half.graph.node.insert(0, onnx.helper.make_node("Cast", ["x"], ["x16"], to=10))
    half.graph.node[1].input[0] = "x16"
    half.graph.output[0].type.tensor_type.elem_type = 10
    found = ortfuse.diff(edited(), half, inputs=[{"x": np.full((2, 3), 1 / 3, np.float32)}]).tensors
    assert found is not None
    assert (found.compared, list(found.differing)) == (6, [])


def test_models_with_other_inputs_cannot_be_run_side_by_side() -> None:
    other = edited(("float[n,3] x)", "float[n,3] x, float[3] z)"), ("a = Add(h, b)", "a = Add(h, z)"))
    with pytest.raises(VerificationError, match="input 'z' is only in the second model"):
        ortfuse.diff(edited(), other, run=True)


def test_the_command_says_it_and_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ortfuse.cli.command_output.out", Console(width=200))
    onnx.save(edited(), tmp_path / "a.onnx")
    onnx.save(edited(("b = {1,2,3}", "b = {1,2,4}")), tmp_path / "b.onnx")
    (tmp_path / "inputs").mkdir()
    np.savez(tmp_path / "inputs" / "1.npz", x=np.ones((2, 3), np.float32))
    command = ["diff", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--inputs", str(tmp_path / "inputs")]
    with pytest.raises(SystemExit) as end:
        main([*command, "--json", str(tmp_path / "d.json")])
    assert end.value.code in (0, None)
    said = capsys.readouterr().out
    assert "Constants that are others" in said
    assert "1 element, by 1 at most" in said
    assert "the first tensor that differs is 'a', computed by Add" in " ".join(said.split())
    data = json.loads((tmp_path / "d.json").read_text())
    assert (data["same"], data["same_nodes"]) == (False, True)
    assert data["constants"][0]["constant"] == "b"
    assert data["tensors"]["first"]["tensor"] == "a"


@pytest.mark.parametrize("which", ["s", "t", "u"])
def test_another_attribute_is_told_of_one_of_several_nodes_that_compute_the_same(which: str) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[n,3] x) => (float[n,3] y) {
        s = Softmax<axis=1>(x) t = Softmax<axis=1>(x) u = Softmax<axis=1>(x)
        a = Exp(s) b = Exp(t) c = Exp(u) d = Add(a, b) y = Mul(d, c) }"""
    other = renamed(parse_model(text.replace(f"{which} = Softmax<axis=1>", f"{which} = Softmax<axis=0>")))
    found = ortfuse.diff(parse_model(text), other).structure
    assert [(one.node, one.attribute) for one in found.attributes] == [(which, "axis")]
    assert found.same_nodes
