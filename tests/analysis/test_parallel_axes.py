"""Parallel axes: each slice of a result is computed of the slices of operands that are named, and of nothing else."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from op_cases import CASES, Case

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.parallel_axes import ParallelAxis, parallel_axis

QKV = "float[b, s, 8] q, float[b, t, 8] k, float[b, t, 8] v"
HEADS = "q_num_heads = 2, kv_num_heads = 2"
PAST = "float[b, 2, p, 4] c, float[b, 2, p, 4] d"
MS = "com.microsoft"

FURTHER = [
    (QKV, f"y = Attention <{HEADS}> (q, k, v)", {1: (1, None, None), 0: (0, 0, 0), 2: None}),
    ("float[b, 2, s, 4] q, float[b, 2, t, 4] k, float[b, 2, t, 4] v", "y = Attention(q, k, v)", {2: (2, None, None), 1: None, 3: None}),
    (f"{QKV}, float[s, t] m", f"y = Attention <{HEADS}> (q, k, v, m)", {1: (1, None, None, 0), 0: (0, 0, 0, None)}),
    (f"{QKV}, float[2, s, t] m", f"y = Attention <{HEADS}> (q, k, v, m)", {1: (1, None, None, 1), 0: (0, 0, 0, None)}),
    ("float[b, 1, 8] q, float[b, t, 8] k, float[b, t, 8] v, float[b, 1, 1, t] m", f"y = Attention <{HEADS}> (q, k, v, m)", {1: (1, None, None, 2), 0: (0, 0, 0, 0)}),
    (f"{QKV}, bool[1, 2, s, t] m", f"y = Attention <{HEADS}> (q, k, v, m)", {1: (1, None, None, 2), 0: (0, 0, 0, None)}),
    (f"{QKV}, {PAST}", f"y, e, f = Attention <{HEADS}> (q, k, v, , c, d)", {1: (1, None, None, None, None, None)}),
    (QKV, f"y = Attention <{HEADS}, is_causal = 1> (q, k, v)", {1: None, 0: (0, 0, 0)}),
    (f"{QKV}, {PAST}", f"y, e, f = Attention <{HEADS}, is_causal = 1> (q, k, v, , c, d)", {1: None}),
    (QKV, f"y = {MS}.MultiHeadAttention <num_heads = 2> (q, k, v)", {1: (1, None, None), 0: (0, 0, 0)}),
    (f"{QKV}, float[b, 1, s, t] m", f"y = {MS}.MultiHeadAttention <num_heads = 2> (q, k, v, , , m)", {1: (1, None, None, None, None, 2)}),
    (f"{QKV}, int32[b, t] m", f"y = {MS}.MultiHeadAttention <num_heads = 2> (q, k, v, , m)", {1: (1, None, None, None, None)}),
    (QKV, f"y = {MS}.MultiHeadAttention <num_heads = 2, unidirectional = 1> (q, k, v)", {1: None}),
    ("float[b, s, 8] x, float[b, s, 2] c, float[b, s, 2] n", "y = RotaryEmbedding <num_heads = 2> (x, c, n)", {1: (1, 1, 1), 0: (0, 0, 0)}),
    ("float[b, s, 4] x, float[4, 6] w", "y = MatMul(x, w)", {0: (0, None), 1: (1, None), 2: (None, 1)}),
    ("float[s, 4] x, float[b, 4, 6] w", "y = MatMul(x, w)", {0: (None, 0), 1: (0, None), 2: (None, 2)}),
    ("float[b, 4, s] x, float[b, 6, 4] w", f"y = {MS}.FusedMatMul <transA = 1, transB = 1> (x, w)", {0: (0, 0), 1: (2, None), 2: (None, 1)}),
    ("float[4, s] x, float[4, 6] w, float[6] c", "y = Gemm <transA = 1> (x, w, c)", {0: (1, None, None), 1: (None, 1, 0)}),
    ("float[s, 4] x, float[6, 4] w, float[s, 1] c", "y = Gemm <transB = 1> (x, w, c)", {0: (0, None, 0), 1: (None, 0, None)}),
    ("float[b, s, 4] x, float[b, 4, t] w", 'y = Einsum <equation = "bsh,bht->bts"> (x, w)', {0: (0, 0), 1: (None, 2), 2: (1, None)}),
    ("float[b, s, 4] x, float[4] w", 'y = Einsum <equation = "bsh,h->bs"> (x, w)', {0: (0, None), 1: (1, None)}),
    ("float[b, s, 4] x, float[s, 4] k, float[4] w", f"y, , , u = {MS}.SkipLayerNormalization(x, k, w)", {1: (1, 0, None), 0: (0, None, None), 2: None}),
    ("float[b, s, 4] x, float[s, 4] w", "y = LayerNormalization <axis = 1> (x, w)", {0: (0, None), 1: None, 2: None}),
    ("float[b, s, t] x, int64[b, s, 3] i", "z = Mod(i, i) y = GatherElements <axis = 2> (x, z)", {0: (0, 0), 1: (1, 1), 2: (None, 2)}),
    ("float[b, s, 4] x", "i = Constant <value = int64[1, 2] {2, 0}> () y = Gather <axis = 2> (x, i)", {0: (0, None), 1: (1, None), 2: (None, 0), 3: (None, 1)}),
    ("float[b, s, 4] x", "y = Softmax <axis = 1> (x)", {0: (0,), 1: None, 2: (2,)}),
    ("float[b, s, 4] x", "y = Softmax <axis = 1> (x)", {0: (0,), 1: None, 2: None}, 12),
    ("float[b, s, 4] x", "y = ArgMax <axis = 1, keepdims = 0> (x)", {0: (0,), 1: (2,)}),
    ("float[b, s, 4] x", "a = Constant <value = int64[1] {1}> () y = ReduceMean <keepdims = 0> (x, a)", {0: (0, None), 1: (2, None)}),
    ("float[b, s, 4] x", "y = Flatten <axis = 2> (x)", {0: None, 1: (2,)}),
    ("float[b, s, 4] x", "y = Transpose <perm = [1, 2, 0]> (x)", {0: (1,), 1: (2,), 2: (0,)}),
    ("float[b, s, 4] x", "p = Constant <value = int64[6] {0, 1, 0, 0, 0, 0}> () y = Pad(x, p)", {0: (0, None), 1: None, 2: (2, None)}),
    ("float[b, s, 4] x", "y = com.microsoft.DynamicQuantizeMatMul(x, x, x)", {0: None, 1: None}),
    ("float[b, s, 4] x", "y = Dropout(x)", {0: (0,), 1: (1,)}),
    ("float[b, 3, s, s] x, float[2, 3, 1, 1] w", "y = Conv(x, w)", {0: None, 1: None, 2: None}),
]  # fmt: skip
SIZES = {"b": 2, "s": 5, "t": 3, "p": 2}


def session_of(node: onnx.NodeProto, inputs: dict[str, Any], opset: int) -> onnxruntime.InferenceSession:
    def typed(name: str, value: Any) -> onnx.ValueInfoProto:
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        return onnx.helper.make_tensor_value_info(name, kind, [None] * value.ndim)

    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    node = onnx.NodeProto.FromString(node.SerializeToString())
    node.name = "node"
    graph = onnx.helper.make_graph([node], "g", [typed(*one) for one in inputs.items()], outputs)
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(MS, 1)]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def values_of(model: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, Any]:
    """Random inputs of a model, and all values that its nodes compute of them."""
    generator = np.random.default_rng(0)
    values: dict[str, Any] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        values[value.name] = generator.integers(1, 5, shape).astype(
            onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        )
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    for node in model.graph.node:
        given = {name: values[name] for name in node.input if name}
        names = [name for name in node.output if name]
        values.update(zip(names, session_of(node, given, opset).run(None, given), strict=True))
    return values


def check_slices(node: onnx.NodeProto, values: dict[str, Any], found: ParallelAxis, result: int, opset: int) -> None:
    """Compute a slice of the results of the slices of operands, and compare it with that of the whole results."""
    axis = found.results[result]
    assert axis is not None
    size = values[node.output[result]].shape[axis]
    for index in {0, size - 1} if size else ():
        given = {}
        for name, own in zip(node.input, found.operands, strict=True):
            if name and name not in given:
                given[name] = values[name] if own is None else values[name].take([index], own)
            elif name and own is not None:
                return  # one value for two operands with different axes
        made = session_of(node, given, opset).run(None, given)
        results = [(name, own) for name, own in zip(node.output, found.results, strict=True) if name]
        for part, (name, own) in zip(made, results, strict=True):
            whole = values[name]
            np.testing.assert_allclose(part, whole if own is None else whole.take([index], own), rtol=1e-5, atol=1e-5)


def check_node(model: onnx.ModelProto, sizes: dict[str, int]) -> int:
    """Check all parallel axes of the nodes of a model; returns how many there are."""
    read = ir.from_proto(model)
    facts, count, values = Facts(read), 0, values_of(model, sizes)
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    for node, proto in zip(read.graph, model.graph.node, strict=True):
        for result, output in enumerate(node.outputs):
            for axis in range(facts.rank(output) or 0) if output.name else ():
                found = parallel_axis(node, result, axis, facts)
                if found is not None and not found.is_written and set(found.operands) != {None}:
                    check_slices(proto, values, found, result, opset)
                    count += 1
    return count


NO_TENSORS = re.compile("Sequence|Resize|EmbedLayerNormalization")
"""Operators that do not run alone with all operands as inputs, and have no parallel axes."""


@pytest.mark.parametrize("case", [case for case in CASES if case.runs and not NO_TENSORS.search(case.body)], ids=str)
def test_slices_of_results_are_computed_of_slices_of_operands(case: Case) -> None:
    for sizes in case.sizes[:3:2]:
        check_node(case.model(), sizes)


@pytest.mark.parametrize("case", FURTHER, ids=lambda case: case[1])
def test_the_axis_of_each_operand_is_known(case: Any) -> None:
    inputs, body, wanted, *opset = case
    standard = opset[0] if opset else 23
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {standard}, "{MS}": 1]> g ({inputs}) => (y) {{ {body} }}'
    )
    read = ir.from_proto(model)
    facts, node = Facts(read), read.graph.node(len(read.graph) - 1)
    for axis, operands in wanted.items():
        found = parallel_axis(node, 0, axis, facts)
        if found is None or found.is_written:
            assert operands is None
        else:
            assert found.operands == operands
    if "Dynamic" not in body:
        check_node(model, SIZES)


def test_a_dropout_that_drops_has_no_parallel_axis() -> None:
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[b, s] x, bool t) => (y) { y = Dropout(x, , t) }'
    read = ir.from_proto(onnx.parser.parse_model(text))
    assert parallel_axis(read.graph.node(0), 0, 0, Facts(read)) is None
