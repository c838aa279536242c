"""Attention of packed tokens: where it needs no mask, what it reads, and that visible tokens are what they were.

No kernel of the CPU computes PackedMultiHeadAttention: functions of standard operators stand for it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graphs import operators
from packed_attention import BODIES, as_functions
from padded_encoders import ATTEND, EMBED, MASK, MASKS, encoder, feeds_of, is_packed, reason, run

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.errors import PipelineError
from ortfuse.targets import spec_of

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

PACKED = "com.microsoft.PackedMultiHeadAttention"


SECOND = """q2 = MatMul(y, wq)  k2 = MatMul(y, wk)  v2 = MatMul(y, wv)  kt2 = Transpose <perm = [0, 2, 1]> (k2)
    s2 = MatMul(q2, kt2)  s3 = Mul(s2, half)  s4 = Add(s3, b3)  w2 = Softmax(s4)  u = MatMul(w2, v2) """


def packed(model: Any, **options: Any) -> ortfuse.Result:
    options = {"target": "cuda", "force": {"padding_free": PACKED}, "loaded": False, **options}
    return ortfuse.optimize(model, padding_free=True, **options)


def in_functions(result: ortfuse.Result, body: str) -> tuple[Any, int]:
    """The model with functions for attention of packed tokens, and the number of these."""
    model = result.model
    return as_functions(ir.to_proto(model) if isinstance(model, ir.Model) else model, body)


def count(result: ortfuse.Result) -> int:
    return in_functions(result, "padded")[1]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", ["bert.sdpa.ts", "roberta.sdpa.dynamo"])
def test_golden_encoders_compute_what_they_did(name: str, body: str) -> None:
    """With NaN in what padding is read, left-padded, with holes, and with an empty sequence."""
    path = suite.MODELS / f"{name}.onnx"
    model, found = in_functions(packed(path), body)
    assert found == 2
    assert ortfuse.verify(path, model).ok


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("pooled", [False, True], ids=["tokens", "first token"])
def test_visible_tokens_and_pooled_outputs_are_what_they_were(body: str, mask: Any, pooled: bool) -> None:
    """A first token that is hidden, and a sequence without visible tokens, are computed on a padded batch."""
    text, outputs = EMBED + MASK + ATTEND, "float[b, s, 16] y"
    if pooled:  # the second attention is of the first tokens alone
        text, outputs = text + SECOND + "z = Gather <axis = 1> (u, first)", "float[b, 16] z"
    model = encoder(text, outputs=outputs)
    result = packed(model)
    assert count(result) == 1, result.report.notes
    feeds = feeds_of(mask)
    (wanted,), (found,) = run(model, feeds), run(in_functions(result, body)[0], feeds)
    chosen = ... if pooled else feeds["mask"] != 0
    np.testing.assert_allclose(found[chosen], wanted[chosen], atol=1e-5)
    assert np.isfinite(found).all()


def test_float16_has_the_kernel_too() -> None:
    half = ortfuse.convert(suite.MODELS / "bert.sdpa.ts.onnx", "float16", keep_io=True, target="cuda").model
    result = packed(half)
    assert count(result) == 2
    made = result.model if isinstance(result.model, ir.Model) else ir.from_proto(result.model)
    facts = Facts(made)
    (kind,) = {
        facts.dtype(node.inputs[0]) for node in made.graph.all_nodes() if node.op_type == PACKED.rpartition(".")[2]
    }
    assert kind == ir.DataType.FLOAT16


def test_packed_values_keep_their_sizes_for_operators_that_compare_them() -> None:
    """SkipLayerNormalization adds what attention returns to what it was computed from."""
    result = packed(suite.MODELS / "bert.sdpa.ts.onnx", force={})
    assert is_packed(result), reason(result)
    assert operators(result).count("SkipLayerNormalization") == 4
    again = ortfuse.optimize(result.model, target="cuda", loaded=False)
    assert operators(again).count("SkipLayerNormalization") >= 4


SHIFTED = {
    "visible keys get 0.25": MASK.replace("none, low", "half, low"),
    "visible keys get 1": MASK.replace("bias = Where(wide, none, low)", "zeros = Where(wide, none, low)")
    + "ones = Cast <to = 1> (wide)  bias = Add(zeros, ones) ",
}


@pytest.mark.parametrize("mask", SHIFTED.values(), ids=SHIFTED)
@pytest.mark.parametrize("body", BODIES)
def test_a_mask_that_adds_one_number_to_all_visible_keys_changes_no_weight(mask: str, body: str) -> None:
    model = encoder(EMBED + mask + ATTEND)
    found, made = in_functions(packed(model), body)
    assert made == 1
    feeds = feeds_of(MASKS["holes"])
    visible = feeds["mask"] != 0
    np.testing.assert_allclose(run(found, feeds)[0][visible], run(model, feeds)[0][visible], atol=1e-5)


CAUSAL = (
    MASK.replace("bias = Where(wide, none, low)", "")
    + """ns = Squeeze(n)  step = Squeeze(one)
    steps = Range(first, ns, step)  rows = Unsqueeze(steps, one)  below = LessOrEqual(steps, rows)  both = And(below, wide)
    bias = Where(both, none, low)"""
)
BIASED = (
    MASK
    + "ns = Squeeze(n)  step = Squeeze(one)  steps = Range(first, ns, step)  f = Cast <to = 1> (steps)  "
    + (ATTEND.replace("w = Softmax(s)", "s4 = Add(s, f)  w = Softmax(s4)"))
)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (EMBED + CAUSAL + ATTEND, "its mask or bias says more than which tokens are visible"),
        (EMBED + BIASED, "it is Transpose, MatMul, Mul, Add, Softmax, not one MultiHeadAttention"),
    ],
    ids=["causal", "a bias by position"],
)
def test_what_else_the_scores_say_keeps_attention_padded(body: str, why: str) -> None:
    result = packed(encoder(body))
    assert is_packed(result), reason(result)
    assert count(result) == 0
    (outcome,) = result.forced
    assert not outcome.followed
    assert [*outcome.not_followed.values()] == [why]


def test_an_operator_that_was_never_run_on_the_device_is_made_where_it_is_asked_for() -> None:
    result = packed(encoder(), force={})
    assert is_packed(result), reason(result)
    assert count(result) == 0
    assert any(f"{PACKED} was never run on cuda; --force padding_free={PACKED}" in note for note in result.report.notes)


def test_a_target_without_a_kernel_pads_attention() -> None:
    result = packed(encoder(), target="cpu")
    assert is_packed(result), reason(result)
    assert count(result) == 0
    (outcome,) = result.forced
    assert [*outcome.not_followed.values()] == ["cpu has no kernel of it for float"]


def test_sites_that_follow_a_forced_choice_are_told() -> None:
    (outcome,) = packed(suite.MODELS / "bert.sdpa.ts.onnx").forced
    assert len(outcome.followed) == 2
    assert not outcome.not_followed
    (line,) = outcome.lines()
    assert line.startswith(f"forced padding_free={PACKED}: followed at 2 sites")


def test_attention_is_packed_where_no_kernel_loads_the_result(tmp_path: Path) -> None:
    absent = replace(spec_of("cuda"), runs_on=())
    result = packed(encoder(), target=absent, loaded=True, output=tmp_path / "packed.onnx")
    assert count(result) == 1
    assert any(f"was not loaded on cpu, which has no kernel for {PACKED}" in note for note in result.report.notes)


def test_a_forced_choice_needs_packed_tokens() -> None:
    with pytest.raises(PipelineError, match="padding-free asks for it"):
        ortfuse.optimize(encoder(), target="cuda", force={"padding_free": PACKED})
    with pytest.raises(PipelineError, match=f"padding_free makes {re.escape(PACKED)}"):
        packed(encoder(), force={"padding_free": "Attention"})
