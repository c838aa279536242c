"""What attention leaves to be transposed counts: products of matrices read transposed operands as they are."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ortfuse
from ortfuse.verification import verify


def attention(length: str, size: int = 16, *, body: str = "", inputs: str = "") -> ir.Model:
    """softmax(q k^T) v on [batch, heads, size, length], as convolutions leave it."""
    body = (
        body
        or """qt = Transpose<perm = [0, 1, 3, 2]>(q) vt = Transpose<perm = [0, 1, 3, 2]>(v)
        s = MatMul(qt, k) p = Softmax<axis = -1>(s) o = MatMul(p, vt) y = Transpose<perm = [0, 1, 3, 2]>(o)"""
    )
    shape = f"float[b,4,{size},{length}]"
    text = f"""<ir_version: 10, opset_import: ["": 23]> g ({shape} q, {shape} k, {shape} v{inputs})
        => (float[b,4,m,n] y) {{ {body} }}"""
    return ir.from_onnx_text(text)


def operators(model: ir.Model, **options: object) -> list[str]:
    return [node.op_type for node in ortfuse.optimize(model, **options).model.graph]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("length", "fused"), [("49", False), ("90", False), ("100", True), ("1024", True), ("n", True)]
)
def test_attention_is_fused_where_it_is_worth_the_transpositions(length: str, fused: bool) -> None:
    assert ("Attention" in operators(attention(length))) is fused, "of 3 x 16 x length elements against length x length"


def test_the_report_says_where_and_why() -> None:
    result = ortfuse.optimize(attention("49"))
    (note,) = [note for note in result.report.notes if note.startswith("attention.sdpa was not applied at ")]
    assert "to be transposed" in note
    assert "--force takes it whatever it costs" in note
    found = ortfuse.explain(attention("49"), ["attention.sdpa"])
    assert "9408 elements would be transposed that MatMul reads as they are" in found.missed[0].refusal.reason


def test_a_forced_choice_takes_it_whatever_is_transposed() -> None:
    assert "Attention" in operators(attention("49"), force={"attention": "Attention"})


def test_rows_that_lie_as_attention_reads_them_cost_nothing() -> None:
    rows = """kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) p = Softmax<axis = -1>(s) y = MatMul(p, v)"""
    assert operators(attention("16", 49, body=rows)) == ["Attention"]


def test_heads_that_are_split_off_rows_cost_nothing() -> None:
    split = """qt = Transpose<perm = [0, 2, 1, 3]>(q) kt = Transpose<perm = [0, 2, 3, 1]>(k) vt = Transpose<perm = [0, 2, 1, 3]>(v)
        s = MatMul(qt, kt) p = Softmax<axis = -1>(s) o = MatMul(p, vt) y = Transpose<perm = [0, 2, 1, 3]>(o)"""
    assert "Attention" in operators(attention("16", 4, body=split))


def test_a_transposition_that_others_need_costs_nothing_more() -> None:
    shared = """qt = Transpose<perm = [0, 1, 3, 2]>(q) vt = Transpose<perm = [0, 1, 3, 2]>(v) kt = Transpose<perm = [0, 1, 3, 2]>(k)
        kk = Transpose<perm = [0, 1, 3, 2]>(kt) s = MatMul(qt, kk) p = Softmax<axis = -1>(s) o = MatMul(p, vt)
        qa = Abs(qt) va = Abs(vt) ka = Abs(kt) o1 = Add(o, qa) o2 = Add(o1, ka) y = Add(o2, va)"""
    assert "Attention" in operators(attention("40", 16, body=shared))


def test_what_is_left_the_runtime_does_not_transpose(tmp_path: Path) -> None:
    model = attention("49")
    result = ortfuse.optimize(model).model
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(ir.to_proto(result).SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert found.count("Transpose") == 1, "that of the result"
    assert verify(model, result).ok
