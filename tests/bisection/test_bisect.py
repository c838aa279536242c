"""Bisection names the rewrite to blame, and tells rounding from wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from crashing import runtime_that
from small_graphs import model

import ortfuse
from ortfuse.options import Options
from ortfuse.pipeline import PassManager
from ortfuse.transforms import Context
from ortfuse.transforms.cleanup import cse as cse_module
from ortfuse.verification.bisection.bisect_pipeline import bisect

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
BERT = GOLDEN / "bert.sdpa.ts.onnx"
FIRST = "canonicalize, fixpoint(user, fuse.*, canonicalize)"
"""A pipeline in which the user's rules come before ortfuse's own."""

Write = Callable[..., Path]
"""Writes a rule file from the arguments of its rules."""

HEADER = """
from ortfuse.rewrite.pattern import attr, ms, op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule

x = var("x")


def rule(name, pattern, replace, exactness=Exactness.ROUNDING):
    test = RuleTest(shapes={"x": "b 3"})
    return Rule(name=name, pattern=pattern, replace=replace, exactness=exactness, source="test", test=test)


RULES = [
"""
GELU = "x * 0.5 * (1 + op.Erf(x / 2**0.5)), ms.FastGelu(x)"


@pytest.fixture
def rules(tmp_path: Path) -> Write:
    def write(*lines: str) -> Path:
        path = tmp_path / "rules.py"
        path.write_text(HEADER + "\n".join(f"    rule({line})," for line in lines) + "\n]\n")
        return path

    return write


def test_nothing_is_to_blame_when_nothing_moves() -> None:
    found = ortfuse.bisect(BERT)
    assert not found.moved
    assert found.passes == ()
    assert "no output moves beyond tolerance" in found.lines()[0]


def test_the_tanh_gelu_for_erf_is_found_and_called_wrong(rules: Write) -> None:
    found = ortfuse.bisect(BERT, passes=FIRST, patterns=rules(f'"wrong.gelu", {GELU}'))
    assert found.moved
    assert (found.passes, found.rules) == (("fuse.rules",), ("wrong.gelu",))
    assert [rule for rule, _ in found.sites] == ["wrong.gelu"]
    assert found.sites[0][1].endswith("intermediate_act_fn/Mul_1_output_0")
    culprit = found.culprit
    assert culprit is not None
    assert culprit.nature == "wrong rewrite"
    assert culprit.added == ("FastGelu",)
    assert culprit.error_before is not None
    assert culprit.error_after is not None
    assert culprit.error_before < 1e-6 < 1e-4 < culprit.error_after
    assert found.before is not None
    assert found.before.ok
    assert found.after is not None
    assert not found.after.ok
    assert "error against float64" in "\n".join(found.lines())
    json.dumps(found.to_dict())


def test_a_declared_approximation_is_called_that(rules: Write) -> None:
    patterns = rules(f'"wrong.gelu", {GELU}, Exactness.APPROXIMATE')
    found = ortfuse.bisect(BERT, passes=FIRST, patterns=patterns, approximate=True)
    assert found.culprit is not None
    assert found.culprit.nature == "approximation"


def test_a_wrong_axis_is_found_among_right_rewrites(rules: Write) -> None:
    patterns = rules(
        '"right.tanh", op.Tanh(op.Tanh(x)), op.Tanh(op.Tanh(op.Identity(x)))',
        '"wrong.axis", op.Softmax(x, axis=1), op.Softmax(x, axis=-1)',
        '"right.relu", op.Relu(op.Abs(x)), op.Abs(x)',
    )
    m = model(
        "a = Abs(x) r = Relu(a) s = Softmax<axis=1>(r) b = Abs(s) t = Relu(b) u = Softmax<axis=2>(t) y = Sub(u, x)",
        inputs="float[b,s,3] x",
        outputs="float[b,s,3] y",
    )
    found = bisect(m, PassManager(Options(passes="user", patterns=[patterns])))
    assert found.sites == (("wrong.axis", "s"),)
    assert found.culprit is not None
    assert found.culprit.nature == "wrong rewrite"
    assert "in float64 both sides differ" in found.culprit.reason
    assert [node.op_type for node in m.graph].count("Softmax") == 2


def test_one_of_several_sites_of_a_rule_is_enough(rules: Write) -> None:
    patterns = rules('"wrong.tanh", op.Tanh(x), op.Sigmoid(x)')
    m = model("a = Tanh(x) b = Relu(a) c = Tanh(b) d = Relu(c) y = Tanh(d)")
    found = bisect(m, PassManager(Options(passes="user", patterns=[patterns])))
    assert len(found.sites) == 1
    assert found.sites[0][1] in ("a", "c", "y")


def test_what_a_wrong_rewrite_takes_is_part_of_the_set(rules: Write) -> None:
    patterns = rules(
        '"step.first", op.Tanh(op.Relu(x)), op.Tanh(op.Abs(x))',
        '"step.second", op.Sigmoid(op.Tanh(op.Abs(x))), op.Sigmoid(x)',
    )
    m = model("e = Exp(x) r = Relu(e) t = Tanh(r) y = Sigmoid(t)")
    found = bisect(m, PassManager(Options(passes="user", patterns=[patterns])))
    assert found.rules == ("step.first", "step.second")
    assert found.sites == (("step.first", "t"), ("step.second", "y"))
    assert "1 other rewrite" in "\n".join(found.lines())


def test_a_result_that_does_not_run_is_a_finding_of_its_own(rules: Write) -> None:
    # The other rule is wrong too, but a model on which it alone is applied runs.
    patterns = rules(
        '"wrong.shape", op.Tanh(x), op.MatMul(x, op.Sigmoid(x))', '"wrong.relu", op.Relu(x), op.Sigmoid(x)'
    )
    m = model("e = Exp(x) t = Tanh(e) y = Relu(t)", inputs="float[b,c] x", outputs="float[b,c] y")
    found = bisect(m, PassManager(Options(passes="user", patterns=[patterns])))
    assert found.sites == (("wrong.shape", "t"),)
    assert found.culprit is not None
    assert found.culprit.nature == "does not run"
    assert "cannot execute" in found.culprit.reason
    assert found.verdict.summary().startswith("the model does not run with ")
    text = "\n".join(found.lines())
    assert "DOES NOT RUN: ONNX Runtime cannot execute the model" in text
    assert "ROUNDING" not in text
    assert json.loads(json.dumps(found.to_dict()))["verdict"]["trials"][-1]["refusal"]


def test_a_model_that_does_not_load_is_not_called_rounding_though_the_rewrite_by_itself_is_right(rules: Write) -> None:
    patterns = rules('"right.abs", op.Abs(op.Abs(x)), op.Identity(op.Abs(x))')

    class Breaker:
        """Breaks another node of a model in which there is an Identity."""

        name = "breaker"

        def run(self, context: Context) -> int:
            operators = {node.op_type: node for node in context.model.graph}
            if "Identity" not in operators or "Relu" not in operators:
                return 0
            operators["Relu"].domain = "nowhere"
            context.model.graph.opset_imports["nowhere"] = 1
            return 1

    m = model("t = Abs(x) u = Abs(t) y = Relu(u)")
    found = bisect(m, PassManager(Options(passes=["user", Breaker()], patterns=[patterns])))
    assert found.sites == (("right.abs", "u"), ("breaker", "y"))
    assert found.culprit is not None
    assert found.culprit.nature == "does not run"
    assert "refuses the model" in found.culprit.reason


def test_rounding_is_told_from_wrong() -> None:
    found = ortfuse.bisect(BERT, tolerance=3e-7)
    assert found.moved
    assert found.culprit is not None
    assert found.culprit.nature == "rounding"


def test_a_pass_that_is_no_rule_is_found() -> None:
    class Breaker:
        name = "breaker"

        def run(self, context: Context) -> int:
            for node in list(context.model.graph):
                if node.op_type == "Tanh":
                    node.op_type = "Sigmoid"
                    return 1
            return 0

    found = bisect(model("t = Tanh(x) y = Relu(t)"), PassManager(["canonicalize", Breaker()]))
    assert found.passes == ("breaker",)
    assert found.sites == (("breaker", "t"),)
    assert found.culprit is not None
    assert found.culprit.nature == "wrong rewrite"


@dataclass(frozen=True)
class ByInput:
    """Replaces nodes by their inputs: right for Identity, wrong for Softplus."""

    operators: tuple[str, ...] = ("Identity", "Softplus")
    careless: bool = False
    name: str = "by_input"

    def run(self, context: Context) -> int:
        editor, changes = context.editor, 0
        for node in [node for node in context.model.graph if node.op_type in self.operators]:
            with editor.change(self.name) as change:
                editor.replace(node.outputs[0], node.inputs[0])
                editor.remove(node)
            if self.careless and not change:
                raise RuntimeError("not prepared for this")
            changes += bool(change)
        return changes


EDITED = "a = Identity(x) s = Softplus(a) b = Identity(s) t = Neg(b) y = Tanh(t)"


@pytest.mark.parametrize("passes", [["canonicalize"], ["fold", "cse", "dce"]])
def test_of_the_edits_of_a_users_pass_the_wrong_one_is_found(passes: list[str]) -> None:
    found = bisect(model(EDITED), PassManager([*passes, ByInput(), "fixpoint(cse, dce)"]))
    assert (found.passes, found.rules, found.sites) == (("by_input",), (), (("by_input", "s"),))
    culprit = found.culprit
    assert culprit is not None
    assert (culprit.name, culprit.site, culprit.nature) == ("by_input", "s", "wrong rewrite")
    assert culprit.nodes[0].startswith("Softplus")
    assert "in float64 both sides differ" in culprit.reason
    assert found.before is not None
    assert found.before.ok
    assert found.after is not None
    assert not found.after.ok
    assert "site: by_input at 's', and this edit alone" in found.lines()
    assert json.loads(json.dumps(found.to_dict()))["sites"] == [{"rule": "by_input", "site": "s"}]


def test_an_edit_that_a_wrong_rewrite_takes_is_part_of_the_set(rules: Write) -> None:
    patterns = rules('"wrong.tanh", op.Tanh(op.Neg(x)), op.Sigmoid(x)')
    m = model("n = Neg(x) a = Identity(n) y = Tanh(a)")
    found = bisect(m, PassManager(Options(passes=[ByInput(("Identity",)), "user"], patterns=[patterns])))
    assert found.rules == ("wrong.tanh",)
    assert found.sites == (("by_input", "a"), ("wrong.tanh", "y"))
    assert "1 other edits that it takes" in "\n".join(found.lines())


def test_a_merger_of_nodes_that_are_not_equal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cse_module, "computation", lambda node, *known: (node.op_type, node.inputs[0]))
    m = model(
        "e = Exp(x) f = Exp(x) a = LeakyRelu<alpha=0.1>(e) n = Neg(f) b = LeakyRelu<alpha=0.1>(n) "
        "c = LeakyRelu<alpha=0.9>(n) d = Sub(b, c) y = Add(a, d)"
    )
    found = bisect(m, PassManager("cse, dce"))
    assert found.sites == (("cse", "c"),)
    assert found.culprit is not None
    assert found.culprit.nature == "wrong rewrite"


def test_a_pass_that_cannot_do_without_an_edit_is_compared_as_a_whole() -> None:
    found = bisect(model(EDITED), PassManager([ByInput(careless=True)]))
    assert (found.passes, found.sites) == (("by_input{careless=true}",), ())
    assert found.culprit is not None
    assert found.culprit.nature == "wrong rewrite"


def test_the_users_own_inputs_decide(rules: Write) -> None:
    patterns = rules('"wrong.relu", op.Relu(x), x')
    m = model("r = Relu(x) y = Neg(r)")
    positive = {"x": np.ones((2, 3), np.float32)}
    manager = PassManager(Options(passes="user", patterns=[patterns]))
    assert not bisect(m, manager, inputs=[positive]).moved
    assert bisect(m, manager, inputs=[{"x": -positive["x"]}]).moved


def test_a_rewrite_in_a_branch_is_found_and_judged(rules: Write) -> None:
    patterns = rules('"wrong.tanh", op.Tanh(x), op.Sigmoid(x)')
    m = ir.from_onnx_text(
        """<ir_version: 9, opset_import: ["": 18]> g (float[b,3] x, bool c) => (float[b,3] y) {
            y = If (c) <then_branch = t () => (float[b,3] p) { p = Tanh(x) },
                        else_branch = e () => (float[b,3] q) { q = Tanh(x) }> }"""
    )
    found = bisect(m, PassManager(Options(passes="user", patterns=[patterns])))
    assert found.culprit is not None
    assert found.culprit.nature == "wrong rewrite"
    assert len(found.sites) == 1


@pytest.mark.parametrize("when", ["load", "run"])
def test_a_result_that_crashes_the_runtime_is_a_finding_of_its_own(rules: Write, when: str) -> None:
    patterns = rules('"crash.tanh", op.Tanh(x), op.Softsign(x)', '"wrong.relu", op.Relu(x), op.Sigmoid(x)')
    m = model("e = Exp(x) t = Tanh(e) y = Relu(t)")
    with runtime_that(when, "Softsign"):
        found = bisect(m, PassManager(Options(passes="user", patterns=[patterns])))
    assert found.sites == (("crash.tanh", "t"),)
    assert found.culprit is not None
    assert found.culprit.nature == "crashes"
    text = "\n".join(found.lines())
    assert "CRASHES: ONNX Runtime crashes when it" in text
    assert "ONNX Runtime crashes" in found.verdict.summary()
