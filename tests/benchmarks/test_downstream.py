"""Results stay usable by what comes after: a sample of the tools that the tests install, and how the figures are made."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from benchmarks.isolated import preload
from benchmarks.trust.downstream import BAD, PRELOADED, distance, measured, narrow, status, table, totals

BY_NAME = ("quantize_dynamic", "quantize_static", "symbolic_shape_infer --auto_merge")
"""These know operators by their names alone."""
TOOLS = ("onnx.checker, full", "onnx.shape_inference, strict", "float16, onnxruntime.transformers", *BY_NAME)


@pytest.mark.parametrize("name", ["gpt2_cache.sdpa.ts", "resnet.ts"])
def test_tools_work_on_results_as_they_do_on_originals(name):
    preload(PRELOADED)
    found = measured(name, TOOLS)
    forms = {tool: "quantization" if tool in BY_NAME else "result" for tool in TOOLS}
    assert {tool: entry for tool, entry in found.items() if entry[forms[tool]]["status"] != "works"} == {}


@pytest.mark.parametrize(
    ("original", "result", "expected"),
    [
        ({"says": "no"}, {"error": 0.0}, "not on the original"),
        ({"error": 0.0}, {"says": "no"}, "fails"),
        ({"error": 1e-7}, {"error": 5e-5}, "works"),
        ({"error": 1e-7}, {"error": 2e-4}, "off"),
        ({"error": 0.1, "narrow": 100}, {"error": 0.19, "narrow": 95}, "works"),
        ({"error": 0.1, "narrow": 100}, {"error": 0.0, "narrow": 80}, "misses weights"),
        ({"error": 0.0, "narrow": 0}, {"error": 0.3, "narrow": 100}, "works"),
    ],
)
def test_a_tool_works_where_it_raises_nothing_finds_all_weights_and_is_not_further_off(original, result, expected):
    assert status(original, result) == expected


def test_outputs_of_other_shapes_are_infinitely_far_apart():
    assert distance({"y": [1.0, 2.0], "z": [1]}, {"merged/tail/y": [1.0, 1.0]}) == 0.5
    assert distance({"y": [1.0, 2.0]}, {"y": [1.0]}) == float("inf")
    assert distance({"y": [True, False]}, {"y": [True, True]}) == 0.5


def test_narrow_weights_of_products_are_counted(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2,3] y) {
        d = DequantizeLinear(a, s) y0 = MatMul(x, d) y1 = MatMul(x, c) y2 = Cast<to = 1>(b) y3 = Add(y0, y1) y = Add(y2, y3) }""")
    for name, kind in (("a", np.int8), ("b", np.float16), ("c", np.float32)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 3), kind), name))
    cells = onnx.helper.make_node("DynamicQuantizeLSTM", ["z", "e", "f"], ["h"], domain="com.microsoft")
    model.graph.node.append(cells)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.ones((1, 2, 8), np.int8), name) for name in "ef")
    onnx.save(model, tmp_path / "m.onnx")
    assert narrow(tmp_path / "m.onnx") == 6 + 32


def test_the_table_names_the_models_on_which_a_tool_does_not_work():
    models = {
        name: {
            "quantize_dynamic": {
                "original": {"error": 0.1},
                "result": {"status": word},
                "quantization": {"status": "works"},
            }
        }
        for name, word in zip("abcd", ("works", *BAD), strict=True)
    }
    models["e"] = {"quantize_dynamic": {"original": {"says": "no"}, "result": {"status": "not on the original"}}}
    counted = {"original": 4, "result": 1, "quantization": 4, "either": 4}
    assert totals(models)["quantize_dynamic"] == counted
    assert "| quantize_dynamic | 4 | 1 | 4 | 0 | b, c, d |" in table(models, {"quantize_dynamic": 0})
