"""Blocks are found by what they compute, in whatever order and spelling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.inspection import DETECTORS, PASSES, Block, find_blocks
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import op, var


def normal(text: str) -> ir.Model:
    """The canonical form of a model in which inputs called w... are weights."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 20]> {text}')
    rng = np.random.default_rng(0)
    for value in [value for value in proto.graph.input if value.name.startswith("w")]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        proto.graph.input.remove(value)
    return ortfuse.optimize(ir.from_proto(proto), passes=PASSES).model


def blocks(text: str) -> list[Block]:
    model = normal(text)
    return find_blocks(model, Facts(model))


def kinds(text: str) -> list[str]:
    return [block.kind for block in blocks(text)]


GOLDEN = Path(__file__).parents[2] / "golden" / "models"
IMAGE = "float[N, 8, 6, 6]"


@pytest.mark.parametrize(
    ("layers", "kind"),
    [
        ("a = Conv(x, w8x4)  b = Relu(a)  c = Conv <pads = [1, 1, 1, 1]> (b, w4x4x3)  d = Relu(c)  e = Conv(d, w4x8)", "bottleneck"),
        ("a = Conv(x, w8x16)  b = Relu(a)  c = Conv <pads = [1, 1, 1, 1], group = 16> (b, w16x1x3)  d = Relu(c)  e = Conv(d, w16x8)",
         "inverted residual"),
        ("a = Conv(x, w8x16)  b = Relu(a)  c = Conv <pads = [1, 1, 1, 1], group = 2> (b, w16x8x3)  d = Relu(c)  e = Conv(d, w16x8)",
         "bottleneck"),
        ("a = Conv <pads = [1, 1, 1, 1]> (x, w8x8x3)  b = Relu(a)  e = Conv <pads = [1, 1, 1, 1]> (b, w8x8x3)", "residual"),
    ],
)  # fmt: skip
def test_residual_blocks_are_told_apart_by_their_convolutions(layers: str, kind: str) -> None:
    weights = ("float[4, 8, 1, 1] w8x4, float[4, 4, 3, 3] w4x4x3, float[8, 4, 1, 1] w4x8, float[16, 8, 1, 1] w8x16, "
               "float[16, 1, 3, 3] w16x1x3, float[16, 8, 3, 3] w16x8x3, float[8, 16, 1, 1] w16x8, float[8, 8, 3, 3] w8x8x3")  # fmt: skip
    assert kinds(f"g ({IMAGE} i, {weights}) => ({IMAGE} y) {{ x = Exp(i)  {layers}  s = Add(e, x)  y = Relu(s) }}") == [
        kind
    ]


def test_a_projection_as_the_shortcut() -> None:
    assert kinds(f"""g ({IMAGE} i, float[16, 8, 1, 1] wp, float[4, 8, 1, 1] wa, float[4, 4, 3, 3] wb, float[16, 4, 1, 1] wc)
        => (float[N, 16, 6, 6] y) {{ x = Relu(i)  a = Conv(x, wa)  b = Relu(a)  c = Conv <pads = [1, 1, 1, 1]> (b, wb)
        d = Relu(c)  e = Conv(d, wc)  p = Conv(x, wp)  y = Add(p, e) }}""") == ["bottleneck"]


def test_sums_that_no_layer_is_skipped_by_are_no_blocks() -> None:
    assert (
        kinds("""g (float[N, 8] i, float[8, 8] wa, float[8, 8] wb) => (float[N, 8] y)
        { x = Exp(i)  a = MatMul(x, wa)  b = MatMul(x, wb)  c = Add(a, b)  d = Sin(c)  y = Add(c, d) }""")
        == []
    )


def test_squeeze_and_excite_within_an_inverted_residual_block() -> None:
    found = blocks(f"""g ({IMAGE} i, float[8, 1, 3, 3] wd, float[2, 8, 1, 1] ws, float[8, 2, 1, 1] we, float[8, 8, 1, 1] wp)
        => ({IMAGE} y) {{ x = Relu(i)  d = Conv <pads = [1, 1, 1, 1], group = 8> (x, wd)
        m = GlobalAveragePool(d)  s = Conv(m, ws)  r = Relu(s)  e = Conv(r, we)  g = Sigmoid(e)  h = Mul(g, d)
        p = Conv(h, wp)  y = Add(x, p) }}""")
    assert [block.name for block in found] == ["squeeze-and-excite 0", "inverted residual 0"]
    assert {node.op_type for node in found[0].nodes} == {"GlobalAveragePool", "Conv", "Relu", "Sigmoid", "Mul"}


