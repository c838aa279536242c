"""A small decoder with a cache, as text that tests change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

HEADS, GROUPS, SIZE, WIDTH, WORDS = 4, 2, 16, 64, 50

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (int64[batch, sequence] ids, float[{past}] past_k, float[{past}] past_v{more_in})
=> (float[batch, sequence, 50] scores, float[{present}] new_k, float[{present}] new_v{more_out})
{{
  zero = Constant<value_int = 0>()
  one = Constant<value_int = 1>()
  at_one = Constant<value_ints = [1]>()
  low = Constant<value_float = -3.4e38>()
  none = Constant<value_float = 0.0>()
  x0 = Gather(table, ids)
{before}
  p = Shape<start = {axis}, end = {after}>(past_k)
  s = Shape<start = 1, end = 2>(ids)
  t = Add(p, s)
  p0 = Squeeze(p)
  t0 = Squeeze(t)
  i0 = Range(p0, t0, one)
  i = Unsqueeze(i0, at_one)
  j = Range(zero, t0, one)
  seen = LessOrEqual(j, i)
  mask = Where(seen, none, low)
  qs = Constant<value_ints = [0, 0, 4, 16]>()
  ks = Constant<value_ints = [0, 0, 2, 16]>()
  q0 = MatMul(x, wq)
  k0 = MatMul(x, wk)
  v0 = MatMul(x, wv)
  q1 = Reshape(q0, qs)
  k1 = Reshape(k0, ks)
  v1 = Reshape(v0, ks)
  q = Transpose<perm = [0, 2, 1, 3]>(q1)
  k2 = Transpose<perm = {stored}>(k1)
  v2 = Transpose<perm = {stored}>(v1)
  new_k = Concat<axis = {axis}>(past_k, k2)
  new_v = Concat<axis = {axis}>(past_v, v2)
  k3 = Transpose<perm = {used}>(new_k)
  v3 = Transpose<perm = {used}>(new_v)
  repeated = Constant<value_ints = [0, 0, 1, 1]>()
  k4 = Gather<axis = 1>(k3, repeated)
  v = Gather<axis = 1>(v3, repeated)
  k = Transpose<perm = [0, 1, 3, 2]>(k4)
  quarter = Constant<value_float = 0.25>()
  a0 = MatMul(q, k)
  a1 = Mul(a0, quarter)
  a = Add(a1, mask)
{softmax}
  y0 = MatMul(w, v)
  y1 = Transpose<perm = [0, 2, 1, 3]>(y0)
  ys = Constant<value_ints = [0, 0, 64]>()
  y2 = Reshape(y1, ys)
  y = Add(y2, x)
  scores = MatMul(y, head)
}}
"""

PLAIN = {
    "past": "batch, 2, past, 16", "present": "batch, 2, total, 16", "axis": 2, "after": 3, "stored": "[0, 2, 1, 3]",
    "used": "[0, 1, 2, 3]", "softmax": "  w = Softmax(a)", "before": "  x = Identity(x0)", "more_in": "", "more_out": "",
}  # fmt: skip
LAYOUTS = {
    "heads before length": {},
    "length before heads": {
        "past": "batch, past, 2, 16", "present": "batch, total, 2, 16", "axis": 1, "after": 2, "stored": "[0, 1, 2, 3]",
        "used": "[0, 2, 1, 3]",
    },
    "length last": {
        "past": "batch, 2, 16, past", "present": "batch, 2, 16, total", "axis": 3, "after": 4, "stored": "[0, 2, 3, 1]",
        "used": "[0, 1, 3, 2]",
    },
    "length first": {
        "past": "past, batch, 2, 16", "present": "total, batch, 2, 16", "axis": 0, "after": 1, "stored": "[1, 0, 2, 3]",
        "used": "[1, 2, 0, 3]",
    },
    "sink": {
        "softmax": """
  ss = Shape<start = 0, end = 3>(a)
  s4 = Concat<axis = 0>(ss, at_one)
  sinks = Expand(sink, s4)
  joined = Concat<axis = 3>(a, sinks)
  w1 = Softmax(joined)
  from = Constant<value_ints = [0]>()
  to = Constant<value_ints = [-1]>()
  last = Constant<value_ints = [3]>()
  w = Slice(w1, from, to, last)""",
    },
}  # fmt: skip


def write(
    path: Path, edits: Sequence[tuple[str, str]] = (), numbers: Mapping[str, Any] | None = None, **changes: object
) -> Path:
    """Write a decoder of one layer.

    Args:
        path: The file.
        edits: Pieces of its text that become others.
        numbers: More initializers.
        **changes: Other entries of `PLAIN`.
    """
    text = MODEL.format(**{**PLAIN, **changes})
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    model = parser.parse_model(text)
    random = np.random.default_rng(3)
    shapes = {
        "table": (WORDS, WIDTH), "wq": (WIDTH, HEADS * SIZE), "wk": (WIDTH, GROUPS * SIZE), "wv": (WIDTH, GROUPS * SIZE),
        "head": (WIDTH, WORDS), "sink": (1, HEADS, 1, 1),
    }  # fmt: skip
    for name, shape in shapes.items():
        array = random.standard_normal(shape).astype(np.float32)
        array = array if name in ("table", "sink") else array / np.float32(6)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in (numbers or {}).items()
    )
    onnx.save(model, path)
    return path
