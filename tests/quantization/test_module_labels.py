"""Sites by the modules of the network that they belong to, where names of values such as `val_129` say nothing."""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
from rich.console import Console

import ortfuse
from ortfuse.errors import BoundError
from ortfuse.ir.nn_module_of_node import SCOPES_KEY, labels_of
from ortfuse.quantization.half import convert
from ortfuse.report.documents.quantization import quantization_document
from ortfuse.report.terminal.document import show_document

SIZE = 32
NODES = (
    ("MatMul", ["x", "w0"], "val_1", "['', 'encoder', 'encoder.query', 'linear']"),
    ("Cos", ["val_1"], "val_2", "['', 'encoder', 'cos']"),
    ("MatMul", ["val_2", "w1"], "val_3", "['', 'encoder', 'encoder.mlp', 'linear_1']"),
    ("Exp", ["val_3"], "val_4", "['', 'encoder', 'encoder.mlp', 'exp']"),
    ("MatMul", ["val_4", "w2"], "val_5", "['', 'encoder', 'encoder.mlp', 'linear_2']"),
    ("Sin", ["val_5"], "val_6", "['', 'sin']"),
    ("MatMul", ["val_6", "w3"], "y", "['', 'linear_3']"),
)


def model() -> onnx.ModelProto:
    nodes = []
    for kind, given, made, scopes in NODES:
        node = onnx.helper.make_node(kind, given, [made], f"node_{made}")
        node.metadata_props.add(key=SCOPES_KEY, value=scopes)
        nodes.append(node)
    ends = [onnx.helper.make_tensor_value_info(name, 1, ["n", SIZE]) for name in "xy"]
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array((rng.normal(size=(SIZE, SIZE)) / SIZE).astype(np.float32), f"w{number}")
        for number in range(4)
    ]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def test_a_module_with_one_site_stands_for_it_and_others_keep_their_names() -> None:
    found = labels_of({"a": "encoder", "b": "encoder.mlp", "c": "encoder.mlp", "d": ""})
    assert found == {"a": "encoder", "b": "encoder.mlp (b)", "c": "encoder.mlp (c)", "d": "d"}


def test_what_is_lowered_without_a_search_has_modules() -> None:
    modules = ortfuse.lower(model(), "dynamic_int8").to_dict()["modules"]
    assert modules == {"val_1": "encoder.query", "val_3": "encoder.mlp", "val_5": "encoder.mlp"}


def test_a_search_tells_modules_in_its_tables_and_messages() -> None:
    found = ortfuse.quantize(
        model(), max_error=0.5, goal="size", schemes=["weight_int8.block32_level1"], store=None, rounds=1
    )
    modules = {site["name"]: site["module"] for site in found.to_dict()["sites"]}
    assert modules == {"val_1": "encoder.query", "val_3": "encoder.mlp", "val_5": "encoder.mlp", "y": ""}
    console = Console(file=io.StringIO(), width=200)
    document = quantization_document("m", found)
    show_document(console, document)
    assert isinstance(console.file, io.StringIO)
    for text in (console.file.getvalue(), str(document.blocks)):
        assert "encoder.query" in text and "encoder.mlp (val_3)" in text and "val_1" not in text
    with pytest.raises(BoundError, match=r"at '(encoder|y)"):
        ortfuse.quantize(model(), max_error=1e-6, schemes=["weight_int8.block32_level1"], store=None, goal="size")


def test_islands_of_float32_tell_their_modules() -> None:
    done = convert(model(), exclude="op:Exp")
    assert [name for name in done.islands if name.startswith("Exp")] == ["Exp node 'node_val_4' of encoder.mlp"]
