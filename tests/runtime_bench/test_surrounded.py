"""Convolutions are measured in the layout that they have among others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.runtime.bench.blocked_convolution import pools, runs_in_blocks, surrounded
from ortfuse.runtime.bench.executed_operators import executed_ops
from ortfuse.runtime.bench.rewrite_sides_in_turns import _ratio, ratios
from ortfuse.runtime.session import Session
from ortfuse.targets.cpu.blocked_layout import reads_blocks, unless_blocked

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[1, %d, 6, 6] x, float[1, 32, 6, 6] z) => (float[1, 32, 6, 6] y)
    { c = Conv<kernel_shape = [1, 1]>(x, w)  s = Add(c, z)  y = Relu(s) }"""


def _model(channels: int) -> ir.Model:
    model = ir.from_onnx_text(TEXT % channels)
    model.graph[0].replace_input_with(1, _weights(model, (32, channels, 1, 1)))
    return model


def _weights(model: ir.Model, shape: tuple[int, ...]) -> ir.Value:
    weights = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    value = ir.Value(
        name="w", const_value=ir.tensor(weights, name="w"), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape)
    )
    model.graph.register_initializer(value)
    return value


def test_what_surrounds_a_model_computes_nothing_and_keeps_it_in_blocks() -> None:
    model = _model(16)
    assert runs_in_blocks(model)
    around, names = surrounded(model)
    assert names == ["x", "z", "y"]
    assert surrounded(model, {"z"})[1] == ["z"]
    rng = np.random.default_rng(1)
    inputs = {name: rng.standard_normal((1, c, 6, 6)).astype(np.float32) for name, c in (("x", 16), ("z", 32))}
    (expected,), (found,) = (Session(one).run(inputs).values() for one in (model, around))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert executed_ops(around, inputs)["MaxPool"] == 3
    assert executed_ops(pools((1, 16, 6, 6)), {"x": inputs["x"]})["MaxPool"] == 2


def test_a_convolution_of_other_channels_runs_as_it_is() -> None:
    assert not runs_in_blocks(_model(20))


def test_two_sides_are_compared_in_that_layout() -> None:
    rng = np.random.default_rng(1)
    inputs = {name: rng.standard_normal((1, c, 6, 6)).astype(np.float32) for name, c in (("x", 16), ("z", 32))}
    model = _model(16)
    results = Session(model).run(inputs)
    found = ratios((model, model.clone()), inputs, results, lambda some, _: len(some) == 3, threads=1)
    assert len(found) == 3
    assert all(one > 0 for one in found)


def test_pools_are_subtracted_unless_they_are_nearly_all_of_it() -> None:
    image = (1, 16, 6, 6)
    assert _ratio({0: 5.0, 1: 3.0, image: 1.0}, [[image, image], [image, image]]) == 2.0
    assert _ratio({0: 5.0, 1: 3.0, image: 1.0}, [[image, image, image, image], [image, image]]) == 1.5
    assert _ratio({0: 1.2, 1: 0.6, image: 1.0}, [[image, image], [image, image]]) == 2.0


def test_what_is_in_blocks_within_a_model_is_told_from_its_neighbours() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1, 16, 6, 6] x, float[1, 16, 6, 6] z) => (float[1, 16, 6, 6] y)
        { a = Exp(x) b = Conv<kernel_shape = [1, 1]>(a, w) c = Relu(b) d = Add(c, z)
        e = Conv<kernel_shape = [1, 1]>(d, w) y = Exp(e) }"""
    )
    for node in [node for node in model.graph if node.op_type == "Conv"]:
        node.replace_input_with(1, model.graph.initializers.get("w") or _weights(model, (16, 16, 1, 1)))
    facts = Facts(model)
    values = {value.name: value for node in model.graph for value in node.outputs}
    assert [name for name, value in values.items() if reads_blocks(value, facts)] == ["a", "b", "d"]
    assert [name for name, value in values.items() if unless_blocked(value, facts) is None] == ["b", "c", "e"]
