"""Operators as calls of functions: same results, a name of its own, and everything in its place."""

from __future__ import annotations

import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import quantize_dynamic

import ortfuse

HEAD = '<ir_version: 11, opset_import: ["": 23]>'
SHAPE = "float[2,s,8]"


def calls(model: onnx.ModelProto) -> list[str]:
    return [f"{node.domain}.{node.op_type}" for node in model.graph.node]


def written(
    body: str, *, inputs: str = f"{SHAPE} q, {SHAPE} k, {SHAPE} v", outputs: str = f"{SHAPE} y"
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({outputs}) {{ {body} }}")
    result: onnx.ModelProto = ortfuse.optimize(model, passes="finalize, wrap_in_functions").model
    onnx.checker.check_model(result, full_check=True)
    assert ortfuse.verify(model, result).ok
    return result


def test_the_call_computes_the_same_under_another_name() -> None:
    result = written("y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v)")
    assert calls(result) == ["ortfuse.StandardAttention"]
    assert [node.op_type for node in result.functions[0].node] == ["Attention"]


def test_equal_operators_share_a_function_and_others_do_not() -> None:
    result = written(
        """a = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v) b = Attention<kv_num_heads = 2, q_num_heads = 2>(a, k, v)
        c = Attention<q_num_heads = 4, kv_num_heads = 4>(b, k, v) y = Attention<q_num_heads = 2, kv_num_heads = 2>(c, k, v, m)""",
        inputs=f"{SHAPE} q, {SHAPE} k, {SHAPE} v, float[s,s] m",
    )
    names = [name.removeprefix("ortfuse.StandardAttention") for name in calls(result)]
    assert names == ["", "", "2", "3"] and len(result.functions) == 3


def test_optional_inputs_and_outputs_stay_where_they_are() -> None:
    past = "float[2,2,p,4]"
    result = written(
        """a, pk, pv = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, , ck, cv)
        y, , , w = Attention<q_num_heads = 2, kv_num_heads = 2>(a, k, v)""",
        inputs=f"{SHAPE} q, {SHAPE} k, {SHAPE} v, {past} ck, {past} cv",
        outputs=f"{SHAPE} y, float[2,2,t,4] pk, float[2,2,t,4] pv, float[2,2,s,s] w",
    )
    bodies = [function.node[0] for function in result.functions]
    assert [bool(name) for name in bodies[0].input] == [True, True, True, False, True, True]
    assert [bool(name) for name in bodies[1].output] == [True, False, False, True]


def test_operators_in_branches_are_written_so_too() -> None:
    result = written(
        """y = If(c) <then_branch = t () => (float[2,s,8] a) { a = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v) },
                     else_branch = e () => (float[2,s,8] b) { b = Neg(q) }>""",
        inputs=f"bool c, {SHAPE} q, {SHAPE} k, {SHAPE} v",
    )
    inner = {node.op_type for attribute in result.graph.node[0].attribute for node in attribute.g.node}
    assert inner == {"StandardAttention", "Neg"}


def test_operators_that_hold_graphs_stay() -> None:
    model = onnx.parser.parse_model(
        f"""{HEAD} g (bool c, float[2] x) => (float[2] y) {{
        y = If(c) <then_branch = t () => (float[2] a) {{ a = Neg(x) }}, else_branch = e () => (float[2] b) {{ b = Abs(x) }}> }}"""
    )
    result = ortfuse.optimize(model, passes='wrap_in_functions{operators="If Abs"}').model
    assert [node.op_type for node in result.graph.node] == ["If"]
    assert [function.name for function in result.functions] == ["StandardAbs"]


def test_a_name_that_is_taken_is_left_alone() -> None:
    text = f"""<ir_version: 11, opset_import: ["": 23, "ortfuse": 1]>
    g ({SHAPE} q) => ({SHAPE} y) {{ a = ortfuse.StandardAttention(q) y = Attention<q_num_heads = 2, kv_num_heads = 2>(a, a, a) }}
    <domain: "ortfuse", opset_import: ["": 23]> StandardAttention (x) => (z) {{ z = Neg(x) }}"""
    result = ortfuse.optimize(onnx.parser.parse_model(text), passes="finalize, wrap_in_functions").model
    assert calls(result) == ["ortfuse.StandardAttention", "ortfuse.StandardAttention2"]


def test_what_is_done_is_done_once() -> None:
    once = written("y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v)")
    assert ortfuse.optimize(once, passes="wrap_in_functions").report.passes[0].changes == 0


@pytest.mark.parametrize("verify", ["whole", "sites"])
def test_the_list_for_quantization_raises_the_opset_and_keeps_what_is_noted_of_the_nodes(verify: str) -> None:
    result = ortfuse.optimize("golden/models/bert.sdpa.ts14.onnx", passes="quantization", verify=verify)
    found = [node for node in result.model.graph if node.op_type == "StandardAttention"]
    assert len(found) == 2 and all("ortfuse.rule" in node.metadata_props and node.name for node in found)
    assert result.ok


def test_the_runtimes_quantizer_passes_over_the_call(tmp_path) -> None:
    ortfuse.optimize("golden/models/bert.sdpa.ts.onnx", passes="quantization", output=tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx")
    session = ort.InferenceSession(tmp_path / "q.onnx")
    assert session.get_outputs()
