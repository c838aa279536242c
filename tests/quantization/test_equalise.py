"""Channels are made alike by factors that products take in, so that schemes lose less, and nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.quantization import lowered, sites
from ortfuse.quantization.calibration import calibrate
from ortfuse.quantization.cross_layer_equalization import equalised
from ortfuse.quantization.find_equalizable_channels import links
from ortfuse.quantization.quantization_sites import names_to_observe
from ortfuse.runtime.session import Session

RNG = np.random.default_rng(0)
OUTLIERS = np.ones(32, np.float32)
OUTLIERS[[3, 7, 20]] = 60, 25, 0.05


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


MATRICES = {
    "g": normal(32, 32), "u": normal(32, 32) * OUTLIERS, "v": normal(32, 32) / OUTLIERS[:, None],
    "ut": (normal(32, 32) * OUTLIERS).T, "vt": (normal(32, 32) / OUTLIERS[:, None]).T,
    "c": (normal(1, 32) * OUTLIERS)[0], "k": OUTLIERS, "n": np.zeros(32, np.float32), "half": np.float32(0.5),
}  # fmt: skip
IMAGES = {
    "u": normal(32, 8, 3, 3) * OUTLIERS[:, None, None, None], "v": normal(6, 32, 3, 3) / OUTLIERS[:, None, None],
    "d": normal(32, 1, 3, 3) / OUTLIERS[:, None, None, None], "v2": normal(6, 16, 1, 1), "c": normal(32, 1)[:, 0], "k": OUTLIERS[:, None, None],
    "axes": np.array([1], np.int64),
}  # fmt: skip
ROWS = ("float[b,s,32] x", "float[b,s,32] y", MATRICES, (2, 9, 32))
MATRIX = ("float[s,32] x", "float[s,32] y", MATRICES, (9, 32))
PIXELS = ("float[b,8,p,q] x", "float[b,m,p2,q2] y", IMAGES, (2, 8, 9, 9))

FOUND = {
    "a layer and Relu": ("a = MatMul(x, u) p = Add(a, c) r = Relu(p) y = MatMul(r, v)", ROWS, "dynamic_int8.channel"),
    "a gate": (
        "g1 = MatMul(x, g) h = com.microsoft.QuickGelu<alpha = 1.0>(g1) a = MatMul(x, u) r = Mul(h, a) y = MatMul(r, v)",
        ROWS, "static_int8.extremes",
    ),
    "Gemm": (
        """a = Gemm<transB = 1>(x, ut, c) r = LeakyRelu(a) y = Gemm<transB = 1, alpha = 0.5>(r, vt)""", MATRIX,
        "dynamic_int8.tensor_u8",
    ),
    "a normalisation for two products": (
        "a = LayerNormalization(x, k, n) p = MatMul(a, v) q = MatMul(a, v2) y = Add(p, q)",
        (*ROWS[:2], {**MATRICES, "v2": MATRICES["v"][:, ::-1].copy()}, ROWS[3]), "weight_int4.block32_level4",
    ),
    "skip and normalisation": (
        """a, , , t = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, x, k, n) p = MatMul(a, v) y = Add(p, t)""",
        ROWS, "dynamic_int8.channel",
    ),
    "values of attention": (
        """q = MatMul(x, g) a = MatMul(x, u) w = Attention<q_num_heads = 4, kv_num_heads = 4>(q, x, a) y = MatMul(w, v)""",
        ROWS, "dynamic_int8.channel",
    ),
    "factors of channels": ("a = Mul(x, k) y = MatMul(a, v)", ROWS, "dynamic_int8.channel"),
    "convolutions": ("a = Conv(x, u, c) r = Relu(a) y = Conv(r, v)", PIXELS, "static_int8_conv.extremes"),
    "with a pool": (
        "a = Conv(x, u) p = Add(a, k) r = Relu(p) m = MaxPool<kernel_shape = [2,2]>(r) y = Conv(m, v)", PIXELS,
        "static_int8_conv.extremes",
    ),
    "of single channels": (
        "a = Conv(x, u, c) r = Relu(a) y = Conv<group = 32>(r, d)", PIXELS, "static_int8_conv.extremes",
    ),
    "of groups": ("""a = com.microsoft.FusedConv<activation = "Relu">(x, u, c) y = Conv<group = 2>(a, v2)""", PIXELS,
                  "static_int8_conv.extremes"),
}  # fmt: skip


def model(body: str, x: str, y: str, constants: dict[str, np.ndarray]) -> ir.Model:
    text = f'<ir_version: 9, opset_import: ["": 23, "com.microsoft": 1]> g ({x}) => ({y}) {{ {body} }}'
    made = ir.from_onnx_text(text)
    for name, array in constants.items():
        uses = [
            (node, index) for node in made.graph for index, one in enumerate(node.inputs) if one and one.name == name
        ]
        if uses:
            value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
            value.type, value.shape = ir.TensorType(value.const_value.dtype), value.const_value.shape
            made.graph.register_initializer(value)
            for node, index in uses:
                node.replace_input_with(index, value)
    return made


def given(shape: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(seed).standard_normal(shape, np.float32)} for seed in range(3)]


def output(made: ir.Model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return next(iter(Session(made, threads=1).run(inputs).values()))


@pytest.mark.parametrize("name", FOUND)
def test_schemes_lose_less_and_float32_is_the_same(name: str) -> None:
    body, (x, y, constants, shape), scheme = FOUND[name]
    made, data = model(body, x, y, constants), given(shape)
    for number, node in enumerate(made.graph):
        node.name = f"node {number}"
    even, count = equalised(made, data[1:])
    assert count == 1
    assert [(node.name, node.op_type) for node in even.graph] == [(node.name, node.op_type) for node in made.graph]
    assert {*even.graph.initializers} == {*made.graph.initializers}
    np.testing.assert_array_equal(output(even, data[0]), output(made, data[0]))
    before, after = (error(one, scheme, data) for one in (made, even))
    assert 0 < after < 0.7 * before


def error(made: ir.Model, scheme: str, data: list[dict[str, np.ndarray]]) -> float:
    calibration = calibrate(
        made, names_to_observe(sites(made).values()) or [node.outputs[0].name for node in made.graph], data
    )
    found = sites(made, calibration=calibration)
    low = lowered(made, {site: scheme for site in found if scheme in found[site].schemes}, calibration)
    exact, other = output(made, data[0]), output(low, data[0])
    return float(np.linalg.norm(other - exact) / np.linalg.norm(exact))


NOT = {
    "another activation": ("a = MatMul(x, u) r = Tanh(a) y = MatMul(r, v)", ROWS),
    "something else takes it": ("a = MatMul(x, u) r = Relu(a) p = MatMul(r, v) y = Add(p, r)", ROWS),
    "something else takes what is before": ("a = MatMul(x, u) r = Relu(a) p = MatMul(r, v) y = Add(p, a)", ROWS),
    "its own gate": ("a = MatMul(x, u) s = Sigmoid(a) r = Mul(a, s) y = MatMul(r, v)", ROWS),
    "an offset that is computed": ("a = MatMul(x, u) p = Add(a, x) r = Relu(p) y = MatMul(r, v)", ROWS),
    "a cap": ("a = Conv(x, u, c) r = Clip(a) y = Conv(r, v)", PIXELS),
    "another axis": ("a = LayerNormalization(x, k9, n9) t = Transpose<perm = [0,2,1]>(a) y = MatMul(t, v)",
                     ("float[b,32,32] x", "float[b,32,32] y", {**MATRICES, "k9": OUTLIERS, "n9": MATRICES["n"]}, (2, 32, 32))),
    "a sum with another": (
        """a = Conv(x, u) r = Conv(x, u2) s = com.microsoft.FusedConv<activation = "Relu">(x, u3, c, r) y = Conv(s, v)""",
        (*PIXELS[:2], {**IMAGES, "u2": IMAGES["u"] * 2, "u3": IMAGES["u"] + 1}, PIXELS[3]),
    ),
    "fewer heads of values": (
        """q = MatMul(x, g) a = MatMul(x, u8) k8 = MatMul(x, g8)
        w = Attention<q_num_heads = 4, kv_num_heads = 1>(q, k8, a) y = MatMul(w, v)""",
        (*ROWS[:2], {**MATRICES, "u8": MATRICES["u"][:, :8].copy(), "g8": MATRICES["g"][:, :8].copy()}, ROWS[3]),
    ),
    "earlier values": (
        """q = MatMul(x, g) a = MatMul(x, u) w, pk, pv = Attention<q_num_heads = 4, kv_num_heads = 4>(q, x, a)
        m = MatMul(w, v) l = ReduceMax<keepdims = 0>(pv) y = Add(m, l)""", ROWS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT)
def test_nothing_is_scaled_that_something_else_depends_on(name: str) -> None:
    body, (x, y, constants, _) = NOT[name]
    made = model(body, x, y, constants)
    assert not [*links(made.graph, Facts(made))]


def test_a_large_weight_that_something_else_takes_is_not_written_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "i = Cast<to = 7>(x) t = Gather(v, i) a = LayerNormalization(t, k, n) y = MatMul(a, v)"
    made = model(body, "float[s] x", "float[s,32] y", MATRICES)
    assert [*links(made.graph, Facts(made))]
    monkeypatch.setattr("ortfuse.quantization.find_equalizable_channels.SMALL", 64)
    assert not [*links(made.graph, Facts(made))]


def test_channels_that_are_alike_stay_as_they_are() -> None:
    made = model("a = MatMul(x, g) r = Relu(a) y = MatMul(r, u)", *ROWS[:2], {**MATRICES, "u": normal(32, 32)})
    assert equalised(made, given(ROWS[3])) == (made, 0)


def test_each_constant_has_the_factors_of_all_links_that_it_is_in() -> None:
    body = "a = MatMul(x, u) r = Relu(a) b = MatMul(r, w) s = Relu(b) y = MatMul(s, v)"
    made = model(body, *ROWS[:2], {**MATRICES, "w": MATRICES["v"] * OUTLIERS})
    even, count = equalised(made, given(ROWS[3]))
    assert count == 2
    data = given(ROWS[3])[0]
    np.testing.assert_array_equal(output(even, data), output(made, data))


def test_one_scheme_everywhere_gains_by_it() -> None:
    body, (x, y, constants, shape), scheme = FOUND["a gate"]
    made, data = model(body, x, y, constants), given(shape)
    proto = ir.to_proto(made)
    low = ortfuse.lower(proto, scheme, inputs=data).model
    exact, other = (next(iter(Session(one.SerializeToString()).run(data[0]).values())) for one in (proto, low))
    assert np.linalg.norm(other - exact) < 0.7 * error(made, scheme, data) * np.linalg.norm(exact)
