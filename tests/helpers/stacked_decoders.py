"""A small decoder of two layers, whose caches come in and go out in one of many layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

LAYERS, HEADS, GROUPS, SIZE, WIDTH, WORDS = 2, 4, 2, 16, 64, 50

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (int64[batch, sequence] ids{inputs}) => (float[batch, sequence, 50] scores{outputs})
{{
  zero = Constant<value_int = 0>()
  one = Constant<value_int = 1>()
  low = Constant<value_float = -3.4e38>()
  none = Constant<value_float = 0.0>()
  quarter = Constant<value_float = 0.25>()
  at_zero = Constant<value_ints = [0]>()
  at_one = Constant<value_ints = [1]>()
  at_two = Constant<value_ints = [2]>()
  at_three = Constant<value_ints = [3]>()
  at_four = Constant<value_ints = [4]>()
  first_two = Constant<value_ints = [0, 1]>()
  heads = Constant<value_ints = [0, 0, 4, 16]>()
  groups = Constant<value_ints = [0, 0, 2, 16]>()
  width = Constant<value_ints = [0, 0, 64]>()
  repeated = Constant<value_ints = [0, 0, 1, 1]>()
  bs = Shape<start = 0, end = 1>(ids)
  x_0 = Gather(table, ids)
{load}
  p = Shape<start = 2, end = 3>(past_v_0)
  s = Shape<start = 1, end = 2>(ids)
  t = Add(p, s)
  p0 = Squeeze(p)
  t0 = Squeeze(t)
  i0 = Range(p0, t0, one)
  i = Unsqueeze(i0, at_one)
  j = Range(zero, t0, one)
{seen}
  mask = Where(seen, none, low)
{layers}
{store}
  scores = MatMul(x_2, head)
}}
"""

SEEN = "  seen = LessOrEqual(j, i)"
NEAR = """
  causal = LessOrEqual(j, i)
  ij = Sub(i, j)
  seven = Constant<value_int = 7>()
  near = Less(ij, seven)
  seen = And(causal, near)"""

LAYER = """
  q0_{0} = MatMul(x_{0}, wq_{0})
  k0_{0} = MatMul(x_{0}, wk_{0})
  v0_{0} = MatMul(x_{0}, wv_{0})
  q1_{0} = Reshape(q0_{0}, heads)
  k1_{0} = Reshape(k0_{0}, groups)
  v1_{0} = Reshape(v0_{0}, groups)
  q_{0} = Transpose<perm = [0, 2, 1, 3]>(q1_{0})
  k2_{0} = Transpose<perm = [0, 2, 1, 3]>(k1_{0})
  v2_{0} = Transpose<perm = [0, 2, 1, 3]>(v1_{0})
{append}
  k3_{0} = Gather<axis = 1>(k_{0}, repeated)
  v3_{0} = Gather<axis = 1>(v_{0}, repeated)
  k4_{0} = Transpose<perm = [0, 1, 3, 2]>(k3_{0})
  a0_{0} = MatMul(q_{0}, k4_{0})
  a1_{0} = Mul(a0_{0}, quarter)
  a_{0} = Add(a1_{0}, mask)
  w_{0} = Softmax(a_{0})
  y0_{0} = MatMul(w_{0}, v3_{0})
  y1_{0} = Transpose<perm = [0, 2, 1, 3]>(y0_{0})
  y2_{0} = Reshape(y1_{0}, width)
  x_{after} = Add(y2_{0}, x_{0})
"""

APPEND = """
  k_{0} = Concat<axis = 2>(past_k_{0}, k2_{0})
  v_{0} = Concat<axis = 2>(past_v_{0}, v2_{0})"""


@dataclass(frozen=True)
class Layout:
    """A layout.

    Attributes:
        inputs: Declared inputs.
        outputs: Declared outputs.
        load: What makes past_k_0, past_v_0, past_k_1 and past_v_1 of them, [batch, groups, past, size].
        store: What makes the outputs of k_0, v_0, k_1 and v_1, [batch, groups, total, size].
        append: What makes these of k2_0 and so on, [batch, groups, sequence, size].
        seen: What makes the mask.
    """

    inputs: str
    outputs: str
    load: str
    store: str
    append: str = APPEND
    seen: str = SEEN


