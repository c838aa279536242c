"""Generators of decoders whose tokens meet outside of attention, which need prompts of one length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edited_decoders import EMBEDDED, MASK, PROMPTS, SUM, TABLE, is_right, made

import ortfuse
from ortfuse.errors import GenerationError

AXIS = "  along = Constant<value_ints = [1]>()\n"
MEETING = {
    "mean": (SUM, AXIS + "  mean = ReduceMean(x, along)\n  y3 = Add(y2, x)\n  y = Add(y3, mean)", "ReduceMean"),
    "other sequences": (
        SUM,
        "  along = Constant<value_ints = [0]>()\n  mean = ReduceMean(x, along)\n  y3 = Add(y2, x)\n  y = Add(y3, mean)",
        "ReduceMean",
    ),
    "backwards": (
        EMBEDDED,
        """  end = Constant<value_ints = [-9223372036854775807]>()
  back = Constant<value_ints = [-1]>()
  reversed = Slice(x0, back, end, at_one, back)
  x = Add(x0, reversed)""",
        "GroupQueryAttention",
    ),
    "first token": (
        EMBEDDED,
        "  start = Constant<value_ints = [0]>()\n  first = Slice(x0, start, at_one, at_one)\n  x = Add(x0, first)",
        "takes tokens of a run at 0",
    ),
    "sums": (EMBEDDED, "  x1 = CumSum(x0, one)\n  x = Add(x0, x1)", "CumSum"),
    "a place among tokens": (
        EMBEDDED,
        """  share = Sigmoid(x0)
  whole = Floor(share)
  indices = Cast<to = 7>(whole)
  x1 = ScatterElements<axis = 1, reduction = "add">(x0, indices, x0)
  x = Add(x0, x1)""",
        "at indices that are computed from tokens",
    ),
    "number of tokens": (SUM, "  sf = Cast<to = 1>(s)\n  y3 = Add(y2, x)\n  y = Add(y3, sf)", "lengths of a run"),
    "positions in the run": (
        EMBEDDED,
        "  s0 = Squeeze(s)\n  i1 = Range(zero, s0, one)\n  p1 = Gather(rows, i1)\n  x = Add(x0, p1)",
        "lengths of a run",
    ),
    "late": (
        EMBEDDED,
        "  late = Greater(t0, c40)\n  lf = Cast<to = 1>(late)\n  x1 = Mul(x0, lf)\n  x = Add(x0, x1)",
        "lengths of a run",
    ),
}


@pytest.mark.parametrize("kind", MEETING)
def test_tokens_that_meet_outside_of_attention_need_one_length(kind: str, tmp_path: Path) -> None:
    old, new, why = MEETING[kind]
    done = made(tmp_path, [(old, new)], {"c40": np.array(40), "rows": TABLE})
    assert not done.interface.mixed_lengths
    assert why in done.one_length
    is_right(tmp_path, done)
    model = ortfuse.Generator(tmp_path / "out")
    for shared in (False, True):
        with pytest.raises(GenerationError, match=r"one length|leave shared_prefix out"):
            model.generate(PROMPTS, max_new_tokens=3, shared_prefix=shared)


TURNED = (
    "  xt = Transpose<perm = [0, 2, 1]>(x0)\n  c = {conv}\n  ct = Transpose<perm = [0, 2, 1]>(c)\n  x = Add(x0, ct)"
)
APART = {
    "an expert for each token": """  router = MatMul(x0, wr)
  best, expert = TopK<axis = -1>(router, at_one)
  own = Gather(experts, expert)
  flat = Squeeze(own, at_two)
  x = Mul(x0, flat)""",
    "the weights of its expert": """  router = MatMul(x0, wr)
  best, expert = TopK<axis = -1>(router, at_one)
  tuple = Unsqueeze(expert, at_two)
  own = GatherND(experts, tuple)
  flat = Squeeze(own, at_two)
  x = Mul(x0, flat)""",
    "the scores of its experts": """  router = MatMul(x0, wr)
  best, expert = TopK<axis = -1>(router, at_one)
  kept = Neg(router)
  score = GatherElements<axis = -1>(kept, expert)
  all = Mul(router, zero_f)
  chosen = ScatterElements<axis = -1>(all, expert, score)
  both = Add(chosen, kept)
  mixed = MatMul(both, experts)
  x = Mul(x0, mixed)""",
    "scores that are repeated along their own axis": """  router = MatMul(x0, wr)
  best, expert = TopK<axis = -1>(router, at_one)
  copies = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(best, , scales)
  mixed = MatMul(copies, experts)
  x = Mul(x0, mixed)""",
    "channels": TURNED.format(conv="Conv(xt, kernel1)"),
}


@pytest.mark.parametrize("kind", APART)
def test_tokens_that_stay_apart_take_several_lengths(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    numbers = {"wr": (64, 4), "experts": (4, 64), "kernel1": (64, 64, 1)}
    arrays = {name: (random.standard_normal(shape) / 8).astype(np.float32) for name, shape in numbers.items()}
    arrays |= {"zero_f": np.float32(0), "scales": np.array([1, 1, 4], np.float32)}
    done = made(tmp_path, [(EMBEDDED, APART[kind])], {**arrays, "at_two": np.array([2])})
    assert done.interface.mixed_lengths, done.one_length
    is_right(tmp_path, done)


@pytest.mark.parametrize(
    "conv", ["Conv<pads = [2, 0]>(xt, kernel3)", "Conv<pads = [1, 1]>(xt, kernel3)", "Conv<pads = [1, 0]>(xt, kernel2)"]
)
def test_convolutions_over_tokens_need_one_length(conv: str, tmp_path: Path) -> None:
    kernels = {f"kernel{size}": np.full((64, 64, size), 0.01, np.float32) for size in (2, 3)}
    done = made(tmp_path, [(EMBEDDED, TURNED.format(conv=conv))], kernels)
    assert "Conv" in done.one_length
    is_right(tmp_path, done)


def test_tokens_that_a_resize_repeats_need_one_length(tmp_path: Path) -> None:
    resized = """  twice = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric">(x0, , scales)
  start = Constant<value_ints = [0]>()
  x1 = Slice(twice, start, s, at_one)
  x = Add(x0, x1)"""
    done = made(tmp_path, [(EMBEDDED, resized)], {"scales": np.array([1, 2, 1], np.float32)})
    assert "Resize" in done.one_length
    is_right(tmp_path, done)


def test_positions_that_wrap_are_those_of_each_sequence(tmp_path: Path) -> None:
    wrapped = "  iw = Mod(i0, eight)\n  p1 = Gather(rows, iw)\n  x = Add(x0, p1)"
    done = made(tmp_path, [(EMBEDDED, wrapped)], {"eight": np.array(8), "rows": TABLE})
    assert done.interface.mixed_lengths, done.one_length
    is_right(tmp_path, done)


def test_a_mask_that_is_another_for_prompts_of_one_length(tmp_path: Path) -> None:
    mask = "  s0 = Squeeze(s)\n  odd = Equal(s0, c40)\n  shown = Or(seen, odd)\n  mask = Where(shown, none, low)"
    with pytest.raises(GenerationError, match="after 0 tokens, for 40 new ones, other keys are visible"):
        made(tmp_path, [(MASK, mask)], {"c40": np.array(40)})
