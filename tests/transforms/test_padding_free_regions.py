"""Packed tokens: row-wise nodes on them, regions of padded nodes between, and names of their sizes."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from graphs import proto
from padded_encoders import ATTEND, CONSTANTS, EMBED, MASK, MASKS, encoder, feeds_of, is_packed, packed, reason, run

import ortfuse
from ortfuse.ir.named_sizes import name_sizes, unused_stem

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

BEHIND = {
    "softmax of the last axis": "z = Softmax <axis = -1> (y)",
    "softmax of the axis behind the tokens": "z = Softmax <axis = 2> (y)",
    "mean of negative axes": "m = ReduceMean <keepdims = 1> (y, last_axis)  z = Sub(y, m)",
    "elements of each row": "c = Gather <axis = 2> (y, zero)  z = Mul(y, c)",
    "a slice of each row": "c = Slice(y, zero, one, last_axis)  z = Mul(y, c)",
    "heads": """h = Reshape(y, to_heads)  t = Transpose <perm = [0, 1, 3, 2]> (h)  c = Softmax <axis = -2> (t)
        u = Transpose <perm = [0, 1, 3, 2]> (c)  z = Reshape(u, from_heads)""",
    "one axis of tokens": """f = Reshape(y, flat)  g = Gemm(f, w1, shift)  l = LayerNormalization <axis = 1> (g, scale, shift)
        all = Shape(y)  z = Reshape(l, all)""",
    "an axis of size 1 before": "z = Add(y, row)",
    "a normalisation with a skipped bias": "l = MatMul(y, w1)  z = com.microsoft.SkipLayerNormalization(l, y, scale, shift, shift)",
    "an activation with a bias": "l = MatMul(y, w1)  z = com.microsoft.BiasGelu(l, shift)",
    "joined and split": "c = Concat <axis = -1> (y, y)  z, other = Split <axis = 2, num_outputs = 2> (c)",
}

CONSTANTS_BEHIND = {
    **CONSTANTS,
    "last_axis": np.array([-1], np.int64),
    "to_heads": np.array([0, 0, 4, 4], np.int64),
    "from_heads": np.array([0, 0, 16], np.int64),
    "flat": np.array([-1, 16], np.int64),
    "row": np.ones((1, 1, 16), np.float32),
}


@pytest.mark.parametrize("name", BEHIND)
def test_row_wise_nodes_find_their_axes_among_packed_tokens(name: str) -> None:
    """Packed values have the ranks of the model."""
    model = proto(
        EMBED + MASK + ATTEND + BEHIND[name], "int64[b, s] ids, int64[b, s] mask", "float[b, s, 16] z",
        constants=CONSTANTS_BEHIND, opset=18, domains=["com.microsoft"],
    )  # fmt: skip
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    for mask in MASKS.values():
        feeds = feeds_of(mask)
        visible = feeds["mask"] != 0
        np.testing.assert_allclose(run(result.model, feeds)[0][visible], run(model, feeds)[0][visible], atol=1e-5)


def test_full_batches_run_the_nodes_of_the_model_and_move_nothing_around_attention(tmp_path: Path) -> None:
    """Neither does ONNX Runtime make a Gemm of each MatMul and Add, which it does if these have rank 2."""
    path = suite.MODELS / "bert.sdpa.ts.onnx"
    padded, found = (ortfuse.optimize(path).model, packed(path).model)
    counts = [executed(model, tmp_path) for model in (padded, found)]
    for operator in ("MatMul", "Gemm", "LayerNormalization", "BiasGelu", "Attention"):
        assert counts[0][operator] == counts[1][operator], operator
    branches = branches_of(found.graph)
    assert branches
    assert all([node.op_type for node in branch] == ["Attention"] for branch in branches)


ACTIVATION = EMBED + MASK + ATTEND + "l = MatMul(y, w1)  t = Relu(l)  z = MatMul(t, wo)"


def declared(value: ir.Value) -> list[Any]:
    return [] if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape.dims]


def named(model: Any) -> dict[str, list[str]]:
    """The names of packed sizes of each value in a graph."""
    graph = (model if isinstance(model, ir.Model) else ir.from_proto(model)).graph
    outputs = [value for node in graph for value in node.outputs]
    found = {str(value.name): [dim for dim in declared(value) if str(dim).startswith("packed")] for value in outputs}
    return {name: dims for name, dims in found.items() if dims}


def test_activations_have_names_of_sizes_by_which_the_runtime_reuses_buffers() -> None:
    found = ir.from_proto(packed(encoder(ACTIVATION, outputs="float[b, packed_1_1, 16] z")).model).graph
    (node,) = (node for node in found if node.op_type == "Relu")
    for value in (node.inputs[0], node.outputs[0]):
        assert declared(value) == ["packed2_1_0", "packed2_1_1", 16]


@pytest.mark.parametrize(("target", "names"), [("cpu", 2), ("portable", 0), ("cpu,portable", 0)])
def test_packed_sizes_have_names_only_for_targets_that_plan_buffers_by_them(target: str, names: int) -> None:
    """Other engines refuse names of inner sizes for which the caller sets numbers."""
    result = packed(encoder(ACTIVATION, outputs="float[b, s, 16] z"), target=target)
    assert is_packed(result), reason(result)
    assert len(named(result.model)) == names


def stream(prefix: str) -> str:
    """An encoder of embedded tokens, whose values have names of their own."""
    body = MASK + ATTEND + "l = MatMul(y, w1)  t = Relu(l)  z = MatMul(t, wo) "
    own = r"\b(x|mask|shown|wide|bias|q|k|v|kt|s0|s1|b3|s|w|a|o|r|y|l|t|z)\b"
    return re.sub(own, rf"{prefix}_\1", body)


@pytest.mark.parametrize("again", ["a pass", "a model in memory"])
def test_tokens_of_two_masks_have_names_of_their_own(again: str) -> None:
    """A run of the pass packs the tokens of one mask. The runtime plans buffers of one size for values with the same names."""
    inputs = "float[b, s, 16] a_x, int64[b, s] a_mask, float[c, t, 16] b_x, int64[c, t] b_mask"
    model = encoder(stream("a") + stream("b"), inputs, "float[b, s, 16] a_z, float[c, t, 16] b_z")
    if again == "a pass":
        found = ortfuse.optimize(model, passes="padding_free,padding_free,finalize").model
    else:
        found = packed(packed(ir.from_proto(model)).model).model
    names = [tuple(dims) for dims in named(found).values()]
    assert sorted(names) == [("packed2_1_0", "packed2_1_1")] * 2 + [("packed_1_0", "packed_1_1")] * 2
    rng = np.random.default_rng(3)
    for shapes in (((2, 3), (4, 9)), ((4, 9), (2, 3))):
        feeds: dict[str, np.ndarray] = {}
        for prefix, (batch, length) in zip("ab", shapes, strict=True):
            feeds[f"{prefix}_x"] = rng.standard_normal((batch, length, 16)).astype(np.float32)
            feeds[f"{prefix}_mask"] = (np.arange(length) < rng.integers(1, length, (batch, 1))).astype(np.int64)
        for prefix, one, wanted in zip("ab", run(found, feeds), run(model, feeds), strict=True):
            visible = feeds[f"{prefix}_mask"] != 0
            np.testing.assert_allclose(one[visible], wanted[visible], atol=1e-5)


def test_names_in_formulas_bodies_and_of_other_runs_are_taken() -> None:
    model = ir.from_onnx_text("""<ir_version: 9, opset_import: ["": 18]> g (float[n] x, bool c) => (float[n] y)
        { y = If(c) <
            then_branch = t () => (float["2*size + 1"] u) { u = Identity(x) },
            else_branch = e () => (float[n] v) { v = Relu(x) }> }""")
    assert unused_stem(model, "size") == "size2"
    assert unused_stem(model, "other") == "other"
    name_sizes(model.graph.node(0).outputs[0], ["size2_1_0"])
    assert unused_stem(model, "size") == "size3"


def branches_of(graph: ir.Graph) -> list[ir.Graph]:
    """The branches that full batches take."""
    attributes = [attribute for node in graph for attribute in node.attributes.values()]
    return [attribute.as_graph() for attribute in attributes if attribute.name == "then_branch"]


def executed(model: Any, folder: Path) -> Counter[str]:
    """The operators that ONNX Runtime runs on full batches."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(folder / "executed.onnx"), 3
    made = ir.to_proto(model).SerializeToString()
    onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    graph = ir.load(folder / "executed.onnx").graph
    return Counter(node.op_type for part in (graph, *branches_of(graph)) for node in part)
