"""How rules are applied: names, order, other consumers, refusals, endless rules."""

from __future__ import annotations

import functools
from collections.abc import Collection
from functools import partial
from typing import Any

import graphs
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RewriteError, RuleError
from ortfuse.ir.edit import Edit
from ortfuse.ir.editor import Editor
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.rewrite import NODES_KEY, RULE_KEY, Exactness, Log, Rewriter, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, computed, const, ms, op, scalar, var, variables
from ortfuse.targets.known_bugs import Quirk
from ortfuse.targets.registry import default_spec

x, y = variables("x y")
PROOF = RuleTest(shapes={"x": "b 3"})


class Everything:
    """A target that can execute everything, or everything but some operators."""

    spec = default_spec()
    quirks: frozenset[Quirk] = frozenset()

    def __init__(self, *refused: str, detours: Collection[str] = (), left: Collection[str] = ()) -> None:
        self.refused, self.detours, self.left = (*refused, *left), detours, left

    def check_node(self, node: ir.Node, opset_imports: dict[str, int], facts: Facts) -> Refusal | None:
        return (
            refuse("no_kernel", Subject("operator", node.op_type), needed="a test") if self.lacks_kernel(node) else None
        )

    def lacks_kernel(self, node: ir.Node, *_: object) -> bool:
        return node.op_type in (*self.refused, *self.detours)

    def between_casts(self, node: ir.Node, *_: object) -> bool:
        return node.op_type in self.detours

    def leaves_to_another(self, node: ir.Node, *_: object) -> bool:
        return node.op_type in self.left


def rule(name: str, pattern: Any, replace: Any, **keywords: Any) -> Rule:
    return Rule(
        name=name, pattern=pattern, replace=replace, exactness=Exactness.EXACT, source="test", test=PROOF, **keywords
    )


model = partial(graphs.model, inputs="float[b,3] x, float[b,3] y", outputs="float[b,3] out")


def run(m: ir.Model, *rules: Rule, target: Any = None, log: Log | None = None) -> list[str]:
    Rewriter(Editor(m, Facts(m)), target or Everything(), log or Log()).run(rules)
    onnx.checker.check_model(ir.to_proto(m))
    return [node.op_type for node in m.graph]


SWISH = rule("swish.swish", x * op.Sigmoid(x), ms.QuickGelu(x, alpha=1.0))


def test_a_match_is_replaced_and_keeps_the_name_of_its_output() -> None:
    m = model("s = Sigmoid(x) out = Mul(x, s)")
    assert run(m, SWISH) == ["QuickGelu"]
    assert m.graph.outputs[0].name == "out"
    assert m.graph.opset_imports["com.microsoft"] == 1


def test_the_new_node_names_the_rule_and_the_nodes_it_stands_for() -> None:
    m = model("s = Sigmoid(x) t = Mul(x, s) out = Add(t, y)")
    for index, node in enumerate(m.graph):
        node.name = f"n{index}"
    run(m, SWISH)
    fused = m.graph[0]
    assert fused.metadata_props[RULE_KEY] == "swish.swish"
    assert set(fused.metadata_props[NODES_KEY].split(";")) == {"n0", "n1"}


def test_what_a_residual_leaves_is_multiplied_back() -> None:
    residual = rule("swish.residual", x * op.Sigmoid(x), ms.QuickGelu(x, alpha=1.0), allow_extra_operands=True)
    assert run(model("s = Sigmoid(x) t = Mul(s, y) out = Mul(x, t)"), residual) == ["QuickGelu", "Mul"]


def test_an_intermediate_used_elsewhere_is_kept_or_emitted() -> None:
    body = "s = Add(x, y) r = Relu(s) t = Neg(s) out = Add(r, t)"
    assert run(model(body), rule("a.plain", op.Relu(op.Add(x, y)), op.Max(x, y))) == ["Add", "Relu", "Neg", "Add"]
    total = op.Add(x, y).named("total")
    emitting = rule("a.emitting", op.Relu(total), op.Max(x, y), intermediates={"total": op.Min(x, y)})
    assert sorted(run(model(body), emitting)) == ["Add", "Max", "Min", "Neg"]


def test_each_replacement_has_its_own_way_to_compute_an_intermediate() -> None:
    body = "s = Add(x, y) r = Relu(s) t = Neg(s) out = Add(r, t)"
    total = op.Add(x, y).named("total")
    replacements, intermediates = (ms.QuickGelu(x), op.Max(x, y)), (op.Tanh(x), op.Min(x, y))
    emitting = rule("a.emitting", op.Relu(total), replacements, intermediates={"total": intermediates})
    assert sorted(run(model(body), emitting, target=Everything("QuickGelu"))) == ["Add", "Max", "Min", "Neg"]
    with pytest.raises(RuleError, match="each replacement"):
        rule("a.emitting", op.Relu(total), replacements, intermediates={"total": intermediates[:1]})


