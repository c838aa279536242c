"""Nodes that the user leaves in float32, or that alone may be in lower precision: by name, operator, module, class and value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import NoSiteError, OptionError
from ortfuse.ir.nn_module_of_node import SCOPES_KEY
from ortfuse.ir.selection import CLASSES_KEY
from ortfuse.quantization.half import convert

SIZE = 32
RNG = np.random.default_rng(0)
LINES = {
    "p0": ("MatMul", ["x", "w0"], "/encoder/layer.0/query/MatMul"),
    "h0": ("Tanh", ["p0"], "/encoder/layer.0/query/Tanh"),
    "p1": ("MatMul", ["h0", "w1"], "/encoder/layer.1/key/MatMul"),
    "h1": ("Add", ["p1", "b"], "/encoder/layer.1/key/Add"),
    "t1": ("Erf", ["h1"], "/encoder/Erf"),
    "p2": ("MatMul", ["t1", "w2"], "/encoder/layer.11/MatMul"),
    "y": ("Sin", ["p2"], "/Sin"),
}


def model() -> onnx.ModelProto:
    nodes = [onnx.helper.make_node(kind, given, [made], name) for made, (kind, given, name) in LINES.items()]
    ends = [onnx.helper.make_tensor_value_info(name, 1, ["n", SIZE]) for name in "xy"]
    weights = {f"w{n}": RNG.normal(size=(SIZE, SIZE)) / SIZE**0.5 for n in range(3)} | {"b": RNG.normal(size=SIZE)}
    arrays = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], arrays)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


def lowered(original: onnx.ModelProto | None = None, **options: object) -> set[int]:
    """The numbers of the products that were lowered, told by the weights that are still there."""
    made = ortfuse.lower(original or model(), "dynamic_int8", **options)  # type: ignore[arg-type]
    names = {one.name for one in made.model.graph.initializer}
    return {number for number in range(3) if f"w{number}" not in names}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("node:/encoder/layer.0/query/MatMul", {0}),
        ("/encoder/layer.1/*", {1}),
        ("module:encoder.layer.1", {1}),
        ("encoder.layer.1", {1}),
        ("module:encoder.layer.1*", {1, 2}),
        ("module:encoder", {0, 1, 2}),
        ("op:Add", set()),
        ("op:ai.onnx.MatMul", {0, 1, 2}),
        ("value:p2", {2}),
        ("*query*", {0}),
    ],
)
def test_a_pattern_excludes_what_it_names(pattern: str, found: set[int]) -> None:
    """A product may be lowered without the sum behind it, but not without itself."""
    if found == {0, 1, 2}:
        with pytest.raises(NoSiteError, match=f"it is excluded by '{pattern}'"):
            lowered(exclude=pattern)
        return
    assert lowered(exclude=pattern) == {0, 1, 2} - found


@pytest.mark.parametrize(
    ("pattern", "found"), [("op:MatMul", {0, 1, 2}), ("op:Add", {1}), ("module:encoder.layer.11", {2}), ("w?", None)]
)
def test_only_what_is_asked_for_is_lowered(pattern: str, found: set[int] | None) -> None:
    """A site may be lowered if one of its nodes is among them."""
    if found is None:
        with pytest.raises(OptionError, match="'w\\?' matches no node, operator, module, class or value"):
            lowered(only=pattern)
        return
    assert lowered(only=pattern) == found


def test_exclusions_go_before() -> None:
    assert lowered(only=["op:MatMul"], exclude=["value:p0", "value:p2"]) == {1}


def test_a_misspelt_pattern_is_refused_with_what_is_like_it() -> None:
    with pytest.raises(OptionError, match=r"'op:Matmul' matches no .*; names like it are MatMul"):
        lowered(exclude="op:Matmul")
    with pytest.raises(OptionError, match=r"'module:encoder.layer.01' matches no"):
        convert(model(), exclude="module:encoder.layer.01")


def test_modules_and_classes_come_from_metadata_too() -> None:
    original = model()
    for node, path, kind in zip(
        original.graph.node, "aabbbcc", ["Gate", "Gate", *["Mlp"] * 3, "Head", "Head"], strict=True
    ):
        for key, value in {
            SCOPES_KEY: f"['', '{path}', 'op']",
            CLASSES_KEY: f"['net.Net', 'net.{kind}', 'aten.x']",
        }.items():
            node.metadata_props.add(key=key, value=value)
    assert lowered(original, exclude="class:Mlp") == {0, 2}
    assert lowered(original, exclude="class:net.[HG]*") == {1}
    assert lowered(original, exclude="module:c") == {0, 1}


def test_no_mark_is_left() -> None:
    made = ortfuse.lower(ir.from_proto(model()), "dynamic_int8", exclude="value:p0").model
    half = convert(ir.from_proto(model()), exclude="value:p0").model
    keys = {key for one in (made, half) for node in one.graph for key in node.metadata_props}
    assert not {key for key in keys if key in ("ortfuse.excluded", "ortfuse.only")}


def test_equal_nodes_of_which_one_is_excluded_both_stay() -> None:
    original = model()
    extra = onnx.helper.make_node("MatMul", ["x", "w0"], ["again"], "again")
    original.graph.node.insert(0, extra)
    original.graph.node.append(onnx.helper.make_node("Add", ["again", "y"], ["z"]))
    original.graph.output[0].name = "z"
    assert lowered(original, exclude="node:again") == {1, 2}


FUNCTIONS = """<ir_version: 9, opset_import: ["": 17, "mine": 1]>
g (float[n,32] x) => (float[n,32] y) { h = mine.Linear(x, w0)  y = mine.Linear(h, w1) }
<domain: "mine", opset_import: ["": 17]> Linear (x, w) => (y) { p = MatMul(x, w)  y = Tanh(p) }"""


def with_functions() -> onnx.ModelProto:
    found = onnx.parser.parse_model(FUNCTIONS)
    for number, node in enumerate(found.graph.node):
        node.name = f"layer{number}"
        array = (RNG.normal(size=(SIZE, SIZE)) / 6).astype(np.float32)
        found.graph.initializer.append(onnx.numpy_helper.from_array(array, f"w{number}"))
    return found


def test_a_call_stands_for_what_the_function_does_there() -> None:
    made = ortfuse.lower(with_functions(), "dynamic_int8", exclude="layer1").model
    assert {one.name for one in made.graph.initializer} & {"w0", "w1"} == {"w1"}
    half = convert(with_functions(), keep_io=True, exclude="layer1")
    types = {one.name: one.data_type for one in half.model.graph.initializer}
    assert types == {"w0": onnx.TensorProto.FLOAT16, "w1": onnx.TensorProto.FLOAT}


def test_half_precision_leaves_out_what_is_excluded() -> None:
    done = convert(model(), keep_io=True, exclude=["op:Tanh", "module:encoder.layer.11"])
    assert {*done.islands.values()} == {
        "it is excluded by 'op:Tanh'",
        "it is excluded by 'module:encoder.layer.11'",
    } | ({"fewer Casts are needed"} & {*done.islands.values()})
    types = {one.name: one.data_type for one in done.model.graph.initializer}
    assert types["w2"] == onnx.TensorProto.FLOAT
    assert types["w1"] == onnx.TensorProto.FLOAT16
    only = convert(model(), keep_io=True, only="op:MatMul")
    assert only.operators == 3
    assert "only 'op:MatMul' may be changed" in only.islands.values()


def test_a_loop_stands_for_its_body() -> None:
    made = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
    g (float[2,32] x) => (float[2,32] y) {
      n = Constant<value = int64 {3}>()  t = Constant<value = bool {1}>()
      h = Loop(n, t, x) <body = b (int64 i, bool c, float[2,32] s) => (bool d, float[2,32] r) { d = Identity(c)  r = Sin(s) }>
      y = MatMul(h, w) }""")
    made.graph.node[2].name = "loop"
    made.graph.initializer.append(onnx.numpy_helper.from_array(RNG.normal(size=(32, 32)).astype(np.float32), "w"))
    assert set(convert(made, keep_io=True).islands) == set()
    done = convert(made, keep_io=True, exclude="node:loop")
    assert [name.split(" ")[0] for name in done.islands] == ["Sin"]


