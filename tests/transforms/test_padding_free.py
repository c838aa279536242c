"""Packed tokens: which encoders run on visible tokens alone, that visible tokens are what they were, and what is refused."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from graphs import operators, proto

import ortfuse
from ortfuse.errors import OptionError, VerificationError
from ortfuse.ir.hidden_tokens import hidden_tokens

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

RNG = np.random.default_rng(0)
CONSTANTS: dict[str, Any] = {
    "table": RNG.standard_normal((40, 16), np.float32),
    "positions": RNG.standard_normal((32, 16), np.float32),
    **{name: RNG.standard_normal((16, 16), np.float32) / 4 for name in ("wq", "wk", "wv", "wo", "w1")},
    "scale": np.ones(16, np.float32),
    "shift": np.full(16, 0.1, np.float32),
    "zero": np.array([0], np.int64),
    "one": np.array([1], np.int64),
    "two": np.array([2], np.int64),
    "first": np.array(0, np.int64),
    "last": np.array(-1, np.int64),
    "ends": np.array([1, 2], np.int64),
    "none": np.array(0.0, np.float32),
    "unit": np.array(1.0, np.float32),
    "low": np.array(-1e38, np.float32),
    "moderate": np.array(-10000.0, np.float32),
    "small": np.array(-10.0, np.float32),
    "pad": np.array(0, np.int64),
    "most": np.array(31, np.int64),
    "half": np.array(0.25, np.float32),
    "means": np.zeros(16, np.float32),
}
EMBED = """e = Gather(table, ids)  n = Shape <start = 1, end = 2> (ids)  p = Slice(positions, zero, n)  x0 = Add(e, p)
    x = LayerNormalization(x0, scale, shift) """
MASK = """shown = Cast <to = 9> (mask)  wide = Unsqueeze(shown, ends)  bias = Where(wide, none, low) """
ATTEND = """q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)  kt = Transpose <perm = [0, 2, 1]> (k)
    s0 = MatMul(q, kt)  s1 = Mul(s0, half)  b3 = Squeeze(bias, one)  s = Add(s1, b3)  w = Softmax(s)  a = MatMul(w, v)
    o = MatMul(a, wo)  r = Add(x, o)  y = LayerNormalization(r, scale, shift) """
MASKS = {
    "right": [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]],
    "left": [[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]],
    "holes": [[1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 1, 1], [1, 1, 0, 0, 0, 1]],
    "full": [[1] * 6] * 3,
    "none": [[0] * 6] * 3,
    "an empty row": [[0] * 6, [1, 1, 0, 0, 0, 0], [1] * 6],
}


def encoder(
    body: str = EMBED + MASK + ATTEND,
    inputs: str = "int64[b, s] ids, int64[b, s] mask",
    outputs: str = "float[b, s, 16] y",
) -> Any:
    return proto(body, inputs, outputs, constants=CONSTANTS, opset=18)


def packed(model: Any, **options: Any) -> ortfuse.Result:
    return ortfuse.optimize(model, padding_free=True, **options)


def is_packed(result: ortfuse.Result) -> bool:
    return "NonZero" in operators(result)


def reason(result: ortfuse.Result) -> str:
    return next((note for note in result.report.notes if note.startswith("padding is not removed")), "")


def run(model: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    made = ir.to_proto(model) if isinstance(model, ir.Model) else model
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def feeds_of(mask: Any, dtype: Any = np.int64) -> dict[str, np.ndarray]:
    array = np.array(mask)
    ids = np.random.default_rng(1).integers(3, 40, array.shape)
    return {"ids": ids, "mask": array.astype(dtype)}


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


BIASES = {
    "where": "bias = Where(wide, none, low)",
    "subtraction": "f = Cast <to = 1> (wide)  g = Sub(unit, f)  bias = Mul(g, moderate)",
    "not": "hidden = Not(wide)  bias = Where(hidden, low, none)",
    "from numbers": "m4 = Unsqueeze(mask, ends)  e4 = Equal(m4, first)  bias = Where(e4, low, none)",
}


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("mask", [MASKS["right"], MASKS["left"]], ids=["right", "left"])
def test_masks_are_recognised_by_what_they_compute(bias: str, mask: Any) -> None:
    model = encoder(EMBED + MASK.replace("bias = Where(wide, none, low)", bias) + ATTEND)
    result = packed(model)
    assert is_packed(result), reason(result)
    feeds = feeds_of(mask)
    visible = feeds["mask"] != 0
    np.testing.assert_allclose(run(result.model, feeds)[0][visible], run(model, feeds)[0][visible], atol=1e-5)


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


def test_sizes_of_a_mask_with_other_names_are_asked_for() -> None:
    """As torch.onnx.export names the sequences of a mask that could be broadcast."""
    model = encoder(EMBED + MASK + ATTEND, "int64[b, s] ids, int64[c, s] mask")
    result = packed(model)
    assert not is_packed(result)
    assert "ids is [b, s] and mask [c, s]" in reason(result)
    assert "declare it with --same c=b" in reason(result)
    assert is_packed(packed(model, same={"c": "b"}))


def test_a_mask_that_the_model_computes_from_its_ids_is_found() -> None:
    model = encoder(
        EMBED + "pads = Equal(ids, pad)  shown = Not(pads)" + MASK.partition(")")[2] + ATTEND, "int64[b, s] ids"
    )
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    ids = np.array([[3, 4, 0, 0], [5, 6, 7, 0]])
    visible = ids != 0
    np.testing.assert_allclose(
        run(result.model, {"ids": ids})[0][visible], run(model, {"ids": ids})[0][visible], atol=1e-5
    )


def test_the_ids_of_tokens_are_no_mask_of_zeros_and_ones() -> None:
    """Only the word 1 is a key. Without any, all keys have weights, also those of the word 0."""
    text = (
        EMBED + "shown = Equal(ids, unit_id) wide = Unsqueeze(shown, ends) bias = Where(wide, none, moderate) " + ATTEND
    )
    constants = {**CONSTANTS, "unit_id": np.array(1)}
    model = proto(text, "int64[b, s] ids", "float[b, s, 16] y", constants=constants, opset=18)
    result, feeds = packed(model), {"ids": np.array([[5, 0, 0, 7, 0, 0], [1, 0, 3, 1, 0, 0]])}
    assert is_packed(result), reason(result)
    known = hidden_tokens(ir.from_proto(result.model))
    assert known is not None
    assert known.mask == "shown"
    shown = feeds["ids"] == 1
    np.testing.assert_allclose(run(result.model, feeds)[0][shown], run(model, feeds)[0][shown], atol=1e-5)


def test_a_mask_that_another_tool_has_renamed_is_named() -> None:
    body = EMBED + "shown0 = Equal(ids, pad) shown = Not(shown0)" + MASK.partition(")")[2] + ATTEND
    model = encoder(body, "int64[b, s] ids")
    result = packed(model).model
    known = hidden_tokens(ir.from_proto(result))
    assert known is not None
    replace(known, mask="renamed").store(made := ir.from_proto(result))
    with pytest.raises(VerificationError, match="'renamed', the mask of its hidden tokens"):
        ortfuse.verify(model, made)


def test_a_mask_that_hides_keys_of_tokens_whose_outputs_are_wanted_is_none() -> None:
    body = MASK.replace(
        "shown = Cast <to = 9> (mask)",
        "kept = Cast <to = 9> (mask)  is = Equal(ids, pad)  other = Not(is)  shown = And(kept, other)",
    )
    result = packed(encoder(EMBED + body + ATTEND))
    assert not is_packed(result)
    assert "each visible token sees a visible one" in reason(result)
    turned = "turned = Slice(mask, far, near, zero, far)  shown = Cast <to = 9> (turned)"
    extra = {**CONSTANTS, "far": np.array([-1], np.int64), "near": np.array([-(1 << 40)], np.int64)}
    model = proto(
        EMBED + MASK.replace("shown = Cast <to = 9> (mask)", turned) + ATTEND,
        "int64[b, s] ids, int64[b, s] mask", "float[b, s, 16] y", constants=extra, opset=18,
    )  # fmt: skip
    assert not is_packed(packed(model))


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
    known = hidden_tokens(made)
    assert known is not None
    assert (known.mask, dict(known.outputs)) == ("mask", {"y": ((0, 1),)})
    assert ortfuse.verify(model, result.model).ok
    assert not ortfuse.verify(
        model, packed(encoder(EMBED + MASK.replace("low", "moderate") + ATTEND.replace("half", "unit"))).model
    ).ok


def ones(mask: np.ndarray, dtype: Any) -> np.ndarray:
    return mask.astype(dtype)


def zeros(mask: np.ndarray, dtype: Any) -> np.ndarray:
    return (mask == 0).astype(dtype)


def low(mask: np.ndarray, dtype: Any) -> np.ndarray:
    return np.where(mask != 0, 0, -np.inf).astype(dtype)


def lowest(mask: np.ndarray, dtype: Any) -> np.ndarray:
    return np.where(mask != 0, 0, -10000).astype(dtype)


PRODUCT = "g = Sub(unit, wide)  bias = Mul(g, moderate) "
FORMS: dict[str, tuple[str, str, Any, tuple[int, ...]]] = {
    "bool": ("bool[b, s]", "wide = Unsqueeze(mask, ends)  bias = Where(wide, none, low) ", ones, ()),
    "int32": ("int32[b, s]", MASK, ones, ()),
    "float": ("float[b, s]", "wide = Unsqueeze(mask, ends) " + PRODUCT, ones, ()),
    "bool that hides": ("bool[b, s]", "wide = Unsqueeze(mask, ends)  bias = Where(wide, low, none) ", zeros, ()),
    "float that hides": ("float[b, s]", "wide = Unsqueeze(mask, ends)  bias = Mul(wide, moderate) ", zeros, ()),
    "added": ("float[b, s]", "bias = Unsqueeze(mask, ends) ", low, ()),
    "added of rank 4": ("float[b, 1, 1, s]", "bias = Identity(mask) ", lowest, (1, 2)),
    "added in float16": ("float16[b, 1, 1, s]", "bias = Cast <to = 1> (mask) ", low, (1, 2)),
    "bool of rank 4": ("bool[b, 1, 1, s]", "bias = Where(mask, none, low) ", ones, (1, 2)),
    "int64 of rank 4": ("int64[b, 1, 1, s]", "wide = Cast <to = 1> (mask) " + PRODUCT, ones, (1, 2)),
    "bool of rank 3": ("bool[b, 1, s]", "wide = Unsqueeze(mask, one)  bias = Where(wide, none, low) ", ones, (1,)),
}
DTYPES = {"bool": np.bool_, "int32": np.int32, "int64": np.int64, "float": np.float32, "float16": np.float16}


@pytest.mark.parametrize("form", FORMS)
def test_masks_of_any_type_and_of_rank_up_to_4_are_found(form: str) -> None:
    kind, body, numbers, axes = FORMS[form]
    embed = EMBED.replace("Gather(table, ids)", "Identity(ids)")
    model = encoder(embed + body + ATTEND, f"float[b, s, 16] ids, {kind} mask")
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    assert result.verdict is not None
    assert any("left-padded, anything" in trial.inputs for trial in result.verdict.trials)
    for visible in map(np.array, MASKS.values()):
        if not visible.any(1).all():
            continue
        mask = np.expand_dims(numbers(visible, DTYPES[kind.partition("[")[0]]), axes)
        embedded = np.random.default_rng(2).standard_normal((*visible.shape, 16)).astype(np.float32)
        poisoned = np.where(visible[..., None] != 0, embedded, np.float32("nan"))
        wanted = run(model, {"ids": embedded, "mask": mask})[0]
        found = run(result.model, {"ids": poisoned, "mask": mask})[0]
        np.testing.assert_allclose(found[visible != 0], wanted[visible != 0], atol=1e-5)


@pytest.mark.parametrize("kind", ["bool[b, 1, s, s]", "float[b, 1, s, s]"])
def test_masks_of_queries_do_not_say_what_is_padding(kind: str) -> None:
    body = "bias = Where(mask, none, low) " if kind.startswith("bool") else "bias = Identity(mask) "
    result = packed(encoder(EMBED + body + ATTEND, f"int64[b, s] ids, {kind} mask"))
    assert not is_packed(result)
    assert "mask is [b, 1, s, s], and may hide other keys from each query" in reason(result)


def test_a_mask_that_the_model_computes_from_lengths_is_found() -> None:
    body = """ns = Squeeze(n)  l = Unsqueeze(lengths, one)  steps = Range(first, ns, unit_int)  shown = Less(steps, l)
        wide = Unsqueeze(shown, ends)  bias = Where(wide, none, low) """
    constants = {**CONSTANTS, "unit_int": np.array(1)}
    inputs = "int64[b, s] ids, int64[b] lengths"
    model = proto(EMBED + body + ATTEND, inputs, "float[b, s, 16] y", constants=constants, opset=18)
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    lengths, ids = np.array([3, 6, 1]), np.random.default_rng(1).integers(3, 40, (3, 6))
    visible = np.arange(6) < lengths[:, None]
    feeds = {"ids": ids, "lengths": lengths}
    np.testing.assert_allclose(run(result.model, feeds)[0][visible], run(model, feeds)[0][visible], atol=1e-5)


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
