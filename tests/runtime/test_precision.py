"""In which precision a model computes, and that its outputs are judged by that."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortfuse.runtime.comparison import compare
from ortfuse.runtime.float64.coarsest_output_precision import coarsest
from ortfuse.verification import verify


def _model(body: str, inputs: str = "double[2, 3] x") -> ir.Model:
    text = f'<ir_version: 10, opset_import: ["" : 20]> g ({inputs}) => (double[2, 3] y) {{ {body} }}'
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


ISLAND = "f = Cast<to=1>(x) s = {0} y = Cast<to=11>(s)"


@pytest.mark.parametrize(
    ("body", "inputs", "kind"),
    [
        ("y = Mul(x, x)", "double[2, 3] x", "float64"),
        (ISLAND.format("Tanh(f)"), "double[2, 3] x", "float32"),
        (ISLAND.format("Identity(f)"), "double[2, 3] x", "float32"),
        ("h = Cast<to=10>(x) y = Cast<to=11>(h)", "float[2, 3] x", "float16"),
        ("f = Cast<to=1>(m) o = Constant<value = float {1.0}>() n = Sub(o, f) d = Cast<to=11>(n) y = Mul(d, x)",
         "double[2, 3] x, int64[2, 3] m", "float64"),
        ("f = Constant<value = float[3] {1.5, 2.5, 3.5}>() d = Cast<to=11>(f) y = Mul(x, d)",
         "double[2, 3] x", "float64"),
        ("d = Cast<to=11>(m) y = Identity(d)", "int64[2, 3] m", ""),
    ],
)  # fmt: skip
def test_the_coarsest_step_counts(body: str, inputs: str, kind: str) -> None:
    assert coarsest(_model(body, inputs)) == ({"y": kind} if kind else {})


def test_outputs_are_judged_by_the_coarsest_step() -> None:
    values = np.linspace(1, 2, 8)
    assert not compare("y", values, values * (1 + 1e-6)).ok
    assert compare("y", values, values * (1 + 1e-6), precision="float32").ok
    assert not compare("y", values, values * (1 + 1e-3), precision="float32").ok
    assert not compare("y", values.astype(np.float32), (values * 1.001).astype(np.float32), precision="float64").ok


def test_rounding_in_an_island_is_no_difference_but_the_same_beside_it_is() -> None:
    other = "Pow(f, three)"
    three = "three = Constant<value = float {3.0}>() "
    inside = ISLAND.replace("s = {0}", "{0}")
    assert verify(_model(inside.format("q = Mul(f, f) s = Mul(q, f)")), _model(three + ISLAND.format(other))).ok
    coarse = _model("f = Cast<to=1>(x) q = Mul(f, f) s = Mul(q, f) y = Cast<to=11>(s)")
    assert not verify(_model("q = Mul(x, x) y = Mul(q, x)"), coarse).ok


@pytest.mark.parametrize("outputs", ["float[n, 8] y", "float[n, 8] y, float16[n, 8] z"])
def test_a_coarse_step_beside_an_output_excuses_nothing(outputs: str) -> None:
    def beside(body: str) -> ir.Model:
        text = f'<ir_version: 10, opset_import: ["" : 20]> g (float[n, 8] x) => ({outputs}) {{ {body} z = Cast<to=10>(x) }}'
        return ir.serde.deserialize_model(onnx.parser.parse_model(text))

    wrong = beside("k = Constant<value = float {1.002}>() t = Tanh(x) y = Mul(t, k)")
    assert not verify(beside("y = Tanh(x)"), wrong).ok


def test_steps_in_branches_and_functions_count() -> None:
    branch = "{ h = Cast<to=10>(x) b = Cast<to=1>(h) }"
    text = f"""<ir_version: 10, opset_import: ["" : 20, "local" : 1]> g (float[2] x, bool c) => (float[2] y, float[2] z, float[2] w) {{
        y = If(c) <then_branch = t () => (float[2] b) {branch}, else_branch = e () => (float[2] b) {branch}>
        z = local.half(x) w = Tanh(x) }}
        <domain: "local", opset_import: ["" : 20]> half (a) => (r) {{ h = Cast<to=10>(a) r = Cast<to=1>(h) }}"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    assert coarsest(model) == {"y": "float16", "z": "float16", "w": "float32"}