FFN = "float[8, 16] wu, float[16] wub, float[16, 8] wd, float[8] wdb"


def test_feed_forward_layers_alone_and_in_a_row() -> None:
    text = f"""g (float[N, 8] x, {FFN}) => (float[N, 8] y)
        {{ a = MatMul(x, wu)  b = Add(wub, a)  c = Relu(b)  d = MatMul(c, wd)  y = Add(d, wdb) }}"""
    (found,) = blocks(text)
    assert found.kind == "feed-forward"
    assert len(found.nodes) == 5
    row = text.replace("y = Add(d, wdb)", "e = Add(d, wdb)  f = Relu(e)  y = MatMul(f, wu)").replace(
        "N, 8] y", "N, 16] y"
    )
    (found,) = blocks(row)
    assert sum(node.op_type == "MatMul" for node in found.nodes) == 3


def test_gated_feed_forward_layers() -> None:
    assert (
        kinds("""g (float[N, 8] x, float[8, 16] wg, float[8, 16] wu, float[16, 8] wd) => (float[N, 8] y)
        { a = MatMul(x, wg)  s = Sigmoid(a)  b = Mul(a, s)  c = MatMul(x, wu)  d = Mul(b, c)  y = MatMul(d, wd) }""")
        == ["feed-forward"]
    )


ATTENTION = """q = MatMul(n, wq)  k = MatMul(n, wk)  v = MatMul(n, wv)  t = Transpose <perm = [0, 2, 1]> (k)
    z = MatMul(q, t)  sc = Mul(z, half)  p = Softmax(sc)  o = MatMul(p, v)  ao = MatMul(o, wo)"""
WEIGHTS = "float[8, 8] wq, float[8, 8] wk, float[8, 8] wv, float[8, 8] wo, float[8] wn"


def test_attention_and_the_feed_forward_layers_behind_it_are_a_transformer() -> None:
    ffn = "fu = MatMul(m, wu)  fr = Relu(fu)  fd = MatMul(fr, wd)"
    head = f"g (float[N, 5, 8] i, {WEIGHTS}, {FFN}) => (float[N, 5, 8] y) <float half = {{0.5}}>"
    before = f"""{head} {{ x = Exp(i)  n = LayerNormalization(x, wn)  {ATTENTION}  r = Add(x, ao)
        m = LayerNormalization(r, wn)  {ffn}  y = Add(fd, r) }}"""
    after = f"""{head} {{ n = Exp(i)  {ATTENTION}  r = Add(ao, n)
        m = LayerNormalization(r, wn)  {ffn}  f = Add(m, fd)  y = LayerNormalization(f, wn) }}"""
    parallel = f"""{head} {{ x = Exp(i)  n = LayerNormalization(x, wn)  {ATTENTION}  m = Identity(n)  g = MatMul(m, wu)
        {ffn}  gg = Mul(fr, g)  e = MatMul(gg, wd)  s = Add(ao, e)  y = Add(s, x) }}"""
    for text in (before, after, parallel):
        assert kinds(text) == ["transformer"], text
    assert kinds(f"{head} {{ x = Exp(i)  n = LayerNormalization(x, wn)  {ATTENTION}  y = Add(x, ao) }}") == [
        "attention"
    ]


def test_a_sum_with_positions_within_a_block_is_none_of_its_own() -> None:
    head = f"g (float[N, 5, 8] i, {WEIGHTS}) => (float[N, 5, 8] y) <float half = {{0.5}}>"
    assert kinds(f"""{head} {{ e = Exp(i)  a = MatMul(e, wo)  x = LayerNormalization(a, wn)  n = Add(x, e)
        {ATTENTION}  y = Add(ao, x) }}""") == ["attention"]


def test_a_depthwise_convolution_before_dense_layers_is_an_inverted_residual() -> None:
    text = f"""g (float[N, 8, 6, 6] i, float[8, 1, 3, 3] wc, {FFN}) => (float[N, 8, 6, 6] y) {{ x = Exp(i)
        c = Conv <pads = [1, 1, 1, 1], group = 8> (x, wc)  t = Transpose <perm = [0, 2, 3, 1]> (c)  a = MatMul(t, wu)
        b = Add(a, wub)  r = Relu(b)  d = MatMul(r, wd)  u = Transpose <perm = [0, 3, 1, 2]> (d)  y = Add(u, x) }}"""
    assert kinds(text) == ["inverted residual"]


