"""Tests that fused convolutions become half in parts for a target that has no half kernel of the whole."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.quantization.half.split_fused_convolutions import split_fused_convolutions
from ortfuse.runtime.session import Session
from ortfuse.targets import Target, resolve_target

TEXT = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[n,3,6,6] x, float[4,3,3,3] w, float[4] b, float[n,4,6,6] z) => (float[n,4,6,6] y) {{
    y = com.microsoft.FusedConv<pads = [1,1,1,1], {activation}>(x, w, b, z)
}}"""
ACTIVATIONS = {
    "Relu": 'activation = "Relu"',
    "LeakyRelu": 'activation = "LeakyRelu", activation_params = [0.2]',
    "HardSigmoid": 'activation = "HardSigmoid", activation_params = [0.3, 0.4]',
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_parts_compute_the_same(activation: str) -> None:
    model = ir.from_onnx_text(TEXT.format(activation=ACTIVATIONS[activation]))
    generator = np.random.default_rng(0)
    shapes = {"x": (2, 3, 6, 6), "w": (4, 3, 3, 3), "b": (4,), "z": (2, 4, 6, 6)}
    inputs = {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    before = Session(model).run(inputs)["y"]
    assert split_fused_convolutions(model, ir.DataType.FLOAT16, resolve_target("cuda")) == 1
    assert [node.op_type for node in model.graph] == ["Conv", "Add", activation]
    np.testing.assert_allclose(Session(model).run(inputs)["y"], before, rtol=1e-5, atol=1e-5)


def test_an_activation_that_is_not_known_stays() -> None:
    model = ir.from_onnx_text(TEXT.format(activation='activation = "Mish"'))
    assert split_fused_convolutions(model, ir.DataType.FLOAT16, resolve_target("cuda")) == 0


def test_convolutions_are_half_on_a_target_without_the_fused_form() -> None:
    model = ir.from_onnx_text(TEXT.format(activation=ACTIVATIONS["Relu"]))
    done = ortfuse.convert(model, "float16", target="cuda")
    assert not done.islands
    assert [node.op_type for node in done.model.graph] == ["Conv", "Add", "Relu"]
    assert (
        split_fused_convolutions(
            ir.from_onnx_text(TEXT.format(activation=ACTIVATIONS["Relu"])), ir.DataType.FLOAT, Target()
        )
        == 0
    )
