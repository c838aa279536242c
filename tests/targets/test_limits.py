"""The target's answers about single nodes, held against what the runtime says when it runs them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from benchmarks.kernels.case import Case
from benchmarks.kernels.cases import cases
from benchmarks.kernels.measure import model_of, try_case
from ortfuse.analysis.facts import Facts
from ortfuse.targets import Target

TARGET = Target()


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.domain}.{case.op_type} {case.what}")
def test_the_target_refuses_what_the_kernel_refuses_and_nothing_else(case: Case) -> None:
    dtype = case.dtypes[0]
    finding = try_case(case, dtype, TARGET)
    assert finding.verdict != "wrong", finding.detail
    model = ir.from_proto(model_of(case, dtype))
    refusal = TARGET.check_node(model.graph[0], model.graph.opset_imports, Facts(model))
    assert (refusal is None) is (finding.verdict == "right"), f"{finding.verdict} {finding.detail}; {refusal}"


def mask_support(mask: str, past: str = "") -> str:
    inputs = f"float[b,s,32] q, float[b,t,32] k, float[b,t,32] v, {mask} m" + (
        f", {past} pk, {past} pv" if past else ""
    )
    call = "Attention<q_num_heads=4, kv_num_heads=4>(q, k, v, m" + (", pk, pv)" if past else ")")
    outputs = "y, kk, vv" if past else "y"
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 23]> g ({inputs}) => (float[b,s,32] y) {{ {outputs} = {call} }}'
    )
    refusal = TARGET.check_node(model.graph[0], {"": 23}, Facts(model))
    return "" if refusal is None else refusal.reason


def test_a_mask_of_symbolic_shape_must_provably_cover_queries_and_keys() -> None:
    assert mask_support("bool[b,1,s,t]") == ""
    assert "broadcast over the queries" in mask_support("bool[b,1,1,t]")
    assert "one that provably covers the keys" in mask_support("bool[b,1,s,u]")


def test_a_mask_beside_a_past_covers_the_past_too() -> None:
    assert "one that provably covers the keys" in mask_support("bool[b,1,s,t]", "float[b,4,p,8]")
    assert mask_support("bool[b,1,s,9]", "float[b,4,p,8]") != ""


@pytest.mark.parametrize(("opset", "taken"), [(7, False), (8, True)])
def test_operands_of_max_have_one_shape_before_opset_8(opset: int, taken: bool) -> None:
    for operands, is_taken in (("float[n] a, float b", taken), ("float[n] a, float[n] b", True)):
        model = ir.from_onnx_text(
            f'<ir_version: 4, opset_import: ["" : {opset}]> g ({operands}) => (y) {{ y = Max(a, b) }}'
        )
        refusal = TARGET.check_node(model.graph[0], model.graph.opset_imports, Facts(model))
        assert (refusal is None) is is_taken
