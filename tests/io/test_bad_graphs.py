from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper, numpy_helper, parser

import ortfuse
from ortfuse.errors import InvalidModelError, ModelFileError, OrtfuseError
from ortfuse.io import wire_format
from ortfuse.io.check_model import check
from ortfuse.io.convert_model_objects import enter
from ortfuse.io.load_and_save import load

NEWEST = onnx.defs.onnx_opset_version()


def graph(body: str, *, x: str = "float[n] x", y: str = "float[n] y", opset: str = '"": 20', rest: str = "") -> str:
    """The text of a model from x to y with the nodes of `body`; `rest` are its functions."""
    return f"<ir_version: 10, opset_import: [{opset}]> g ({x}) => ({y}) {{ {body} }} {rest}"


MINE = '<domain: "mine", opset_import: ["": 20, "mine": 1]>'
OPSETS = '"": 20, "mine": 1'

WRONG_TEXTS = {
    "cycle": (
        graph("a = Add(x, c) b = Neg(a) c = Exp(b) y = Abs(c)"),
        "the graph has a cycle of 3 nodes: .*(Add|Neg|Exp) node that produces",
    ),
    "cycle through a subgraph": (
        graph(
            "c = Cast <to = 9> (t) t = If (c) <then_branch = a () => (float[n] p) { p = Neg(x) },"
            " else_branch = b () => (float[n] q) { q = Exp(t) }> y = Abs(t)"
        ),
        "the graph has a cycle of",
    ),
    "cycle in a function": (
        graph("y = mine.F(x)", opset=OPSETS, rest=f"{MINE} F (a) => (c) {{ b = Add(a, c) c = Neg(b) }}"),
        "the graph has a cycle of 2 nodes: .*export the model again",
    ),
    "dangling input": (graph("y = Add(x, nothing)"), "Add node that produces 'y' uses 'nothing', which is a dangling"),
    "dangling input in a subgraph": (
        graph(
            "c = Constant <value = bool {1}> () y = If (c) <then_branch = a () => (float[n] p) { p = Neg(nothing) },"
            " else_branch = b () => (float[n] q) { q = Exp(x) }>"
        ),
        "Neg node that produces 'p' uses 'nothing', which is a dangling input",
    ),
    "value of another branch": (
        graph(
            "c = Constant <value = bool {1}> () y = If (c) <then_branch = a () => (float[n] p) { p = Neg(x) },"
            " else_branch = b () => (float[n] q) { q = Exp(p) }>"
        ),
        "Exp node that produces 'q' uses 'p', which",
    ),
    "dangling output": (graph("z = Neg(x)"), "output 'y' of graph 'g' is produced by no node"),
    "output of a subgraph from outside": (
        graph(
            "c = Constant <value = bool {1}> () z = Abs(x) y = If (c) <"
            "then_branch = a () => (float[n] z) { p = Neg(x) }, else_branch = b () => (float[n] q) { q = Exp(x) }>"
        ),
        "output 'z' of graph 'a' is a value from outside the subgraph; pass it through an Identity",
    ),
    "output produced twice": (
        graph("y = Neg(x) y = Exp(x)"),
        "Exp node produces 'y', which is already produced by Neg node; .*rename one of them",
    ),
    "output of the name of an input": (
        graph("x = Neg(x) y = Exp(x)"),
        "Neg node produces 'x', which is already a graph input or an initializer",
    ),
    "output in a subgraph of the name of a value outside": (
        graph(
            "c = Constant <value = bool {1}> () z = Abs(x) y = If (c) <then_branch = a () => (float[n] p)"
            " { z = Neg(x) p = Exp(z) }, else_branch = b () => (float[n] q) { q = Exp(z) }>"
        ),
        "Neg node that produces 'z' produces 'z', which is already produced by Abs node",
    ),
    "two inputs of one name": (graph("y = Neg(x)", x="float[n] x, float[n] x"), "two inputs or initializers .* 'x'"),
    "input without a type": (graph("y = Neg(x)", x="x"), "graph input 'x' has no element type"),
    "domain not imported": (
        graph("y = mine.F(x)"),
        r"mine::F node that produces 'y' uses the operator domain 'mine', which is not among the opset imports "
        r"\(ai.onnx 20\); add it",
    ),
    "default domain not imported": (
        graph("y = Neg(x)", opset='"mine": 1'),
        "uses the operator domain 'ai.onnx', which",
    ),
    "no opset": (graph("y = Neg(x)", opset=""), "imports no opset; set opset_import"),
    "opset zero": (graph("y = Neg(x)", opset='"": 0'), "imports version 0 of the operator domain 'ai.onnx'"),
    "opset of the future": (
        graph("y = Neg(x)", opset=f'"": {NEWEST + 1}'),
        f"imports opset {NEWEST + 1}; the installed onnx .* up to {NEWEST}: upgrade onnx or export with an older",
    ),
    "unknown operator": (
        graph("y = Frobnicate(x)"),
        "Frobnicate node that produces 'y' uses an operator that is not part of ai.onnx opset 20",
    ),
    "operator of a later opset": (
        graph("y = Gelu(x)", opset='"": 17'),
        "ai.onnx opset 17 does not have; import a newer",
    ),
    "operator removed": (graph("y = Upsample(x, x)", opset='"": 10'), "operator that was removed in opset 10"),
    "too few inputs": (graph("y = Add(x)"), "Add node that produces 'y' has 1 inputs; the operator takes 2"),
    "too many outputs": (graph("y, z = Neg(x)"), "has 2 outputs; the operator takes 1"),
    "input left out": (graph("y = Add(, x)"), "leaves out its input 'A', which is not optional"),
    "unknown attribute": (graph("y = Neg <alpha = 1.0> (x)"), "has the attribute 'alpha', which the operator does not"),
    "attribute of a wrong type": (
        graph("y = Softmax <axis = 1.0> (x)"),
        "has the attribute 'axis' with type FLOAT instead of INT",
    ),
    "attribute missing": (graph("y = Cast(x)"), "lacks the attribute 'to', which the operator requires"),
    "function attribute outside of a function": (
        graph("y = Softmax <axis: int = @a> (x)"),
        "has the attribute 'axis' that refers to a function's attribute, but is in no function",
    ),
    "recursive function": (
        graph("y = mine.F(x)", opset=OPSETS, rest=f"{MINE} F (a) => (b) {{ b = mine.F(a) }}"),
        "functions call themselves: mine::F -> mine::F; ONNX functions must not be recursive",
    ),
    "functions that call each other": (
        graph(
            "y = mine.F(x)",
            opset=OPSETS,
            rest=f"{MINE} F (a) => (b) {{ b = mine.G(a) }} {MINE} G (a) => (b) {{ b = mine.F(a) }}",
        ),
        "functions call themselves: mine::F -> mine::G -> mine::F",
    ),
    "function defined twice": (
        graph("y = mine.F(x)", opset=OPSETS, rest=2 * f"{MINE} F (a) => (b) {{ b = Neg(a) }}"),
        "defines the function mine::F twice",
    ),
    "function without its output": (
        graph("y = mine.F(x)", opset=OPSETS, rest=f"{MINE} F (a) => (b) {{ c = Neg(a) }}"),
        "function mine::F: its output 'b' is produced by no node",
    ),
    "function with a dangling input": (
        graph("y = mine.F(x)", opset=OPSETS, rest=f"{MINE} F (a) => (b) {{ b = Add(a, nothing) }}"),
        "function mine::F: Add node that produces 'b' uses 'nothing', which is a dangling input",
    ),
}