def test_a_target_without_a_kernel_refuses_the_replacement_with_its_reason() -> None:
    log = Log(explain=True)
    m = model("s = Sigmoid(x) out = Mul(x, s)")
    assert run(m, SWISH, target=Everything("QuickGelu"), log=log) == ["Sigmoid", "Mul"]
    assert "no kernel for QuickGelu" in next(iter(log.misses.values())).refusal.reason
    assert "com.microsoft" not in m.graph.opset_imports or len(m.graph) == 2
    assert len(m.graph[0].outputs[0].uses()) == 1


def test_the_first_legal_replacement_is_used() -> None:
    two = rule("swish.two", x * op.Sigmoid(x), (ms.QuickGelu(x, alpha=1.0), ms.Other(x)))
    assert run(model("s = Sigmoid(x) out = Mul(x, s)"), two, target=Everything("QuickGelu")) == ["Other"]


@pytest.mark.parametrize(("opset", "inputs", "unsqueeze_inputs"), [(12, 1, 1), (17, 1, 2), (18, 2, 2)])
def test_integer_parameters_have_the_form_of_the_opset(opset: int, inputs: int, unsqueeze_inputs: int) -> None:
    axes = attr("axes")
    reducing = rule(
        "a.axes",
        op.ReduceSumSquare(x, axes=axes, keepdims=1),
        op.Unsqueeze(op.ReduceMax(x, axes=axes, keepdims=0), axes=(1,)),
    )
    operand = "ax" if opset >= 18 else ""
    given = "" if operand else "axes = [-1], "
    m = ir.from_onnx_text(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2, 3] x) => (float[2, 1] out) <int64[1] ax = {{-1}}> '
        f"{{ s = ReduceSumSquare <{given}keepdims = 1> (x{', ax' if operand else ''}) out = Neg(s) }}"
    )
    run(m, reducing)
    largest, restored = (next(node for node in m.graph if node.op_type == name) for name in ("ReduceMax", "Unsqueeze"))
    assert [len(largest.inputs), len(restored.inputs)] == [inputs, unsqueeze_inputs]
    assert ("axes" in largest.attributes) == (inputs == 1)
    assert ("axes" in restored.attributes) == (unsqueeze_inputs == 1)
    if inputs == 2:
        assert ir.convenience.get_const_tensor(largest.inputs[1]).numpy().tolist() == [1]


def test_a_replacement_of_another_shape_or_type_is_refused() -> None:
    log = Log(explain=True)
    reshaping = rule("a.shape", op.Relu(x), op.Transpose(x, perm=(1, 0)))
    fixed = ir.from_onnx_text(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] out) { out = Relu(x) }'
    )
    assert run(fixed, reshaping, log=log) == ["Relu"]
    assert "instead of [2, 3]" in next(iter(log.misses.values())).refusal.reason
    casting = rule("a.type", op.Relu(x), op.Cast(x, to=11))
    assert run(model("out = Relu(x)"), casting) == ["Relu"]


def test_rules_that_undo_each_other_are_named() -> None:
    there = rule("loop.there", op.Relu(x), op.Abs(x))
    back = rule("loop.back", op.Abs(x), op.Relu(x))
    with pytest.raises(RewriteError, match=r"loop\.(there|back) and loop\.(there|back) undo each other"):
        run(model("out = Relu(x)"), there, back)


def test_a_graph_output_is_not_replaced_by_an_input() -> None:
    drop = rule("a.drop", op.Identity(x), x)
    assert run(model("out = Identity(x)"), drop) == ["Identity"]
    m = model("t = Relu(x) out = Identity(t)")
    assert run(m, drop) == ["Relu"]
    assert m.graph.outputs[0].name == "out"


def test_statistics_and_events_are_kept() -> None:
    log = Log()
    run(model("s = Sigmoid(x) out = Mul(x, s)"), SWISH, log=log)
    assert log.hits() == {"swish.swish": 1}
    (event,) = log.events
    assert event.rule == "swish.swish"
    assert event.added == ("QuickGelu",)
    assert sorted(event.removed) == ["Mul", "Sigmoid"]


