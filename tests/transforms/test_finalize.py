from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import run
from small_models import apply, context_of, floats, model_of

from ortfuse.errors import TargetError
from ortfuse.io.check_model import check
from ortfuse.ir.walk import nodes
from ortfuse.transforms import ConstantFolding, Finalize
from ortfuse.transforms.cleanup import finalize as finalize_module


def test_a_model_in_order_is_not_changed() -> None:
    text = "agraph (float[N] x) => (float[N] y) { a = Neg(x) \n y = Exp(a) }"
    model = model_of('<ir_version: 10, opset_import: ["" : 20]>' + text)
    context = context_of(model)
    assert Finalize().run(context) == 1
    assert (model.graph[0].outputs[0].dtype, str(model.graph[0].outputs[0].shape)) == (ir.DataType.FLOAT, "[None]")
    assert Finalize().run(context) == 0


DECLARED = """agraph (float[N, M] x, float[K] v) => (float[P] y) <int64[1] m = {-1}> {
    s = Shape(x) \n a = Reshape(x, m) \n b = NonZero(v) \n c = Concat <axis = 0> (a, a) \n y = Identity(c) }"""


@pytest.mark.parametrize(
    ("symbolic", "a", "b", "c"), [(False, "[None]", "[1,None]", "[None]"), (True, "[M*N]", "[1,None]", "[2*M*N]")]
)
def test_declared_types_come_from_facts(symbolic: bool, a: str, b: str, c: str) -> None:
    model, _, _ = apply(DECLARED, Finalize(symbolic=symbolic))
    shapes = {value.name: (value.dtype, str(value.shape)) for node in model.graph for value in node.outputs}
    assert shapes["s"] == (ir.DataType.INT64, "[2]")
    assert shapes["a"] == (ir.DataType.FLOAT, a)
    assert shapes["b"] == (ir.DataType.INT64, b)
    assert shapes["c"] == (ir.DataType.FLOAT, c)
    assert shapes["y"] == (ir.DataType.FLOAT, "[P]")


def test_what_a_file_declares_stays_only_where_facts_prove_it() -> None:
    text = """agraph (float[N, 4] x, int64[K] t) => (float[5, "time"] y, float z)
        <float[9, 4] a, float["batch", 4] b, float[2, 3] r> {
        a = Neg(x) \n b = Exp(a) \n r = Reshape(b, t) \n y = Neg(r) \n u = Abs(r) \n z = mine.Op(u) }"""
    model, _, _ = apply(f'<ir_version: 10, opset_import: ["" : 20, "mine" : 1]>{text}', Finalize())
    shapes = {value.name: str(value.shape) for node in model.graph for value in node.outputs}
    assert shapes == {"a": "[None,4]", "b": "[None,4]", "r": "[2,3]", "y": "[5,time]", "u": "None", "z": "[]"}


def test_an_output_without_a_declared_shape_stays_without() -> None:
    model = model_of("agraph (float[N] x) => (y) { a = Neg(x) \n y = Exp(a) }")
    Finalize().run(context_of(model))
    assert (model.graph.outputs[0].dtype, model.graph.outputs[0].shape) == (ir.DataType.FLOAT, None)


def test_the_opset_is_raised_for_a_node_that_needs_it() -> None:
    model = model_of(
        '<ir_version: 8, opset_import: ["" : 17]> agraph (float[2] x) => (float[2] y) { a = Neg(x) \n y = Exp(a) }'
    )
    context = context_of(model)
    model.graph[1].op_type = "Gelu"
    model.graph[1].version = 20
    assert Finalize().run(context) >= 1
    assert model.opset_imports[""] == 20
    assert all(context.facts.shape(output) == (2,) for node in model.graph for output in node.outputs)
    assert all(node.version is None for node in model.graph)
    assert run(model, {"x": floats(2)})[0].shape == (2,)


def test_a_node_that_the_raised_opset_does_not_reach_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("agraph (float[2] x) => (float[2] y) { y = Exp(x) }")
    model.graph[0].version = 21
    monkeypatch.setattr(finalize_module, "raise_opset", lambda *_: None)
    with pytest.raises(TargetError, match="Exp"):
        Finalize().run(context_of(model))


def test_imports_of_domains_that_nothing_uses_go() -> None:
    text = """agraph (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20, "com.microsoft" : 1]> f (a) => (b) { b = Exp(a) }"""
    model, _, _ = apply(text, Finalize(), inputs={"x": floats(2)})
    assert model.opset_imports == {"": 20, "local": 1}
    assert next(iter(model.functions.values())).opset_imports == {"": 20}