@pytest.mark.parametrize("kind", WRONG_TEXTS)
def test_what_is_wrong_with_a_graph_is_named(kind: str, tmp_path: Path) -> None:
    text, message = WRONG_TEXTS[kind]
    model = parser.parse_model(text)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(InvalidModelError, match=rf"m\.onnx: .*{message}"):
        load(tmp_path / "m.onnx")
    with pytest.raises(InvalidModelError, match=f"^g: .*{message}"):
        enter(model)


def weighted() -> onnx.ModelProto:
    model = parser.parse_model(graph("y = Add(x, w)"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    return model


def _without_type(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="alpha").f = 1.0


def _other_element_type(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.INT64, [3]))


def _other_shape(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4]))


WRONG_PROTOS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "IR version of the future": (lambda m: setattr(m, "ir_version", 99), "has IR version 99; the installed onnx"),
    "no IR version": (lambda m: m.ClearField("ir_version"), "has IR version 0"),
    "initializer without a name": (
        lambda m: m.graph.initializer[0].ClearField("name"),
        "uses 'w', which is a dangling input",
    ),
    "element type that ONNX lacks": (
        lambda m: setattr(m.graph.initializer[0], "data_type", 99),
        "initializer 'w' has the element type 99",
    ),
    "no element type": (lambda m: m.graph.initializer[0].ClearField("data_type"), "'w' has no element type"),
    "initializer of another type than its input": (_other_element_type, "'w' is declared as INT64 .*but holds FLOAT"),
    "initializer of another shape than its input": (
        _other_shape,
        r"'w' is declared as FLOAT \[4\] but holds FLOAT \[3\]",
    ),
    "attribute without a type": (_without_type, "has the attribute 'alpha' without a type"),
    "operator without a type": (lambda m: m.graph.node[0].ClearField("op_type"), "has no operator type"),
    "elements in a wrong field": (
        lambda m: m.graph.initializer[0].ClearField("raw_data") or m.graph.initializer[0].int64_data.extend([1, 2, 3]),
        "'w' has elements of type FLOAT in its field int64_data",
    ),
}


