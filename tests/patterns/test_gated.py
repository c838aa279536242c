"""Gated linear units and merged products where `--force` asks for them: on gated layers as exporters write them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from graphs import operators

import ortfuse
from ortfuse.errors import PipelineError

SIZES = {"a": (4, 6), "b": (4, 6), "c": (6, 4), "both": (4, 12)}


def _weight(name: str, rows: int, columns: int) -> str:
    numbers = np.random.default_rng(sum(map(ord, name))).standard_normal(rows * columns).round(3)
    return f"float[{rows}, {columns}] {name} = {{{', '.join(map(str, numbers))}}}"


WEIGHTS = ", ".join(_weight(name, *sizes) for name, sizes in SIZES.items())
NUMBERS = (
    "float half = {0.5}, float one = {1}, float root = {1.4142135623730951}, float three = {3}, float cubic = {0.044715}, "
    "float scale = {0.7978845608028654}, int64[2] halves = {6, 6}"
)
GATES = {
    "SwiGLU": "s = Sigmoid(g) f = Mul(g, s)",
    "GeGLU": "d = Div(g, root) e = Erf(d) p = Add(e, one) h = Mul(g, p) f = Mul(h, half)",
    "GeGLUTanh": "h = Mul(g, half) k = Pow(g, three) l = Mul(k, cubic) m = Add(g, l) n = Mul(m, scale) o = Tanh(n) p = Add(o, one) f = Mul(h, p)",
    "ReGLU": "f = Relu(g)",
    "GLU": "f = Sigmoid(g)",
}
PRODUCTS = {
    "products": "g = MatMul(x, a) u = MatMul(x, b)",
    "halves": "w = MatMul(x, both) g, u = Split<axis = -1>(w, halves)",
}


def layer(gate: str, products: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3, 4] x) => (float[n, 3, 4] y) <{WEIGHTS}, {NUMBERS}>
        {{ {PRODUCTS[products]} {GATES[gate]} t = Mul(f, u) y = MatMul(t, c) }}"""
    )


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("gate", GATES)
def test_gates_are_the_forced_operator(gate: str, products: str) -> None:
    model = layer(gate, products)
    result = ortfuse.optimize(model, force={"glu": gate})
    assert sorted(operators(result, nested=False)) == sorted(
        [gate, "MatMul", "MatMul", "MatMul" if products == "products" else "Split"]
    )
    x = np.random.default_rng(5).standard_normal((2, 3, 4)).astype(np.float32)
    before, after = (
        ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for made in (model, result.model)
    )
    np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-5)
    onnx.checker.check_model(result.model)


LAYERS = {
    "FeedForwardRelu": ("f = Relu(g)", "h", "y"),
    "FeedForwardGelu": ("d = Div(g, root) e = Erf(d) p = Add(e, one) h2 = Mul(g, p) f = Mul(h2, half)", "h", "y"),
    "FeedForwardGeluTanh": (GATES["GeGLUTanh"].replace("h = ", "i = ").replace("(h,", "(i,"), "h", "y"),
    "FeedForwardSwish": ("s = Sigmoid(g) f = Mul(g, s)", "", ""),
}
"""The activation, and whether both layers have a bias."""


@pytest.mark.parametrize("kind", LAYERS)
def test_two_layers_with_an_activation_are_the_forced_operator(kind: str) -> None:
    activation, *biases = LAYERS[kind]
    first = "r = MatMul(x, a) g = Add(r, first)" if biases[0] else "g = MatMul(x, a)"
    last = "q = MatMul(f, c) y = Add(q, last)" if biases[1] else "y = MatMul(f, c)"
    vectors = "float[6] first = {0.5, 1, -1, 2, 0, 0.25}, float[4] last = {1, -1, 0.5, 0}"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3, 4] x) => (float[n, 3, 4] y) <{WEIGHTS}, {NUMBERS}, {vectors}>
        {{ {first} {activation} {last} }}"""
    )
    result = ortfuse.optimize(model, force={"ffn": kind}, verify="whole")
    assert sorted(operators(result, nested=False)) == [kind]
    assert kind not in operators(ortfuse.optimize(model), nested=False)


@pytest.mark.parametrize("biased", [True, False])
def test_two_layers_that_are_added_to_their_input_are_too(biased: bool) -> None:
    vectors = "float[6] first = {0.5, 1, -1, 2, 0, 0.25}, float[4] last = {1, -1, 0.5, 0}"
    after = "o = Add(q, last) y = Add(x, o)" if biased else "y = Add(x, q)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3, 4] x) => (float[n, 3, 4] y) <{WEIGHTS}, {NUMBERS}, {vectors}>
        {{ r = MatMul(x, a) g = Add(r, first) f = Relu(g) q = MatMul(f, c) {after} }}"""
    )
    result = ortfuse.optimize(model, force={"ffn": "FeedForwardRelu"}, verify="whole")
    assert sorted(operators(result, nested=False)) == ["Add", "FeedForwardRelu"]


