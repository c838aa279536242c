"""Generators of decoders whose positions are given or computed: rows of tables, embeddings and rotary angles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_decoders import EMBEDDED, MASK, SECOND, SUM, TABLE, given, is_right, made

BY_POSITION = """
  jf = Cast<to = 1>(position_ids)
  jg = Add(jf, three)
  jl = Log(jg)
  sc = Unsqueeze(jl, two0)
  yt = Tanh(y0)
  yy0 = Mul(yt, sc)
  yy = Tanh(yy0)
  y1 = Transpose<perm = [0, 2, 1, 3]>(yy)"""


@pytest.mark.parametrize(
    ("declaration", "before", "mixed"),
    [
        ("int64[1, sequence]", "  pe = Gather(places, position_ids)\n  x = Add(x0, pe)", True),
        ("int64[sequence]", "  pe = Gather(places, position_ids)\n  x = Add(x0, pe)", True),
        (
            "int64[3, batch, sequence]",
            "  p3 = Gather(places, position_ids)\n  pe = ReduceSum<keepdims = 0>(p3, z1)\n  x = Add(x0, pe)",
            True,
        ),
        (
            "int64[3, batch, sequence]",
            "  m = Mod(ids, c3)\n  pp = Add(position_ids, m)\n  p3 = Gather(places, pp)\n"
            "  pe = ReduceSum<keepdims = 0>(p3, z1)\n  x = Add(x0, pe)",
            False,
        ),
    ],
)
def test_positions_of_other_ranks(declaration: str, before: str, mixed: bool, tmp_path: Path) -> None:
    numbers = {"places": TABLE, "z1": np.array([0]), "c3": np.array(3)}
    done = made(tmp_path, [given(f"{declaration} position_ids"), (EMBEDDED, before)], numbers)
    assert done.interface.mixed_lengths == mixed
    is_right(tmp_path, done)


def test_one_row_of_positions_for_heads(tmp_path: Path) -> None:
    """[1, sequence, 1] stands against [heads, sequence, size]: its first axis is not that of the sequences."""
    edits = [given("int64[1, sequence] position_ids"), ("\n  y1 = Transpose<perm = [0, 2, 1, 3]>(y0)", BY_POSITION)]
    done = made(tmp_path, edits, {"three": np.float32(3), "two0": np.array([2])})
    assert not done.interface.mixed_lengths
    is_right(tmp_path, done)


FROM_MASK = """  c0 = CumSum(attention_mask, axis_one)
  c1 = Mul(c0, attention_mask)
  so = Shape<start = 1, end = 2>(ids)
  back = Sub(z1, so)
  pids = Slice(c1, back, big, at_one)
  pe = Gather(places, pids)
  x = Add(x0, pe)"""


def test_the_mask_is_as_long_as_past_and_new_tokens(tmp_path: Path) -> None:
    """Its axis has a name of its own, by which the graph alone does not tell how many positions it gives."""
    shown = "  mc = Cast<to = 9>(attention_mask)\n  mu = Unsqueeze(mc, one_two)\n  both = And(seen, mu)\n"
    edits = [
        given("int64[batch, whole] attention_mask"),
        (EMBEDDED, FROM_MASK),
        (MASK, f"{shown}  mask = Where(both, none, low)"),
    ]
    numbers = {
        "places": TABLE, "axis_one": np.array(1), "z1": np.array([0]), "big": np.array([2**62]), "one_two": np.array([1, 2])
    }  # fmt: skip
    done = made(tmp_path, edits, numbers)
    assert done.interface.mixed_lengths
    is_right(tmp_path, done)


TRIANGLE = """  at_two = Constant<value_ints = [2]>()
  at_three = Constant<value_ints = [3]>()
  nought = Constant<value_ints = [0]>()
  rows = Slice(triangle, p, t, at_two)
  both = Slice(rows, nought, t, at_three)
  mask = Where(both, none, low)"""
EMBEDDING = """  p9 = Shape<start = 2, end = 3>(past_k)
  s9 = Shape<start = 1, end = 2>(ids)
  t9 = Add(p9, s9)
  nought = Constant<value_ints = [0]>()
  pe = Slice(places, p9, t9, nought)
  x = Add(x0, pe)"""


@pytest.mark.parametrize(
    ("edit", "numbers"),
    [
        ((MASK, TRIANGLE), {"triangle": np.tril(np.ones((1, 1, 40, 40), bool))}),
        ((MASK, TRIANGLE), {"triangle": np.tril(np.ones((1, 1, 40, 40), bool)) ^ np.tril(np.ones((40, 40), bool), -7)}),
        ((EMBEDDED, EMBEDDING), {"places": TABLE[:40]}),
    ],
    ids=["causal", "window", "embedding"],
)
def test_slices_of_tables_are_rows_of_positions(
    edit: tuple[str, str], numbers: Mapping[str, Any], tmp_path: Path
) -> None:
    done = made(tmp_path, [edit], numbers)
    assert not done.kept
    assert done.interface.max_length == 40
    assert done.interface.mixed_lengths
    is_right(tmp_path, done)


ROTATED = """  {0}t = Transpose<perm = [0, 2, 1, 3]>({0}1)
  {0}_a, {0}_b = Split<axis = 3, num_outputs = 2>({0}t)
  {0}_n = Neg({0}_b)
  {0}_r = Concat<axis = 3>({0}_n, {0}_a)
  {0}_1 = Mul({0}t, cosines)
  {0}_2 = Mul({0}_r, sines)
  {1} = Add({0}_1, {0}_2)"""
ANGLES = """
  jf = Cast<to = 1>(i)
  half = Mul(jf, steps)
  angles = Concat<axis = -1>(half, half)
  cosines = Cos(angles)
  sines = Sin(angles)
