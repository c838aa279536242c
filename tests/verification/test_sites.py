"""Each rewrite checked where it happens: with the real weights, on inputs that fit, undone if it is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from crashing import runtime_that
from small_graphs import model

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.ir.edit import Edit
from ortfuse.ir.editor import Editor
from ortfuse.rewrite import Exactness, Rewriter, Rule, RuleTest
from ortfuse.rewrite.pattern import computed, const, ms, op, var, variables
from ortfuse.runtime.observed_values import observe
from ortfuse.runtime.rewrite_sides import Sides, sides
from ortfuse.targets import Target
from ortfuse.transforms.rule_pass import RulePass
from ortfuse.verification import SiteChecks

x, y = variables("x y")


def rule(name: str, pattern: Any, replace: Any, makes: Sequence[str] = ()) -> Rule:
    test, exactness = RuleTest(shapes={"x": "b 3"}), Exactness.ROUNDING
    return Rule(name=name, pattern=pattern, replace=replace, exactness=exactness, source="test", test=test, makes=makes)


SWISH = rule("swish.right", x * op.Sigmoid(x), ms.QuickGelu(x, alpha=1.0))
WRONG = rule("swish.wrong", x * op.Sigmoid(x), ms.QuickGelu(x, alpha=1.702))


def check(m: ir.Model, *rules: Rule) -> SiteChecks:
    checks = SiteChecks()
    Rewriter(Editor(m, Facts(m), [checks]), Target()).run(rules)
    return checks


class Cutter:
    """Keeps the sides of every rewrite."""

    def __init__(self) -> None:
        self.cut: list[Sides] = []

    def objection(self, site: Edit) -> None:
        self.cut.append(sides(site))


def cut(m: ir.Model, *rules: Rule) -> Sides:
    cutter = Cutter()
    Rewriter(Editor(m, Facts(m), [cutter]), Target()).run(rules)
    return cutter.cut[0]


def test_a_right_rewrite_stays() -> None:
    m = model("s = Sigmoid(x) y = Mul(x, s)")
    checks = check(m, SWISH)
    assert [found.state for found in checks.found.values()] == ["equal"]
    assert [node.op_type for node in m.graph] == ["QuickGelu"]


def test_a_wrong_rewrite_is_undone_and_reported_and_the_right_one_goes_on() -> None:
    m = model("s = Sigmoid(x) h = Mul(x, s) t = Tanh(h) u = Sigmoid(t) y = Mul(t, u)")
    checks = check(m, rule("tanh.relu", op.Tanh(x), op.Relu(x)), SWISH)
    assert [node.op_type for node in m.graph] == ["QuickGelu", "Tanh", "QuickGelu"]
    assert [(found.rule, found.site) for found in checks.of_state("undone")] == [("tanh.relu", "t")]
    wrong = checks.of_state("undone")[0]
    assert wrong.error_before is not None
    assert wrong.error_after is not None
    assert wrong.error_before < 1e-6 < 0.1 < wrong.error_after
    assert "error against float64" in wrong.text()
    assert "1 wrong and undone" in checks.summary()


def test_a_refused_rewrite_is_not_checked_again() -> None:
    m = model("s = Sigmoid(x) y = Mul(x, s)")
    seen: list[str] = []
    checks = SiteChecks(progress=seen.append)
    for _ in range(2):
        Rewriter(Editor(m, Facts(m), [checks]), Target()).run([WRONG])
    assert len(seen) == 1


def test_the_real_weights_decide() -> None:
    def scaled(weights: str) -> ir.Model:
        return model("a = Abs(x) h = Mul(a, w) y = Relu(h)", initializers=f"<float[3] w = {{{weights}}}>")

    doubled = rule("scale.first", op.Relu(x * const("w")), op.Abs(x * computed("c", lambda m: m.const("w").flat[0])))
    assert not check(scaled("2, 2, 2"), doubled).of_state("undone")
    assert check(scaled("2, 2, 3"), doubled).of_state("undone")


def test_a_wrong_epsilon_is_found() -> None:
    m = model("h = LayerNormalization<epsilon=0.000001>(x, g) y = Relu(h)", initializers="<float[3] g = {1, 2, 3}>")
    old = op.Relu(op.LayerNormalization(x, const("g"), epsilon=1e-6))
    wrong = rule("layernorm.epsilon", old, op.Abs(op.LayerNormalization(op.Relu(x), const("g"), epsilon=1e-6)))
    assert check(m, wrong).of_state("undone")
    wrong = rule("layernorm.epsilon", old, op.LeakyRelu(op.LayerNormalization(x, var("g"), epsilon=1e-5), alpha=0.0))
    assert check(m, wrong).of_state("undone")
    right = rule("layernorm.leaky", old, op.LeakyRelu(op.LayerNormalization(x, var("g"), epsilon=1e-6), alpha=0.0))
    assert [found.state for found in check(m, right).found.values()] == ["equal"]


def test_shape_tensors_at_the_border_follow_the_sizes() -> None:
    m = model(
        "n = Shape(x) t = Tanh(x) r = Reshape(t, n) y = Relu(r)", inputs="float[b,s,3] x", outputs="float[b,s,3] y"
    )
    found = cut(m, rule("relu.reshape", op.Relu(op.Reshape(x, var("n"))), op.Reshape(op.Relu(x), var("n"))))
    target = next(spec for spec in found.inputs if spec.dtype == ir.DataType.INT64)
    assert [str(element) for element in target.elements or ()] == ["b", "s", "3"]
    assert [node.op_type for node in found.before.graph] == ["Tanh", "Reshape", "Relu"]


@pytest.mark.parametrize(("between", "state"), [("Neg", "equal"), ("Floor", "undone")])
def test_the_nodes_between_a_captured_value_and_the_match_belong_to_both_sides(between: str, state: str) -> None:
    m = model(f"a = Sin(x) n = {between}(a) e = Exp(n) h = Log(e) y = Abs(h)")

    def of_captured(match: Any) -> Any:
        return op.Abs(match.capture("above", match["x"].producer().inputs[0]))

    checks = check(m, rule("abs.above", op.Abs(op.Log(op.Exp(x))), of_captured, ["Abs"]))
    assert [found.state for found in checks.found.values()] == [state]


def test_an_operand_that_is_computed_from_another_one_agrees_with_it() -> None:
    """The first half of x belongs to the rewrite, and the second one, which is read elsewhere too, does not."""
    text = (
        "a = Slice(x, zero, one, axis) b = Slice(x, one, two, axis) c = Concat<axis=1>(a, b) d = Tanh(b) y = Add(c, d)"
    )
    constants = "<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] axis = {1}>"
    m = model(text, inputs="float[3,2] x", outputs="float[3,2] y", initializers=constants)
    checks = SiteChecks()
    editor = Editor(m, Facts(m), [checks])
    first, _, joined = list(m.graph)[:3]
    with editor.change("join") as change:
        editor.replace(joined.outputs[0], m.graph.inputs[0])
        editor.remove(joined, first)
    assert change
    assert [found.state for found in checks.found.values()] == ["equal"]


def test_masks_are_computed_from_the_integers_they_come_from() -> None:
    m = model(
        "k = Cast<to=9>(mask) a = Where(k, zero, low) h = Add(x, a) p = Softmax(h) y = Relu(p)",
        inputs="float[b,3] x, int64[b,3] mask", initializers="<float zero = {0}, float low = {-10000}>",
    )  # fmt: skip
    found = cut(m, rule("sum.softmax", op.Softmax(x + y), op.Exp(op.LogSoftmax(x + y))))
    assert sorted(spec.name for spec in found.inputs) == ["mask", "x"]
    assert "Where" in [node.op_type for node in found.before.graph]


def test_what_has_a_range_of_its_own_keeps_it() -> None:
    m = model("e = Exp(x) y = Abs(e)")
    checks = check(m, rule("abs.none", op.Abs(x), x))
    assert [found.state for found in checks.found.values()] == ["equal"]


def test_a_replacement_of_a_newer_opset_is_checked() -> None:
    m = model("s = Sigmoid(x) y = Mul(x, s)")
    checks = check(m, rule("swish.new", x * op.Sigmoid(x), op.Swish(x)))
    assert [found.state for found in checks.found.values()] in ([], ["equal"])
    checks = check(
        model("s = Sqrt(x) h = Mul(s, s) y = Relu(h)"),
        rule("gelu.new", op.Relu(x), op.Gelu(x)),
    )
    assert [found.state for found in checks.found.values()] == ["undone"]


def test_what_cannot_be_cut_out_is_let_through_and_said() -> None:
    m = model("r = RandomNormalLike(x) t = Tanh(r) y = Relu(t)")
    checks = check(m, rule("random.tanh", op.Tanh(op.RandomNormalLike(x)), op.RandomNormalLike(x)))
    assert [found.state for found in checks.found.values()] == ["unchecked"]
    assert "draws random numbers" in checks.of_state("unchecked")[0].reason
    assert "1 not checked" in checks.summary()


def test_the_model_itself_need_not_run() -> None:
    m = model(
        "t = Constant<value = int64[2] {-1, 3}>() u = ortfuse.unknown.Op(x) n = Reshape(u, t) s = Sigmoid(n) y = Mul(n, s)"
    )
    m.graph.opset_imports["ortfuse.unknown"] = 1
    m.graph[1].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    assert [found.state for found in check(m, SWISH).found.values()] == ["equal"]


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_other_types_are_checked(kind: str) -> None:
    m = model("e = Exp(x) t = Tanh(e) y = Relu(t)", inputs=f"{kind}[b,3] x", outputs=f"{kind}[b,3] y")
    assert [found.state for found in check(m, rule("relu.none", op.Relu(x), x)).found.values()] == ["equal"]
    m = model("t = Tanh(x) y = Relu(t)", inputs=f"{kind}[b,3] x", outputs=f"{kind}[b,3] y")
    assert [found.state for found in check(m, rule("relu.none", op.Relu(x), x)).found.values()] == ["undone"]


def test_outputs_that_only_the_new_side_has_are_cut_out_too() -> None:
    """A cache becomes the operator's own past and present: two outputs beside the one at the root."""
    golden = Path(__file__).parents[2] / "golden" / "models" / "llama_cache.sdpa.ts.onnx"
    result = ortfuse.optimize(golden, verify="sites")
    assert not [site for site in result.sites if site.state != "equal"]


