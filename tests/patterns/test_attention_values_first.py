"""Attention of vision networks that keep channels first: values times the transposed weights, as in C2PSA blocks of YOLO."""

from __future__ import annotations

import onnx
import pytest
from graphs import operators

import ortfuse

HEADS, KEYS, VALUES = 2, 32, 64


def block(positions: int, merged: bool = False) -> onnx.ModelProto:
    """Queries, keys and values split off one tensor with channels before positions."""
    lead = "b" if merged else f"b,{HEADS}"
    swap = "0, 2, 1" if merged else "0, 1, 3, 2"
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> g (float[{lead},{2 * KEYS + VALUES},{positions}] qkv)
        => (float[{lead},{VALUES},{positions}] y)
        <int64[3] sizes = {{{KEYS}, {KEYS}, {VALUES}}}, float scale = {{0.17677669}}> {{
            q, k, v = Split<axis = {1 if merged else 2}>(qkv, sizes) qt = Transpose<perm = [{swap}]>(q) s = MatMul(qt, k) a = Mul(s, scale)
            p = Softmax<axis = -1>(a) pt = Transpose<perm = [{swap}]>(p) o = MatMul(v, pt) y = Neg(o) }}"""
    )


@pytest.mark.parametrize("merged", [False, True], ids=["heads", "merged heads"])
def test_values_first_are_attention_where_there_are_many_positions(merged: bool) -> None:
    result = ortfuse.optimize(block(400, merged), verify="whole")
    assert "Softmax" not in operators(result)
    assert len([name for name in operators(result) if name.endswith("Attention")]) == 1


def test_values_first_are_left_where_more_would_be_transposed_than_it_is_worth() -> None:
    result = ortfuse.optimize(block(64), explain=["attention"])
    assert "Attention" not in operators(result)
    assert any("attention.sdpa_value_times_transposed_weights was not applied" in note for note in result.report.notes)
    assert result.explanation is not None
    assert not result.explanation.missed
    pinned = ortfuse.optimize(block(64), force={"attention": "Attention"}, verify="whole")
    assert operators(pinned).count("Attention") == 1
