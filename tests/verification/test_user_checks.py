"""Without being asked, ortfuse checks each change of a user's own rules and passes on its own nodes, and undoes wrong ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import operators
from small_models import floats, model_of
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.pipeline import discover_rule_files
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import ms, op, var
from ortfuse.transforms import Context, RulePass

TEXT = """agraph (float[b, 4] x) => (float[b, 4] y, float[b, 4] z)
    { s = Sigmoid(x) h = Mul(x, s) t = Tanh(h) y = Abs(t) z = Gelu(t) }"""

PASSES = "canonicalize, user"
x = var("x")
PROOF = RuleTest(shapes={"x": "b s 8"})
RIGHT = Rule(
    name="mine.swish", pattern=x * op.Sigmoid(x), replace=ms.QuickGelu(x, alpha=1.0), exactness=Exactness.ROUNDING,
    source="test", test=PROOF,
)  # fmt: skip
WRONG = replace(RIGHT, replace=ms.QuickGelu(x, alpha=1.702))
FILE = """
from ortfuse.rewrite.pattern import ms, op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule

x = var("x")
RULES = [
    Rule(name="mine.swish", pattern=x * op.Sigmoid(x), replace=ms.QuickGelu(x, alpha=1.702), exactness=Exactness.ROUNDING,
         source="test", test=RuleTest(shapes={"x": "b s 8"})),
]
"""


def checked(result: ortfuse.Result) -> list[tuple[str, str, str]]:
    return [(check.rule, check.site, check.state) for check in result.sites or ()]


def test_a_wrong_rule_is_undone_and_told() -> None:
    result = ortfuse.optimize(model_of(TEXT), passes=PASSES, patterns=WRONG)
    assert "Sigmoid" in operators(result)
    assert checked(result) == [("mine.swish", "h", "undone")]
    assert [note for note in result.report.notes if "mine.swish is wrong at 'h' and was undone there" in note]
    assert result.report.families() == {}


def test_a_right_rule_stays_and_the_report_says_that_it_was_checked() -> None:
    result = ortfuse.optimize(model_of(TEXT), passes=PASSES, patterns=RIGHT)
    assert "QuickGelu" in operators(result)
    assert checked(result) == [("mine.swish", "h", "equal")]
    assert result.to_dict()["sites"][0]["state"] == "equal"


def test_nobody_is_asked_to_check() -> None:
    result = ortfuse.optimize(model_of(TEXT), passes=PASSES, patterns=WRONG, check_user=False)
    assert "QuickGelu" in operators(result)
    assert result.sites is None
    assert "changes of your own rules and passes were not checked: mine.swish (1)" in result.report.notes


def test_what_comes_with_ortfuse_is_not_checked() -> None:
    result = ortfuse.optimize(model_of(TEXT), patterns=RIGHT)
    assert {check.rule for check in result.sites or ()} <= {"mine.swish"}
    assert ortfuse.optimize(model_of(TEXT)).sites is None


def test_a_rule_that_joins_a_pass_of_ortfuse_is_still_the_users(tmp_path: Path) -> None:
    file = tmp_path / "joining.py"
    file.write_text(FILE + 'PASS = "canonicalize"\n', encoding="utf-8")
    result = ortfuse.optimize(model_of(TEXT), passes="canonicalize", patterns=file)
    assert "Sigmoid" in operators(result)
    assert checked(result) == [("mine.swish", "h", "undone")]


def test_a_rule_in_a_pass_that_is_given_as_an_object_is_checked() -> None:
    result = ortfuse.optimize(model_of(TEXT), passes=[RulePass("given", (WRONG,))])
    assert checked(result) == [("mine.swish", "h", "undone")]


def test_a_rule_of_an_installed_package_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    file = discover_rule_files.RuleFile("fuse.offered", (WRONG,), "a package", "package")
    monkeypatch.setattr(discover_rule_files, "_from_packages", lambda: [file])
    result = ortfuse.optimize(model_of(TEXT), passes=PASSES)
    assert checked(result) == [("mine.swish", "h", "undone")]


@dataclass(frozen=True)
class Swap:
    """Puts one operator in the place of another, through the editor or past it."""

    old: str
    new: str
    past: bool = False
    name: str = "swap"

    def run(self, context: Context) -> int:
        count = 0
        for node in [node for node in context.model.graph if node.op_type == self.old]:
            if self.past:
                node.op_type, node.domain = self.new, ""
                count += 1
                continue
            made = ir.node(self.new, [node.inputs[0]])
            with context.editor.change("swap.block") as change:
                context.editor.insert_before(node, made)
                context.editor.replace(node.outputs[0], made.outputs[0])
                context.editor.remove(node)
            count += bool(change)
        return count


@pytest.mark.parametrize("past", [False, True])
def test_a_wrong_pass_is_undone_however_it_writes(past: bool) -> None:
    model, inputs = model_of(TEXT), {"x": floats(2, 4)}
    before = graphs.run(model, inputs)
    result = ortfuse.optimize(model, passes=[Swap("Tanh", "Softsign", past)])
    assert "Tanh" in operators(result)
    assert [state for *_, state in checked(result)] == ["undone"]
    for one, other in zip(before, graphs.run(result.model, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_pass_may_round_elsewhere() -> None:
    """Unlike with `verify="sites"`, which asks passes for the same bits."""

    @dataclass(frozen=True)
    class Spelled:
        name: str = "spelled"

        def run(self, context: Context) -> int:
            node = next((node for node in context.model.graph if node.op_type == "Tanh"), None)
            if node is None:
                return 0
            grown = ir.node("Exp", [node.inputs[0]])
            shrunk = ir.node("Reciprocal", [grown.outputs[0]])
            parts = [ir.node(name, [grown.outputs[0], shrunk.outputs[0]]) for name in ("Sub", "Add")]
            made = ir.node("Div", [part.outputs[0] for part in parts])
            with context.editor.change(self.name) as change:
                context.editor.insert_before(node, grown, shrunk, *parts, made)
                context.editor.replace(node.outputs[0], made.outputs[0])
                context.editor.remove(node)
            return int(bool(change))

    assert checked(ortfuse.optimize(model_of(TEXT), passes=[Spelled()])) == [("spelled", "t", "equal")]
    assert checked(ortfuse.optimize(model_of(TEXT), passes=[Spelled()], verify="sites"))[0] == (
        "spelled",
        "t",
        "undone",
    )


def test_a_wrong_pass_of_onnx_ir_is_undone() -> None:
    class Wrong(ir.passes.InPlacePass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            for node in model.graph:
                if node.op_type == "Tanh":
                    node.op_type = "Softsign"
            return ir.passes.PassResult(model, True)

    result = ortfuse.optimize(model_of(TEXT), passes=[Wrong()])
    assert "Tanh" in operators(result)
    assert [state for *_, state in checked(result)] == ["undone"]


@pytest.mark.parametrize(("made", "state"), [(op.Gelu(x, approximate="tanh"), "equal"), (op.Relu(x), "undone")])
def test_an_approximation_that_was_asked_for_stays_if_it_is_one(made: Any, state: str) -> None:
    rule = replace(RIGHT, name="mine.gelu", pattern=op.Gelu(x), replace=made, exactness=Exactness.APPROXIMATE)
    result = ortfuse.optimize(model_of(TEXT), passes=PASSES, patterns=rule, approximate=True)
    assert checked(result) == [("mine.gelu", "z", state)]


def test_what_cannot_be_cut_out_is_let_through_and_told() -> None:
    text = "agraph (float[b, 4] x) => (float[b, 4] y) { r = RandomNormalLike(x) y = Tanh(r) }"
    rule = replace(RIGHT, name="mine.tanh", pattern=op.Tanh(op.RandomNormalLike(x)), replace=op.RandomNormalLike(x))
    assert [state for *_, state in checked(ortfuse.optimize(model_of(text), passes=PASSES, patterns=rule))] == [
        "unchecked"
    ]


def test_the_command_says_which_of_the_users_rules_were_checked(tmp_path: Path) -> None:
    rules, model = tmp_path / "mine.py", tmp_path / "model.onnx"
    rules.write_text(FILE, encoding="utf-8")
    onnx.save(ir.to_proto(model_of(TEXT)), model)
    given = ["optimize", str(model), "--patterns", str(rules), "--passes", PASSES]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0
    assert "mine.swish (1 wrong and undone)" in " ".join(done.output.split())
    assert "mine.swish is wrong at 'h' and was undone there" in " ".join(done.output.split())
    done = CliRunner().invoke(app, [*given, "--no-check-user"])
    assert "were not checked: mine.swish (1)" in " ".join(done.output.split())


def test_where_the_whole_is_compared_a_wrong_rule_is_an_error_unless_it_is_to_be_undone() -> None:
    with pytest.raises(ortfuse.WrongResultError) as caught:
        ortfuse.optimize(model_of(TEXT), passes=PASSES, patterns=WRONG, verify="whole")
    assert not [note for note in caught.value.result.report.notes if "not checked" in note]
    result = ortfuse.optimize(model_of(TEXT), passes=PASSES, patterns=WRONG, verify="whole", check_user=True)
    assert checked(result) == [("mine.swish", "h", "undone")]
    assert result.ok
