"""Passes that undo each other are found, stopped and named, and cost the others nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.ir.fingerprint import fingerprint
from ortfuse.pipeline.schedule import Schedule
from ortfuse.pipeline.steps import Repeated, Single
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import op, var
from ortfuse.targets import Target
from ortfuse.transforms import Context, DeadCodeElimination, RulePass

x = var("x")
THERE, BACK = (
    Rule(
        name=name,
        pattern=one,
        replace=other,
        exactness=Exactness.EXACT,
        source="test",
        test=RuleTest(shapes={"x": "2"}),
    )
    for name, one, other in (
        ("test.there", op.Neg(x), op.Mul(x, -1.0)),
        ("test.back", op.Mul(x, -1.0), op.Neg(x)),
    )
)
TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {
    unused = Exp(x) a = Neg(x) y = Tanh(a) }"""


@dataclass(frozen=True)
class Flip:
    """Sets the axis of each Softmax to another one, and back."""

    name: ClassVar[str] = "flip"

    def run(self, context: Context) -> int:
        for node in context.model.graph:
            if node.op_type == "Tanh":
                node.name = "one" if node.name == "other" else "other"
        return 1


def _settled(*passes: Single) -> Context:
    model = ir.from_proto(parser.parse_model(TEXT))
    context = Context(model, Facts(model), Target())
    for turn in Schedule([Repeated("fixpoint", passes, 50)], context):
        turn.changes = turn.transformer.run(context)
    return context


def test_rules_that_undo_each_other_are_stopped_and_named() -> None:
    there, back = (Single(rule.name, RulePass(rule.name, (rule,))) for rule in (THERE, BACK))
    context = _settled(there, back, Single("dce", DeadCodeElimination()))
    assert [node.op_type for node in context.model.graph] == ["Neg", "Tanh"]
    (text,) = context.failures
    assert text.startswith("test.there and test.back undo each other around 'a': they were stopped after round 9")
    assert not context.notes


def test_a_pass_of_the_users_that_undoes_itself_is_a_note() -> None:
    context = _settled(Single("flip", Flip()), Single("dce", DeadCodeElimination()))
    (note,) = context.notes
    assert note.startswith("flip undo") and not context.failures


@pytest.mark.parametrize("made", ["r = Reshape(e, t)", "r = Reshape(e, t) z = Neg(r)"])
@pytest.mark.parametrize("target", ["2, 15", "1, 5, 6", "1, 1, 2, 5, 3", "2, 5, 1, 3", "6, 5"])
def test_layout_and_the_canonical_form_agree_on_where_products_are_transposed(made: str, target: str) -> None:
    outputs = "float[] r, float[] z" if "z" in made else "float[] r"
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 20]> g (float[2,3,4] x) => ({outputs})
        <int64[{target.count(",") + 1}] t = {{{target}}}> {{
        s = Softmax(x) e = Einsum<equation = "abc,cd->adb">(s, w) {made} }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 5), np.float32), "w"))
    result = ortfuse.optimize(model, loaded=False)
    assert not result.report.failures and not result.unchanged
    assert "MatMul" in {node.op_type for node in result.model.graph.node}


def test_a_unit_axis_is_not_split_off_before_a_transposition() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[4,S,1] x, float[1,2] w) => (float[4,1,2,S] r, float[] z)
        <int64[4] t = {4, 1, 2, -1}, int64[3] t2 = {6, 4, 1}> {
        s = Softmax<axis = 1>(x) e = Einsum<equation = "abc,cd->adb">(s, w) r = Reshape(e, t) z = Reshape(r, t2) }""")
    assert not ortfuse.optimize(model, loaded=False).report.failures


SAME = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, bool c) => (float[2] y)
    <float[2] w = {1, 2}> { a = Neg(x) b = Exp(x) d = Add(a, w) e = Add(d, b)
    y = If<then_branch = t () => (float[2] r) { r = Abs(e) }, else_branch = f () => (float[2] r) { r = Neg(e) }>(c) }"""


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("a = Neg(x) b = Exp(x)", "b = Exp(x) a = Neg(x)", True),
        ("a = ", "a9 = ", True),
        ("Abs(e)", "Abs(d)", False),
        ("{1, 2}", "{1, 3}", False),
        ("Neg(x)", "Cos(x)", False),
        ("Add(d, b)", "Add(b, d)", False),
    ],
)
def test_models_are_told_apart_by_what_they_compute(one: str, other: str, alike: bool) -> None:
    text = SAME.replace(one, other).replace("(a, w)", "(a9, w)" if "a9" in other else "(a, w)")
    keys = [fingerprint(ir.from_proto(_parsed(given))) for given in (SAME, text)]
    assert (keys[0] == keys[1]) == alike


def _parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)
