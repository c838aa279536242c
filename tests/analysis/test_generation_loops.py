"""Decoders inside BeamSearch and GreedySearch: what is known of their inputs, and that rewrites keep the sequences."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ortfuse
from ortfuse.analysis.facts import Facts

HEADS, SIZE, WORDS = 2, 4, 11
DECODER = f"""
decoder (int32[b, s] input_ids, int32[b, s] position_ids, int32[b, t] attention_mask, float[2, b, {HEADS}, p, {SIZE}] past_0)
    => (float[b, s, {WORDS}] logits, float[2, b, {HEADS}, q, {SIZE}] present_0) {{
  x = Gather(table, input_ids)
  heads = Reshape(x, to_heads)
  k = Transpose<perm = [0, 2, 1, 3]>(heads)
  pair_k = Unsqueeze(k, first)
  pair = Concat<axis = 0>(pair_k, pair_k)
  present_0 = Concat<axis = 3>(past_0, pair)
  keys = Gather<axis = 0>(present_0, zero)
  values = Gather<axis = 0>(present_0, one)
  turned = Transpose<perm = [0, 1, 3, 2]>(keys)
  scores = MatMul(k, turned)
  seen = Cast<to = 1>(attention_mask)
  hidden = Sub(one_f, seen)
  low = Mul(hidden, least)
  bias = Unsqueeze(low, middle)
  biased = Add(scores, bias)
  shares = Softmax<axis = -1>(biased)
  mixed = MatMul(shares, values)
  back = Transpose<perm = [0, 2, 1, 3]>(mixed)
  flat = Reshape(back, to_flat)
  logits = MatMul(flat, head)
}}
"""


def _model(operator: str) -> onnx.ModelProto:
    random = np.random.default_rng(7)
    constants: dict[str, np.ndarray] = {
        "table": random.standard_normal((WORDS, HEADS * SIZE)).astype(np.float32),
        "head": random.standard_normal((HEADS * SIZE, WORDS)).astype(np.float32),
        "to_heads": np.array([0, 0, HEADS, SIZE]), "to_flat": np.array([0, 0, HEADS * SIZE]), "first": np.array([0]),
        "middle": np.array([1, 2]), "zero": np.array(0), "one": np.array(1), "one_f": np.float32(1), "least": np.float32(-1e4),
    }  # fmt: skip
    body = onnx.parser.parse_graph(DECODER)
    body.initializer.extend(onnx.numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items())
    names = ["input_ids", "most", "least", *(["beams", "results", "penalty"] if operator == "BeamSearch" else [])]
    node = onnx.helper.make_node(
        operator,
        names,
        ["sequences"],
        domain="com.microsoft",
        eos_token_id=0,
        pad_token_id=0,
        model_type=0,
        decoder=body,
    )
    given = [("most", np.array([9], np.int32)), ("least", np.array([1], np.int32)), ("beams", np.array([3], np.int32)),
             ("results", np.array([2], np.int32)), ("penalty", np.array([1], np.float32))]  # fmt: skip
    graph = onnx.helper.make_graph(
        [node],
        "main",
        [onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT32, ["batch", "length"])],
        [onnx.helper.make_tensor_value_info("sequences", onnx.TensorProto.INT32, None)],
        [onnx.numpy_helper.from_array(one, name) for name, one in given if name in names],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_masks_cover_what_is_cached_and_new() -> None:
    model = ir.from_proto(_model("GreedySearch"))
    facts, body = Facts(model), model.graph[0].attributes["decoder"].as_graph()
    tokens, positions, mask, past = (facts.shape(value) for value in body.inputs)
    present = facts.shape(body.outputs[1])
    assert tokens is not None and mask is not None and past is not None and present is not None
    assert tokens == positions
    assert past[0::2] == (2, HEADS, SIZE)
    assert mask == (tokens[0], past[3] + tokens[1])
    assert present[3] == mask[1]


@pytest.mark.parametrize("operator", ["BeamSearch", "GreedySearch"])
def test_attention_is_fused_and_sequences_stay(operator: str) -> None:
    model = _model(operator)
    result = ortfuse.optimize(model, verify=True)
    assert result.verdict is not None and result.verdict.ok
    body = next(one.g for one in result.model.graph.node[0].attribute if one.name == "decoder")
    assert "Softmax" not in {node.op_type for node in body.node}
    assert [value.name for value in body.input] == ["input_ids", "position_ids", "attention_mask", "past_0"]
    tokens = np.array([[3, 5, 7], [2, 9, 4]], np.int32)
    found = [
        onnxruntime.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"input_ids": tokens}
        )[0]
        for one in (model, result.model)
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("inputs", [1, 3])
def test_of_other_decoders_nothing_is_assumed(inputs: int) -> None:
    model = ir.from_proto(_model("GreedySearch"))
    body = model.graph[0].attributes["decoder"].as_graph()
    del body.inputs[inputs:]
    del body.outputs[1:]
    assert Facts(model).shape(body.inputs[0]) is None
