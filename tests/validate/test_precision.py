"""In which precision a model computes, and that its outputs are judged by that."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortfuse.validate import verify
from ortfuse.validate.compare import compare
from ortfuse.validate.precision import coarsest


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
    assert coarsest(_model(body, inputs)) == kind


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
