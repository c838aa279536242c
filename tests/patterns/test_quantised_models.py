"""Models that are quantised already: what is between quantised numbers is fused as ever, integer kernels and small weights stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.runtime.bench.executed_operators import executed_ops

RNG = np.random.default_rng(0)

CONSTANTS: dict[str, Any] = {
    "s": np.float32(0.03), "z": np.uint8(128), "s2": np.float32(0.1), "z2": np.uint8(120), "z0": np.uint8(0),
    "w": RNG.integers(-99, 99, (16, 16)).astype(np.int8), "t": np.float32(0.01), "o": np.int8(0),
    "k": RNG.integers(-99, 99, (8, 4, 3, 3)).astype(np.int8), "fk": RNG.normal(size=(8, 4, 3, 3)).astype(np.float32),
    "fw": RNG.normal(size=(16, 16)).astype(np.float32), "b": RNG.normal(size=16).astype(np.float32),
    "fb": RNG.normal(size=8).astype(np.float32), "g": RNG.normal(size=16).astype(np.float32),
    "bq": RNG.integers(-999, 999, 16).astype(np.int32), "bs": np.float32(0.0003), "bz": np.int32(0),
    "w2": RNG.integers(-99, 99, (16, 16)).astype(np.int8), "t16": np.full(16, 0.01, np.float32), "u16": np.full(16, 0.01, np.float32),
    "o16": np.zeros(16, np.int8), "p16": np.zeros(16, np.int8),
    "quarter": np.float32(0.25), "half": np.float32(0.5), "one": np.float32(1), "root": np.float32(2**0.5), "rows": np.array([0, -1, 16]),
    "heads": np.array([0, 0, 2, 8]), "merged": np.array([0, 0, 16]), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "blocks": np.full((16, 1), 0.02, np.float32), "eps": np.float32(1e-5), "last": np.array([-1]), "two": np.float32(2),
}  # fmt: skip

IN = "a = QuantizeLinear(x, s, z) d = DequantizeLinear(a, s, z)"
WEIGHT = f"{IN} v = DequantizeLinear(w, t, o)"
KERNEL = f"{IN} v = DequantizeLinear(k, t, o)"
OUT = "e = QuantizeLinear(n, s2, z2) y = DequantizeLinear(e, s2, z2)"
RELU = "n = Relu(c) e = QuantizeLinear(n, s2, z0) y = DequantizeLinear(e, s2, z0)"

IMAGE = ("float[u,4,8,8] x", "float[u,8,m,n] y", (2, 4, 8, 8))
ROWS = ("float[u,l,16] x", "float[u,l,16] y", (2, 5, 16))
TABLE = ("float[u,16] x", "float[u,16] y", (2, 16))


def model(body: str, ends: tuple[str, str, Any], opset: int = 21) -> tuple[ir.Model, dict[str, Any]]:
    """A model, and inputs of it."""
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> graph ({ends[0]}) => ({ends[1]}) {{ {body} }}'
    )
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in CONSTANTS.items() if name in used
    )
    return ir.from_proto(made), {"x": np.random.default_rng(1).normal(size=ends[2]).astype(np.float32)}


def integers(model: ir.Model, inputs: dict[str, Any]) -> Counter[str]:
    """The integer operators that are executed."""
    kinds = ("QLinear", "Integer", "DynamicQuantizeMatMul", "QGemm", "MatMulNBits")
    return Counter({name: n for name, n in executed_ops(model, inputs).items() if any(kind in name for kind in kinds)})


IN_INTEGERS = {
    "a product": (f"{WEIGHT} n = MatMul(d, v) {OUT}", ROWS),
    "a product and its bias": (f"{WEIGHT} m = MatMul(d, v) n = Add(m, b) {OUT}", ROWS),
    "a product and a factor": (f"{WEIGHT} m = MatMul(d, v) n = Mul(m, quarter) {OUT}", ROWS),
    "a product that is not quantised again": (f"{WEIGHT} m = MatMul(d, v) y = Mul(m, quarter)", ROWS),
    "a product with a transposed weight": (f"{WEIGHT} vt = Transpose(v) n = MatMul(d, vt) {OUT}", ROWS),
    "a Gemm": (f"{WEIGHT} c = DequantizeLinear(bq, bs, bz) n = Gemm(d, v, c) {OUT}", TABLE),
    "a convolution": (f"{KERNEL} c = Conv(d, v) {RELU}", IMAGE),
    "a convolution with weights that the runtime quantises": (f"{IN} c = Conv(d, fk, fb) {RELU}", IMAGE),
    "a padded convolution": (f"{KERNEL} p = Pad(d, pads) n = Conv(p, v) {OUT}", IMAGE),
    "a residual sum": (
        f"{KERNEL} c = Conv(d, v) i = QuantizeLinear(c, s2, z2) j = DequantizeLinear(i, s2, z2) q = Add(j, j) "
        "n = Relu(q) e = QuantizeLinear(n, s2, z0) y = DequantizeLinear(e, s2, z0)", IMAGE,
    ),
    "a weight that is quantised in the graph": (
        f"{IN} i = QuantizeLinear(fw, t, o) v = DequantizeLinear(i, t, o) n = MatMul(d, v) {OUT}", ROWS,
    ),
    "a product of what was moved": (
        f"{WEIGHT} r = Reshape(d, rows) i = QuantizeLinear(r, s, z) j = DequantizeLinear(i, s, z) n = MatMul(j, v) {OUT}", ROWS,
    ),
    "a weight in blocks": ("v = DequantizeLinear <axis = 1, block_size = 16> (w, blocks) y = MatMul(x, v)", ROWS),
    "weights of each column whose zero points are alike": (
        "v = DequantizeLinear <axis = 1> (w, t16, o16) h = MatMul(x, v) r = Add(h, b) a = Relu(r) "
        "j = DequantizeLinear <axis = 1> (w2, u16, p16) i = MatMul(a, j) y = Add(i, g)", ROWS,
    ),
    "a mean of picked numbers": (
        f"{IN} p = MaxPool <kernel_shape = [2, 2]> (d) n = GlobalAveragePool(p) {OUT}", IMAGE,
    ),
    "numbers with a scale of their own": (
        "a, p, q = DynamicQuantizeLinear(x) i = MatMulInteger(a, w, q, o) f = Cast <to = 1> (i) r = Mul(p, t) m = Mul(f, r) y = Add(m, b)",
        ROWS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_INTEGERS)
def test_what_the_runtime_computes_in_integers_stays_so(name: str) -> None:
    original, inputs = model(*IN_INTEGERS[name])
    weights = {
        value.name: value.const_value.nbytes for value in original.graph.initializers.values() if value.const_value
    }
    result = ortfuse.optimize(original, verify="whole", inputs=[inputs])
    before, after = integers(original, inputs), integers(result.model, inputs)
    assert before.total() <= after.total(), (before, after)
    now = [value.const_value.nbytes for value in result.model.graph.initializers.values() if value.const_value]
    assert sum(now) <= sum(weights.values()) + 64


def split(value: str, name: str) -> str:
    return f"r{name} = Reshape({value}, heads) {name} = Transpose<perm = [0, 2, 1, 3]>(r{name})"


ATTENTION = (
    f"{WEIGHT} h = MatMul(d, v) hb = Add(h, b) {split('h', 'q')} {split('hb', 'l')} {split('h', 'u')} "
    "lt = Transpose<perm = [0, 1, 3, 2]>(l) sc = MatMul(q, lt) ss = Mul(sc, quarter) p = Softmax(ss) "
    f"c = MatMul(p, u) ct = Transpose<perm = [0, 2, 1, 3]>(c) n = Reshape(ct, merged) {OUT}"
)
GELU = "n1 = Div(i, root) n2 = Erf(n1) n3 = Add(n2, one) n4 = Mul(i, n3) n = Mul(n4, half)"
NORM = (
    "mu = ReduceMean(i, last) c = Sub(i, mu) sq = Pow(c, two) va = ReduceMean(sq, last) ve = Add(va, eps) sd = Sqrt(ve) "
    "nn = Div(c, sd) ng = Mul(nn, g) n = Add(ng, b)"
)

FUSED = {
    "attention": (ATTENTION, "Attention"),
    "gelu": (f"{WEIGHT} i = MatMul(d, v) {GELU} {OUT}", "Gelu"),
    "gelu of quantised numbers": (
        f"i = Identity(d) {GELU} {OUT}".replace("i = Identity(d)", IN.replace("d =", "i =")),
        "Gelu",
    ),
    "layer normalisation": (f"{WEIGHT} i = MatMul(d, v) {NORM} {OUT}", "LayerNormalization"),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_is_between_quantised_numbers_is_fused(name: str) -> None:
    body, operator = FUSED[name]
    original, inputs = model(body, ROWS, 23 if operator == "Attention" else 20)
    result = ortfuse.optimize(original, verify="whole", inputs=[inputs])
    assert operator in [node.op_type for node in result.model.graph]
    assert integers(original, inputs).total() <= integers(result.model, inputs).total()


def test_attention_over_quantised_scores_keeps_its_integers() -> None:
    """Its weights are rounded to steps, which no attention operator does."""
    pair = "p = Softmax(ss) pq = QuantizeLinear(p, quarter, z0) pd = DequantizeLinear(pq, quarter, z0)"
    body = ATTENTION.replace("p = Softmax(ss)", pair).replace("MatMul(p, u)", "MatMul(pd, u)")
    original, inputs = model(body, ROWS, 23)
    result = ortfuse.optimize(original, verify="whole", inputs=[inputs])
    assert [node.op_type for node in result.model.graph].count("QuantizeLinear") == 3


@pytest.mark.parametrize("second", ["s, z", "s2, z", "s, z2"])
def test_a_transpose_between_pairs_of_other_scales_keeps_them_apart(second: str) -> None:
    """The runtime makes one of two pairs next to each other, with a scale of its own, which rounds elsewhere."""
    body = f"""front = Constant<value_ints = [0]>() q0 = QuantizeLinear(x, s, z) d0 = DequantizeLinear(q0, s, z) lifted = Unsqueeze(d0, front)
        q1 = QuantizeLinear(lifted, s, z) d1 = DequantizeLinear(q1, s, z) v = Transpose<perm = [4, 3, 2, 0, 1]>(d1)
        p0 = QuantizeLinear(v, {second}) e0 = DequantizeLinear(p0, {second}) m = Sigmoid(e0)
        p1 = QuantizeLinear(m, {second}) y = DequantizeLinear(p1, {second})"""
    made, _ = model(body, ("float[2, 4, 6, 8] x", "float[8, 6, 4, 1, 2] y", (2, 4, 6, 8)), 20)
    for node in ortfuse.optimize(made, verify="whole").model.graph:
        above = node.inputs[0].producer() if node.op_type == "QuantizeLinear" else None
        if above is not None and above.op_type == "DequantizeLinear":
            assert [value.name for value in above.inputs[1:]] == [value.name for value in node.inputs[1:]]


@pytest.mark.parametrize(
    "nothing", ["Transpose<perm = [0, 1, 2]>(d)", "Reshape(d, same)", "Slice(d, o1, far, ends)", "Identity(d)"]
)
@pytest.mark.parametrize("second", ["s, z", "s2, z", "s, z2"])
def test_what_does_nothing_keeps_pairs_of_other_scales_apart(nothing: str, second: str) -> None:
    """The runtime itself looks through an Identity alone."""
    body = f"""{IN} same = Constant<value_ints = [0, 0, 16]>() o1 = Constant<value_ints = [0]>() far = Constant<value_ints = [99]>()
        ends = Constant<value_ints = [2]>() v = {nothing}
        p0 = QuantizeLinear(v, {second}) e0 = DequantizeLinear(p0, {second}) m = Sigmoid(e0)
        q1 = QuantizeLinear(m, s, z) y = DequantizeLinear(q1, s, z)"""
    made, inputs = model(body, ("float[2, 5, 16] x", "float[2, 5, 16] y", (2, 5, 16)), 20)
    result = ortfuse.optimize(made, verify="whole", inputs=[inputs])
    assert not [note for note in result.report.notes if "failed" in note]
    apart = second != "s, z" and "Identity" not in nothing
    assert len(list(result.model.graph)) == (8 if apart else 7)


FIXED_ROWS = ("float[2,5,16] x", "float[2,5,16] y", (2, 5, 16))
TURNED = f"{IN} v = DequantizeLinear <axis = 0> (w, t16, o16) tv = Transpose <perm = [1, 0]> (v)"
MISSED = {
    "a weight that is transposed, and a bias": (f"{TURNED} c = MatMul(d, tv) y = Add(c, b)", FIXED_ROWS),
    "Gemm with a bias in float32": (f"{WEIGHT} y = Gemm(d, v, b)", TABLE),
    "the same, transposed": (f"{WEIGHT} c = Gemm<transB = 1>(d, v, b) y = Relu(c)", TABLE),
    "MatMul and Add with two axes": (f"{WEIGHT} c = MatMul(d, v) y = Add(b, c)", TABLE),
    "rows of known sizes": (f"{WEIGHT} c = MatMul(d, v) y = Add(c, b)", FIXED_ROWS),
}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights whose products do not saturate on any processor."""
    monkeypatch.setitem(CONSTANTS, "w", CONSTANTS["w"] // 2)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("name", MISSED)
def test_what_the_runtime_would_leave_in_float32_is_computed_in_integers(name: str) -> None:
    before, inputs = model(*MISSED[name])
    after = ortfuse.optimize(before.clone()).model
    assert not integers(before, inputs)
    assert sum(integers(after, inputs).values()) == 1
    verdict = ortfuse.verify(before, after)
    assert verdict.ok, verdict.summary()


def test_what_saturates_in_integers_stays_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortfuse.patterns.ort_workarounds.enable_quantized_gemm.saturates", lambda: True)
    before, inputs = model(*MISSED["rows of known sizes"])
    after = ortfuse.optimize(before.clone()).model
    assert not integers(after, inputs)
    assert ortfuse.verify(before, after).ok
