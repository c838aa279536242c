"""Results do not depend on the order in which nodes are visited; graphs are the same up to names and order."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from benchmarks.jobs import ROOT
from benchmarks.trust.order import difference, tried
from benchmarks.trust.structural_hash import shuffle, structural_hash

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, float[2] z, bool c) => (float[2] y)'


def parsed(body: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f"{HEAD} <float[2] w = {{1, 2}}> {{ {body} }}"))


def test_names_order_and_commuting_operands_make_no_other_graph() -> None:
    one = structural_hash(parsed("a = Exp(x) b = Log(z) d = Mul(a, b) y = Add(w, d)"))
    assert one == structural_hash(parsed("p = Log(z) q = Exp(x) r = Mul(p, q) y = Add(r, w)"))


@pytest.mark.parametrize(
    "body",
    [
        "a = Exp(z) b = Log(x) d = Mul(a, b) y = Add(w, d)",
        "a = Exp(x) b = Log(z) d = Div(a, b) y = Add(w, d)",
        "a = Exp(x) b = Log(z) d = Mul(a, b) y = Add(a, d)",
        "a = Exp(x) e = Exp(x) b = Log(z) d = Mul(e, b) y = Add(w, d)",
    ],
)
def test_other_inputs_operators_edges_and_copies_make_another_graph(body: str) -> None:
    assert structural_hash(parsed(body)) != structural_hash(parsed("a = Exp(x) b = Log(z) d = Mul(a, b) y = Add(w, d)"))


def test_constants_that_differ_by_rounding_are_told_apart_unless_asked() -> None:
    body = "y = Mul(w, x)"
    one, other = parsed(body), parsed(body)
    for off, same in ((1e-7, True), (1e-2, False)):
        value = other.graph.initializers["w"]
        value.const_value = ir.tensor(np.array([1, 2 + off * 2], np.float32))
        assert structural_hash(one) != structural_hash(other)
        assert (structural_hash(other, rounded_as=one) == structural_hash(one)) is same


def test_a_shuffled_model_has_other_names_users_and_operands() -> None:
    found = set()
    for seed in range(8):
        model = parsed("a = Exp(x) b = Log(a) d = Sub(a, b) e = Mul(d, w) y = Add(e, a)")
        shuffle(model, seed)
        a = next(node for node in model.graph if node.op_type == "Exp").outputs[0]
        found.add((a.name, tuple((use.node.op_type, use.idx) for use in a.uses())))
        assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == ["x", "z", "c", "y"]
    assert len({name for name, _ in found}) == 8
    assert len({users for _, users in found}) > 2


def test_a_shuffled_model_is_in_order_and_the_same_in_bodies_too() -> None:
    body = """a = Exp(x) b = Log(z) y = If(c) <
        then_branch = one () => (float[2] u) { p = Neg(a) q = Neg(b) u = Add(p, q) },
        else_branch = two () => (float[2] v) { v = Exp(b) }>"""
    orders = set()
    for seed in range(8):
        model = parsed(body)
        before = structural_hash(model)
        shuffle(model, seed)
        onnx.checker.check_model(ir.to_proto(model))
        assert structural_hash(model) == before
        orders.add(tuple(node.op_type for node in model.graph))
    assert len(orders) > 1


@pytest.mark.parametrize("name", ["lstm.ts", "resnet.tsbn", "lstm_cells.ts", "gpt2.sdpa.dynamo", "llama.sdpa.dynamo"])
def test_a_golden_model_becomes_one_graph_in_whatever_order_it_is_written_and_visited(name: str) -> None:
    path = ROOT / "golden" / "models" / f"{name}.onnx"
    usual, _ = tried(path, None, False)
    assert usual is not None
    for seed in (0, 1):
        other, _ = tried(path, seed, False)
        assert other is not None
        assert difference(usual, other) == ""