def test_imports_of_domains_that_only_functions_use_stay() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "local" : 1, "inner" : 1]>
        agraph (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20, "inner" : 1]> f (a) => (b) { b = inner.g(a) }
        <domain: "inner", opset_import: ["" : 20]> g (a) => (b) { b = Exp(a) }"""
    model, _, _ = apply(text, Finalize(), inputs={"x": floats(2)})
    assert model.opset_imports == {"": 20, "local": 1, "inner": 1}


def test_graphs_out_of_order_are_sorted_also_when_only_a_branch_uses_the_value() -> None:
    text = """agraph (float[2] x, bool c) => (float[2] y) {
        a = Neg(x)
        y = If (c) <then_branch = t () => (float[2] p) { q = Exp(a) \n p = Abs(q) }, else_branch = e () => (float[2] r) { r = Exp(a) }> }"""
    model = model_of(text)
    node = model.graph[0]
    model.graph.remove(node)
    model.graph.append(node)
    then = model.graph[0].attributes["then_branch"].as_graph()
    inner = then[0]
    then.remove(inner)
    then.append(inner)
    assert Finalize().run(context_of(model)) >= 1
    check(model, name="result")
    assert [node.op_type for node in model.graph] == ["Neg", "If"]
    np.testing.assert_allclose(
        run(model, {"x": np.ones(2, np.float32), "c": np.array(True)})[0], np.exp([-1, -1]), rtol=1e-6
    )


def test_values_get_names_and_names_that_hide_others_are_changed() -> None:
    text = """agraph (float[2] x, bool c) => (float[2] y) {
        a = Neg(x)
        y = If (c) <then_branch = t () => (float[2] p) { u = Exp(a) \n p = Abs(u) }, else_branch = e () => (float[2] r) { u = Exp(a) \n r = Neg(u) }> }"""
    model = model_of(text)
    graphs = [model.graph[1].attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    graphs[0][0].outputs[0].name = "a"
    model.graph[0].outputs[0].name = None
    graphs[1][0].outputs[0].name = "y"
    context = context_of(model)
    assert Finalize().run(context) >= 3
    check(model, name="result")
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert graphs[0][0].outputs[0].name == "a"
    assert graphs[1][0].outputs[0].name == "y_1"
    assert run(model, {"x": floats(2), "c": np.array(True)})[0].shape == (2,)


def test_strict_inference_takes_equal_names_in_graphs_beside_each_other() -> None:
    """ONNX keeps the elements of small tensors of all graphs by name, and refuses those of a second one."""
    branch = "() => (float[n] o) { d = Shape (x) t = Slice (d, first, last) o = Reshape (x, t) }"
    branches = ", ".join(f"{side}_branch = {side} {branch}" for side in ("then", "else"))
    model = model_of(f"""agraph (bool c, float[n] x) => (float[n] y) <int64[1] first = {{0}}, int64[1] last = {{9}}> {{
        y = If (c) <{branches}> }}""")
    Finalize().run(context_of(model))
    names = [value.name for node in nodes(model) for value in node.outputs]
    assert len(names) == len({*names})
    onnx.shape_inference.infer_shapes(ir.to_proto(model), True, True, True)


def test_a_constant_that_a_function_is_given_is_a_node() -> None:
    text = """agraph (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20]> f (a) => (b) { b = Add(a, a) }"""
    model = model_of(text)
    context = context_of(model)
    graph = next(iter(model.functions.values())).graph
    old = graph[0]
    with context.editor.change("test"):
        value = context.editor.add_constant(old, ir.tensor(np.array([1, 2], np.float32)))
        new = ir.node("Add", [old.inputs[0], value])
        context.editor.insert_before(old, new)
        context.editor.replace(old.outputs[0], new.outputs[0])
        context.editor.remove(old)
    Finalize().run(context)
    check(model, name="result")
    assert [node.op_type for node in graph] == ["Constant", "Add"]
    np.testing.assert_array_equal(run(model, {"x": np.zeros(2, np.float32)})[0], [1, 2])


def test_a_model_that_lists_its_initializers_as_inputs_gets_the_ir_version_that_need_not() -> None:
    text = """<ir_version: 3, opset_import: ["" : 7]>
        agraph (float[2] x, float[2] w = {1, 2}) => (float[2] y) { a = Exp(w) \n y = Add(x, a) }"""
    model, counts, _ = apply(text, ConstantFolding(), Finalize(), inputs={"x": floats(2)})
    assert counts[0] == 1
    assert model.ir_version == 4
    assert [value.name for value in model.graph.inputs] == ["x"]
    untouched, _, _ = apply(text.replace("Exp(w)", "Add(w, x)"), ConstantFolding(), Finalize(), inputs={"x": floats(2)})
    assert (untouched.ir_version, len(untouched.graph.inputs)) == (3, 2)


def test_inputs_that_are_only_initializers_go_also_when_the_opset_is_raised() -> None:
    model = model_of(
        """<ir_version: 3, opset_import: ["" : 8]>
        agraph (float[2] x, float[2] w = {1, 2}) => (float[2] y) { a = Exp(x) \n y = Add(a, w) }"""
    )
    model.graph[0].op_type, model.graph[0].version = "Gelu", 20
    Finalize().run(context_of(model))
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert run(model, {"x": floats(2)})[0].shape == (2,)


RUNS = """agraph (float[2] x, int64 runs) => (float[2] y, float[] z) <int64 three = {3}> {
    y, z = Loop<body = one (int64 i, bool go, float[] s) => (bool on, float[] s1, float[] t) {
        on = Identity(go) s1 = Neg(s) u = Exp(s1) t = Abs(u) }>(LIMIT, , x) }"""


@pytest.mark.parametrize(("limit", "declared"), [("runs", "None"), ("three", "[2]")])
def test_what_no_iteration_stacks_keeps_the_sizes_that_the_runtime_makes_up(limit: str, declared: str) -> None:
    before = model_of(RUNS.replace("LIMIT", limit))
    after = before.clone()
    Finalize().run(context_of(after))
    body = after.graph[0].attributes["body"].as_graph()
    assert [str(value.shape) for value in (body.outputs[2], body[2].outputs[0])] == [declared] * 2
    for runs in (0, 2):
        old, new = (run(model, {"x": floats(2), "runs": np.array(runs)}) for model in (before, after))
        assert [one.shape for one in old] == [one.shape for one in new]


def test_no_new_shape_is_declared_if_that_is_asked_for() -> None:
    text = "agraph (float[3] x) => (float[3] y) <float[3] b> { a = Neg(x) \n b = Exp(a) \n y = Abs(b) }"
    model, _, _ = apply(text, Finalize(shapes=False))
    assert [str(node.outputs[0].shape) for node in model.graph] == ["None", "[3]", "[3]"]