def test_a_rewrite_on_which_the_runtime_crashes_is_undone_and_the_rest_goes_on() -> None:
    m = model("s = Sigmoid(x) h = Mul(x, s) t = Tanh(h) u = Sigmoid(t) y = Mul(t, u)")
    with runtime_that("run", "Softsign"):
        checks = check(m, rule("tanh.softsign", op.Tanh(x), op.Softsign(x)), SWISH)
    assert [node.op_type for node in m.graph] == ["QuickGelu", "Tanh", "QuickGelu"]
    (undone,) = checks.of_state("undone")
    assert "ONNX Runtime crashes when it executes the model (signal 11, SIGSEGV)" in undone.reason


def test_nodes_on_which_the_runtime_crashes_already_are_not_checked() -> None:
    m = model("t = Tanh(x) y = Relu(t)")
    with runtime_that("run", "Tanh"):
        checks = check(m, rule("tanh.softsign", op.Tanh(x), op.Softsign(x)))
    (unchecked,) = checks.of_state("unchecked")
    assert "crashes when it executes the model" in unchecked.reason


UNCLIPPED = rule("clip.forgotten", op.Clip(x, -50.0, 50.0), op.Identity(x))
LARGE = "<float k = {1000.0}, float least = {-50.0}, float most = {50.0}>"


