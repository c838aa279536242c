"""Facts stay true and precise while the graph is edited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import Dim, symbol

MODELS = sorted((Path(__file__).parents[2] / "golden" / "models").glob("[br]e[rs]*.onnx"))


def parse(text: str) -> tuple[ir.Model, dict[str, ir.Value]]:
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "local" : 1]> {text}'))
    values = {value.name or "": value for value in model.graph.inputs}
    for owner in (model.graph, *model.functions.values()):
        values |= {value.name or "": value for node in owner.all_nodes() for value in node.outputs}
        values |= {value.name or "": value for value in owner.inputs}
    return model, values


def replace(facts: Facts, old: ir.Node, new: ir.Node) -> None:
    """Put a node in the place of another, as the rewriter does."""
    graph = old.graph
    assert graph is not None
    graph.insert_before(old, new)
    facts.node_added(new)
    for before, after in zip(old.outputs, new.outputs, strict=True):
        before.replace_all_uses_with(after, replace_graph_outputs=True)
        facts.value_replaced(before, after)
    graph.remove(old, safe=True)
    facts.node_removed(old)


def copy_of(node: ir.Node) -> ir.Node:
    return ir.Node(
        node.domain,
        node.op_type,
        node.inputs,
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
        version=node.version,
    )


def renew_every_node(model: ir.Model, facts: Facts) -> None:
    for node in list(model.graph):
        replace(facts, node, copy_of(node))


def remove_identities(model: ir.Model, facts: Facts) -> None:
    for node in list(model.graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type == "Identity" and source is not None and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(source)
            facts.value_replaced(node.outputs[0], source)
            model.graph.remove(node, safe=True)
            facts.node_removed(node)


def make_constants_initializers(model: ir.Model, facts: Facts) -> None:
    for index, node in enumerate(list(model.graph)):
        array = facts.const(node.outputs[0]) if len(node.outputs) == 1 else None
        if array is None or node.outputs[0].is_graph_output():
            continue
        value = ir.Value(name=f"constant.{index}", const_value=ir.tensor(array))
        model.graph.register_initializer(value)
        node.outputs[0].replace_all_uses_with(value)
        facts.value_replaced(node.outputs[0], value)
        model.graph.remove(node, safe=True)
        facts.node_removed(node)


EDITS: list[Callable[[ir.Model, Facts], None]] = [renew_every_node, remove_identities, make_constants_initializers]


def same(kept: Facts, anew: Facts, value: ir.Value) -> bool:
    a, b = kept.const(value), anew.const(value)
    constants = a is b or (a is not None and b is not None and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    return constants and (kept.dtype(value), kept.shape(value), kept.ints(value), kept.scalar(value)) == (
        anew.dtype(value),
        anew.shape(value),
        anew.ints(value),
        anew.scalar(value),
    )


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_kept_facts_equal_facts_computed_afresh(path: Path, edit: Callable[[ir.Model, Facts], None]) -> None:
    model = ir.load(path)
    facts = Facts(model)
    edit(model, facts)
    anew = Facts(model)
    differing = [
        f"{node.op_type} {value.name}: kept {facts.shape(value)}, {facts.ints(value)}, "
        f"afresh {anew.shape(value)}, {anew.ints(value)}"
        for node in model.graph
        for value in node.outputs
        if not same(facts, anew, value)
    ]
    assert not differing, "\n".join(differing)


def test_a_new_node_gets_facts() -> None:
    model, values = parse("g (float[b, s] x) => (y) { y = Relu(x) }")
    facts = Facts(model)
    node = ir.node("Transpose", [values["x"]], {"perm": [1, 0]})
    model.graph.append(node)
    facts.node_added(node)
    assert facts.shape(node.outputs[0]) == (symbol("s"), symbol("b"))


def test_what_becomes_known_reaches_everything_behind_it() -> None:
    model, values = parse(
        """
        g (float[b, s, 64] x, int64[4] n) => (y) {
            k = Identity(n) r = Reshape(x, k) t = Transpose <perm = [0, 2, 1, 3]> (r) m = Shape(t) y = Reshape(r, m)
        }
        """
    )
    facts = Facts(model)
    assert all(isinstance(dim, Dim) and dim.fresh for dim in facts.shape(values["t"]) or ())
    target = ir.Value(name="target", const_value=ir.tensor([0, 0, 4, 16]))
    model.graph.register_initializer(target)
    values["k"].replace_all_uses_with(target)
    facts.value_replaced(values["k"], target)
    b, s = symbol("b"), symbol("s")
    assert facts.shape(values["r"]) == (b, s, 4, 16)
    assert facts.ints(values["m"]).elements == (b, 4, s, 16)  # type: ignore[union-attr]
    assert facts.shape(values["y"]) == (b, 4, s, 16)


def test_a_replacement_inherits_what_was_known_before() -> None:
    model, values = parse("g (float[b, s] x, int64[2] n) => (y, z) { y = Relu(x) z = Shape(y) }")
    facts = Facts(model)
    vague = ir.node("Reshape", [values["x"], values["n"]])
    replace(facts, values["y"].producer(), vague)  # type: ignore[arg-type]
    assert facts.shape(vague.outputs[0]) == (symbol("b"), symbol("s"))
    assert facts.ints(values["z"]).elements == (symbol("b"), symbol("s"))  # type: ignore[union-attr]


def test_a_rounding_replacement_does_not_inherit_a_constant() -> None:
    model, values = parse("g (float x) => (y) <float w = {2}> { c = Sqrt(w) y = Mul(x, c) }")
    facts = Facts(model)
    node = ir.node("Pow", [values["x"], values["x"]])
    replace(facts, values["c"].producer(), node)  # type: ignore[arg-type]
    assert not facts.is_const(node.outputs[0])


def test_scalars_follow_edits() -> None:
    model, values = parse(
        "g (float[b, 64] x) => (y) { n = Shape(x) y = Gather <axis = 0> (n, k) k = Constant <value = int64 {1}> () }"
    )
    model.graph.sort()
    facts = Facts(model)
    assert facts.scalar(values["y"]) == 64
    assert facts.scalar(values["n"]) is None


def test_refinement_reaches_bodies_and_comes_back() -> None:
    model, values = parse(
        """
        g (float[b, s] x, int64[2] n, bool c) => (y) {
            r = Reshape(x, n)
            y = If (c) <
                then_branch = t () => (p) { p = Relu(r) },
                else_branch = e () => (q) { q = Neg(r) }
            >
        }
        """
    )
    facts = Facts(model)
    exact = ir.node("Identity", [values["x"]])
    replace(facts, values["r"].producer(), exact)  # type: ignore[arg-type]
    assert facts.shape(values["p"]) == (symbol("b"), symbol("s"))
    assert facts.shape(values["y"]) == (symbol("b"), symbol("s"))


def test_edits_inside_a_function_know_its_facts() -> None:
    model, values = parse(
        """
        g (float[b, s] x) => (y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 11]>
        f (a) => (d) { e = Unsqueeze <axes = [0]> (a) d = Relu(e) }
        """
    )
    facts = Facts(model)
    replace(facts, values["e"].producer(), copy_of(values["e"].producer()))  # type: ignore[arg-type]
    assert facts.shape(values["d"]) == (1, symbol("b"), symbol("s"))


def test_a_new_call_of_a_function_weakens_its_body() -> None:
    model, values = parse(
        """
        g (float[b, s] x, float[b, 4] w) => (y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20]>
        f (a) => (d) { d = Relu(a) }
        """
    )
    facts = Facts(model)
    assert facts.shape(values["d"]) == (symbol("b"), symbol("s"))
    call = ir.node("f", [values["w"]], domain="local")
    model.graph.append(call)
    facts.node_added(call)
    shape = facts.shape(values["d"])
    assert shape is not None and shape[0] == symbol("b") and isinstance(shape[1], Dim) and shape[1].fresh
    assert facts.shape(call.outputs[0]) == (symbol("b"), 4)


def test_removed_nodes_are_forgotten() -> None:
    model, values = parse("g (float[b] x) => (z) { y = Relu(x) z = Neg(x) }")
    facts = Facts(model)
    node = values["y"].producer()
    assert node is not None
    model.graph.remove(node)
    facts.node_removed(node)
    assert facts.shape(values["y"]) is None


def test_index_maps_name_the_constant_that_replaces_an_equal_one() -> None:
    constant = "float[3] {name} = {{1.0, 2.0, 4.0}}"
    head = ", ".join(constant.format(name=name) for name in ("first", "second"))
    model, values = parse(
        f"g () => (float[1, 3] y) <{head}> {{ shape = Constant<value_ints = [1, 3]>() y = Reshape(first, shape) }}"
    )
    facts = Facts(model)
    first, second = (model.graph.initializers[name] for name in ("first", "second"))
    assert facts.index_map(values["y"]).sources == (first,)  # type: ignore[union-attr]
    first.replace_all_uses_with(second)
    facts.value_replaced(first, second)
    assert facts.index_map(values["y"]).sources == (second,)  # type: ignore[union-attr]


@pytest.mark.parametrize(("old", "new"), ["ba", "ab"])
def test_users_of_a_value_that_replaces_another_have_its_unknown_sizes(old: str, new: str) -> None:
    model, values = parse(
        "g (float[n] x) => (int64[2] y, int64[2] z) { "
        "a = NonZero(x) b = NonZero(x) y = Shape(a) t = Transpose(b) z = Shape(t) }"
    )
    facts = Facts(model)
    assert facts.ints(values["z"]).elements[0] != facts.ints(values["y"]).elements[1]  # type: ignore[union-attr]
    before = facts.shape(values[new])
    values[old].replace_all_uses_with(values[new])
    facts.value_replaced(values[old], values[new])
    assert facts.shape(values[new]) == before
    assert facts.shape(values["t"]) == facts.shape(values[new])[::-1]  # type: ignore[index]
    assert facts.ints(values["z"]).elements[0] == facts.ints(values["y"]).elements[1]  # type: ignore[union-attr]