def test_subgraphs_are_rewritten_and_outer_nodes_stay_out_of_their_matches() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[b,3] x, bool c) => (float[b,3] out) {
        outer = Sigmoid(x)
        out = If (c) <then_branch = a () => (float[b,3] r) { s = Sigmoid(x) r = Mul(x, s) },
                      else_branch = e () => (float[b,3] q) { q = Mul(x, outer) }>
    }"""
    m = ir.from_onnx_text(text)
    assert run(m, SWISH) == ["Sigmoid", "If"]
    then, other = (m.graph[1].attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    assert [node.op_type for node in then] == ["QuickGelu"]
    assert [node.op_type for node in other] == ["Mul"]


def test_a_rule_must_declare_what_it_is() -> None:
    with pytest.raises(RuleError, match="family"):
        rule("noname", op.Relu(x), x)
    with pytest.raises(RuleError, match="test"):
        Rule(name="a.b", pattern=op.Relu(x), replace=x, exactness=Exactness.EXACT, source="s", test=None)  # type: ignore[arg-type]
    with pytest.raises(RuleError, match="source"):
        Rule(name="a.b", pattern=op.Relu(x), replace=x, exactness=Exactness.EXACT, source="", test=PROOF)


def test_attributes_are_written_as_captured() -> None:
    keep = rule("a.alpha", op.LeakyRelu(var("x"), alpha=attr("alpha")), op.Elu(x, alpha=attr("alpha")))
    m = model("out = LeakyRelu<alpha = 0.25>(x)")
    run(m, keep)
    assert m.graph[0].attributes["alpha"].value == 0.25


def test_a_guard_that_fails_names_its_rule_and_the_site() -> None:
    broken = rule("broken.guard", op.Relu(x), op.Max(x, x), guards=(lambda match: match["nothing"],))
    numeric = rule("broken.number", op.Relu(x), op.Max(x, x), guards=(lambda match: 1 // 0,))
    with pytest.raises(RuleError, match=r"broken\.guard fails at 'out': the pattern captures no 'nothing'"):
        run(model("out = Relu(x)"), broken)
    with pytest.raises(RuleError, match=r"broken\.number fails at 'out': ZeroDivisionError"):
        run(model("out = Relu(x)"), numeric)


def test_a_guard_that_answers_with_a_text_is_told_what_to_answer() -> None:
    def wordy(match: Match) -> str:
        return "no"

    with pytest.raises(RuleError, match=r"the guard .*wordy answers 'no': return None .* match\.refuse"):
        run(model("out = Relu(x)"), rule("wordy.guard", op.Relu(x), op.Max(x, x), guards=(wordy,)))


def test_an_exact_rule_must_keep_the_shape_provably() -> None:
    forgetful = rule("forgets.broadcast", op.Mul(x, op.Sub(y, y)), op.Sub(x, x))
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[1,3] x, float[b,3] y) => (float[b,3] out)
        { z = Sub(y, y) out = Mul(x, z) }"""
    assert run(ir.from_onnx_text(text), forgetful) == ["Sub", "Mul"]


