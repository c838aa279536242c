"""Decoders with and without past that are branches of one If: weights are stored once, and both branches are fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import run

import ortfuse
from ortfuse.ir.walk import scopes

SIZE, HEADS = 160, 4
"""The weights are larger than those that may be copied."""

QKV = ["query", "key", "value", "output"]


def branch(name: str, past: bool) -> onnx.GraphProto:
    """One layer of attention before a scaled head, with weights and constants of its own."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        w: generator.standard_normal((SIZE, SIZE)).astype(np.float32) / 12 for w in [*QKV, "head"]
    }
    arrays |= {"heads": np.array([0, 0, HEADS, SIZE // HEADS]), "joined": np.array([0, 0, SIZE])}
    arrays |= {"half": np.float32(0.5), "scale": np.float32(0.125), "gamma": np.ones(SIZE, np.float32)}
    lines = ["n = LayerNormalization(x, gamma)"]
    for part in QKV[:3]:
        lines += [f"{part}_p = MatMul(n, {part})", f"{part}_r = Reshape({part}_p, heads)"]
        lines.append(f"{part}_t = Transpose<perm = [0, 2, 1, 3]>({part}_r)")
    for part in QKV[1:3]:
        joined = f"Concat<axis = 2>(past_{part}, {part}_t)" if past else f"Identity({part}_t)"
        lines.append(f"{part}_all = {joined}")
    lines += [
        "k = Transpose<perm = [0, 1, 3, 2]>(key_all)", "s = MatMul(query_t, k)", "c = Mul(s, scale)",
        "p = Softmax<axis = -1>(c)", "a = MatMul(p, value_all)", "b = Transpose<perm = [0, 2, 1, 3]>(a)",
        "d = Reshape(b, joined)", "o = MatMul(d, output)", "r = Add(x, o)", "m = Mul(r, half)", "y = MatMul(m, head)",
    ]  # fmt: skip
    text = f'<ir_version: 9, opset_import: ["": 18]> g () => (y, key_all, value_all) {{ {" ".join(lines)} }}'
    graph = onnx.parser.parse_model(text).graph
    graph.name = name
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), key) for key, array in arrays.items())
    made = [*(one for node in graph.node for one in node.output), *arrays]
    rename = {one: f"{name}_{one}" for one in made}
    for node in graph.node:
        node.input[:] = [rename.get(one, one) for one in node.input]
        node.output[:] = [rename[one] for one in node.output]
    for tensor in graph.initializer:
        tensor.name = rename[tensor.name]
    for value in graph.output:
        value.name = rename[value.name]
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return graph


def merged() -> onnx.ModelProto:
    """A decoder whose input `use_cache_branch` tells whether it has a past."""
    past = ", ".join(f"float[b, {HEADS}, p, {SIZE // HEADS}] past_{part}" for part in ("key", "value"))
    present = ", ".join(f"float[b, {HEADS}, t, {SIZE // HEADS}] present_{part}" for part in ("key", "value"))
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[b, s, {SIZE}] x, {past}, bool[1] use_cache_branch)
        => (float[b, s, {SIZE}] logits, {present}) {{ logits = Identity(x) }}"""
    )
    node = onnx.helper.make_node("If", ["use_cache_branch"], ["logits", "present_key", "present_value"])
    for name, graph in (("then_branch", branch("with_past", True)), ("else_branch", branch("no_past", False))):
        node.attribute.append(onnx.helper.make_attribute(name, graph))
    del model.graph.node[:]
    model.graph.node.append(node)
    return model


def feeds(use_past: bool) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    shapes = {"x": (2, 3, SIZE), **{f"past_{part}": (2, HEADS, 5, SIZE // HEADS) for part in ("key", "value")}}
    drawn = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**drawn, "use_cache_branch": np.array([use_past])}


@pytest.fixture(scope="module")
def result() -> ir.Model:
    made = ortfuse.optimize(merged()).model
    return ir.from_proto(made) if isinstance(made, onnx.ModelProto) else made  # type: ignore[return-value]


def test_both_branches_have_attention(result: ir.Model) -> None:
    branches = [scope.graph for scope in scopes(result) if scope.graph is not result.graph]
    for graph in branches:
        operators = [node.op_type for node in graph]
        assert "Softmax" not in operators
        assert "Mul" not in operators  # the scale of the head is in its weight
        assert operators.count("Attention") + operators.count("MultiHeadAttention") == 1


def test_weights_are_stored_once(result: ir.Model) -> None:
    weights = [value for scope in scopes(result) for value in scope.graph.initializers.values()]
    large = [value for value in weights if value.const_value is not None and value.const_value.size == SIZE * SIZE]
    assert len(large) == len(QKV) + 1
    assert all(value.graph is result.graph for value in large)


@pytest.mark.parametrize("use_past", [False, True])
def test_each_branch_computes_the_same(result: ir.Model, use_past: bool) -> None:
    for before, after in zip(run(merged(), feeds(use_past)), run(result, feeds(use_past)), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-4)