def test_both_sides_are_run_on_what_the_model_computes_there() -> None:
    text = "h = Mul(x, k) c = Clip(h, least, most) y = Neg(c)"
    assert [found.state for found in check(model(text, initializers=LARGE), UNCLIPPED).found.values()] == ["equal"]
    result = ortfuse.optimize(model(text, initializers=LARGE), passes=[RulePass("clips", (UNCLIPPED,))], verify="sites")
    (found,) = [found for found in result.sites if found.rule == "clip.forgotten"]
    assert found.state == "undone"
    assert "what the model computes there" in found.reason


def test_the_values_of_a_model_are_observed_unless_it_is_large_or_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = observe(model("h = Neg(x) y = Relu(h)"))
    assert set(observed) == {"x", "h", "y"}
    assert (observed["h"] == -observed["x"]).all()
    assert observe(model("y = Unheard(x)")) == {}
    monkeypatch.setattr("ortfuse.runtime.observed_values.LARGEST", -1)
    assert observe(model("y = Relu(x)")) == {}


FILLED = (
    "s = Reshape(x, rows) h = Where(hide, low, s) w = Softmax<axis = -1>(h) y = Reshape(w, back)",
    "float[b,3] x, bool[b,1,3] hide",
)
FILLED_CONSTANTS = "<int64[3] rows = {-1, 1, 3}, int64[2] back = {-1, 3}, float low = {-1e9}>"


