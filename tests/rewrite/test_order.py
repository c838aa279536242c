"""The order in which sites are visited does not matter, and every edit leaves the graph and the facts in order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import graphs
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.errors import RewriteError
from ortfuse.ir.editor import Editor
from ortfuse.rewrite import Debugging, Exactness, Rewriter, Rule, RuleTest
from ortfuse.rewrite.invariants import problems
from ortfuse.rewrite.pattern import op, opt, var
from ortfuse.targets.known_bugs import Quirk
from ortfuse.targets.registry import default_spec

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite


class Everything:
    spec = default_spec()
    quirks: frozenset[Quirk] = frozenset()

    def check_node(self, node: ir.Node, opset_imports: dict[str, int], facts: Facts) -> None:
        return None


model = partial(graphs.model, inputs="float[b,3] x, float[b,3] y", outputs="float[b,3] out", opset=20)


# The ones whose results depended on the order, and one each of the other families.
@pytest.mark.parametrize("name", ["bert.sdpa.ts14", "t5_encoder.sdpa.raw", "resnet.tsbn", "gpt2.sdpa.ts"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_any_order_ends_in_the_same_operators(name: str, seed: int | None) -> None:
    result = ortfuse.optimize(suite.MODELS / f"{name}.onnx", debugging=Debugging(seed=seed, checks=True))
    assert not suite.difference(suite.stored(name), suite.outcome(result.report))


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_optional_parts_are_taken_in_whatever_order_sites_are_visited(seed: int | None) -> None:
    x, y = var("x"), var("y")
    rule = Rule(
        name="test.optional",
        pattern=op.Exp(x) * opt(y),
        replace=op.Sum(x, y | x),
        exactness=Exactness.EXACT,
        source="test",
        test=RuleTest(shapes={"x": "b 3"}),
    )
    m = model("e = Exp(x) out = Mul(e, y)")
    Rewriter(Editor(m, Facts(m)), Everything(), debugging=Debugging(seed=seed)).run([rule])
    assert [node.op_type for node in m.graph] == ["Sum"]


def _lose_a_use(m: ir.Model) -> None:
    value = m.graph[0].outputs[0]
    value._uses.clear()


def _swap(m: ir.Model) -> None:
    first = m.graph[0]
    m.graph.remove(first)
    m.graph.append(first)


def _forget_an_import(m: ir.Model) -> None:
    m.graph[0].domain = "mine"


def _declare_another_type(m: ir.Model) -> None:
    m.graph[0].outputs[0].dtype = ir.DataType.INT64


def _change_unnoticed(m: ir.Model) -> None:
    node = ir.node("Transpose", [m.graph.inputs[0]], {"perm": [1, 0]})
    m.graph.insert_before(m.graph[0], node)
    m.graph[1].replace_input_with(0, node.outputs[0])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_lose_a_use, "which does not know of it"),
        (_swap, "stands before Neg"),
        (_forget_an_import, "the domain 'mine', which is not imported"),
        (_declare_another_type, "is declared as INT64 but is FLOAT"),
        (_change_unnoticed, "the facts kept up say"),
    ],
)
def test_what_does_not_hold_is_named(spoil: Callable[[ir.Model], None], message: str) -> None:
    m = model("n = Neg(x) out = Abs(n)")
    facts = Facts(m)
    assert not list(problems(m, facts))
    spoil(m)
    assert any(message in problem for problem in problems(m, facts)), list(problems(m, facts))
    with pytest.raises(RewriteError, match=r"after the\.rule: .*please report it"):
        Debugging(checks=True).inspect(m, facts, "the.rule")
