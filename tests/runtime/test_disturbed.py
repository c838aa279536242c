"""Errors added to values of a model from outside."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.ir.walk import nodes_within
from ortfuse.runtime.error_injection import PREFIX, SHOWN, disturbed, no_errors
from ortfuse.runtime.session import Session

MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 2] x) => (float[n, 2] y, float[n, 2] h)
<float[2, 2] w = {1, 2, 3, 4}> { h = MatMul(x, w)  r = Relu(h)  y = Add(r, h) }"""
ERRORS = {"h": ir.DataType.FLOAT}
X = np.array([[1.0, 1.0]], np.float32)


def run(model: ir.Model, **more: np.ndarray) -> dict[str, np.ndarray]:
    return Session(model).run({"x": X, **no_errors(ERRORS), **{f"{PREFIX}{n}": a for n, a in more.items()}})


def test_without_errors_nothing_changes() -> None:
    model = ir.from_onnx_text(MODEL)
    found = run(disturbed(model, ERRORS))
    assert {name: array.tolist() for name, array in found.items()} == {"y": [[8.0, 12.0]], "h": [[4.0, 6.0]]}
    assert len(model.graph.inputs) == 1


def test_an_error_reaches_every_use_and_the_output() -> None:
    found = run(disturbed(ir.from_onnx_text(MODEL), ERRORS), h=np.array([[0.5, 0.0]], np.float32))
    assert {name: array.tolist() for name, array in found.items()} == {"y": [[9.0, 12.0]], "h": [[4.5, 6.0]]}


def test_values_are_shown_before_an_error_is_added() -> None:
    found = run(disturbed(ir.from_onnx_text(MODEL), ERRORS, ["h", "x"]), h=np.array([[0.5, 0.0]], np.float32))
    assert found[f"{SHOWN}h"].tolist() == [[4.0, 6.0]]
    assert found[f"{SHOWN}x"].tolist() == X.tolist()


def test_some_outputs_can_be_run_alone() -> None:
    session = Session(disturbed(ir.from_onnx_text(MODEL), ERRORS))
    assert list(session.run({"x": X, **no_errors(ERRORS)}, ["h"])) == ["h"]
    inside = Session(ir.from_onnx_text(MODEL), isolated=False)
    assert list(inside.run({"x": X}, ["h", "y"])) == ["h", "y"]


def test_values_of_bodies_keep_names_of_their_own() -> None:
    """What is added is not called as an unnamed value would be, which a body may have taken already."""
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 20]> g (float[2] x, bool c) => (float[2] y) {
        a = Neg(x)
        b = If(c) <then_branch = t () => (float[2] val_1) { val_0 = Abs(x) val_1 = Neg(val_0) },
                   else_branch = e () => (float[2] val_3) { val_2 = Exp(x) val_3 = Neg(val_2) }>
        y = Add(a, b) }""")
    changed = disturbed(model, {"a": ir.DataType.FLOAT, "b": ir.DataType.FLOAT})
    names = [value.name for node in nodes_within(changed.graph) for value in node.outputs]
    assert len(names) == len(set(names))
    Session(changed)