def test_recurrent_layers_and_loops_with_a_state() -> None:
    assert kinds("""g (float[L, N, 8] x, float[1, 12, 8] ww, float[1, 12, 3] wr) => (float[L, 1, N, 3] y, float[1, N, 3] h)
        { y, h = LSTM <hidden_size = 3> (x, ww, wr) }""") == ["recurrent"]
    scan = """g (float[N, 8] h, float[L, N, 8] x, float[8, 8] w) => (float[N, 8] z, float[L, N, 8] y)
        { z, y = Scan <num_scan_inputs = 1, body = step (float[N, 8] s, float[N, 8] xi) => (float[N, 8] so, float[N, 8] yo)
          { m = MatMul(s, w)  so = Add(m, xi)  yo = Tanh(so) }> (h, x) }"""
    assert kinds(scan) == ["recurrent"]
    assert kinds(scan.replace("MatMul(s, w)", "Sin(s)")) == []


def test_an_unrolled_chain_of_cells_is_one_block() -> None:
    cells = "  ".join(f"g{t} = Gather <axis = 0> (x, i{t})  a{t} = MatMul(g{t}, ww)  b{t} = MatMul(h{t}, wr)  "
                      f"c{t} = Add(a{t}, b{t})  h{t + 1} = Tanh(c{t})" for t in range(4))  # fmt: skip
    numbers = ", ".join(f"int64 i{t} = {{{t}}}" for t in range(4))
    text = f"""g (float[4, 1, 8] x, float[1, 6] h0, float[8, 6] ww, float[6, 6] wr) => (float[1, 6] h4) <{numbers}> {{ {cells} }}"""
    assert kinds(text) == ["recurrent"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("bert.sdpa.ts", {"transformer": 2}),
        ("whisper_decoder.sdpa.ts", {"transformer": 2}),
        ("phi.sdpa.ts", {"transformer": 2}),
        ("resnet.tsbn", {"bottleneck": 3}),
        ("regnet.tsbn", {"bottleneck": 3, "squeeze-and-excite": 3}),
        ("convnext.dynamo", {"inverted residual": 3}),
        ("wav2vec2_conformer_rotary.ts", {"convolutions": 1, "conformer": 2}),
        ("detr.sdpa.ts", {"residual": 2, "transformer": 4, "feed-forward": 1}),
        ("lstm_cells.ts", {"recurrent": 2}),
    ],
)
def test_blocks_of_exports(name: str, found: dict[str, int]) -> None:
    assert ortfuse.inspect(GOLDEN / f"{name}.onnx", measure=False).kinds() == found


def test_detectors_stand_in_rules_of_the_users_own() -> None:
    detector = DETECTORS["residual"]
    model = normal("""g (float[N, 8] i, float[8, 8] wa, float[8] wb) => (float[N, 8] y)
        { x = Exp(i)  t = Add(x, wb)  a = MatMul(t, wa)  y = Add(a, x) }""")
    found = list(ortfuse.find(model, detector.pattern, guards=detector.guards))
    assert [match.root.name for match in found] == ["y"]
    x, y = var("x", "n 8"), var("y", "n 8")
    rule = Rule(name="mine.residual", pattern=op.Add(x, y), replace=op.Sum(y, x), guards=detector.guards,
                exactness=Exactness.EXACT, source="test", test=RuleTest())  # fmt: skip
    result = ortfuse.optimize(model, patterns=rule, passes="user")
    assert [node.op_type for node in result.model.graph] == ["Exp", "Add", "MatMul", "Sum"]


CONVOLVED = (
    f"g ({IMAGE} i, float[8, 8, 3, 3] wa, float[8, 8, 3, 3] wb, float[8, 8, 1, 1] wc, float[4, 4, 3, 3] wd, "
    "float[8, 16, 1, 1] we)"
)
SAME = "<pads = [1, 1, 1, 1]>"


