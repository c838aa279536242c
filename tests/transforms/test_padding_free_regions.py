"""Packed tokens: row-wise nodes on them, regions of padded nodes between, and names of their sizes."""

from __future__ import annotations

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


def test_activations_have_names_of_sizes_by_which_the_runtime_reuses_buffers() -> None:
    body = EMBED + MASK + ATTEND + "l = MatMul(y, w1)  t = Relu(l)  z = MatMul(t, wo)"
    found = ir.from_proto(packed(encoder(body, outputs="float[b, packed_1_1, 16] z")).model).graph
    (node,) = (node for node in found if node.op_type == "Relu")
    names = ["packed_1_0", "packed_1_1_", 16]
    for value in (node.inputs[0], node.outputs[0]):
        assert [dim if isinstance(dim, int) else dim.value for dim in value.shape.dims] == names


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
