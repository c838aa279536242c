"""A user's pass changes a model through `context.editor`; what is wrong with its edits is found, undone and reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import graphs
import numpy as np
import onnx_ir as ir
import pytest
from small_models import floats, model_of

import ortfuse
from ortfuse.errors import PipelineError
from ortfuse.ir.edit import Edit
from ortfuse.pipeline import PassManager
from ortfuse.transforms import Context
from ortfuse.verification import SiteChecks

TEXT = """agraph (float[b, 4] x) => (float[b, 4] y, float[b, 4] z)
    { a = Neg(x) s = Softplus(a) y = Add(s, x) i = Identity(a) z = Sigmoid(i) }"""


ANSWERS: list[bool] = []
"""What the editor said to the pass."""


@dataclass(frozen=True)
class ByInput:
    """Replaces nodes of one operator by their inputs, which is right for Identity alone."""

    operator: str
    in_a_block: bool = False
    name: str = "by_input"

    def run(self, context: Context) -> int:
        editor, changes = context.editor, 0
        for node in [node for node in context.model.graph if node.op_type == self.operator]:
            if self.in_a_block:
                with editor.change("by_input.block") as change:
                    editor.replace(node.outputs[0], node.inputs[0])
                    editor.remove(node)
                ANSWERS.append(bool(change))
                changes += bool(change)
            else:
                ANSWERS.append(bool(editor.replace(node.outputs[0], node.inputs[0])))
                changes += bool(editor.remove(node))
        return changes


@pytest.mark.parametrize("in_a_block", [False, True])
def test_an_edit_of_a_users_pass_that_is_wrong_is_undone_and_reported(in_a_block: bool) -> None:
    model, checks = model_of(TEXT), SiteChecks()
    ANSWERS.clear()
    inputs = {"x": floats(2, 4)}
    before = graphs.run(model, inputs)
    PassManager([ByInput("Softplus", in_a_block)]).run(model, inspector=checks)
    assert [node.op_type for node in model.graph] == ["Neg", "Softplus", "Add", "Identity", "Sigmoid"]
    assert ANSWERS == [False]
    author = "by_input.block" if in_a_block else "by_input"
    assert (author, "s") in [(check.rule, check.site) for check in checks.of_state("undone")]
    for one, other in zip(before, graphs.run(model, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("in_a_block", [False, True])
def test_a_right_one_stays(in_a_block: bool) -> None:
    model, checks = model_of(TEXT), SiteChecks()
    PassManager([ByInput("Identity", in_a_block=in_a_block)]).run(model, inspector=checks)
    assert "Identity" not in [node.op_type for node in model.graph]
    assert {check.state for check in checks.found.values()} == {"equal"}


def test_the_front_door_says_what_was_undone() -> None:
    result = ortfuse.optimize(model_of(TEXT), passes=[ByInput("Softplus")], verify="sites")
    assert any(check.state == "undone" and check.rule == "by_input" for check in result.sites)


def test_a_node_that_is_needed_is_not_removed() -> None:
    @dataclass(frozen=True)
    class Remover:
        name: str = "remover"

        def run(self, context: Context) -> int:
            node = next(node for node in context.model.graph if node.op_type == "Softplus")
            return int(bool(context.editor.remove(node)))

    model = model_of(TEXT)
    report = PassManager([Remover()]).run(model)
    assert "Softplus" in [node.op_type for node in model.graph]
    assert "'s'" in str(report.log.refused["remover", "s"])


@dataclass
class Watcher:
    seen: list[Edit] = field(default_factory=list)
    operators: list[tuple[str, list[str], list[str]]] = field(default_factory=list)

    def objection(self, edit: Edit) -> None:
        self.seen.append(edit)
        self.operators.append((edit.author, [n.op_type for n in edit.nodes], [n.op_type for n in edit.added]))
        assert all(node.graph is not None for node in (*edit.nodes, *edit.added))


def test_inspectors_see_what_finalize_and_the_raising_of_the_opset_do() -> None:
    text = """<ir_version: 8, opset_import: ["" : 12]>
        agraph (float[2, 3] x) => (float[2, 3] y) { m = ReduceSum <axes = [1], keepdims = 1> (x) y = Add(x, m) }"""
    model, watcher = model_of(text), Watcher()
    model.graph[1].version = 14
    PassManager("finalize").run(model, inspector=watcher)
    assert ("raise_opset", ["ReduceSum"], ["Constant", "ReduceSum"]) in watcher.operators
    assert any(edit.author == "finalize" for edit in watcher.seen)
    assert model.opset_imports[""] == 14


def test_the_raising_of_the_opset_is_checked_and_undone_as_a_whole() -> None:
    text = """<ir_version: 8, opset_import: ["" : 12]>
        agraph (float[2, 3] x) => (float[2, 3] y) { m = ReduceSum <axes = [1], keepdims = 1> (x) y = Add(x, m) }"""
    model, checks = model_of(text), SiteChecks()
    model.graph[1].version = 14
    PassManager("finalize").run(model, inspector=checks)
    assert ("raise_opset", "m") in checks.found
    assert {check.state for check in checks.found.values()} == {"equal"}
    assert ir.to_proto(model).opset_import[0].version == 14


def test_what_is_equal_wherever_the_model_runs_is_right() -> None:
    clamps = """agraph (float[b, s, 6] x, float[s, 6] w) => (float[b, n, 6] y)
        <int64[1] bound = {8}, int64[1] one = {1}, int64[1] six = {6}, int64[1] zero = {0}> {
        n = Shape(x) first = Gather(n, zero) length = Gather(n, one) cut = Min(bound, length)
        target = Concat <axis = 0> (first, cut, six) seen = Reshape <allowzero = 1> (x, target) y = Add(seen, w) }"""
    model, checks = model_of(clamps), SiteChecks()
    PassManager("drop_length_clamps").run(model, inspector=checks)
    assert checks.found["drop_length_clamps", "cut"].state == "equal"
    assert "Min" not in [node.op_type for node in model.graph]


def test_a_length_read_off_a_convolution_is_checked_with_the_convolutions_that_prove_it() -> None:
    lengths = """g (float[b, 4, s] x, float[4, 4, 3] w) => (float[b, l, 2, 2] out, int64[k] positions) <float[b, l, 2, 2] h> {
        n = Shape<start=2, end=3>(x) three = Constant<value = int64[1] {3}>() two = Constant<value = int64[1] {2}>()
        one = Constant<value = int64[1] {1}>() a = Sub(n, three) b = Div(a, two) c = Sub(b, two) d = Div(c, two) t = Add(d, one)
        zero = Constant<value = int64 {0}>() step = Constant<value = int64 {1}>() count = Squeeze(t)
        positions = Range(zero, count, step)
        f = Conv<strides = [2]>(x, w) g = Conv<strides = [2]>(f, w) y = Transpose<perm = [0, 2, 1]>(g)
        batch = Shape<end=1>(x) open = Constant<value = int64[1] {-1}>() size = Constant<value = int64[1] {2}>()
        target = Concat<axis = 0>(batch, t, open, size) h = Reshape<allowzero = 1>(y, target) out = Relu(h) }"""
    model, checks = model_of(lengths), SiteChecks()
    PassManager("recomputed_lengths_to_conv_dims").run(model, inspector=checks)
    found = next(check for (rule, _), check in checks.found.items() if rule == "recomputed_lengths_to_conv_dims")
    assert (found.state, found.reason) == ("equal", "")


@dataclass(frozen=True)
class PastTheEditor:
    """Writes into the model directly."""

    write: Callable[[ir.Model], None]
    name: str = "past"

    def run(self, context: Context) -> int:
        self.write(context.model)
        return 1


def _named(model: ir.Model, operator: str) -> ir.Node:
    return next(node for node in model.graph if node.op_type == operator)


def _other_operator(model: ir.Model) -> None:
    _named(model, "Softplus").op_type = "Relu"


def _other_attribute(model: ir.Model) -> None:
    _named(model, "LeakyRelu").attributes["alpha"] = ir.AttrFloat32("alpha", 0.5)


def _other_input(model: ir.Model) -> None:
    _named(model, "Add").replace_input_with(0, model.graph.inputs[0])


def _other_constant(model: ir.Model) -> None:
    model.graph.initializers["w"].const_value = ir.tensor(np.float32([2.0]), name="w")


def _other_output(model: ir.Model) -> None:
    inner = _named(model, "Neg")
    inner.graph.insert_after(inner, node := ir.node("Exp", [inner.outputs[0]]))
    _named(model, "Sigmoid").replace_input_with(0, node.outputs[0])


PAST = """agraph (float[b, 4] x) => (float[b, 4] y, float[b, 4] z) <float[1] w = {1.0}>
    { a = Neg(x) s = Softplus(a) m = Mul(s, w) y = Add(m, x) i = Identity(a) l = LeakyRelu<alpha = 0.1>(i) z = Sigmoid(l) }"""


@pytest.mark.parametrize("write", [_other_operator, _other_attribute, _other_input, _other_constant, _other_output])
def test_what_a_pass_writes_past_the_editor_is_checked_and_undone(write: Callable[[ir.Model], None]) -> None:
    model, checks, inputs = model_of(PAST), SiteChecks(), {"x": floats(2, 4)}
    before = graphs.run(model, inputs)
    PassManager([PastTheEditor(write)]).run(model, inspector=checks)
    assert [check.rule for check in checks.of_state("undone")] == ["past"]
    for one, other in zip(before, graphs.run(model, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_right_past_the_editor_stays() -> None:
    def write(model: ir.Model) -> None:
        node = _named(model, "LeakyRelu")
        node.op_type, node.attributes["slope"] = "PRelu", node.attributes.pop("alpha")
        node.attributes.pop("slope")
        slope = ir.Value(name="slope", const_value=ir.tensor(np.float32([0.1]), name="slope"))
        model.graph.register_initializer(slope)
        node.resize_inputs(2)
        node.replace_input_with(1, slope)

    model, checks = model_of(PAST), SiteChecks()
    PassManager([PastTheEditor(write)]).run(model, inspector=checks)
    assert [check.state for check in checks.found.values() if check.rule == "past"] == ["equal"]
    assert "PRelu" in [node.op_type for node in model.graph]


def test_edits_through_the_editor_alone_are_checked_once() -> None:
    model, watcher = model_of(TEXT), Watcher()
    PassManager([ByInput("Identity", in_a_block=True)]).run(model, inspector=watcher)
    assert [author for author, _, _ in watcher.operators if author.startswith("by_input")] == ["by_input.block"]


def test_an_exception_in_a_users_pass_names_the_pass() -> None:
    def write(model: ir.Model) -> None:
        raise KeyError("axis")

    for inspector in (None, SiteChecks()):
        with pytest.raises(PipelineError, match="pass past fails: KeyError: 'axis'") as caught:
            PassManager([PastTheEditor(write)]).run(model_of(TEXT), inspector=inspector)
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_users_pass_that_returns_nothing_is_told_to() -> None:
    @dataclass(frozen=True)
    class Forgetful:
        name: str = "forgetful"

        def run(self, context: Context) -> int:
            return None  # type: ignore[return-value]

    with pytest.raises(PipelineError, match="pass forgetful must return the number of its changes, not None"):
        PassManager([Forgetful()]).run(model_of(TEXT))
