"""Decoders whose inputs have other types and sizes: masks for each query, a batch of one, half precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cached_decoders import write
from edited_decoders import EMBEDDED, MASK, SUM, given, is_right, made

import ortfuse
from ortfuse.errors import GenerationError


@pytest.mark.parametrize(
    ("declaration", "mask"),
    [
        ("float[batch, 1, sequence, total] shown", "  mask = Identity(shown)"),
        ("float[batch, 1, sequence, whole] shown", "  mask = Identity(shown)"),
        ("float[1, 1, sequence, whole] shown", "  mask = Identity(shown)"),
        ("bool[batch, 1, sequence, whole] shown", "  mask = Where(shown, none, low)"),
        ("bool[batch, 4, sequence, whole] shown", "  mask = Where(shown, none, low)"),
        ("bool[batch, 1, sequence, whole] shown", "  both = And(shown, seen)\n  mask = Where(both, none, low)"),
    ],
)
def test_a_mask_for_each_query_is_causal(declaration: str, mask: str, tmp_path: Path) -> None:
    done = made(tmp_path, [given(declaration), (MASK, mask)])
    assert done.decoder.mask == "shown"
    assert not done.interface.fixed
    assert not done.kept
    is_right(tmp_path, done)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_layer_that_stays_sees_the_mask_for_each_query(kind: str, tmp_path: Path) -> None:
    """Its attention has a mask that no kernel has, and the other's is replaced."""
    mask = "Where(shown, none, low)" if kind == "bool" else "Identity(shown)"
    second = f"""  xx = Add(y2, x)
  sums = CumSum(xx, cone)
  q0b = MatMul(sums, wq)
  q1b = Reshape(q0b, qs)
  qb = Transpose<perm = [0, 2, 1, 3]>(q1b)
  again_k = Concat<axis = 2>(past_c, k2)
  again_v = Concat<axis = 2>(past_d, v2)
  kc = Gather<axis = 1>(again_k, repeated)
  vc = Gather<axis = 1>(again_v, repeated)
  kd = Transpose<perm = [0, 1, 3, 2]>(kc)
  a0b = MatMul(qb, kd)
  a1b = Mul(a0b, quarter)
  shifted = {mask}
  kf = ReduceMean<keepdims = 1>(kc, at_last)
  kg = Transpose<perm = [0, 1, 3, 2]>(kf)
  bias = Mul(kg, quarter)
  a2b = Add(a1b, bias)
  ab = Add(a2b, shifted)
  wb = Softmax(ab)
  y0b = MatMul(wb, vc)
  y1b = Transpose<perm = [0, 2, 1, 3]>(y0b)
  y2b = Reshape(y1b, ys)
  y = Add(y2b, xx)"""
    edits = [
        given(f"{kind}[batch, 1, sequence, whole] shown"),
        (MASK, f"  mask = {mask}"),
        ("float[batch, 2, past, 16] past_v", ", ".join(f"float[batch, 2, past, 16] past_{one}" for one in "vcd")),
        ("16] new_v", "16] new_v, float[batch, 2, total, 16] again_k, float[batch, 2, total, 16] again_v"),
        ("  y = Add(y2, x)", second),
    ]
    done = made(tmp_path, edits, {"at_last": np.array([-1]), "cone": np.array(1)})
    assert len(done.kept) >= 1
    assert sum(cache.in_place for cache in done.interface.caches) == 2
    is_right(tmp_path, done)


def test_numbers_of_the_sizes_of_an_encoder(tmp_path: Path) -> None:
    """They follow from no length of tokens, and are the same in all steps."""
    body = "  es = Shape<start = 1, end = 2>(states)\n  ef = Cast<to = 1>(es)\n  eh = Div(x0, ef)\n  x = Add(x0, eh)"
    done = made(tmp_path, [given("float[batch, source, 64] states"), (EMBEDDED, body)])
    assert done.interface.fixed == ("states",)
    assert not done.kept
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_sizes_that_hold_for_a_batch_of_one(tmp_path: Path) -> None:
    """The mask has the axes of one sequence, so that it cannot be evaluated for more."""
    mask = "  mf = Cast<to = 9>(attention_mask)\n  mr = Reshape(mf, flat)\n  both = And(seen, mr)\n  mask = Where(both, none, low)"
    edits = [
        given("int64[batch, total] attention_mask"),
        (MASK, mask),
        ("[batch,", "[1,"),
    ]
    done = made(tmp_path, edits, {"flat": np.array([1, 1, 1, -1])})
    assert not done.kept
    model = ortfuse.Generator(tmp_path / "out")
    assert len(model.generate([[1, 2]], max_new_tokens=4)[0]) == 4


