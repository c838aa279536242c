from __future__ import annotations

import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.ir.nn_module_of_node import MODULE_KEY, SCOPES_KEY, common_module, module_of

SCOPES = "['', 'encoder', 'encoder.layer.0', 'encoder.layer.0.attention', '{}']"


@pytest.mark.parametrize(
    ("name", "metadata", "module"),
    [
        ("/encoder/layer.0/query/MatMul", {}, "encoder.layer.0.query"),
        ("/layer1/layer1.0/conv1/Conv", {}, "layer1.0.conv1"),
        ("model/dense/MatMul", {}, "model.dense"),
        ("node_linear_3", {SCOPES_KEY: SCOPES.format("linear_3")}, "encoder.layer.0.attention"),
        ("node_add", {SCOPES_KEY: "['', 'add']"}, ""),
        ("node_add", {SCOPES_KEY: "['add']"}, ""),
        ("/a/b", {MODULE_KEY: "c.d"}, "c.d"),
        ("MatMul_3", {}, ""),
        (None, {}, ""),
    ],
)
def test_exporters_tell_the_module_of_a_node(name: str | None, metadata: dict[str, str], module: str) -> None:
    assert module_of(ir.Node("", "Relu", [], name=name, metadata_props=metadata)) == module


def test_nodes_of_several_modules_belong_to_what_holds_these() -> None:
    assert common_module(["encoder.layer.0.query", "encoder.layer.0.key", ""]) == "encoder.layer.0"
    assert common_module(["layer.1", "layer.10"]) == "layer"
    assert common_module(["a", "b"]) == common_module([]) == ""


def test_what_a_rule_makes_keeps_the_module_of_what_it_replaces() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 20]> g (float[N, 8] x) => (float[N, 8] y) { s = Sigmoid(x) y = Mul(x, s) }'
    )
    for node in model.graph:
        node.metadata_props[SCOPES_KEY] = SCOPES.format(node.op_type.lower())
    (node,) = ortfuse.optimize(model).model.graph
    assert module_of(node) == "encoder.layer.0.attention"
