"""Caches that a decoder of float16 takes and hands out in float32, in graphs with bodies and with names that are taken."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from ortfuse.generation.append_new_tokens import append_new_tokens
from ortfuse.generation.narrow_caches import narrow_caches

READ_IN_A_BODY = """<ir_version: 10, opset_import: ["": 21]>
    g (float[b, 2, p, 4] past, float16[b, 2, s, 4] new, bool c) => (float[b, 2, t, 4] present, float[b, 2, q, 4] out) {
        p16 = Cast<to = 10>(past)
        w = Concat<axis = 2>(p16, new)
        present = Cast<to = 1>(w)
        out = If(c) <
            then_branch = a () => (float[b, 2, p, 4] x) { p2 = Cast<to = 10>(past)  x = Cast<to = 1>(p2) },
            else_branch = e () => (float[b, 2, q, 4] y) { y = Cast<to = 1>(w) }> }"""

TAKEN = """<ir_version: 10, opset_import: ["": 21]>
    g (float[b, 2, p, 4] past, float16[b, 2, s, 4] new, bool c) => (float[b, 2, t, 4] present, float[b, 2, t, 4] out) {
        p16 = Cast<to = 10>(past)
        w = Concat<axis = 2>(p16, new)
        present = Cast<to = 1>(w)
        present_wide = Neg(present)
        out = If(c) <
            then_branch = a () => (float[b, 2, t, 4] x) { present_wide_ = Abs(present)  x = Neg(present_wide_) },
            else_branch = e () => (float[b, 2, t, 4] y) { y = Identity(present_wide) }> }"""

NEW_ALONE = """<ir_version: 10, opset_import: ["": 21]>
    g (float[b, 2, p, 4] past, float[b, 2, s, 4] x, bool c) => (float[b, 2, s, 4] new, float[b, 2, t, 4] out) {
        new = Neg(x)
        w = Concat<axis = 2>(past, new)
        out = If(c) <
            then_branch = a () => (float[b, 2, t, 4] u) { new_alone = Abs(w)  u = Neg(new_alone) },
            else_branch = e () => (float[b, 2, t, 4] v) { v = Abs(w) }> }"""


def _model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def _names(model: ir.Model) -> list[str]:
    """The names of the results of all nodes, in bodies too, of a model that the checker takes."""
    made = ir.to_proto(model)
    onnx.checker.check_model(made, full_check=True)
    bodies = [one.g for node in made.graph.node for one in node.attribute if one.HasField("g")]
    return [name for graph in (made.graph, *bodies) for node in graph.node for name in node.output]


def test_a_past_that_is_cast_in_a_body_too_becomes_float16() -> None:
    model = _model(READ_IN_A_BODY)
    narrow_caches(model)
    assert model.graph.inputs[0].dtype == model.graph.outputs[0].dtype == ir.DataType.FLOAT16
    assert not {"p16", "p2"} & set(_names(model))


@pytest.mark.parametrize(("text", "change"), [(TAKEN, narrow_caches), (NEW_ALONE, append_new_tokens)])
def test_names_that_values_have_already_are_not_given_again(text: str, change: Callable[[ir.Model], object]) -> None:
    model = _model(text)
    before = [value.name for value in model.graph.outputs]
    change(model)
    found = _names(model)
    assert len(set(found)) == len(found)
    assert [value.name for value in model.graph.outputs] == before
    assert {"present_wide__", "new_alone_"} & set(found)
