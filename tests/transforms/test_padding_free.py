"""Packed tokens: which encoders run on visible tokens alone, that visible tokens are what they were, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graphs import proto
from padded_encoders import ATTEND, CONSTANTS, EMBED, MASK, MASKS, encoder, feeds_of, is_packed, packed, reason, run

import ortfuse
from ortfuse.errors import OptionError
from ortfuse.ir.hidden_tokens import hidden_tokens

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_visible_tokens_are_what_they_were(mask: Any) -> None:
    model = encoder()
    result = packed(model)
    assert is_packed(result), result.report.notes
    feeds = feeds_of(mask)
    (wanted,), (found,) = run(model, feeds), run(result.model, feeds)
    visible = feeds["mask"] != 0
    np.testing.assert_allclose(found[visible], wanted[visible], atol=1e-5)
    assert found.shape == wanted.shape
    assert np.isfinite(found).all()


@pytest.mark.parametrize("shape", [(0, 6), (3, 0), (1, 1)])
def test_empty_and_single_batches_run(shape: tuple[int, int]) -> None:
    feeds = {"ids": np.ones(shape, np.int64), "mask": np.ones(shape, np.int64)}
    result = packed(encoder(), passes="canonicalize")  # the kernel of Attention takes no empty batch
    assert is_packed(result), reason(result)
    assert run(result.model, feeds)[0].shape == (*shape, 16)


CAUSAL = """steps = Range(first, length, unit_int)  rows = Unsqueeze(steps, one)  below = LessOrEqual(steps, rows)
    both = And(below, wide)  bias = Where(both, none, low)"""


def causal_body() -> str:
    body = CAUSAL.replace("length", "ns").replace("unit_int", "step")
    return (
        EMBED + "ns = Squeeze(n)  step = Squeeze(one) " + MASK.replace("bias = Where(wide, none, low)", body) + ATTEND
    )


@pytest.mark.parametrize("mask", [MASKS["right"], MASKS["left"], MASKS["holes"]], ids=["right", "left", "holes"])
def test_causal_masks_leave_each_visible_token_itself(mask: Any) -> None:
    model = encoder(causal_body())
    result = packed(model)
    assert is_packed(result), reason(result)
    feeds = feeds_of(mask)
    visible = feeds["mask"] != 0
    np.testing.assert_allclose(run(result.model, feeds)[0][visible], run(model, feeds)[0][visible], atol=1e-5)


POOLS = {
    "first": "z = Gather <axis = 1> (y, first)",
    "last": "z = Gather <axis = 1> (y, last)",
    "mean": """m3 = Unsqueeze(mask, two)  f3 = Cast <to = 1> (m3)  c = Mul(y, f3)  t = ReduceSum <keepdims = 0> (c, one)
        f2 = Cast <to = 1> (mask)  d = ReduceSum <keepdims = 1> (f2, one)  d1 = Max(d, unit)  z = Div(t, d1)""",
    "largest": """m3 = Unsqueeze(mask, two)  b3x = Cast <to = 9> (m3)  c = Where(b3x, y, moderate)
        z = ReduceMax <keepdims = 0> (c, one)""",
    "at a computed index": """big = ArgMax <axis = 1, keepdims = 1> (ids)  shape = Shape(big)
        row = Range(first, nb, step)  r2 = Unsqueeze(row, one)  pairs = Concat <axis = 1> (r2, big)  z = GatherND(y, pairs)""",
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_pooled_outputs_are_whole(pool: str, mask: Any, causal: bool) -> None:
    head = "batch = Shape <start = 0, end = 1> (ids)  nb = Squeeze(batch) " + ("" if causal else "step = Squeeze(one) ")
    body = causal_body() if causal else EMBED + MASK + ATTEND
    model = encoder(body + head + POOLS[pool], outputs="float[b, 16] z")
    result = packed(model)
    assert is_packed(result), reason(result)
    feeds = feeds_of(mask)
    np.testing.assert_allclose(run(result.model, feeds)[0], run(model, feeds)[0], atol=1e-5)


REFUSED = {
    "no mask": (EMBED + ATTEND.replace("Add(s1, b3)", "Identity(s1)").replace("b3 = Squeeze(bias, one)", ""), "no mask"),
    "a mask that hides nothing": (
        EMBED + MASK.replace("none, low", "none, small") + ATTEND, "no mask is known to hide",
    ),
    "mean of all": (
        EMBED + MASK + ATTEND.replace("y = Layer", "y0 = Layer") + "mean = ReduceMean(y0, one)  y = Sub(y0, mean)",
        "ReduceMean",
    ),
    "batch normalisation": (
        EMBED + MASK + ATTEND.replace("y = Layer", "y0 = Layer") + """t = Transpose <perm = [0, 2, 1]> (y0)
            m = ReduceMean(t, two)  c = Sub(t, m)  y = Transpose <perm = [0, 2, 1]> (c)""",
        "ReduceMean",
    ),
    "instance normalisation": (
        EMBED + MASK + ATTEND.replace("y = Layer", "y0 = Layer") + """t = Transpose <perm = [0, 2, 1]> (y0)
            c = InstanceNormalization(t, scale, shift)  y = Transpose <perm = [0, 2, 1]> (c)""",
        "InstanceNormalization",
    ),
    "running sum": (EMBED + MASK + ATTEND.replace("y = Layer", "y0 = Layer") + "y = CumSum(y0, first_axis)", "CumSum"),
    "second attention without a mask": (
        EMBED + MASK + ATTEND.replace("y = Layer", "y0 = Layer") + """kt2 = Transpose <perm = [0, 2, 1]> (y0)
            s2 = MatMul(y0, kt2)  w2 = Softmax(s2)  y = MatMul(w2, y0)""",
        "no mask is known to hide",
    ),
    "neighbours": (
        EMBED + MASK + ATTEND.replace("y = Layer", "y0 = Layer") + """rest = Slice(y0, one, far, one)
            begin = Slice(y0, zero, one, one)  moved = Concat <axis = 1> (rest, begin)  y = Add(y0, moved)""",
        "reads",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_hidden_token_that_matters_is_refused_with_the_reason(name: str) -> None:
    body, why = REFUSED[name]
    extra = {"first_axis": np.array(1, np.int64), "far": np.array([1 << 40], np.int64)}
    model = proto(
        body, "int64[b, s] ids, int64[b, s] mask", "float[b, s, 16] y", constants={**CONSTANTS, **extra}, opset=18
    )
    result = packed(model)
    assert not is_packed(result)
    assert why in reason(result), reason(result)


def test_the_end_of_text_that_is_projected_alone_is_computed_from_visible_tokens() -> None:
    head = """big = ArgMax <axis = 1, keepdims = 1> (ids)  batch = Shape <start = 0, end = 1> (ids)  nb = Squeeze(batch)
        row = Range(first, nb, step)  r2 = Unsqueeze(row, one)  pairs = Concat <axis = 1> (r2, big)  t = GatherND(y, pairs)
        z = MatMul(t, w1) """
    model = encoder(causal_body() + head, outputs="float[b, 16] z")
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    for mask in MASKS.values():
        feeds = feeds_of(mask)
        np.testing.assert_allclose(run(result.model, feeds)[0], run(model, feeds)[0], atol=1e-4)


def test_numbers_at_hidden_tokens_of_inputs_reach_no_visible_token() -> None:
    body = (EMBED + MASK + ATTEND).replace("e = Gather(table, ids)", "").replace("Add(e, p)", "Add(ids, p)")
    model = encoder(body.replace("Shape <start = 1, end = 2> (ids)", "Shape <start = 1, end = 2> (mask)"),
                    "float[b, s, 16] ids, int64[b, s] mask")  # fmt: skip
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    mask = np.array(MASKS["holes"])
    numbers = np.random.default_rng(2).standard_normal((*mask.shape, 16)).astype(np.float32)
    poisoned = np.where(mask[..., None] != 0, numbers, np.float32("nan"))
    wanted, found = run(model, {"ids": numbers, "mask": mask})[0], run(result.model, {"ids": poisoned, "mask": mask})[0]
    np.testing.assert_allclose(found[mask != 0], wanted[mask != 0], atol=1e-5)


def test_without_the_option_nothing_changes_and_checks_of_sites_exclude_it() -> None:
    assert not is_packed(ortfuse.optimize(encoder()))
    with pytest.raises(OptionError, match="padding_free"):
        ortfuse.Options(padding_free=True, verify="sites")


def test_tokens_are_packed_before_attention_becomes_a_function() -> None:
    """The list for quantisers has a pass behind `finalize`, which wraps attention."""
    result = packed(suite.MODELS / "bert.sdpa.ts.onnx", passes="quantization")
    made = result.model if isinstance(result.model, ir.Model) else ir.from_proto(result.model)
    assert [function.name for function in made.functions.values()] == ["StandardAttention"]
    assert is_packed(result)


def test_a_result_says_which_elements_are_hidden_and_is_compared_without_them() -> None:
    model = encoder()
    result = packed(model)
    made = result.model if isinstance(result.model, ir.Model) else ir.from_proto(result.model)
    (known,) = hidden_tokens(made)
    assert (known.mask, dict(known.outputs)) == ("mask", {"y": ((0, 1),)})
    assert ortfuse.verify(model, result.model).ok
    assert not ortfuse.verify(
        model, packed(encoder(EMBED + MASK.replace("low", "moderate") + ATTEND.replace("half", "unit"))).model
    ).ok


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_positions_that_are_counted_from_the_first_visible_token_stay(mask: Any) -> None:
    """As models of which sequences are padded on the left count them."""
    body = EMBED.partition("n = Shape")[0] + """one_axis = Squeeze(one)  count = CumSum(mask, one_axis)  c1 = Mul(count, mask)
        c2 = Min(c1, most)  p = Gather(positions, c2)  x0 = Add(e, p)  x = LayerNormalization(x0, scale, shift) """  # fmt: skip
    model = encoder(body + MASK + ATTEND)
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    feeds = feeds_of(mask)
    visible = feeds["mask"] != 0
    np.testing.assert_allclose(run(result.model, feeds)[0][visible], run(model, feeds)[0][visible], atol=1e-5)


ENCODERS = ("bert.", "bert_attentions", "roberta", "deberta", "t5_encoder", "clip_text")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in suite.expected_names() if name.startswith(ENCODERS)])
def test_golden_encoders_are_right_with_anything_at_hidden_tokens(name: str) -> None:
    result = packed(suite.MODELS / f"{name}.onnx", verify="whole")
    assert is_packed(result), reason(result)
    assert result.verdict is not None
    assert any("anything at hidden tokens" in trial.inputs for trial in result.verdict.trials)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", [name for name in suite.expected_names() if name.startswith(("vit.", "whisper_encoder", "wav2vec2."))]
)
def test_models_without_a_mask_of_tokens_stay(name: str) -> None:
    result = packed(suite.MODELS / f"{name}.onnx")
    assert not is_packed(result)
    assert "is a mask of tokens" in reason(result)