@pytest.mark.parametrize("kind", WRONG_PROTOS)
def test_what_is_wrong_with_a_protobuf_is_named(kind: str, tmp_path: Path) -> None:
    spoil, message = WRONG_PROTOS[kind]
    model = weighted()
    spoil(model)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(InvalidModelError, match=message):
        load(tmp_path / "m.onnx")


RIGHT_TEXTS = {
    "operators of an imported domain": graph("y = mine.Frobnicate(x)", opset=OPSETS),
    "operators of the runtime without an import": graph("y = com.microsoft.FastGelu(x)"),
    "operators of the runtime in the domain of ONNX": graph("y = SimplifiedLayerNormalization <axis = 0> (x, x)"),
    "operators defined by a function": graph(
        "y = mine.F(x)", opset=OPSETS, rest=f"{MINE} F (a) => (b) {{ b = Neg(a) }}"
    ),
    "operators the runtime had before ONNX": graph("y = LayerNormalization(x, x)", opset='"": 16'),
    "an input that is an output": graph("z = Neg(x)", y="float[n] x"),
    "one output twice": graph("y = Neg(x)", y="float[n] y, float[n] y"),
    "one name in two branches": graph(
        "c = Constant <value = bool {1}> () y = If (c) <then_branch = a () => (float[n] p) { p = Neg(x) },"
        " else_branch = b () => (float[n] p) { p = Exp(x) }>"
    ),
    "a subgraph's input of the name of a value outside": graph(
        "c = Constant <value = bool {1}> () k = Constant <value = int64 {2}> () y = Loop (k, c, x)"
        " <body = b (int64 i, bool d, float[n] x) => (bool o, float[n] z) { o = Identity(d) z = Neg(x) }>"
    ),
    "the default domain by its name": graph("y = Neg(x)", opset='"ai.onnx": 20'),
    "no nodes": graph("", y="float[n] x"),
}


@pytest.mark.parametrize("kind", RIGHT_TEXTS)
def test_what_the_runtime_accepts_is_accepted(kind: str, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(RIGHT_TEXTS[kind]), tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    check(model, name="again")
    assert model.opset_imports[""] in (16, 20)


def test_the_import_of_the_runtimes_domain_is_added(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(RIGHT_TEXTS["operators of the runtime without an import"]), tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx").opset_imports == {"": 20, "com.microsoft": 1}


def test_a_name_that_hides_one_outside_is_changed_in_the_subgraph() -> None:
    text = graph(
        "c = Constant <value = bool {1}> () k = Constant <value = int64 {2}> () y = Loop (k, c, x)"
        " <body = b (int64 i, bool d, float[n] x) => (bool o, float[n] z)"
        " <float[1] c = {1.0}> { o = Identity(d) z = Add(x, c) }>"
    )
    model, _ = enter(parser.parse_model(text))
    body = list(model.graph)[-1].attributes["body"].as_graph()
    names = [value.name for value in [*body.inputs, *body.initializers.values()]]
    assert len({*names, "x", "c", "k", "y"}) == len(names) + 4
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_value_info_that_contradicts_an_initializer_gives_way(tmp_path: Path) -> None:
    model = weighted()
    model.graph.value_info.append(helper.make_tensor_value_info("w", onnx.TensorProto.INT64, [7]))
    onnx.save(model, tmp_path / "m.onnx")
    value = load(tmp_path / "m.onnx").graph.initializers["w"]
    assert (value.dtype, value.shape) == (onnx_ir.DataType.FLOAT, [3])


@pytest.mark.parametrize(
    ("opset", "given", "kept"),
    [(20, "<int64[0] e = {}>", False), (20, "<int64[1] e = {0}>", True), (13, "", False), (11, "", False)],
)
def test_an_empty_list_of_axes_of_a_squeeze_is_dropped(opset: int, given: str, kept: bool) -> None:
    """It means all of them to the runtime."""
    body = "y = Squeeze(x, e)" if given else "e = Constant<value = int64[0] {}>() y = Squeeze(x, e)"
    body = body if opset > 11 else "y = Squeeze(x)"
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[1,n] x) => (float[] y) {given} {{ {body} }}'
    proto = parser.parse_model(text)
    if opset == 11:
        proto.graph.node[-1].attribute.add(name="axes", type=onnx.AttributeProto.INTS)
    squeeze = next(node for node in enter(proto)[0].graph if node.op_type == "Squeeze")
    assert (len(squeeze.inputs) == 2) is kept and "axes" not in squeeze.attributes


def test_check_does_not_repair() -> None:
    model = onnx_ir.from_proto(parser.parse_model(graph("y = Neg(z) z = Exp(x)")))
    with pytest.raises(
        InvalidModelError, match="uses 'z' before Exp node that produces 'z' produces it; sort the nodes"
    ):
        check(model, name="m")
    assert [node.op_type for node in model.graph] == ["Neg", "Exp"]


def test_a_value_of_another_graph_is_not_taken_for_one_of_the_same_name() -> None:
    model, other = (onnx_ir.from_proto(parser.parse_model(graph("z = Exp(x) y = Neg(z)"))) for _ in range(2))
    model.graph[1].replace_input_with(0, other.graph[0].outputs[0])
    with pytest.raises(InvalidModelError, match="uses 'z', but of another value of that name"):
        check(model, name="m")


@pytest.mark.parametrize("depth", [10, 40, 5000])
def test_deep_nesting_is_an_error_not_a_crash(depth: int, tmp_path: Path) -> None:
    def field(number: int, content: bytes) -> bytes:
        return wire_format.header(number, len(content)) + content

    graph = b""
    for _ in range(depth):
        attribute = field(1, b"body") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(4, b"Loop") + field(5, attribute))
    (tmp_path / "m.onnx").write_bytes(b"\x08\x0a" + field(8, b"\x10\x14") + field(7, graph))
    with pytest.raises(OrtfuseError, match=r"is cut off or damaged|nested too deeply|has 0 inputs"):
        load(tmp_path / "m.onnx")


