"""Convolutions are measured in the layout that they have among others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.bench.executed import executed_ops
from ortfuse.bench.surrounded import pools, runs_in_blocks, surrounded
from ortfuse.execution.session import Session

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[1, %d, 6, 6] x, float[1, 32, 6, 6] z) => (float[1, 32, 6, 6] y)
    { c = Conv<kernel_shape = [1, 1]>(x, w)  s = Add(c, z)  y = Relu(s) }"""


def _model(channels: int) -> ir.Model:
    model = ir.from_onnx_text(TEXT % channels)
    weights = np.random.default_rng(0).standard_normal((32, channels, 1, 1)).astype(np.float32)
    value = model.graph[0].inputs[1]
    assert value is not None
    value.const_value = ir.tensor(weights, name="w")
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(weights.shape)
    model.graph.register_initializer(value)
    return model


def test_what_surrounds_a_model_computes_nothing_and_keeps_it_in_blocks() -> None:
    model = _model(16)
    assert runs_in_blocks(model)
    around, images = surrounded(model)
    assert images == [(1, 16, 6, 6), (1, 32, 6, 6), (1, 32, 6, 6)]
    rng = np.random.default_rng(1)
    inputs = {name: rng.standard_normal((1, c, 6, 6)).astype(np.float32) for name, c in (("x", 16), ("z", 32))}
    (expected,), (found,) = (Session(one).run(inputs).values() for one in (model, around))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert executed_ops(around, inputs)["MaxPool"] == 3
    assert executed_ops(pools((1, 16, 6, 6)), {"x": inputs["x"]})["MaxPool"] == 2


def test_a_convolution_of_other_channels_runs_as_it_is() -> None:
    assert not runs_in_blocks(_model(20))
