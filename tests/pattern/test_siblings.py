"""Patterns with several roots: what they match, and what they must not."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.errors import PatternError
from ortfuse.rewrite.pattern import Match, Matcher, Miss, Pattern, attr, op, opt, siblings, var, variables
from ortfuse.rewrite.pattern.find import matches
from ortfuse.rewrite.pattern.language import Const
from ortfuse.rewrite.pattern.match_siblings import MOST_TRIED

x, y, a, b, c = variables("x y a b c")
PAIR = siblings(x @ a, x @ b)


def graph(body: str, outputs: str = "q k", others: str = "") -> ir.Model:
    inputs = ", ".join(f"float[4,4] {name}" for name in ("x", "y", "wq", "wk", "wv", *others.split()))
    given = ", ".join(f"float[4,4] {name}" for name in outputs.split())
    return ir.from_onnx_text(f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => ({given}) {{ {body} }}')


def sites(pattern: Pattern, model: ir.Model) -> list[tuple[str | None, ...]]:
    return [tuple(root.name for root in found.roots) for found in matches(model, Matcher(pattern), Facts(model))]


def why(pattern: Pattern, model: ir.Model, root: str) -> str:
    value = next(output for node in model.graph for output in node.outputs if output.name == root)
    found = Matcher(pattern).match(value, Facts(model))
    assert isinstance(found, Miss)
    return found.refusal.reason


def test_two_products_of_one_value_are_siblings() -> None:
    model = graph("q = MatMul(x, wq) k = MatMul(x, wk)")
    found = next(iter(matches(model, Matcher(PAIR), Facts(model))))
    assert [root.name for root in found.roots] == ["q", "k"]
    assert found.root is found.roots[0]
    assert (found["x"].name, found["a"].name, found["b"].name) == ("x", "wq", "wk")
    assert len(found.nodes) == 2


def test_products_of_different_values_are_no_siblings() -> None:
    model = graph("q = MatMul(x, wq) k = MatMul(y, wk)")
    assert sites(PAIR, model) == []
    assert why(PAIR, model, "q").startswith("'x' goes to MatMul")


def test_a_pair_is_one_site_in_whatever_order_its_roots_are_taken() -> None:
    assert sites(PAIR, graph("k = MatMul(x, wk) q = MatMul(x, wq)")) == [("k", "q")]
    mixed = siblings(op.Relu(x), op.Neg(x) | op.Relu(x))
    assert sites(mixed, graph("q = Relu(x) k = Relu(x)")) == [("q", "k")]


def test_three_siblings_are_one_site() -> None:
    model = graph("q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)", "q k v")
    assert sites(siblings(x @ a, x @ b, x @ c), model) == [("q", "k", "v")]


def test_roots_of_different_operators_match_in_either_order() -> None:
    pattern = siblings(op.Relu(x), op.Neg(x))
    assert sites(pattern, graph("q = Relu(x) k = Neg(x)")) == [("q", "k")]
    assert sites(pattern, graph("k = Neg(x) q = Relu(x)")) == [("q", "k")]


def test_roots_are_found_above_several_nodes_and_below_a_common_one() -> None:
    deep = siblings(op.Relu(x @ a), op.Neg(op.Abs(op.Exp(x))))
    assert sites(deep, graph("t = MatMul(x, wq) q = Relu(t) e = Exp(x) f = Abs(e) k = Neg(f)")) == [("q", "k")]
    common = op.Relu(x)
    shared = siblings(common @ a, common @ b)
    assert sites(shared, graph("r = Relu(x) q = MatMul(r, wq) k = MatMul(r, wk)")) == [("q", "k")]
    assert sites(shared, graph("r = Relu(x) s = Relu(x) q = MatMul(r, wq) k = MatMul(s, wk)")) == []


@pytest.mark.parametrize(
    "body",
    [
        "q = MatMul(x, wq) k = MatMul(x, q)",
        "q = MatMul(x, wq) e = Add(wk, q) k = MatMul(x, e)",
        "q = MatMul(x, wq) e = Add(wk, q) f = Relu(e) g = Neg(f) k = MatMul(x, g)",
    ],
)
def test_a_root_that_is_computed_from_another_is_no_sibling(body: str) -> None:
    model = graph(body)
    assert sites(PAIR, model) == []
    assert "depends on a result of the nodes that it is an input of" in why(PAIR, model, "q")


def test_a_root_that_another_is_computed_from_by_a_body_is_no_sibling() -> None:
    bodies = ", ".join(
        f"{name}_branch = b () => (float[4,4] {name}) {{ {name} = Add(q, wk) }}" for name in ("then", "else")
    )
    flag = "s = ReduceSum<keepdims = 0>(wk) c = Cast<to = 9>(s)"
    model = graph(f"q = MatMul(x, wq) {flag} e = If (c) <{bodies}> k = MatMul(x, e)")
    assert sites(PAIR, model) == []


def test_a_root_inside_of_another_is_no_sibling() -> None:
    pattern = siblings(x @ a, op.Relu(x @ b))
    model = graph("q = MatMul(x, wq) k = Relu(q)")
    assert sites(pattern, model) == []
    assert sites(pattern, graph("q = MatMul(x, wq) t = MatMul(x, wk) k = Relu(t)")) == [("q", "k")]


def test_a_dependence_of_one_does_not_hide_another_sibling() -> None:
    model = graph("q = MatMul(x, wq) e = Add(wk, q) k = MatMul(x, e) v = MatMul(x, wv)", "q k v")
    assert ("q", "v") in sites(PAIR, model)


def test_nodes_in_different_graphs_are_no_siblings() -> None:
    branches = ", ".join(
        f"{name}_branch = b () => (float[4,4] {name[0]}) {{ {name[0]} = MatMul(x, {weight}) }}"
        for name, weight in (("then", "wk"), ("else", "wv"))
    )
    body = f"s = ReduceSum<keepdims = 0>(x) c = Cast<to = 9>(s) q = MatMul(x, wq) k = If (c) <{branches}>"
    assert sites(PAIR, graph(body)) == []


def test_siblings_in_a_branch_share_a_value_from_before_it() -> None:
    inside = "{ t = MatMul(x, wq) u = MatMul(x, wk) r = Add(t, u) }"
    branches = f"then_branch = b () => (float[4,4] r) {inside}, else_branch = b () => (float[4,4] e) {{ e = Relu(x) }}"
    model = graph(f"s = ReduceSum<keepdims = 0>(x) c = Cast<to = 9>(s) q = If (c) <{branches}> k = Relu(x)")
    assert sites(PAIR, model) == [("t", "u")]


def test_an_intermediate_that_is_used_elsewhere_stops_the_match() -> None:
    pattern = siblings(op.Relu(x), op.Neg(op.Abs(x)))
    model = graph("q = Relu(x) t = Abs(x) k = Neg(t) v = Exp(t)", "q k v")
    assert sites(pattern, model) == []
    assert "is also used by Exp" in why(pattern, model, "q")


def test_dimensions_are_the_same_for_all_roots() -> None:
    value = var("x", "n d")
    pattern = siblings(value @ var("a", "d h"), value @ var("b", "d h"))
    assert sites(pattern, graph("q = MatMul(x, wq) k = MatMul(x, wk)")) == [("q", "k")]
    narrow = "q = MatMul(x, wq) e = ReduceMax<keepdims = 1>(wk, axis) k = MatMul(x, e)"
    assert sites(pattern, graph(f"axis = Constant<value_ints = [1]>() {narrow}")) == []


def test_roots_that_differ_in_names_of_their_own_alone_are_twins() -> None:
    value = var("x", "n d")
    assert siblings(value @ var("a", "d h"), value @ var("b", "d k")).twins == (None, 0)
    assert siblings(value @ var("a", "d h"), value @ var("b", "d d")).twins == (None, None)
    assert siblings(op.Softmax(x, axis=attr("m")), op.Softmax(x, axis=attr("n"))).twins == (None, 0)
    assert siblings(op.Softmax(x, axis=0), op.Softmax(x, axis=1)).twins == (None, None)
    assert siblings(x @ a, op.Relu(x), x @ b).twins == (None, None, 0)
    assert siblings(x + a, x - b).twins == (None, None)
    assert siblings(x @ a, a @ x).twins == (None, None)


@pytest.mark.parametrize(
    "roots, said",
    [
        ([x @ a], "two patterns or more"),
        ([x @ a, PAIR], "only around a whole pattern"),
        ([x @ a, y @ b], "shares no variable"),
        ([x @ a, op.Clip(y, opt(x))], "shares no variable"),
        ([x @ a, op.Relu(x) | op.Relu(y)], "shares no variable"),
        ([x @ a, x], "matches any value"),
        ([*op.Split(x, num_outputs=2, outputs=2)], "of the same node"),
    ],
)
def test_roots_that_cannot_be_found_are_refused(roots: Sequence[Pattern], said: str) -> None:
    with pytest.raises(PatternError, match=said):
        Matcher(siblings(*roots))


def test_siblings_are_no_part_of_a_pattern() -> None:
    with pytest.raises(PatternError, match="only around a whole pattern"):
        Matcher(op.Relu(PAIR))


def test_the_search_at_all_of_many_siblings_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    never = siblings(x @ a, x @ var("b", lambda value, facts: bool(tried.append(value))))

    def count(number: int) -> int:
        names = [f"w{index}" for index in range(number)]
        results = [f"o{index}" for index in range(number)]
        body = " ".join(f"{result} = MatMul(x, {name})" for result, name in zip(results, names, strict=True))
        tried.clear()
        assert sites(never, graph(body, " ".join(results), " ".join(names))) == []
        return len(tried)

    assert count(8) == 8 * 7  # this pattern has no twins: each is tried beside each
    assert count(200) == 200 * MOST_TRIED


def test_a_number_is_no_shared_value() -> None:
    with pytest.raises(PatternError, match="shares no variable"):
        Matcher(siblings(op.Add(x, Const(1.0)), op.Add(y, Const(1.0))))


def test_what_matches_without_siblings_has_one_root() -> None:
    model = graph("q = MatMul(x, wq) k = Relu(x)")
    found = Matcher(x @ a).match(model.graph.outputs[0], Facts(model))
    assert isinstance(found, Match)
    assert found.roots == (model.graph.outputs[0],)