@pytest.mark.parametrize(("copy", "depth"), [(True, 2000), (False, 2000), (True, 200)])
def test_deep_nesting_of_a_graph_in_memory_is_an_error(copy: bool, depth: int) -> None:
    model = onnx_ir.from_proto(parser.parse_model(graph("y = Neg(x)")))
    inner = model.graph
    for _ in range(depth):
        node = onnx_ir.node("Wrap", [], {"body": inner}, domain="mine", outputs=[onnx_ir.Value(name="y")])
        inner = onnx_ir.Graph([], node.outputs, nodes=[node], opset_imports={"": 20, "mine": 1}, name="g")
    with pytest.raises(InvalidModelError, match="nested too deeply"):
        enter(onnx_ir.Model(inner, ir_version=10), copy=copy)


def test_a_long_chain_is_no_problem(tmp_path: Path) -> None:
    body = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(5000))
    model = parser.parse_model(graph(body, x="float[n] v0", y="float[n] v5000"))
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, tmp_path / "m.onnx")
    assert next(iter(load(tmp_path / "m.onnx").graph)).inputs[0].name == "v0"  # type: ignore[union-attr]
    model.graph.node[-1].input[0] = "v5000"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(InvalidModelError, match="the graph has a cycle of 5000 nodes"):
        load(tmp_path / "m.onnx")


def _damaged(kind: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 12, "ai.onnx.ml": 3]> g (float[n,4] x) => (float[n,4] y) '
        "{ k = Constant<value = float {1.0}>() z = Squeeze(x) y = Mul(x, k) s = ai.onnx.ml.Scaler<scale = [1.0]>(x) }"
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    constant = made.graph.node[0].attribute[0]
    if kind.startswith("initializer"):
        made.graph.initializer[0].data_type = int(kind.split()[1])
    elif kind.startswith("attribute"):
        constant.t.data_type = int(kind.split()[1])
    elif kind == "text for a tensor":
        constant.CopyFrom(onnx.helper.make_attribute("value", "text"))
    elif kind == "text for numbers":
        constant.CopyFrom(onnx.helper.make_attribute("value_ints", "text"))
    elif kind == "text for axes":
        made.graph.node[1].attribute.append(onnx.helper.make_attribute("axes", "text"))
    else:
        made.opset_import[1].version = int(kind.split()[1])
    if kind.startswith("text for "):
        made.graph.node[1].op_type = "ReduceSum"
        made.graph.node[1].input.extend(["k"] if kind != "text for axes" else [])
        made.opset_import[0].version = 13 if kind != "text for axes" else 12
    return made


@pytest.mark.parametrize(
    "kind",
    ["initializer 0", "initializer 2147483647", "attribute 0", "attribute -1", "attribute 256", "text for a tensor", "text for numbers",
     "text for axes", "opset 2147483648", "opset 9223372036854775807"],
)  # fmt: skip
@pytest.mark.parametrize("comes_from", ["memory", "file"])
def test_types_and_versions_that_do_not_exist_are_an_error(kind: str, comes_from: str, tmp_path: Path) -> None:
    made = _damaged(kind)
    if comes_from == "file":
        (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises((InvalidModelError, ModelFileError)):
        ortfuse.optimize(made if comes_from == "memory" else tmp_path / "m.onnx")
