"""A small decoder whose cache holds latents, of which each step computes keys and values, as text that tests change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

HEADS, PASS, ROTATED, RANK, VALUE, WIDTH, WORDS = 4, 8, 4, 12, 6, 64, 50

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (int64[batch, sequence] ids, float[batch, 1, past, 12] past_c, float[batch, 1, past, 4] past_r)
=> (float[batch, sequence, 50] scores, float[batch, 1, total, 12] new_c, float[batch, 1, total, 4] new_r)
{
  zero = Constant<value_int = 0>()
  one = Constant<value_int = 1>()
  at_one = Constant<value_ints = [1]>()
  low = Constant<value_float = -3.4e38>()
  none = Constant<value_float = 0.0>()
  x = Gather(table, ids)
  p = Shape<start = 2, end = 3>(past_c)
  s = Shape<start = 1, end = 2>(ids)
  t = Add(p, s)
  p0 = Squeeze(p)
  t0 = Squeeze(t)
  i0 = Range(p0, t0, one)
  i = Unsqueeze(i0, at_one)
  j = Range(zero, t0, one)
  seen = LessOrEqual(j, i)
  mask = Where(seen, none, low)
  number = Cast<to = 1>(i)
  angle = Mul(number, frequencies)
  cos = Cos(angle)
  sin = Sin(angle)
  two_two = Constant<value_ints = [2, 2]>()
  qs = Constant<value_ints = [0, 0, 4, 12]>()
  q0 = MatMul(x, wq)
  q1 = Reshape(q0, qs)
  q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
  parts = Constant<value_ints = [8, 4]>()
  q_pass, q3 = Split<axis = 3>(q2, parts)
  q_one, q_two = Split<axis = 3>(q3, two_two)
  q_a = Mul(q_one, cos)
  q_b = Mul(q_two, sin)
  q_c = Mul(q_two, cos)
  q_d = Mul(q_one, sin)
  q_ab = Sub(q_a, q_b)
  q_cd = Add(q_c, q_d)
  q_rot = Concat<axis = 3>(q_ab, q_cd)
  q = Concat<axis = 3>(q_pass, q_rot)
  c0 = MatMul(x, wa)
  shares = Constant<value_ints = [12, 4]>()
  c1, r0 = Split<axis = 2>(c0, shares)
  c2 = Tanh(c1)
  c = Unsqueeze(c2, at_one)
  r1 = Unsqueeze(r0, at_one)
  r_one, r_two = Split<axis = 3>(r1, two_two)
  r_a = Mul(r_one, cos)
  r_b = Mul(r_two, sin)
  r_c = Mul(r_two, cos)
  r_d = Mul(r_one, sin)
  r_ab = Sub(r_a, r_b)
  r_cd = Add(r_c, r_d)
  r = Concat<axis = 3>(r_ab, r_cd)
  new_c = Concat<axis = 2>(past_c, c)
  new_r = Concat<axis = 2>(past_r, r)
  kv0 = MatMul(new_c, wb)
  kvs = Constant<value_ints = [0, -1, 4, 14]>()
  kv1 = Reshape(kv0, kvs)
  kv2 = Transpose<perm = [0, 2, 1, 3]>(kv1)
  pieces = Constant<value_ints = [8, 6]>()
  k_pass, v = Split<axis = 3>(kv2, pieces)
  repeats = Constant<value_ints = [1, 4, 1, 1]>()
  k_rot = Expand(new_r, repeats)
  k = Concat<axis = 3>(k_pass, k_rot)
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  factor = Constant<value_float = 0.3>()
  a0 = MatMul(q, kt)
  a1 = Mul(a0, factor)
  a = Add(a1, mask)
  w = Softmax(a)
  y0 = MatMul(w, v)
  y1 = Transpose<perm = [0, 2, 1, 3]>(y0)
  ys = Constant<value_ints = [0, 0, 24]>()
  y2 = Reshape(y1, ys)
  y3 = MatMul(y2, wo)
  y = Add(y3, x)
  scores = MatMul(y, head)
}
"""


def write(path: Path, edits: Sequence[tuple[str, str]] = (), numbers: Mapping[str, Any] | None = None) -> Path:
    """Write a decoder of one layer.

    Args:
        path: The file.
        edits: Pieces of its text that become others.
        numbers: More initializers, or others.
    """
    text = MODEL
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    model = parser.parse_model(text)
    random = np.random.default_rng(3)
    shapes = {
        "table": (WORDS, WIDTH), "wq": (WIDTH, HEADS * (PASS + ROTATED)), "wa": (WIDTH, RANK + ROTATED),
        "wb": (RANK, HEADS * (PASS + VALUE)), "wo": (HEADS * VALUE, WIDTH), "head": (WIDTH, WORDS),
    }  # fmt: skip
    arrays = {name: random.standard_normal(shape).astype(np.float32) / np.float32(6) for name, shape in shapes.items()}
    arrays["table"] *= np.float32(6)
    arrays["wb"] *= np.float32(3)
    arrays["frequencies"] = np.array([1.0, 0.1], np.float32)
    given = {value.name for value in model.graph.input}
    arrays |= {name: np.asarray(array) for name, array in (numbers or {}).items()}
    used = {name for node in model.graph.node for name in node.input} - given
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used
    )
    onnx.save(model, path)
    return path