def each(text: str) -> str:
    """A text for each layer."""
    return "".join(text.format(layer) for layer in range(LAYERS))


LAYOUTS: Mapping[str, Layout] = {
    "one tensor, by Gather": Layout(
        ", float[2, 2, batch, 2, past, 16] past",
        ", float[2, 2, batch, 2, total, 16] present",
        each("""
  l{0} = Constant<value_int = {0}>()
  past_{0} = Gather<axis = 0>(past, l{0})
  past_k_{0} = Gather<axis = 0>(past_{0}, zero)
  past_v_{0} = Gather<axis = 0>(past_{0}, one)"""),
        each("""
  uk_{0} = Unsqueeze(k_{0}, first_two)
  uv_{0} = Unsqueeze(v_{0}, first_two)
  u_{0} = Concat<axis = 1>(uk_{0}, uv_{0})""") + "\n  present = Concat<axis = 0>(u_0, u_1)",
    ),
    "one tensor, by Split": Layout(
        ", float[4, batch, 2, past, 16] past",
        ", float[4, batch, 2, total, 16] present",
        """
  s0, s1, s2, s3 = Split<axis = 0, num_outputs = 4>(past)
  past_k_0 = Squeeze(s0, at_zero)
  past_v_0 = Squeeze(s1, at_zero)
  past_k_1 = Squeeze(s2, at_zero)
  past_v_1 = Squeeze(s3, at_zero)""",
        each("""
  uk_{0} = Unsqueeze(k_{0}, at_zero)
  uv_{0} = Unsqueeze(v_{0}, at_zero)""") + "\n  present = Concat<axis = 0>(uk_0, uv_0, uk_1, uv_1)",
    ),
    "one tensor, by Slice and Reshape": Layout(
        ", float[2, 2, batch, 2, past, 16] past",
        ", float[2, 2, batch, 2, total, 16] present",
        "\n  ps = Shape<start = 4, end = 5>(past)\n  sixteen = Constant<value_ints = [16]>()\n"
        "  unstacked = Concat<axis = 0>(at_two, bs, at_two, ps, sixteen)" + each("""
  l{0} = Constant<value_ints = [{0}]>()
  e{0} = Add(l{0}, at_one)
  past_{0} = Slice(past, l{0}, e{0}, at_zero)
  pr_{0} = Reshape<allowzero = 1>(past_{0}, unstacked)
  past_k_{0} = Gather<axis = 0>(pr_{0}, zero)
  past_v_{0} = Gather<axis = 0>(pr_{0}, one)"""),
        each("""
  uk_{0} = Unsqueeze(k_{0}, first_two)
  uv_{0} = Unsqueeze(v_{0}, first_two)
  u_{0} = Concat<axis = 1>(uk_{0}, uv_{0})""") + "\n  present = Concat<axis = 0>(u_0, u_1)",
    ),
    "keys and values beside each other, by heads": Layout(
        each(", float[batch, 4, past, 16] past_{0}"),
        each(", float[batch, 4, total, 16] present_{0}"),
        each("\n  past_k_{0}, past_v_{0} = Split<axis = 1, num_outputs = 2>(past_{0})"),
        each("\n  present_{0} = Concat<axis = 1>(k_{0}, v_{0})"),
    ),
    "keys and values beside each other, appended together": Layout(
        each(", float[batch, 2, past, 32] past_{0}"),
        each(", float[batch, 2, total, 32] present_{0}"),
        "\n  past_v_0 = Identity(past_0)",
        "",
        """
  kv_{0} = Concat<axis = 3>(k2_{0}, v2_{0})
  present_{0} = Concat<axis = 2>(past_{0}, kv_{0})
  k_{0}, v_{0} = Split<axis = 3, num_outputs = 2>(present_{0})""",
    ),
    "heads and batch in one axis": Layout(
        each(", float[rows, past, 16] past_k{0}, float[rows, past, 16] past_v{0}"),
        each(", float[rows, total, 16] new_k{0}, float[rows, total, 16] new_v{0}"),
        "\n  past_v_0 = Unsqueeze(past_v0, at_zero)\n  flat = Constant<value_ints = [-1, 0, 16]>()\n"
        "  sn = Shape<start = 1, end = 2>(ids)\n  sixteen = Constant<value_ints = [16]>()\n"
        "  minus = Constant<value_ints = [-1]>()\n  flatn = Concat<axis = 0>(minus, sn, sixteen)\n",
        "",
        """
  kf_{0} = Reshape(k2_{0}, flatn)
  vf_{0} = Reshape(v2_{0}, flatn)
  new_k{0} = Concat<axis = 1>(past_k{0}, kf_{0})
  new_v{0} = Concat<axis = 1>(past_v{0}, vf_{0})
  four_{0} = Concat<axis = 0>(bs, at_two, t, sixteen)
  k_{0} = Reshape(new_k{0}, four_{0})
  v_{0} = Reshape(new_v{0}, four_{0})""",
    ),
    "heads and batch in one axis, keys transposed": Layout(
        each(", float[rows, 16, past] past_k{0}, float[rows, past, 16] past_v{0}"),
        each(", float[rows, 16, total] new_k{0}, float[rows, total, 16] new_v{0}"),
        "\n  past_v_0 = Unsqueeze(past_v0, at_zero)\n"
        "  sn = Shape<start = 1, end = 2>(ids)\n  sixteen = Constant<value_ints = [16]>()\n"
        "  minus = Constant<value_ints = [-1]>()\n  flatn = Concat<axis = 0>(minus, sn, sixteen)\n",
        "",
        """
  kf_{0} = Reshape(k2_{0}, flatn)
  vf_{0} = Reshape(v2_{0}, flatn)
  kt_{0} = Transpose<perm = [0, 2, 1]>(kf_{0})
  new_k{0} = Concat<axis = 2>(past_k{0}, kt_{0})
  new_v{0} = Concat<axis = 1>(past_v{0}, vf_{0})
  four_{0} = Concat<axis = 0>(bs, at_two, t, sixteen)
  fourk_{0} = Concat<axis = 0>(bs, at_two, sixteen, t)
  kr_{0} = Reshape(new_k{0}, fourk_{0})
  k_{0} = Transpose<perm = [0, 1, 3, 2]>(kr_{0})
  v_{0} = Reshape(new_v{0}, four_{0})""",
    ),
    "heads and batch in one axis, apart before something is appended": Layout(
        each(", float[rows, 16, past] past_k{0}, float[rows, past, 16] past_v{0}"),
        each(", float[rows, 16, total] new_k{0}, float[rows, total, 16] new_v{0}"),
        each("""
  ps_{0} = Shape<start = 1, end = 2>(past_v{0})
  four_{0} = Concat<axis = 0>(bs, at_two, ps_{0}, sixteen)
  fourk_{0} = Concat<axis = 0>(bs, at_two, sixteen, ps_{0})
  past_v_{0} = Reshape<allowzero = 1>(past_v{0}, four_{0})
  kr_{0} = Reshape<allowzero = 1>(past_k{0}, fourk_{0})
  past_k_{0} = Transpose<perm = [0, 1, 3, 2]>(kr_{0})""").replace(
            "\n  ps_0", "\n  sixteen = Constant<value_ints = [16]>()\n  ps_0", 1
        ),
        each("""
  minus_{0} = Constant<value_ints = [-1]>()
  flatk_{0} = Concat<axis = 0>(minus_{0}, sixteen, t)
  flatv_{0} = Concat<axis = 0>(minus_{0}, t, sixteen)
  kt_{0} = Transpose<perm = [0, 1, 3, 2]>(k_{0})
  new_k{0} = Reshape(kt_{0}, flatk_{0})
  new_v{0} = Reshape(v_{0}, flatv_{0})"""),
    ),
    "appended together, by ScatterND": Layout(
        ", float[4, batch, 2, past, 16] past",
        ", float[4, batch, 2, total, 16] present",
        """
  s0, s1, s2, s3 = Split<axis = 0, num_outputs = 4>(past)
  past_k_0 = Squeeze(s0, at_zero)
  past_v_0 = Squeeze(s1, at_zero)
  past_k_1 = Squeeze(s2, at_zero)
  past_v_1 = Squeeze(s3, at_zero)
  last = Concat<axis = 0>(at_zero, at_zero, at_zero, at_zero, at_zero, at_zero, at_zero, at_zero, sn, at_zero)
  grown_0 = Pad(past, last)""".replace("  last =", "  sn = Shape<start = 1, end = 2>(ids)\n  last ="),
        "".join(
            f"\n  i_{what} = Constant<value = int64[1, 1] {{{number}}}>()\n  u_{what} = Unsqueeze({what}, at_zero)"
            f"\n  {'present' if number == 3 else f'grown_{number + 1}'} = ScatterND(grown_{number}, i_{what}, u_{what})"
            for number, what in enumerate(("k_0", "v_0", "k_1", "v_1"))
        ),
    ),
    "heads and sizes in one axis": Layout(
        each(", float[batch, past, 32] past_k{0}, float[batch, past, 32] past_v{0}"),
        each(", float[batch, total, 32] new_k{0}, float[batch, total, 32] new_v{0}"),
        "\n  past_v_0 = Unsqueeze(past_v0, at_one)",
        "",
        """
  new_k{0} = Concat<axis = 1>(past_k{0}, k0_{0})
  new_v{0} = Concat<axis = 1>(past_v{0}, v0_{0})
  kr_{0} = Reshape(new_k{0}, groups)
  vr_{0} = Reshape(new_v{0}, groups)
  k_{0} = Transpose<perm = [0, 2, 1, 3]>(kr_{0})
  v_{0} = Transpose<perm = [0, 2, 1, 3]>(vr_{0})""",
    ),
    "layers last, tokens first": Layout(
        ", float[past, batch, 2, 16, 4] past",
        ", float[total, batch, 2, 16, 4] present",
        """
  s0, s1, s2, s3 = Split<axis = 4, num_outputs = 4>(past)"""
        + "".join(
            f"\n  z{n} = Squeeze(s{n}, at_four)\n  past_{what} = Transpose<perm = [1, 2, 0, 3]>(z{n})"
            for n, what in enumerate(("k_0", "v_0", "k_1", "v_1"))
        ),
        "".join(
            f"\n  t_{what} = Transpose<perm = [2, 0, 1, 3]>({what})\n  u_{what} = Unsqueeze(t_{what}, at_four)"
            for what in ("k_0", "v_0", "k_1", "v_1")
        )
        + "\n  present = Concat<axis = 4>(u_k_0, u_v_0, u_k_1, u_v_1)",
    ),
    "one tensor, cut to a window": Layout(
        ", float[4, batch, 2, past, 16] past",
        ", float[4, batch, 2, total, 16] present",
        """
  s0, s1, s2, s3 = Split<axis = 0, num_outputs = 4>(past)
  past_k_0 = Squeeze(s0, at_zero)
  past_v_0 = Squeeze(s1, at_zero)
  past_k_1 = Squeeze(s2, at_zero)
  past_v_1 = Squeeze(s3, at_zero)""",
        each("""
  uk_{0} = Unsqueeze(k_{0}, at_zero)
  uv_{0} = Unsqueeze(v_{0}, at_zero)""") + """
  whole = Concat<axis = 0>(uk_0, uv_0, uk_1, uv_1)
  before = Constant<value_ints = [-6]>()
  big = Constant<value_ints = [9223372036854775807]>()
  present = Slice(whole, before, big, at_three)""",
        seen=NEAR,
    ),
}  # fmt: skip


def text_of(layout: Layout) -> str:
    """The model as text, without its numbers."""
    layers = "".join(
        LAYER.format(layer, after=layer + 1, append=layout.append.format(layer)) for layer in range(LAYERS)
    )
    return MODEL.format(
        inputs=layout.inputs,
        outputs=layout.outputs,
        load=layout.load,
        store=layout.store,
        layers=layers,
        seen=layout.seen,
    )


def write_stacked(path: Path, layout: Layout) -> Path:
    """Write the decoder with a layout."""
    model = parser.parse_model(text_of(layout))
    random = np.random.default_rng(3)
    shapes = {"table": (WORDS, WIDTH), "head": (WIDTH, WORDS)}
    for layer in range(LAYERS):
        sizes = {"wq": HEADS * SIZE, "wk": GROUPS * SIZE, "wv": GROUPS * SIZE}
        shapes |= {f"{name}_{layer}": (WIDTH, size) for name, size in sizes.items()}
    for name, shape in shapes.items():
        array = random.standard_normal(shape).astype(np.float32)
        array = array if name == "table" else array / np.float32(6)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, path)
    return path
