"""BatchNormalization as older opsets have it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.verification import verify


def model(opset: int, outputs: str = "y") -> ir.Model:
    text = f"""<ir_version: 7, opset_import: ["": {opset}]> g (float[n,2,5,5] x) => (float[n,3,5,5] z)
        <float[3] s = {{1.5, 0.5, -1.0}}, float[3] b = {{0.1, 0.2, 0.3}}, float[3] m = {{0.3, -0.2, 0.1}}, float[3] v = {{0.5, 1.5, 2.0}}> {{
        c = Conv<pads = [1, 1, 1, 1]>(x, w) {outputs} = BatchNormalization(c, s, b, m, v) z = Neg(y)
    }}"""
    proto = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return ir.from_proto(proto)


@pytest.mark.parametrize("opset", [9, 11, 13, 15])
def test_inference_is_folded_at_every_opset(opset: int) -> None:
    original = model(opset)
    result = ortfuse.optimize(original)
    assert [node.op_type for node in result.model.graph] == ["Conv", "Neg"]
    assert verify(original, result.model).ok


def test_further_outputs_of_an_old_opset_mean_training() -> None:
    result = ortfuse.optimize(model(9, "y, m1, v1, m2, v2"), passes="fuse.convolution")
    assert "BatchNormalization" in [node.op_type for node in result.model.graph]
