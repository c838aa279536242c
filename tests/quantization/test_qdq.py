"""Results for other tools: operators of the standard, with QuantizeLinear and DequantizeLinear around what is in 8 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import OptionError
from ortfuse.quantization import quantization_rules

BODY = """<ir_version: 8, opset_import: ["": {opset}]>
g (float[n, 3, 8, 8] x) => (float[n, 16] y) {{
    c = Conv<pads = [1, 1, 1, 1]>(x, wc, bc)  r = Relu(c)  m = GlobalAveragePool(r)  f = Flatten(m)
    e = Gemm<transB = 1>(f, wg, bg)  d = Div(e, root)  t = Erf(d)  o = Add(t, one)  h = Mul(e, o)  y = MatMul(h, wm) }}"""
SHAPES = {"wc": (32, 3, 3, 3), "bc": (32,), "wg": (64, 32), "bg": (64,), "wm": (64, 16)}


def model(opset: int = 13) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape) / 4 for name, shape in SHAPES.items()} | {"root": 2**0.5, "one": 1.0}
    found = onnx.parser.parse_model(BODY.format(opset=opset))
    found.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in arrays.items()
    )
    return found


def given(count: int = 8) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((2, 3, 8, 8), np.float32)} for _ in range(count)]


def made_by(proto: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in proto.graph.node for name in node.output}


def demand_pairs(proto: onnx.ModelProto, products: int, *, weights_alone: bool = False) -> None:
    """Check what TensorRT asks for: both operands behind DequantizeLinear, of int8 with 0 for 0, a scale for all or each channel."""
    assert {node.domain for node in proto.graph.node} == {""}
    assert [one.domain for one in proto.opset_import] == [""]
    known, constants = made_by(proto), {one.name: onnx.numpy_helper.to_array(one) for one in proto.graph.initializer}
    lowered = 0
    for node in proto.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scale, zero = (constants[name] for name in node.input[1:3])
            assert zero.dtype == np.int8 and not zero.any() and scale.dtype == np.float32 and (scale > 0).all()
        if node.op_type in ("MatMul", "Conv"):
            operands = [known[name] for name in node.input[: 1 + (not weights_alone)] if name in known]
            filters = known[node.input[1]]
            assert filters.op_type == "DequantizeLinear" and constants[filters.input[0]].dtype == np.int8
            assert constants[filters.input[1]].shape == (constants[filters.input[0]].shape[node.op_type == "MatMul"],)
            if not weights_alone:
                assert [one.op_type for one in operands] == ["DequantizeLinear"] * 2
                assert known[operands[0].input[0]].op_type == "QuantizeLinear"
            lowered += 1
    assert lowered == products


@pytest.mark.parametrize("opset", [11, 13, 21])
def test_products_and_convolutions_stand_between_pairs_of_the_standard(opset: int) -> None:
    original = model(opset)
    found = ortfuse.lower(original, "static_int8", form="qdq", inputs=given())
    demand_pairs(found.model, 3)
    assert ortfuse.verify(original, found.model, max_error=0.05, inputs=given(), sizes={}).ok


def test_weights_alone_need_no_inputs() -> None:
    found = ortfuse.lower(model(), ["weight_int8"], form="qdq")
    demand_pairs(found.model, 3, weights_alone=True)
    assert found.uniform.size < 0.35 * found.uniform.float_size
    assert ortfuse.verify(model(), found.model, max_error=0.02).ok


def test_a_search_keeps_its_bound_and_times_nothing() -> None:
    options: Any = {"form": "qdq", "inputs": given(12), "store": None, "schemes": ["static_int8.extremes"]}
    found = ortfuse.quantize(model(), max_error=0.1, **options)
    demand_pairs(found.model, 3)
    told = found.to_dict()
    assert told["speedup"] is None and told["latency"] == [] and told["error"] <= 0.1
    tight = ortfuse.quantize(model(), max_error=0.004, **options)
    assert len(tight.outcome.chosen.choice) < 3


def test_only_schemes_of_the_form_are_chosen_from() -> None:
    assert not {*quantization_rules()} & {*quantization_rules(qdq=True)}
    with pytest.raises(OptionError, match="no scheme is called 'dynamic_int8'; there are static_int8_qdq"):
        ortfuse.lower(model(), "dynamic_int8", form="qdq")
    assert not any("qdq" in scheme for scheme in ortfuse.lower(model(), "weight_int8").uniform.choice.values())


@pytest.mark.parametrize(
    ("options", "why"),
    [({"form": "tensorrt"}, "onnxruntime or qdq"), ({"form": "qdq", "goal": "latency"}, "leave it out")],
)
def test_what_cannot_be_asked_for_is_refused(options: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        ortfuse.quantize(model(), max_error=0.1, **options)


def test_operators_that_came_with_the_model_are_told() -> None:
    original = model()
    original.opset_import.add(domain="com.microsoft", version=1)
    original.graph.node[-1].input[0] = "s"
    original.graph.node.insert(9, onnx.helper.make_node("QuickGelu", ["h"], ["s"], domain="com.microsoft"))
    assert "1 com.microsoft.QuickGelu" in ortfuse.lower(original, "weight_int8", form="qdq").notes[0]


def test_the_command_takes_a_format(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **given(1)[0])
    options = ["--format", "qdq", "--json", str(tmp_path / "q.json"), "-o", str(tmp_path / "q.onnx"), "--inputs"]
    ended = CliRunner().invoke(
        app, ["quantize", str(tmp_path / "m.onnx"), "--scheme", "static_int8", *options, str(tmp_path / "x.npz")]
    )
    assert ended.exit_code == 0, ended.output
    demand_pairs(onnx.load(tmp_path / "q.onnx"), 3)
    assert {*json.loads((tmp_path / "q.json").read_text())["choice"].values()} == {
        "static_int8_qdq.extremes", "static_int8_qdq_conv.extremes"
    }  # fmt: skip
    refused = CliRunner().invoke(app, ["quantize", str(tmp_path / "m.onnx"), "--max-error", "1", "--format", "x"])
    assert refused.exit_code == 2 and "--format" in refused.output
