"""Models written as text, raised, and compared with what they were in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from graphs import run

from ortfuse.targets import raise_opset

SIZES = {"a": 2, "b": 3, "c": 4}


def model_text(opset: int, body: str, inputs: str = "float[2,3,4] x", outputs: str = "y", head: str = "") -> str:
    """A model of IR version 8 whose graph is `body`; `head` may import more domains."""
    return f'<ir_version: 8, opset_import: ["" : {opset}{head}]> g ({inputs}) => ({outputs}) {body}'


def read(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def inputs_of(proto: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """Numbers of both signs for every input of the graph."""
    random = np.random.default_rng(1)
    arrays = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value or SIZES[dim.dim_param] for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        arrays[value.name] = np.asarray(random.standard_normal(shape) * 3).astype(dtype)
    return arrays


def raised_is_the_same(text: str, opset: int) -> ir.Model:
    """Raise the model, hold its outputs against the original's, and return it."""
    model = read(text)
    original = ir.to_proto(model)
    inputs = inputs_of(original)
    expected = run(original, inputs)
    raise_opset(model, opset)
    found = run(ir.to_proto(model), inputs)
    assert model.graph.opset_imports[""] == opset
    for before, after in zip(expected, found, strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    return model