@pytest.mark.parametrize(
    ("layers", "kind"),
    [
        (f"a = Conv(x, wc)  b = Conv {SAME} (x, wa)  c = Relu(b)  y = Concat <axis = 1> (a, c)", "branches"),
        ("a = Conv(x, wc)  b = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)  c = Conv(b, wc)  "
         "y = Concat <axis = 1> (a, c)", "branches"),
        (f"a = Conv(x, wc)  b = Conv {SAME} (x, wa)  s = Add(a, b)  y = Relu(s)", "branches"),
        (f"a = Conv(x, wc)  b = Conv {SAME} (x, wa)  s = Add(a, b)  t = Add(s, x)  y = Relu(t)", "branches"),
        (f"a = Conv {SAME} (x, wa)  b = Relu(a)  y = Concat <axis = 1> (x, b)", "dense"),
        (f"a = Conv {SAME} (x, wa)  b = Relu(a)  c = Concat <axis = 1> (x, b)  d = Conv(c, we)  "
         "y = Concat <axis = 1> (c, d)", "dense"),
        (f"l, r = Split <axis = 1, num_outputs = 2> (x)  a = Conv {SAME} (r, wd)  b = Relu(a)  y = Concat <axis = 1> (l, b)",
         "cross-stage"),
        (f"l, r = Split <axis = 1, num_outputs = 2> (x)  a = Conv {SAME} (r, wd)  b = Relu(a)  c = Concat <axis = 1> (l, b)  "
         "v = Reshape(c, into)  t = Transpose <perm = [0, 2, 1, 3, 4]> (v)  y = Reshape(t, back)", "shuffle"),
    ],
)  # fmt: skip
def test_blocks_whose_layers_stand_beside_one_another(layers: str, kind: str) -> None:
    given = "<int64[5] into = {-1, 2, 4, 6, 6}, int64[4] back = {-1, 8, 6, 6}>"
    assert kinds(f"{CONVOLVED} => (float[N, c, 6, 6] y) {given} {{ x = Exp(i)  {layers} }}") == [kind]


@pytest.mark.parametrize(
    "layers",
    [
        "a = Sin(x)  y = Concat <axis = 1> (x, a)",
        f"a = Conv {SAME} (x, wa)  y = Concat <axis = 0> (x, a)",
        "p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)  a = Conv(p, wc)  r = Resize(a, , half)  "
        "y = Concat <axis = 1> (x, r)",
        "a = Conv(x, wc)  b = Conv(x, wc)  c = Sin(a)  d = Reshape(c, flat)  e = Reshape(b, flat)  y = Concat <axis = 1> (d, e)",
    ],
)
def test_what_is_joined_but_no_block(layers: str) -> None:
    given = "<float[4] half = {1, 1, 2, 2}, int64[3] flat = {-1, 288, 1}>"
    assert kinds(f"{CONVOLVED} => (float[N, c, h, k] y) {given} {{ x = Exp(i)  {layers} }}") == []


POOL = "p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)"


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        (f"{POOL}  e = Conv {SAME} (p, wa)  f = Relu(e)  y = Conv(f, wc)", 2),
        (f"{POOL}  e = Conv {SAME} (p, wa)  f = Relu(e)  y = Add(f, e)", 1),
        ("y = Sub(d, b)", 0),
        (f"{POOL}  t = Transpose <perm = [0, 1, 3, 2]> (p)  y = Conv(t, wc)", 1),
    ],
)
def test_convolutions_in_a_row_that_are_in_no_other_block(layers: str, found: int) -> None:
    first = f"a = Conv {SAME} (x, wa)  b = Relu(a)  c = Conv {SAME} (b, wb)  d = LeakyRelu(c)"
    assert (
        kinds(f"{CONVOLVED} => (float[N, 8, h, k] y) {{ x = Exp(i)  {first}  {layers} }}") == ["convolutions"] * found
    )


@pytest.mark.parametrize(
    ("body", "kind"), [("m = Mul(s, u)  n = Add(m, u)", ["recurrent"]), ("m = Exp(u)  n = Add(s, m)", [])]
)
def test_a_scan_is_recurrent_if_its_state_is_multiplied(body: str, kind: list[str]) -> None:
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 20]> g (float[T, 8] x, float[8] z) => (float[T, 8] y) {{
        l, y = Scan <num_scan_inputs = 1, body = step (float[8] s, float[8] u) => (float[8] n, float[8] o)
            {{ {body}  o = Sin(n) }}> (z, x) }}""")
    model = ir.from_proto(proto)
    assert [block.kind for block in find_blocks(model, Facts(model))] == kind