HALVES = [
    ("  q = Transpose<perm = [0, 2, 1, 3]>(q1)", "  qt = Transpose<perm = [0, 2, 1, 3]>(q1)\n  qh = Cast<to = 10>(qt)\n  q = Cast<to = 1>(qh)"),
    ("(past_k, k2)", "(past_k, kh)"),
    ("(past_v, v2)", "(past_v, vh)"),
    ("  new_k =", "  kh = Cast<to = 10>(k2)\n  vh = Cast<to = 10>(v2)\n  new_k ="),
    *((f"float[batch, 2, {size}, 16] {name}", f"float16[batch, 2, {size}, 16] {name}") for size, name in (("past", "past_k"), ("past", "past_v"), ("total", "new_k"), ("total", "new_v"))),
]  # fmt: skip


@pytest.mark.parametrize("place", ["before heads are repeated", "after it"])
def test_keys_that_are_widened_in_between(place: str, tmp_path: Path) -> None:
    if place == "after it":
        edits = [
            ("(k3, repeated)", "(k3, repeated)\n  kw = Cast<to = 1>(k4)"),
            ("[0, 1, 3, 2]>(k4)", "[0, 1, 3, 2]>(kw)"),
            ("  v = Gather<axis = 1>(v3, repeated)", "  vr = Gather<axis = 1>(v3, repeated)\n  v = Cast<to = 1>(vr)"),
        ]
    else:
        edits = [
            (f"  {one}3 = Transpose<perm = [0, 1, 2, 3]>(new_{one})", f"  {one}3 = Cast<to = 1>(new_{one})")
            for one in "kv"
        ]
    done = made(tmp_path, [*HALVES, *edits])
    assert not done.kept
    assert {cache.dtype for cache in done.interface.caches} == {"float16"}
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


WIDE = [
    *HALVES[:1],
    ("  new_k = Concat<axis = 2>(past_k, k2)\n  new_v = Concat<axis = 2>(past_v, v2)\n",
     "  kh = Cast<to = 10>(k2)\n  vh = Cast<to = 10>(v2)\n  pk = Cast<to = 10>(past_k)\n  pv = Cast<to = 10>(past_v)\n"
     "  all_k = Concat<axis = 2>(pk, kh)\n  all_v = Concat<axis = 2>(pv, vh)\n"
     "  new_k = Cast<to = 1>(all_k)\n  new_v = Cast<to = 1>(all_v)\n"),
]  # fmt: skip


def test_caches_of_float16_that_are_handed_out_in_float32(tmp_path: Path) -> None:
    """As converters write them that keep the types of inputs and outputs."""
    done = made(tmp_path, WIDE)
    assert not done.kept
    assert {cache.dtype for cache in done.interface.caches} == {"float16"}
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_caches_that_are_used_in_float32_too_are_no_float16(tmp_path: Path) -> None:
    """The past of the plain loop is that of float16; but a Mul reads it in float32, which the generator must not change."""
    used = (
        "  sums = ReduceMax<keepdims = 0>(all_read)\n  more = Mul(sums, none)\n  yy = Add(y2, more)\n  y = Add(yy, x)"
    )
    edits = [*WIDE, (SUM, f"  all_read = Concat<axis = 2>(past_k, k2)\n{used}")]
    with pytest.raises(GenerationError, match="past_k"):
        made(tmp_path, edits)


def test_queries_of_float16_that_are_scaled_in_float32(tmp_path: Path) -> None:
    """The scale goes into that of the attention, which takes float16 and scales scores in float32."""
    scaled = (
        "  qh = Cast<to = 10>(qt)\n  q = Cast<to = 1>(qh)",
        "  qh = Cast<to = 10>(qt)\n  qw = Cast<to = 1>(qh)\n  q = Mul(qw, third)",
    )
    widened = [
        (f"  {one}3 = Transpose<perm = [0, 1, 2, 3]>(new_{one})", f"  {one}3 = Cast<to = 1>(new_{one})") for one in "kv"
    ]
    done = made(tmp_path, [*HALVES, scaled, *widened], {"third": np.array(0.3, np.float32)})
    assert not done.kept
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_caches_of_a_type_that_attention_does_not_take(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [("float[", "bfloat16[")])
    with pytest.raises(
        GenerationError, match=r"past_k.*: its type is BFLOAT16, and the kernel takes FLOAT and FLOAT16"
    ):
        ortfuse.generator(path, max_length=60)