def lower(name: str, scores: Any) -> Rule:
    """A rule that replaces the filler of hidden scores by one of another size."""
    filled = op.Where(var("hide"), const("low"), x)
    test = RuleTest(shapes={"x": "b 1 3", "hide": "b 1 3"}, followed_by="Softmax")
    lowest = op.Where(var("hide"), computed("lowest", lambda m: m.const("low") * 1e20), scores)
    return Rule(name=name, pattern=filled, replace=lowest, exactness=Exactness.ROUNDING, source="test", test=test)


def filled(body: str, outputs: str = "float[b,3] y") -> ir.Model:
    return model(body, FILLED[1], outputs, FILLED_CONSTANTS)


def test_scores_that_are_hidden_by_another_number_are_compared_behind_the_softmax() -> None:
    checks = check(m := filled(FILLED[0]), lower("lower.right", x))
    assert [(found.site, found.state) for found in checks.found.values()] == [("h", "equal")]
    uses = [use.node for node in m.graph for value in node.outputs for use in value.uses()]
    assert all(user.graph is m.graph for user in uses)


def test_scores_that_make_other_weights_are_undone() -> None:
    checks = check(filled(FILLED[0]), lower("lower.wrong", op.Mul(x, x)))
    assert [found.state for found in checks.found.values()] == ["undone"]
    assert "'w'" in checks.of_state("undone")[0].reason


@pytest.mark.parametrize("body", ["y2 = Relu(h)", "y2 = Identity(h)"])
def test_hidden_scores_that_something_else_sees_are_undone(body: str) -> None:
    checks = check(filled(f"{FILLED[0]} {body}", "float[b,3] y, float[b,1,3] y2"), lower("lower.right", x))
    assert [(found.site, found.state) for found in checks.found.values()] == [("h", "undone")]


def test_what_a_dropout_in_training_mode_drops_is_no_difference() -> None:
    m = model(
        "e = Gather(table, ids) d = Dropout(e, ratio, yes) s = Sigmoid(d) y = Mul(d, s)",
        "int64[b] ids",
        initializers="<float[2,3] table = {1, 2, 3, 4, 5, 6}, float ratio = {0.5}, bool yes = {1}>",
    )
    assert [found.state for found in check(m, SWISH).found.values()] == ["equal"]
