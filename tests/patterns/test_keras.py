"""What Keras and TensorFlow's exporter write: sequences as images, heads split off by sums over indices, masks as factors."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import ortfuse

NUMBERS = np.random.default_rng(5)


def optimised(body: str, signature: str, **weights: np.ndarray) -> Counter[str]:
    """The operators of the result, which was compared with the original."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> agraph ({signature}) => (float[r0, r1, r2] r) {{ {body} }}'
    )
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    result = ortfuse.optimize(model)
    verdict = ortfuse.verify(model, result.model)
    assert verdict.ok, verdict.summary()
    return Counter(node.op_type for node in result.model.graph.node)


def numbers(*shape: int) -> np.ndarray:
    return (NUMBERS.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def ints(*elements: int) -> np.ndarray:
    return np.array(elements, np.int64)


SEQUENCE = """i = Unsqueeze(x, one) t = Transpose<perm = [0, 3, 1, 2]>(i) c = {layer}(t, w) u = Transpose<perm = [0, 2, 3, 1]>(c)
    s = Squeeze(u, one) a = Add(s, bias) m = Mul(a, scale) n = Add(m, shift) r = Relu(n)"""


@pytest.mark.parametrize(
    ("layer", "shape"), [("Conv<pads = [0, 1, 0, 1], strides = [1, 2]>", (8, 4, 1, 3)), ("ConvTranspose", (4, 8, 1, 3))]
)
def test_a_convolution_of_a_sequence_takes_bias_normalisation_and_activation(
    layer: str, shape: tuple[int, ...]
) -> None:
    weights = {"w": numbers(*shape), "bias": numbers(8), "scale": numbers(8), "shift": numbers(8), "one": ints(1)}
    found = optimised(SEQUENCE.format(layer=layer), "float[b, s, 4] x", **weights)
    assert not found.keys() & {"Unsqueeze", "Squeeze", "Mul", "BatchNormalization", "Add"}, found


def test_a_kernel_over_both_axes_stays() -> None:
    body = "i = Unsqueeze(x, two) c = Conv<pads = [1, 1, 1, 1]>(i, w) r = Squeeze(c, two)"
    found = optimised(body, "float[b, 4, s] x", w=numbers(8, 4, 3, 3), two=ints(2))
    assert found == Counter({"Unsqueeze": 1, "Conv": 1, "Squeeze": 1})


HEADS = """f{n} = Reshape(x, flat) g{n} = Gemm<beta = 0.0>(f{n}, w{n}) z{n} = Shape(x) k{n} = Slice(z{n}, zero, two)
    t{n} = Concat<axis = 0>(k{n}, apart) h{n} = Reshape(g{n}, t{n}) q{n} = Squeeze(h{n}, four) {n} = Add(q{n}, b{n})"""

ATTENTION = """
    qu = Unsqueeze(q, three) qt = Transpose<perm = [0, 2, 1, 3, 4]>(qu) ku = Unsqueeze(k, one) kt = Transpose<perm = [0, 3, 1, 2, 4]>(ku)
    sz = Shape(kt) lead = Slice(sz, zero, two) batches = ReduceProd<axes = [0], keepdims = 1>(lead) length = Slice(sz, three, four)
    qm = Concat<axis = 0>(batches, rest, size) qr = Reshape(qt, qm) kr = Reshape(kt, qm) kx = Transpose<perm = [0, 2, 1]>(kr)
    p = MatMul(qr, kx) ps = Concat<axis = 0>(lead, length, length, one) pr = Reshape(p, ps) pq = Squeeze(pr, four)
    {masked} pu = Unsqueeze(w, three) pm = Concat<axis = 0>(batches, rest, length) px = Reshape(pu, pm)
    vu = Unsqueeze(v, two) vt = Transpose<perm = [0, 3, 2, 4, 1]>(vu) vr = Reshape(vt, pm) vx = Transpose<perm = [0, 2, 1]>(vr)
    o = MatMul(px, vx) os = Concat<axis = 0>(lead, length, size, one) or = Reshape(o, os) oq = Squeeze(or, four)
    ot = Transpose<perm = [0, 2, 1, 3]>(oq) os3 = Concat<axis = 0>(k_, all) r = Reshape(ot, os3)"""

CONSTANTS = {
    **{name: ints(number) for name, number in {"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4}.items()},
    "flat": ints(-1, 16), "apart": ints(2, 8, 1), "rest": ints(-1), "size": ints(8), "all": ints(16),
    "lowest": np.float32(-2.3e38), "true": np.array(True), "both": ints(0, 1), "number": np.int64(1), "nought": np.int64(0),
    "unit": np.int64(1), "scale": np.float32(0.35), "filler": np.float32(-1e9), "gain": np.ones(16, np.float32),
}  # fmt: skip


def multi_head(masked: str, *, signature: str = "", before: str = "x = Identity(given)") -> Counter[str]:
    weights = {f"{kind}{name}": numbers(*shape) for name in "qkv" for kind, shape in (("w", (16, 16)), ("b", (2, 8)))}
    split = "\n".join(HEADS.format(n=name) for name in "qkv")
    body = f"{before} xs = Shape(given) k_ = Slice(xs, zero, two) {split} {ATTENTION.format(masked=masked)}"
    return optimised(body, f"float[b, s, 16] given{signature}", **weights, **CONSTANTS)


PLAIN = "m = Mul(pq, scale) w = Softmax<axis = -1>(m)"

KEPT = """m = Mul(pq, scale) y = Cast<to = 1>(keep) n = Not(keep) z = Cast<to = 1>(n) e = Mul(y, m) f = Mul(filler, z) d = Add(e, f)
    i = Softmax<axis = -1>(d) w = Mul(y, i)"""

NORMALISED = "x = LayerNormalization<axis = -1>(given, gain)"


MASKED = """m = Mul(pq, scale) sh = Shape(m) all_ = Expand(true, sh) kp = And(all_, keep) y = Cast<to = 1>(kp) n = Not(kp)
    z = Cast<to = 1>(n) e = Mul(y, m) f = Mul(lowest, z) d = Add(e, f) w = Softmax<axis = -1>(d)"""

CAUSAL = """m = Mul(pq, scale) sh = Shape(m) ci = Cast<to = 6>(sh) st = Slice(ci, two, four) l64 = Cast<to = 7>(st) at = Gather(l64, number)
    rows = Range(nought, at, unit) column = Unsqueeze(rows, one) table = LessOrEqual(rows, column) keep4 = Unsqueeze(table, both)
    y = Cast<to = 1>(keep4) n = Not(keep4) z = Cast<to = 1>(n) e = Mul(y, m) f = Mul(lowest, z) d = Add(e, f) w = Softmax<axis = -1>(d)"""


@pytest.mark.parametrize(("masked", "signature"), [(MASKED, ", bool[b, 1, s, s] keep"), (CAUSAL, "")])
def test_a_mask_by_which_scores_are_multiplied(masked: str, signature: str) -> None:
    assert multi_head(masked, signature=signature)["Attention"] == 1


def test_attention_by_sums_over_indices_of_open_sizes() -> None:
    found = multi_head(PLAIN)
    assert found["Attention"] == 1
    assert not found.keys() & {"Reshape", "Transpose", "Shape", "ReduceProd", "Concat", "Softmax"}, found


def test_a_mask_by_which_scores_and_weights_are_multiplied() -> None:
    found = multi_head(KEPT, signature=", bool[b, 1, s, s] keep", before=NORMALISED)
    assert found["Attention"] == 1, found
    assert "Softmax" not in found


def test_scores_of_unknown_size_might_be_as_low_as_the_filler() -> None:
    found = multi_head(KEPT, signature=", bool[b, 1, s, s] keep")
    assert not found["Attention"], found


def test_positions_counted_in_floats_are_as_many_as_the_sequence_is_long() -> None:
    body = """z = Shape(x) l = Gather(z, at) f = Cast<to = 1>(l) n = Range(zero, f, one) c = Unsqueeze(n, axis)
        g = GreaterOrEqual(c, n) h = Cast<to = 1>(g) r = Add(x, h)"""
    found = optimised(body, "float[b, s, s] x", at=np.int64(1), zero=np.float32(0), one=np.float32(1), axis=ints(1))
    assert found["Cast"] == 1, found


def test_integers_are_chosen_instead_of_multiplied() -> None:
    body = """y = Cast<to = 6>(c) n = Not(c) z = Cast<to = 6>(n) p = Mul(y, a) q = Mul(z, e) i = Add(p, q) r = Cast<to = 1>(i)"""
    assert optimised(body, "bool[b, s, 3] c, int32[b, s, 3] a, int32[3] e") == Counter({"Where": 1, "Cast": 1})


def test_halves_that_are_stacked_and_flattened_are_joined() -> None:
    body = """p, q = Split<axis = -1>(x, sizes) n = Neg(q) s = Unsqueeze(n, three) t = Unsqueeze(p, three)
        u = Concat<axis = 3>(s, t) k = Shape(x) v = Reshape(u, k) w = Mul(v, x) r = ReduceSum<keepdims = 0>(w, three)"""
    found = optimised(body, "float[b, s, 2, 8] x", sizes=ints(4, 4), three=ints(3))
    assert not found.keys() & {"Unsqueeze", "Reshape", "Shape"}, found


def test_an_end_of_a_thousand_million_is_open() -> None:
    body = "u = Slice(x, zero, far, one) r = Relu(u)"
    found = optimised(body, "float[b, s, 3] x", zero=ints(0), far=ints(10**9), one=ints(1))
    assert found == Counter({"Relu": 1})


def test_layers_of_a_sequence_in_a_row_are_layers_of_one_axis() -> None:
    body = """i = Unsqueeze(x, one) t = Transpose<perm = [0, 3, 1, 2]>(i) d = Conv<group = 4, pads = [0, 1, 0, 1]>(t, depth) c = Conv(d, w)
        m = MaxPool<kernel_shape = [1, 2], strides = [1, 2]>(c) s = Squeeze(m, two) r = Add(s, bias)"""
    weights = {"depth": numbers(4, 1, 1, 3), "w": numbers(8, 4, 1, 1), "bias": numbers(8, 1)}
    found = optimised(body, "float[b, 9, 4] x", one=ints(1), two=ints(2), **weights)
    assert not found.keys() & {"Unsqueeze", "Squeeze"}, found


def test_a_transposed_convolution_makes_no_elements_that_are_trimmed() -> None:
    body = "c = ConvTranspose<strides = [2]>(x, w) r = Slice(c, zero, last, two)"
    found = optimised(body, "float[b, 4, 7] x", w=numbers(4, 8, 3), zero=ints(0), last=ints(-1), two=ints(2))
    assert found == Counter({"ConvTranspose": 1})
