"""Biases of keys and values: which are left out or handed on, and where they have to stay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.verification import verify

INPUTS = "float[b,s,8] q, float[b,t,8] k, float[b,t,8] v, bool[b,1,s,t] keep, float[b,1,s,t] numbers"
ATTENTION = "kb = Add(k, a) vb = Add(v, c) {mask} out = Attention <q_num_heads = 2, kv_num_heads = 2{more}> (q, kb, vb{operand})"


def model(mask: str = "", more: str = "", rest: str = "y = MatMul(out, w)", attention: str = ATTENTION) -> ir.Model:
    body = attention.format(mask=mask, more=more, operand=", mask" if mask else "")
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]> g ({INPUTS}) => (float[b,s,8] y)
        <float zero = {{0}}, float filler = {{-10000}}, float hidden = {{{np.finfo(np.float32).min}}}> {{ {body} {rest} }}"""
    )
    random = np.random.default_rng(0)
    for name, shape in (("a", (8,)), ("c", (8,)), ("w", (8, 8)), ("d", (8,))):
        array = random.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def sums(found: ir.Model) -> int:
    """How many sums are left; the result is verified."""
    result = ortfuse.optimize(found)
    assert verify(found, result.model).ok
    return Counter(node.op_type for node in result.model.graph)["Add"]


def applied(found: ir.Model) -> set[str]:
    """The rules that are applied."""
    report = ortfuse.optimize(found).report
    return {rule for one in report.passes for leaf in one.leaves() for rule in leaf.hits}


def test_the_bias_of_the_product_takes_in_that_of_the_values() -> None:
    assert sums(model(rest="m = MatMul(out, w) y = Add(m, d)")) == 1


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        ("", 1),
        ("mask = Where(keep, zero, filler)", 1),
        ("mask = Where(keep, zero, hidden)", 1),
        ("mask = Identity(numbers)", 1),
    ],
    ids=["none", "finite", "hides", "unknown"],
)
def test_keys_need_no_bias_whatever_the_mask_is(mask: str, left: int) -> None:
    assert "attention.drop_key_bias" in applied(model(mask))
    assert sums(model(mask)) == left


def test_values_keep_their_bias_where_all_keys_may_be_hidden() -> None:
    kept = ortfuse.optimize(model("mask = Where(keep, zero, hidden)")).model
    moved = ortfuse.optimize(model("mask = Where(keep, zero, filler)")).model
    assert [node.op_type for node in kept.graph][-1] == "MatMul"
    assert [node.op_type for node in moved.graph][-1] == "Add"


@pytest.mark.parametrize(
    "body",
    [
        ATTENTION.replace("{more}", "{more}, softcap = 5.0"),
        ATTENTION.replace("Add(k, a)", "Add(k, q)"),
        ATTENTION.replace("out = ", "out, present_key, present_value = ").replace("{operand}", ", , q4, q4"),
    ],
    ids=["capped", "no constant", "with a cache"],
)
def test_other_keys_keep_what_is_added(body: str) -> None:
    split = "n = Constant <value_ints = [0, -1, 2, 4]> () q3 = Reshape(q, n) q4 = Transpose <perm = [0, 2, 1, 3]> (q3) "
    assert "attention.drop_key_bias" not in applied(model(attention=(split if "q4" in body else "") + body))