def test_what_is_between_integers_may_be_excluded() -> None:
    """A sum between convolutions on integers is computed with them, but not if it is excluded."""
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[1,8,6,6] x) => (float[1,8,6,6] y) {
      a = Conv(x, w0)  c = Sigmoid(a)  d = Mul(a, c)  y = Conv(d, w1) }"""
    original = onnx.parser.parse_model(text)
    for number in range(2):
        array = RNG.normal(size=(8, 8, 1, 1)).astype(np.float32)
        original.graph.initializer.append(onnx.numpy_helper.from_array(array, f"w{number}"))
    given = [{"x": RNG.normal(size=(1, 8, 6, 6)).astype(np.float32)} for _ in range(3)]

    def quantised(**options: object) -> int:
        made = ortfuse.lower(original, "static_int8_conv", inputs=given, **options).model  # type: ignore[arg-type]
        return sum(node.op_type == "QuantizeLinear" for node in made.graph.node)

    assert quantised(exclude="op:Mul") < quantised()


@pytest.mark.parametrize("command", [["convert"], ["quantize", "--scheme", "dynamic_int8"]])
def test_the_commands_take_patterns(tmp_path: Path, command: list[str]) -> None:
    path, result = tmp_path / "m.onnx", tmp_path / "r.onnx"
    onnx.save(model(), path)
    arguments = [command[0], str(path), "-o", str(result), *command[1:]]
    found = CliRunner().invoke(app, [*arguments, "--exclude", "value:p0", "--exclude", "op:Sin"])
    assert found.exit_code == 0, found.output
    assert {one.name: one.data_type for one in onnx.load(result).graph.initializer}["w0"] == onnx.TensorProto.FLOAT
    assert CliRunner().invoke(app, [*arguments, "--only", "nothing"]).exit_code == 2
