"""Tests of targets that are known from documentation alone: they say so, and get no operator that it does not list."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.targets import resolve_target

NAMES = ("coreml", "directml", "qnn", "tensorrt", "xnnpack")
NORMALISED = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,8,16] x, float[2,8,16] z, float[16] scale, float[16] bias) => (float[2,8,16] y) {
    s = Add(x, z)
    n = LayerNormalization(s, scale, bias)
    e = Erf(n)
    y = Softplus(e)
}"""


@pytest.mark.parametrize("name", NAMES)
def test_it_says_that_it_was_never_run(name: str) -> None:
    spec = resolve_target(name).spec
    assert spec.tried.startswith("never run here")
    assert not spec.runs_on


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_made_that_it_has_no_kernel_of(name: str) -> None:
    target = resolve_target(name)
    given = {("", node.op_type) for node in ir.from_onnx_text(NORMALISED).graph}
    for node in ortfuse.optimize(ir.from_onnx_text(NORMALISED), target=name).model.graph:
        made = (node.domain, node.op_type)
        assert made in given or target.table.operators[made].kernels


def test_directml_has_the_types_of_its_table() -> None:
    target, half = resolve_target("directml"), ir.DataType.FLOAT16
    assert target.table.runtime == "onnxruntime 1.27.0"
    assert target.supports("com.microsoft", "MultiHeadAttention", 1, [half] * 3)
    assert not target.supports("com.microsoft", "MultiHeadAttention", 1, [ir.DataType.BFLOAT16] * 3)


def test_tensorrt_gets_operators_of_the_standard_alone() -> None:
    target = resolve_target("tensorrt")
    assert target.max_opset == 20
    assert not [name for (domain, name), one in target.table.operators.items() if domain and one.kernels]