"""
ROTARY = [
    ("  q = Transpose<perm = [0, 2, 1, 3]>(q1)", ANGLES + ROTATED.format("q", "q")),
    ("  k2 = Transpose<perm = [0, 2, 1, 3]>(k1)", ROTATED.format("k", "k2")),
]
OTHER_VALUES = """  xx = Add(y2, x)
  q0b = MatMul(xx, wq)
  q1b = Reshape(q0b, qs)
  qb = Transpose<perm = [0, 2, 1, 3]>(q1b)
  u0 = MatMul(xx, second)
  u1 = Reshape(u0, two_heads)
  u2 = Transpose<perm = [0, 2, 1, 3]>(u1)
  new_u = Concat<axis = 2>(past_u, u2)
  u = Gather<axis = 1>(new_u, repeated)
  a0b = MatMul(qb, k)
  a1b = Mul(a0b, quarter)
  ab = Add(a1b, mask)
  wb = Softmax(ab)
  y0b = MatMul(wb, u)
  y1b = Transpose<perm = [0, 2, 1, 3]>(y0b)
  y2b = Reshape(y1b, ys)
  y3b = MatMul(y2b, out_of_second)
  y = Add(y3b, xx)"""
STEPS = {"steps": (1 / 10000 ** (np.arange(8) / 8)).astype(np.float32)}


@pytest.mark.parametrize("single", [False, True])
def test_angles_by_position(single: bool, tmp_path: Path) -> None:
    """If a run takes one token, no other steps are looked at; its one row is no table of one row."""
    done = made(tmp_path, [*ROTARY, *([("sequence", "1")] if single else [])], STEPS)
    assert done.interface.max_length == 60
    (node,) = (node for node in done.model.graph if node.op_type == "GroupQueryAttention")
    assert node.attributes["do_rotary"].value == 1
    assert done.interface.mixed_lengths != single
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_one_token_a_run_with_a_causal_mask_of_its_own(tmp_path: Path) -> None:
    """The shapes are right for one token alone, so that no other steps can be evaluated."""
    mask = "  tq = Concat<axis = 0>(at_one, t)\n  row = Expand(none, tq)\n  mask = Where(seen, row, low)"
    done = made(tmp_path, [("sequence", "1"), (MASK, mask)])
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_a_second_attention_reads_rotated_keys(tmp_path: Path) -> None:
    done = made(tmp_path, [*ROTARY, (SUM, SECOND.format(scores="  ab = Add(a1b, mask)"))], STEPS)
    assert not done.kept
    assert done.interface.mixed_lengths
    is_right(tmp_path, done)


@pytest.mark.parametrize(("first", "second"), [(16, 20), (20, 16), (12, 12)])
@pytest.mark.parametrize("rotary", [False, True])
def test_layers_that_share_keys_have_heads_of_one_size(first: int, second: int, rotary: bool, tmp_path: Path) -> None:
    """The keys of 16 are padded as the larger values are, for both layers; so are the values of the other layer."""
    edits = [
        *(
            (f"float[batch, 2, {length}, 16] {side}_v", f"{sized}{first}] {side}_v, {sized}{second}] {side}_u")
            for length, side in (("past", "past"), ("total", "new"))
            for sized in [f"float[batch, 2, {length}, "]
        ),
        ("MatMul(x, wv)", "MatMul(x, first)"),
        ("Reshape(v0, ks)", "Reshape(v0, two_heads)"),
        ("[0, 0, 64]", "[0, 0, -1]"),
        ("  y2 = Reshape(y1, ys)", "  y3 = Reshape(y1, ys)\n  y2 = MatMul(y3, out_of_first)"),
        (SUM, OTHER_VALUES),
        *(ROTARY if rotary else ()),
    ]
    weights = {
        "first": (64, 2 * first), "second": (64, 2 * second), "out_of_first": (4 * first, 64), "out_of_second": (4 * second, 64)
    }  # fmt: skip
    random = np.random.default_rng(7)
    numbers = {name: (random.standard_normal(shape) / 6).astype(np.float32) for name, shape in weights.items()}
    done = made(tmp_path, edits, {**STEPS, **numbers, "two_heads": np.array([0, 0, 2, -1])})
    assert not done.kept
    assert sum(node.op_type == "GroupQueryAttention" for node in done.model.graph) == 2
    assert {cache.shape for cache in done.interface.caches} == {(-1, 2, 60, 24 if max(first, second) > 16 else 16)}
    is_right(tmp_path, done)


def test_angles_that_know_the_length(tmp_path: Path) -> None:
    scaled = ANGLES.replace("jf = Cast<to = 1>(i)", "ji = Cast<to = 1>(i)\n  tf = Cast<to = 1>(t)\n  jf = Div(ji, tf)")
    done = made(tmp_path, [(ROTARY[0][0], scaled + ROTATED.format("q", "q")), ROTARY[1]], STEPS)
    assert not done.interface.mixed_lengths
    is_right(tmp_path, done)
