"""Every operation of the editor can be undone to the last name, alone and in any sequence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import model_of

from ortfuse.analysis.facts import Facts
from ortfuse.ir.edit import Edit
from ortfuse.ir.editor import Editor
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.walk import graphs, own_values

NO = refuse("left_out", None, found="only to see")

MODEL = """
agraph (float[b, 4] x, bool c) => (float[b, 4] y, float[b, 4] z, float[b, 4] v)
<float[4] w = {1, 2, 3, 4}, float[4] u = {1, 2, 3, 4}, float[2] unused = {0, 1}, int64[2] target = {0, 4}>
{
    k = Constant <value = float[4] {4, 3, 2, 1}> ()
    a = Add(x, w)
    s = Softplus(a)
    m, i = TopK <axis = -1> (s, one)
    r = Reshape(s, target)
    z = Mul(r, u)
    d = If (c) <
        then_branch = g1 () => (float[b, 4] p) { q = Exp(s) p = Add(q, k) },
        else_branch = g2 () => (float[b, 4] t) { t = Relu(a) }
    >
    y = Sub(d, k)
    v = local.f(a)
    e = Exp(a)
    dead = Tanh(e)
}
<domain: "local", opset_import: ["" : 20]>
f (g) => (h) { j = Exp(g) h = Neg(j) }
"""


def make() -> tuple[ir.Model, Editor]:
    model = model_of(MODEL.replace("int64[2] target", "int64[1] one = {1}, int64[2] target"))
    return model, Editor(model, Facts(model))


def state(model: ir.Model, editor: Editor) -> list[Any]:
    """Everything that must be as it was."""
    facts = editor.facts
    assert isinstance(facts, Facts)
    found: list[Any] = [ir.to_proto(model).SerializeToString(deterministic=True)]
    for graph in graphs(model):
        found.append([(value.name, id(value)) for value in graph.initializers.values()])
        for node in graph:
            found.append((id(node), node.name, node.version, [None if v is None else id(v) for v in node.inputs]))
        for value in own_values(graph):
            uses = {(id(use.node), use.idx) for use in value.uses()}
            known = (facts.dtype(value), str(facts.shape(value)), str(facts.ints(value)), facts.scalar(value))
            found.append(
                (id(value), value.name, str(value.type), str(value.shape), uses, value.is_graph_output(), known)
            )
            found.append((value.const_value is None, dict(value.metadata_props), value.producer() and value.index()))
    return found


def value(model: ir.Model, name: str) -> ir.Value:
    return next(value for graph in graphs(model) for value in own_values(graph) if value.name == name)


def producer(model: ir.Model, name: str) -> ir.Node:
    found = value(model, name).producer()
    assert found is not None
    return found


def a_constant() -> ir.TensorProtocol:
    return ir.tensor(np.full((4,), 2, np.float32))


def insert_and_replace(editor: Editor) -> None:
    old, place = value(editor.model, "s"), producer(editor.model, "s")
    node = ir.node("Relu", [value(editor.model, "a")])
    editor.insert_before(place, node)
    editor.replace(old, node.outputs[0])


def insert_after_with_a_domain(editor: Editor) -> None:
    place = producer(editor.model, "s")
    editor.insert_after(place, ir.node("Gelu", place.outputs, domain="another"))


def replace_everything_by_constants(editor: Editor) -> None:
    for name in ("s", "j", "q", "z"):
        editor.replace_by_constant(value(editor.model, name), a_constant())


def add_constants(editor: Editor) -> None:
    for name in ("s", "j", "q"):
        place = producer(editor.model, name)
        constant = editor.add_constant(place, a_constant())
        assert constant is not None
        editor.insert_before(place, ir.node("Neg", [constant]))


def drop_and_register(editor: Editor) -> None:
    unused = value(editor.model, "unused")
    editor.drop_initializers(unused)
    editor.register_initializer(editor.model.graph, unused)


def sort_a_graph(editor: Editor) -> None:
    graph = editor.model.graph
    editor.move_before(graph[0], producer(editor.model, "y"))
    editor.sort(graph)


def drop_function(editor: Editor) -> None:
    v = value(editor.model, "v")
    editor.replace(v, value(editor.model, "a"))
    editor.remove(*[node for node in editor.model.graph if node.op_type == "f"])
    editor.remove_functions(list(editor.model.functions))
    editor.set_import(editor.model.graph, "local", None)


OPERATIONS: dict[str, Callable[[Editor], object]] = {
    "insert and replace": insert_and_replace,
    "insert with a new domain": insert_after_with_a_domain,
    "append": lambda e: e.append(e.model.graph, ir.node("Neg", [value(e.model, "a")])),
    "replace by an input": lambda e: e.replace(value(e.model, "s"), value(e.model, "x")),
    "replace a graph output by a graph input": lambda e: e.replace(value(e.model, "z"), value(e.model, "x")),
    "replace a graph output by another": lambda e: e.replace(value(e.model, "z"), value(e.model, "y")),
    "replace a graph output by a value": lambda e: e.replace(value(e.model, "z"), value(e.model, "r")),
    "replace an initializer": lambda e: e.replace(value(e.model, "w"), value(e.model, "u")),
    "replace an output of a body": lambda e: e.replace(value(e.model, "p"), value(e.model, "q")),
    "replace by constants": replace_everything_by_constants,
    "add constants": add_constants,
    "remove a dead node": lambda e: e.remove(producer(e.model, "dead")),
    "remove nodes that need each other": lambda e: e.remove(producer(e.model, "e"), producer(e.model, "dead")),
    "remove a needed node": lambda e: e.remove(producer(e.model, "a")),
    "remove a node with bodies": lambda e: (
        e.replace(value(e.model, "d"), value(e.model, "s")), e.remove(producer(e.model, "q").graph and producer(e.model, "d")),
    ),
    "drop and register": drop_and_register,
    "drop": lambda e: e.drop_initializers(value(e.model, "unused")),
    "rename": lambda e: e.rename(value(e.model, "s"), "another"),
    "rename an initializer": lambda e: e.rename(value(e.model, "w"), "another_w"),
    "leave out an output": lambda e: e.rename(value(e.model, "m"), ""),
    "resize outputs": lambda e: e.resize_outputs(producer(e.model, "m"), 1),
    "declare": lambda e: e.set_type(value(e.model, "a"), ir.TensorType(ir.DataType.FLOAT), ir.Shape(["b", 4])),
    "declare an input": lambda e: e.set_type(value(e.model, "x"), ir.TensorType(ir.DataType.FLOAT), ir.Shape([3, 4])),
    "sort": sort_a_graph,
    "move": lambda e: e.move_before(e.model.graph[0], producer(e.model, "e")),
    "mark with a version": lambda e: e.set_version(producer(e.model, "s"), 22),
    "import": lambda e: e.set_import(e.model.graph, "", 21),
    "drop an import": lambda e: e.set_import(e.model.graph, "com.microsoft", None),
    "ir version": lambda e: e.set_ir_version(11),
    "inputs": lambda e: e.set_inputs(list(reversed(e.model.graph.inputs))),
    "remove a function": drop_function,
    "learn anew": lambda e: e.renew_facts(),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_can_be_undone(name: str) -> None:
    model, editor = make()
    before = state(model, editor)
    with editor.change("test") as change:
        OPERATIONS[name](editor)
        change.cancel(NO)
    assert not change
    assert state(model, editor) == before


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_an_inspector_lets_through_is_as_without_one(name: str) -> None:
    plain, editor = make()
    with editor.change("test"):
        OPERATIONS[name](editor)
    seen, inspected = make()
    inspected.inspectors.append(Objector())
    with inspected.change("test"):
        OPERATIONS[name](inspected)
    assert ir.to_proto(plain).SerializeToString(deterministic=True) == ir.to_proto(seen).SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_an_inspector_objects_to_is_undone_with_and_without_a_block(name: str) -> None:
    model, editor = make()
    before = state(model, editor)
    editor.inspectors.append(Objector(NO))
    with editor.change("test") as change:
        OPERATIONS[name](editor)
    assert not change
    assert state(model, editor) == before
    with suppress(AssertionError, ValueError):  # the next operation may rest on one that was refused
        OPERATIONS[name](editor)
    assert state(model, editor) == before


@settings(max_examples=150)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=6), st.booleans())
def test_any_sequence_of_operations_can_be_undone(names: list[str], inspected: bool) -> None:
    model, editor = make()
    before = state(model, editor)
    if inspected:
        editor.inspectors.append(Objector(NO))
    with suppress(StopIteration, AssertionError, ValueError, KeyError), editor.change("test") as change:
        for name in names:
            with suppress(StopIteration), editor.change("inner"):
                OPERATIONS[name](editor)
        change.cancel(NO)
    assert state(model, editor) == before


class Objector:
    def __init__(self, refusal: Refusal | None = None) -> None:
        self.refusal = refusal
        self.seen: list[Edit] = []

    def objection(self, edit: Edit) -> Refusal | None:
        self.seen.append(edit)
        return self.refusal


@pytest.mark.parametrize("shape", [None, [], ["batch", "seq"], [3, "seq"]])
def test_the_shape_of_an_output_is_not_taken_from_what_computes_it(shape: list[int | str] | None) -> None:
    model = model_of("g (float[a, b] x) => (float[c] y) <float[d, 4] z> { z = Neg(x) y = Identity(z) }")
    z, y = (node.outputs[0] for node in model.graph)
    y.shape = None if shape is None else ir.Shape(shape)
    editor = Editor(model, Facts(model))
    with editor.change("test"):
        editor.replace(y, z)
    output = model.graph.outputs[0]
    assert (output.name, output.shape) == ("y", None if shape is None else ir.Shape(shape))


def test_what_stands_for_an_output_keeps_its_name_if_it_stands_for_another_value_too() -> None:
    model = model_of("g (float[2] x) => (float[2] y, float[2] z) { y = Tanh(x) w = Tanh(x) z = Neg(w) }")
    y, w = (node.outputs[0] for node in list(model.graph)[:2])
    made = ir.node("Tanh", [model.graph.inputs[0]])
    editor = Editor(model, Facts(model))
    with editor.change("test"):
        editor.insert_before(y.producer(), made)
        editor.replace(y, made.outputs[0])
        editor.replace(w, made.outputs[0])
    assert [output.name for output in model.graph.outputs] == ["y", "z"]


def test_a_copy_is_in_order_and_has_names_that_the_graph_does_not_have() -> None:
    model = model_of("""<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[2] x) => (float[2] y) {
        z = Neg(x) y = If(c) <then_branch = t () => (float[2] b) { a = Exp(z) b = Tanh(a) },
            else_branch = e () => (float[2] d) { d = Identity(z) }> }""")
    holder = producer(model, "y")
    branch = holder.attributes["then_branch"].as_graph()
    first, second = branch[0], branch[1]
    branch.remove(first)
    branch.append(first)
    model.graph[0].name, first.name, second.name = "same", "same", "other"
    editor = Editor(model, Facts(model))
    (result,) = editor.insert_copy(holder, branch) or []
    above = result.producer().inputs[0].producer()
    assert above.graph is model.graph
    assert above.name != "same"
    assert result.producer().name == "other"


@pytest.mark.parametrize("number", range(5))
def test_a_name_that_a_copy_is_given_is_none_that_another_node_of_it_has(number: int) -> None:
    model = model_of("""<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[2] x) => (float[2] y) {
        z = Neg(x) y = If(c) <then_branch = t () => (float[2] b) { a = Exp(z) b = Exp(a) },
            else_branch = e () => (float[2] d) { d = Identity(z) }> }""")
    holder = producer(model, "y")
    branch = holder.attributes["then_branch"].as_graph()
    model.graph[0].name, branch[0].name, branch[1].name = "same", "same", f"node_Exp_{number}"
    Editor(model, Facts(model)).insert_copy(holder, branch)
    names = [node.name for node in model.graph]
    assert len({*names}) == len(names)


def test_what_uses_a_result_uses_what_it_becomes_and_no_identity_behind_it() -> None:
    """The Identity that carries the name of a result of a body stands at the end of it, behind all that uses the value."""
    model = model_of("""agraph (float[b, 4] x, bool c) => (float[b, 4] y) {
        o = Tanh(x)
        y = If (c) <
            then_branch = g1 () => (float[b, 4] p) { p = Tanh(x) q = Exp(p) },
            else_branch = g2 () => (float[b, 4] t) { t = Relu(x) }
        > }""")
    editor = Editor(model, Facts(model))
    branch = next(node for node in model.graph if node.op_type == "If").attributes["then_branch"].as_graph()
    inner, outer = branch.outputs[0], next(iter(model.graph)).outputs[0]
    with editor.change("test", nodes=[inner.producer()]):
        editor.replace(inner, outer)
        editor.remove(next(node for node in branch if node.op_type == "Tanh"))
    by_kind = {node.op_type: node for node in branch}
    assert by_kind["Exp"].inputs[0] is outer
    assert by_kind["Identity"].inputs[0] is outer
    assert branch.outputs[0] is by_kind["Identity"].outputs[0]
    model.clone()
