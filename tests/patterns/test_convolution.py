"""BatchNormalization as older opsets have it; what is left to the runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
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


def residual(channels: int) -> ir.Model:
    """relu(conv(x, w) + conv(x, wz)), with a first convolution that is followed by its own ReLU."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,{channels},8,8] input) => (float[n,{channels},8,8] y) {{
        x0 = Conv(input, wz) x = Relu(x0) c = Conv<pads = [1, 1, 1, 1]>(x, w) z = Conv(x, wz) s = Add(z, c) y = Relu(s)
    }}"""
    proto = onnx.parser.parse_model(text)
    for name, size in (("w", 3), ("wz", 1)):
        weight = np.random.default_rng(0).standard_normal((channels, channels, size, size)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return ir.from_proto(proto)


def test_activations_and_residual_sums_stay_visible_to_quantizers() -> None:
    result = ortfuse.optimize(residual(32))
    assert sorted(node.op_type for node in result.model.graph) == ["Add", "Conv", "Conv", "Conv", "Relu", "Relu"]


def test_the_runtime_fuses_them_itself(tmp_path: Path) -> None:
    operators = [node.op_type for node in optimised(ortfuse.optimize(residual(32)).model, tmp_path)]
    if "ReorderOutput" not in operators:
        pytest.skip("the runtime has no blocked layout on this processor")
    assert operators == ["ReorderInput", "Conv", "Conv", "Conv", "ReorderOutput"]


def optimised(model: ir.Model, folder: Path) -> list[onnx.NodeProto]:
    """The nodes that the runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    proto = ir.to_proto(model).SerializeToString()
    onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return list(onnx.load(folder / "optimised.onnx").graph.node)
