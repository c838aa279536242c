"""BatchNormalization as older opsets have it, and residual sums fused into Conv in the blocked layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from example_targets import without_quirks

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.targets.cpu.blocked_layout import unless_blocked
from ortfuse.verification import verify


def model(opset: int, outputs: str = "y") -> ir.Model:
    text = f"""<ir_version: 7, opset_import: ["": {opset}]> g (float[n,2,5,5] x) => (float[n,3,5,5] z)
        <float[3] s = {{1.5, 0.5, -1.0}}, float[3] b = {{0.1, 0.2, 0.3}}, float[3] m = {{0.3, -0.2, 0.1}}, float[3] v = {{0.5, 1.5, 2.0}}> {{
        c = Conv<pads = [1, 1, 1, 1]>(x, w) {outputs} = BatchNormalization(c, s, b, m, v) z = Abs(y)
    }}"""
    proto = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return ir.from_proto(proto)


@pytest.mark.parametrize("opset", [9, 11, 13, 15])
def test_inference_is_folded_at_every_opset(opset: int) -> None:
    original = model(opset)
    result = ortfuse.optimize(original)
    assert [node.op_type for node in result.model.graph] == ["Conv", "Abs"]
    assert verify(original, result.model).ok


def test_further_outputs_of_an_old_opset_mean_training() -> None:
    result = ortfuse.optimize(model(9, "y, m1, v1, m2, v2"), passes="fuse.convolution")
    assert "BatchNormalization" in [node.op_type for node in result.model.graph]


def residual(residual: str, group: int = 1, channels: str = "32", dtype: str = "float") -> ir.Model:
    """relu(conv(x, w) + z) of 32 channels, where `residual` computes z from x."""
    text = f"""<ir_version: 7, opset_import: ["": 17]> g ({dtype}[n,{channels},8,8] x) => ({dtype}[n,32,8,8] y)
        <float[32] one = {{{", ".join(["1"] * 32)}}}> {{
        o = Abs(x) {residual} c = Conv<pads = [1, 1, 1, 1], group = {group}>(x, w) s = Add(z, c) y = Relu(s)
    }}"""
    proto = onnx.parser.parse_model(text)
    kind = np.float32 if dtype == "float" else np.float64
    for name, shape in (("w", (32, int(channels) // group, 3, 3)), ("wz", (32, int(channels), 1, 1))):
        weight = np.random.default_rng(0).standard_normal(shape).astype(kind)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return ir.from_proto(proto)


BLOCKED = {
    "a convolution": "z = Conv(o, wz)",
    "a pool": "z = MaxPool<kernel_shape = [1, 1]>(x)",
    "what follows convolutions": "z0 = Conv(o, wz) z1 = MaxPool<kernel_shape = [1, 1]>(x) z2 = Add(z0, z1) z = Relu(z2)",
    "a convolution before its normalisation is folded": "z0 = Conv(o, wz) z = BatchNormalization(z0, one, one, one, one)",
}
UNBLOCKED = {
    "an input": "z = Neg(x)",
    "a convolution that is changed outside": "z0 = Conv(o, wz) z = Abs(z0)",
    "a sum of both": "z0 = Conv(o, wz) z1 = Neg(o) z = Add(z0, z1)",
    "the indices of a pool": "z0, i = MaxPool<kernel_shape = [1, 1]>(x) z = Cast<to = 1>(i)",
}


def made_of(model: ir.Model) -> list[str]:
    return [
        node.op_type for node in ortfuse.optimize(model, passes="fuse.convolution, fuse.fused_convolution").model.graph
    ]


@pytest.mark.parametrize("operand", BLOCKED.values(), ids=BLOCKED)
def test_a_residual_sum_is_fused_in_the_blocked_layout(operand: str) -> None:
    assert "FusedConv" in made_of(residual(operand))
    assert verify(residual(operand), ortfuse.optimize(residual(operand)).model).ok


@pytest.mark.parametrize("operands", ["c, z", "z, c"])
def test_of_two_layers_that_are_added_one_takes_the_other_whatever_their_order(operands: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,16,8,8] x, float[n,16,4,4] o) => (float[n,16,4,4] y) {{
        c = Conv<strides = [2, 2]>(x, w) z = Conv(o, v) s = Add({operands}) y = Relu(s) }}"""
    proto, generator = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name in "vw":
        weight = generator.standard_normal((16, 16, 1, 1)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    result = ortfuse.optimize(ir.from_proto(proto), passes="fuse.fused_convolution", target=without_quirks()).model
    fused = next(node for node in result.graph if node.op_type == "FusedConv")
    assert fused.inputs[0].name == "x"
    assert [node.op_type for node in result.graph] == ["Conv", "FusedConv"]


@pytest.mark.parametrize("operand", UNBLOCKED.values(), ids=UNBLOCKED)
def test_a_residual_sum_outside_the_blocked_layout_is_left_to_the_runtime(operand: str) -> None:
    assert "FusedConv" not in made_of(residual(operand))


@pytest.mark.parametrize(
    ("group", "channels", "dtype", "fused"),
    [(2, "32", "float", True), (32, "32", "float", True), (4, "32", "float", False), (1, "20", "float", False),
     (1, "6", "float", True), (1, "32", "double", False)],
)  # fmt: skip
def test_the_convolution_must_fill_the_blocks(group: int, channels: str, dtype: str, fused: bool) -> None:
    model = residual("z = Conv(o, wz)", group, channels, dtype)
    assert ("FusedConv" in made_of(model)) is fused


def test_other_providers_have_no_blocks() -> None:
    result = ortfuse.optimize(residual("z = Neg(x)"), passes="fuse.fused_convolution", target=without_quirks())
    assert "FusedConv" in [node.op_type for node in result.model.graph]


def test_the_reason_names_what_is_not_blocked() -> None:
    model = residual("z0 = Neg(x) z = Relu(z0)")
    refusal = unless_blocked(next(node for node in model.graph if node.op_type == "Add").inputs[0], Facts(model))
    assert refusal is not None
    assert refusal.subject.name == "z0"
    assert "Neg '' is outside of the blocked layout" in refusal.reason


def test_what_is_fused_is_what_the_runtime_runs_in_blocks(tmp_path: Path) -> None:
    """Held against the runtime itself: without a blocked layout on this processor nothing is told apart."""
    operators = [node.op_type for node in optimised(residual("z = Conv(o, wz)"), tmp_path)]
    if "ReorderOutput" not in operators:
        pytest.skip("the runtime has no blocked layout on this processor")
    for operand in BLOCKED.values():
        nodes = optimised(ortfuse.optimize(residual(operand)).model, tmp_path)
        assert [node.domain for node in nodes if node.op_type in ("Conv", "FusedConv")][-1] == "com.microsoft.nchwc"


def optimised(model: ir.Model, folder: Path) -> list[onnx.NodeProto]:
    """The nodes that the runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    proto = ir.to_proto(model).SerializeToString()
    onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return list(onnx.load(folder / "optimised.onnx").graph.node)