def test_a_value_that_a_body_reads_is_an_input_of_its_node() -> None:
    """The second output may not be computed anew by a node that needs, through the If, what it is to replace."""
    two = rule(
        "two.outputs",
        op.Add(op.Relu(x).named("inner"), y),
        op.Max(x, y),
        intermediates={"inner": op.Max(x, y)},
    )
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[3] x, bool c) => (float[3] out, float[3] r)
        { r = Relu(x) y = If(c) <then_branch = t () => (float[3] a) { a = Neg(r) }, else_branch = e () => (float[3] d) { d = Abs(x) }>
          out = Add(r, y) }"""
    assert run(ir.from_onnx_text(text), two) == ["Relu", "If", "Add"]


class Objector:
    """Objects to what a rule makes, and remembers what it was shown."""

    def __init__(self, *rules: str) -> None:
        self.rules = rules
        self.seen: list[tuple[str, str, list[str]]] = []

    def objection(self, site: Edit) -> Refusal | None:
        self.seen.append((site.rule.name, site.name, [node.op_type for node in site.added]))
        assert all(node.graph is not None for node in (*site.match.nodes, *site.added))
        return refuse("left_out", site.match.root, found="not wanted") if site.rule.name in self.rules else None


def test_what_an_inspector_objects_to_is_undone_and_the_rest_goes_on() -> None:
    m = model("s = Sigmoid(x) t = Mul(x, s) u = Tanh(t) out = Add(u, y)")
    log, objector = Log(explain=True), Objector("tanh.exp")
    rules = [SWISH, rule("tanh.exp", op.Tanh(x), op.Exp(x))]
    Rewriter(Editor(m, Facts(m), [objector]), Everything(), log).run(rules)
    onnx.checker.check_model(ir.to_proto(m))
    assert [node.op_type for node in m.graph] == ["QuickGelu", "Tanh", "Add"]
    assert log.hits() == {"swish.swish": 1}
    assert log.misses["tanh.exp", "u"].refusal.reason == "not wanted"
    assert ("swish.swish", "t", ["QuickGelu"]) in objector.seen


def test_an_objection_leaves_no_trace_in_the_graph() -> None:
    m = model("s = Sigmoid(x) out = Mul(x, s)")
    before = ir.to_proto(m).graph.SerializeToString()
    Rewriter(Editor(m, Facts(m), [Objector("swish.swish")]), Everything()).run([SWISH])
    assert ir.to_proto(m).graph.SerializeToString() == before


def test_a_replacement_uses_only_what_its_pattern_captures() -> None:
    with pytest.raises(RuleError, match=r"rule a\.typo uses z in its replacement.* it captures x, y"):
        rule("a.typo", op.Relu(op.Add(x, y)), op.Max(x, var("z")))
    with pytest.raises(RuleError, match=r"rule a\.slope uses slope "):
        rule("a.slope", op.LeakyRelu(x, alpha=attr("alpha")), op.Elu(x, alpha=attr("slope")))
    with pytest.raises(RuleError, match=r"rule a\.label uses total "):
        rule("a.label", op.Relu(op.Add(x, y)), op.Max(x, y), intermediates={"total": op.Min(x, y)})
    with pytest.raises(RuleError, match=r"rule a\.scalar uses s "):
        rule("a.scalar", op.Relu(x), scalar("s") * x)


def test_a_rewrite_whose_constants_would_overflow_is_refused() -> None:
    def large(match: Match) -> Any:
        return (match.const("w") * np.float64(1e30)).astype(np.float32)

    scaled = rule("scaled.up", op.Mul(x, const("w")), op.Add(x, computed("large", large)))
    for number, wanted in (("1e5", ["Add"]), ("1e10", ["Mul"])):
        body = f"w = Constant <value = float {{{number}}}> () out = Mul(x, w)"
        assert run(model(body), scaled)[-1:] == wanted


def test_a_rewrite_whose_numbers_would_overflow_is_refused() -> None:
    scaled = rule("scaled.up", op.Mul(x, scalar("w")), 1e30 * op.Abs(x) * scalar("w"))
    for number, applied in (("1e5", True), ("1e10", False)):
        made = run(model(f"w = Constant <value = float {{{number}}}> () out = Mul(x, w)"), scaled)
        assert ("Abs" in made) == applied


SPELLED = rule("test.spelled", x * op.Sigmoid(x), op.Identity(ms.QuickGelu(x, alpha=1.0)))
"""Two nodes in place of two."""


@pytest.mark.parametrize(
    "detours, fires",
    [
        (("QuickGelu", "Mul", "Sigmoid"), True),
        (("QuickGelu", "Sigmoid"), True),
        (("QuickGelu", "Identity", "Mul"), True),
        # What has kernels is not given up for what has none.
        (("QuickGelu",), False),
        (("QuickGelu", "Identity"), False),
    ],
)
def test_what_runs_in_another_type_takes_the_place_of_what_has_no_kernel_either(
    detours: tuple[str, ...], fires: bool
) -> None:
    kinds = run(model("s = Sigmoid(x) out = Mul(x, s)"), SPELLED, target=Everything(detours=detours))
    assert ("QuickGelu" in kinds) == fires


def test_no_more_nodes_run_in_another_type_than_there_were() -> None:
    longer = rule("test.longer", x * op.Sigmoid(x), op.Relu(op.Relu(op.Relu(x))))
    m = model("s = Sigmoid(x) out = Mul(x, s)")
    assert "Relu" not in run(m, longer, target=Everything(detours=("Mul", "Relu")))


def test_no_more_nodes_are_left_to_another_target_than_there_were() -> None:
    def made(length: int, *left: str) -> list[str]:
        chain = functools.reduce(lambda value, _: op.Relu(value), range(length), x)
        longer = rule("test.longer", x * op.Sigmoid(x), chain)
        return run(model("s = Sigmoid(x) out = Mul(x, s)"), longer, target=Everything(left=left))

    assert made(1, "Mul", "Relu") == ["Relu"]
    assert made(2, "Mul", "Relu") == ["Sigmoid", "Mul"]
    assert made(2, "Mul", "Sigmoid", "Relu") == ["Relu", "Relu"]
    assert made(1, "Relu") == ["Sigmoid", "Mul"]