@pytest.mark.parametrize("kind", LAYERS)
def test_so_are_two_layers_on_two_axes(kind: str) -> None:
    """As exporters write them: Gemm with transposed weights."""
    vectors = "float[4] first = {0.5, 1, -1, 2}, float[6] last = {1, -1, 0.5, 0, 2, 1}"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 6] x) => (float[n, 6] y) <{WEIGHTS}, {NUMBERS}, {vectors}>
        {{ g = Gemm<transB = 1>(x, a, first) {LAYERS[kind][0]} y = Gemm<transB = 1>(f, c, last) }}"""
    )
    assert sorted(operators(ortfuse.optimize(model, force={"ffn": kind}, verify="whole"), nested=False)) == [kind]


def test_without_a_pin_none_is_made() -> None:
    assert "SwiGLU" not in operators(ortfuse.optimize(layer("SwiGLU", "products")), nested=False)


def test_a_pin_merges_products_of_one_input() -> None:
    result = ortfuse.optimize(layer("SwiGLU", "products"), force={"horizontal_matmul_fusion": "Split"}, verify="whole")
    assert sorted(operators(result, nested=False)) == ["MatMul", "MatMul", "Mul", "QuickGelu", "Split"]
    assert any("2 products of one input are one" in note for note in result.report.notes)


def test_pins_of_passes_name_what_those_make() -> None:
    with pytest.raises(PipelineError, match="horizontal_matmul_fusion makes MatMul, Split"):
        ortfuse.PassManager(ortfuse.Options(force={"horizontal_matmul_fusion": "Gemm"}))
    model = layer("SwiGLU", "products")
    nothing = ortfuse.optimize(layer("SwiGLU", "halves"), force={"horizontal_matmul_fusion": "Split"})
    assert [line for pin in nothing.forced for line in pin.lines()] == [
        "forced horizontal_matmul_fusion=Split: no site of it"
    ]
    assert "Split" not in sorted(
        operators(ortfuse.optimize(model, force={"horizontal_matmul_fusion": "none"}), nested=False)
    )


OLD = f"""<ir_version: 7, opset_import: ["" : OPSET]> g (float[n, 3, 4] x) => (float[n, 3, 4] y) <{WEIGHTS}, {NUMBERS}, bias>
    {{ k1 = MatMul(x, a) g = Add(k1, k0) {GATES["GeGLU"]} REST }}"""


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize(
    ("rest", "pin", "found"),
    [
        (
            "u = MatMul(x, b) t = Mul(f, u) y = MatMul(t, c)",
            ("glu", "GeGLU"),
            ["Add", "GeGLU", "MatMul", "MatMul", "MatMul"],
        ),
        ("y = MatMul(f, c)", ("ffn", "FeedForwardGelu"), ["FeedForwardGelu"]),
    ],
)
def test_old_models_are_raised_to_the_opset_in_which_the_forced_operator_is_defined(
    opset: int, rest: str, pin: tuple[str, str], found: list[str]
) -> None:
    text = OLD.replace("OPSET", str(opset)).replace("REST", rest).replace("bias>", f"{_weight('k0', 1, 6)}>")
    model = onnx.parser.parse_model(text.replace("float[1, 6] k0", "float[6] k0"))
    result = ortfuse.optimize(model, force=dict([pin]), verify="whole")
    assert sorted(operators(result, nested=False)) == found
    assert result.model.opset_import[0].version == max(opset, 15)
    kept = ortfuse.optimize(model, force=dict([pin]), max_opset=opset)
    assert (pin[1] in operators(kept, nested=False)) == (opset >= 15)
