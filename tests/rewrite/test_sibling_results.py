"""Rules with several results: what is put in place of the roots, in which order, and under which names."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RuleError
from ortfuse.ir.editor import Editor
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Log, Rewriter, Rule, RuleTest
from ortfuse.rewrite.invariants import Debugging
from ortfuse.rewrite.pattern import Match, Pattern, built, computed, const, op, siblings, var
from ortfuse.targets import Target
from ortfuse.verification import Session, SiteChecks

x = var("x", "b d")
PROOF = RuleTest(shapes={"d": 4, "h0": 4, "h1": 4, "h2": 4})


def sizes(*names: str) -> Pattern:
    return computed("sizes", lambda match: np.array([match.size(name) for name in names], np.int64))


def joined(count: int, make: Any = var, **keywords: Any) -> Rule:
    """Products of one value become one product, which is split."""
    weights = [make(f"w{number}", f"d h{number}") for number in range(count)]
    names = [f"h{number}" for number in range(count)]
    parts = op.Split(x @ op.Concat(*weights, axis=1), sizes(*names), axis=-1, outputs=count)
    given = {"pattern": siblings(*(x @ weight for weight in weights)), "replace": siblings(*parts), **keywords}
    return Rule(name="test.joined", exactness=Exactness.ROUNDING, source="test", test=PROOF, **given)


def model(body: str, outputs: str = "q k", weights: str = "wq wk wv") -> ir.Model:
    names = weights.split()
    numbers = np.random.default_rng(0).integers(-3, 4, (len(names), 16))
    constants = [
        f"float[4,4] {name} = {{{', '.join(map(str, row))}}}" for name, row in zip(names, numbers, strict=True)
    ]
    given = ", ".join(f"float[b,4] {name}" for name in outputs.split())
    return ir.from_onnx_text(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[b,4] x, float[b,4] y) => ({given}) '
        f"<{', '.join(constants)}> {{ {body} }}"
    )


def run(m: ir.Model, *rules: Rule, log: Log | None = None, seed: int | None = None, inspectors: Any = ()) -> list[str]:
    """Apply rules, check all invariants and that the results are what they were; returns the operators."""
    old, debugging = m.clone(), Debugging(seed=seed, checks=True)
    Rewriter(Editor(m, Facts(m), inspectors), Target(), log or Log(), debugging).run(rules)
    onnx.checker.check_model(ir.to_proto(m))
    rng = np.random.default_rng(1)
    inputs = {name: rng.integers(-3, 4, (3, 4)).astype(np.float32) for name in ("x", "y")}
    before, after = (Session(one, optimise=False, threads=1).run(inputs) for one in (old, m))
    assert [*before] == [*after]
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-6)
    return [node.op_type for node in m.graph]


@pytest.mark.parametrize("count", [2, 3])
def test_products_of_one_value_become_one_under_the_names_that_they_had(count: int) -> None:
    names, log = ["q", "k", "v"][:count], Log()
    m = model(" ".join(f"{name} = MatMul(x, w{name})" for name in names), " ".join(names))
    assert run(m, joined(count), log=log) == ["Concat", "MatMul", "Split"]
    assert [output.name for output in m.graph.outputs] == names
    assert [(event.rule, event.site, event.removed) for event in log.events] == [
        ("test.joined", "q", ("MatMul",) * count)
    ]


def test_siblings_whose_weights_are_computed_after_the_first_are_put_in_order() -> None:
    m = model("q = MatMul(x, wq) r = Relu(q) e = Neg(wk) k = MatMul(x, e) s = Relu(k)", "r s")
    assert sorted(run(m, joined(2))) == ["Concat", "MatMul", "Neg", "Relu", "Relu", "Split"]


@pytest.mark.parametrize("seed", range(4))
def test_a_sibling_of_which_a_weight_is_computed_from_another_stays(seed: int) -> None:
    m = model("q = MatMul(x, wq) e = MatMul(wk, f) s = Shape(q) t = ConstantOfShape(s) u = ReduceMax<keepdims = 0>(t) "
              "f = Add(wv, u) k = MatMul(x, e) v = MatMul(x, wv)", "q k v")  # fmt: skip
    m.graph.sort()
    operators = run(m, joined(2), seed=seed)
    assert operators.count("Split") == 1
    assert operators.count("MatMul") == 3


def test_the_replacement_reads_what_both_roots_captured() -> None:
    def no_twice(match: Match) -> Refusal | None:
        return match.unless_value("w1", match["w0"] is not match["w1"], "another weight")

    rule = joined(2, guards=(no_twice,))
    assert run(model("q = MatMul(x, wq) k = MatMul(x, wq)"), rule) == ["MatMul", "MatMul"]
    assert run(model("q = MatMul(x, wq) k = MatMul(x, wk)"), rule) == ["Concat", "MatMul", "Split"]


def test_siblings_in_a_branch_are_joined_there() -> None:
    branches = (
        "then_branch = b () => (float[b,4] r) { t = MatMul(x, wq) u = MatMul(x, wk) r = Sub(t, u) }, "
        "else_branch = b () => (float[b,4] e) { e = MatMul(x, wv) }"
    )
    m = model(f"s = ReduceSum<keepdims = 0>(y) c = Cast<to = 9>(s) q = If (c) <{branches}>", "q")
    assert run(m, joined(2)) == ["ReduceSum", "Cast", "If"]
    then = next(node for node in m.graph if node.op_type == "If").attributes["then_branch"].as_graph()
    assert [node.op_type for node in then] == ["Concat", "MatMul", "Split", "Sub"]


def test_a_root_may_become_a_value_that_there_was() -> None:
    rule = Rule(
        name="test.signs", pattern=siblings(op.Relu(op.Abs(x)), op.Neg(op.Abs(x))),
        replace=siblings(op.Abs(x), -1.0 * op.Abs(op.Neg(x))), exactness=Exactness.EXACT, source="test", test=PROOF,
    )  # fmt: skip
    m = model("a = Abs(x) b = Abs(x) q = Relu(a) k = Neg(b)")
    assert sorted(run(m, rule)) == ["Abs", "Abs", "Mul", "Neg"]
    both = Rule(
        name="test.same", pattern=siblings(op.Relu(op.Abs(x)), op.Abs(op.Neg(x))),
        replace=siblings(a := op.Abs(x), a), exactness=Exactness.EXACT, source="test", test=PROOF,
    )  # fmt: skip
    m = model("a = Abs(x) q = Relu(a) b = Neg(x) k = Abs(b)")
    assert sorted(run(m, both)) == ["Abs", "Identity"]
    assert [output.name for output in m.graph.outputs] == ["q", "k"]


def test_an_intermediate_that_is_used_elsewhere_may_be_computed_anew() -> None:
    common = op.Relu(x).named("common")
    weights = [var("w0", "d h0"), var("w1", "d h1")]
    parts = op.Split(op.Max(x, 0.0) @ op.Concat(*weights, axis=1), sizes("h0", "h1"), axis=-1, outputs=2)
    rule = joined(
        2, pattern=siblings(*(common @ weight for weight in weights)), replace=siblings(*parts),
        intermediates={"common": op.Max(x, 0.0)},
    )  # fmt: skip
    m = model("r = Relu(x) q = MatMul(r, wq) k = MatMul(r, wk) v = Neg(r)", "q k v")
    assert sorted(run(m, rule)) == ["Concat", "MatMul", "Max", "Max", "Neg", "Split"]
    # A weight that is computed from the intermediate would be computed from the new nodes that it is an input of.
    m = model("r = Relu(x) s = ReduceMax<keepdims = 0>(r) e = Add(wk, s) q = MatMul(r, wq) k = MatMul(r, e)")
    assert "Split" not in run(m, rule)


def test_a_replacement_may_be_built_and_may_have_alternatives() -> None:
    made = joined(2).replace
    function = joined(2, replace=lambda match: made, makes=("Concat", "MatMul", "Split"))
    assert run(model("q = MatMul(x, wq) k = MatMul(x, wk)"), function) == ["Concat", "MatMul", "Split"]
    nowhere = siblings(op.NoSuchOperator(x), op.NoSuchOperator(x))
    several = joined(2, replace=[nowhere, built(lambda match: made, makes=("Concat", "MatMul", "Split"))])
    assert run(model("q = MatMul(x, wq) k = MatMul(x, wk)"), several) == ["Concat", "MatMul", "Split"]


def test_results_that_are_not_as_many_as_the_roots_are_refused() -> None:
    with pytest.raises(RuleError, match="has 1 results, and the pattern 2"):
        joined(2, replace=op.Relu(x))
    with pytest.raises(RuleError, match="has 2 results, and the pattern 1"):
        joined(2, pattern=x @ var("w0", "d h0"), replace=siblings(op.Relu(x), op.Neg(x)))
    with pytest.raises(RuleError, match="does not capture"):
        joined(2, replace=siblings(op.Relu(x), op.Neg(var("z"))))
    with pytest.raises(RuleError, match="extra operands"):
        joined(2, allow_extra_operands=True)
    with pytest.raises(RuleError, match="give it one result"):
        dataclasses.replace(joined(2), exactness=Exactness.LOSSY, definition=siblings(x, x))
    short = joined(2, replace=lambda match: op.Relu(x), makes=("Relu",))
    with pytest.raises(RuleError, match="has 1 results, and its pattern 2"):
        run(model("q = MatMul(x, wq) k = MatMul(x, wk)"), short)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_siblings_are_found_that_other_rules_make_later(seed: int | None) -> None:
    cos = Rule(
        name="test.other", pattern=op.Cos(x @ var("w", "d h")), replace=x @ op.Neg(var("w")), exactness=Exactness.ROUNDING,
        source="test", test=PROOF, guards=(),
    )  # fmt: skip
    late = Rule(
        name="test.late", pattern=op.Gemm(x, var("w", "d h")), replace=x @ var("w"), exactness=Exactness.ROUNDING,
        source="test", test=PROOF,
    )  # fmt: skip
    assert run(model("q = MatMul(x, wq) k = Gemm(x, wk)"), joined(2), late, cos, seed=seed).count("Split") == 1
    same = Rule(
        name="test.same", pattern=op.Relu(op.Abs(x)), replace=op.Abs(x).named("z"), exactness=Exactness.EXACT,
        source="test", test=PROOF,
    )  # fmt: skip
    gone = Rule(
        name="test.gone", pattern=op.Neg(op.Neg(x)), replace=x, exactness=Exactness.EXACT, source="test", test=PROOF
    )
    m = model("n = Neg(x) p = Neg(n) q = MatMul(x, wq) k = MatMul(p, wk)")
    assert run(m, joined(2), gone, same, seed=seed).count("Split") == 1


def test_many_siblings_are_joined_in_as_many_attempts() -> None:
    def attempts(number: int) -> int:
        names = [f"o{index}" for index in range(number)]
        weights = " ".join(f"w{name}" for name in names)
        m, log = model(" ".join(f"{name} = MatMul(x, w{name})" for name in names), " ".join(names), weights), Log()
        Rewriter(Editor(m, Facts(m)), Target(), log).run([joined(2)])
        assert sum(node.op_type == "MatMul" for node in m.graph) == 1
        return log.statistics("test.joined").attempts

    assert attempts(200) <= 200 + 50


def test_a_wrong_replacement_is_undone_at_its_site() -> None:
    right = joined(2)
    assert isinstance(right.replace, Pattern)
    swapped = joined(2, replace=siblings(*reversed(right.replace.children())))
    checks = SiteChecks()
    assert run(model("q = MatMul(x, wq) k = MatMul(x, wk)"), swapped, inspectors=[checks]) == ["MatMul", "MatMul"]
    (check,) = checks.found.values()
    assert (check.rule, check.site, check.state) == ("test.joined", "q", "undone")
    checks = SiteChecks()
    assert "Split" in run(model("q = MatMul(x, wq) k = MatMul(x, wk)"), right, inspectors=[checks])
    assert [check.state for check in checks.found.values()] == ["equal"]


def test_constants_are_joined_when_the_model_is_compiled() -> None:
    wide = computed("wide", lambda match: np.concatenate([match.const("w0"), match.const("w1")], axis=1))
    parts = op.Split(x @ wide, sizes("h0", "h1"), axis=-1, outputs=2)
    m = model("q = MatMul(x, wq) k = MatMul(x, wk)")
    assert run(m, joined(2, const, replace=siblings(*parts))) == ["MatMul", "Split"]


def test_a_replacement_that_reads_a_root_is_refused() -> None:
    rule = joined(
        2, pattern=siblings((x @ var("w0", "d h0")).named("first"), x @ var("w1", "d h1")),
        replace=siblings(x @ var("w0"), op.Add(var("first"), x)),
    )  # fmt: skip
    log = Log(explain=True)
    assert run(model("q = MatMul(x, wq) k = MatMul(x, wk)"), rule, log=log) == ["MatMul", "MatMul"]
    assert "cycle" in {miss.refusal.code for miss in log.misses.values()}
