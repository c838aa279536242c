"""What stands between convolutions on schemes is computed in integers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortfuse.quantization import lowered, sites
from ortfuse.quantization.calibration import calibrate
from ortfuse.quantization.quantization_sites import names_to_observe
from ortfuse.quantization.scheme_rules import AnyRange
from ortfuse.runtime.bench.executed_operators import executed_ops
from ortfuse.verification import Session

SCHEME = "static_int8_conv.extremes"
RNG = np.random.default_rng(0)
WEIGHTS = {
    "v": RNG.standard_normal((4, 4, 3, 3)).astype(np.float32) / 3,
    "w": RNG.standard_normal((4, 4, 3, 3)).astype(np.float32) / 3,
    "one": RNG.standard_normal((4, 4, 1, 1)).astype(np.float32),
    "wide": RNG.standard_normal((4, 8, 1, 1)).astype(np.float32),
    "two": RNG.standard_normal((4, 2, 1, 1)).astype(np.float32),
    "c": RNG.standard_normal(4).astype(np.float32),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "halves": np.array([2, 2], np.int64),
    "axes": np.array([2, 3], np.int64),
    "h": np.float32(0.5),
}
for name in ("v", "c"):
    WEIGHTS[name][2:] = WEIGHTS[name][:2]  # so that both halves of what is computed have one range
FIRST = "a = Conv<pads = [1,1,1,1]>(x, v, c)"
LAST = "y = Conv<pads = [1,1,1,1]>(g, w, c)"


def model(body: str) -> ir.Model:
    """A model in which the names of `WEIGHTS` are constants."""
    opset = 17 if "axes = " in body else 18
    made = ir.from_onnx_text(
        f'<ir_version: 9, opset_import: ["": {opset}, "com.microsoft": 1]> '
        f"g (float[b,4,6,6] x) => (float[b,4,p,q] y) {{ {body} }}"
    )
    for name, array in WEIGHTS.items():
        uses = [
            use for node in made.graph for use in enumerate(node.inputs) if use[1] is not None and use[1].name == name
        ]
        if uses:
            value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
            made.graph.register_initializer(value)
            for node in made.graph:
                for index, old in enumerate(node.inputs):
                    if old is not None and old.name == name and old is not value:
                        node.replace_input_with(index, value)
    return made


def computed(body: str) -> tuple[Counter[str], float]:
    """What is executed of the model with all convolutions on a scheme, and its error."""
    made = model(body)
    data = [{"x": np.random.default_rng(seed).standard_normal((2, 4, 6, 6)).astype(np.float32)} for seed in range(3)]
    calibration = calibrate(made, names_to_observe(sites(made, calibration=AnyRange()).values()), data)
    choice = {name: next(one for one in site.schemes if one.startswith(SCHEME)) for name, site in
              sites(made, calibration=calibration).items()}  # fmt: skip
    low = lowered(made, choice, calibration)
    before, after = (next(iter(Session(one, threads=1).run(data[0]).values())) for one in (made, low))
    return executed_ops(low, data[0]), float(np.linalg.norm(after - before) / np.linalg.norm(before))


BETWEEN = {
    "x sigmoid(x)": ("g = com.microsoft.QuickGelu<alpha = 1.0>(a)", {"QLinearSigmoid": 1, "QLinearMul": 1}),
    "x sigmoid(1.702 x)": ("g = com.microsoft.QuickGelu(a)", {"QLinearSigmoid": 1, "QLinearMul": 1}),
    "a gate": ("s = Conv<pads = [1,1,1,1]>(a, w, c) t = Sigmoid(s) g = Mul(a, t)", {"QLinearSigmoid": 1, "QLinearMul": 1}),
    "squeeze and excite": (
        "s = com.microsoft.QuickGelu<alpha = 1.0>(a) m = ReduceMean(s, axes) e = Conv(m, one, c) f = Sigmoid(e) g = Mul(s, f)",
        {"QLinearSigmoid": 2, "QLinearMul": 2, "QLinearGlobalAveragePool": 1},
    ),
    "tensors that are joined": (
        "r = LeakyRelu(a) s = com.microsoft.QuickGelu<alpha = 1.0>(a) j = Concat<axis = 1>(r, s) g = Conv(j, wide, c)",
        {"QLinearLeakyRelu": 1, "QLinearConcat": 1},
    ),
    "a mean with axes of older opsets": (
        "s = com.microsoft.QuickGelu<alpha = 1.0>(a) m = ReduceMean<axes = [2, 3]>(s) e = Conv(m, one, c) g = Add(s, e)",
        {"QLinearSigmoid": 1, "QLinearGlobalAveragePool": 1, "QLinearAdd": 1},
    ),
    "halves": (
        "s = com.microsoft.QuickGelu<alpha = 1.0>(a) t, u = Split<axis = 1>(s, halves) l = Conv(t, two, c) r = Conv(u, two, c) g = Add(l, r)",
        {"QLinearAdd": 1, "Split": 1},
    ),
    "a larger image": ("""s = com.microsoft.QuickGelu<alpha = 1.0>(a) r = Resize<mode = "nearest">(s, , scales)
        g = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)""", {"Resize": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", BETWEEN)
def test_what_is_between_integers_is_computed_in_them(name: str) -> None:
    body, kernels = BETWEEN[name]
    executed, error = computed(f"{FIRST} {body} {LAST}")
    assert (executed["QuantizeLinear"], executed["DequantizeLinear"]) == (1, 1)
    assert kernels.items() <= executed.items()
    assert error < 5e-2


OTHERS = {
    "an operator without such a kernel": "s = Tanh(a) g = Mul(a, s)",
    "a negative factor": "g = com.microsoft.QuickGelu<alpha = -1.0>(a)",
    "a number that is no integer": "s = Mul(a, h) t = Exp(s) g = Add(s, t)",
    "interpolation": 'g = Resize<mode = "linear">(a, , scales)',
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_is_between_them_stays_in_float32(name: str) -> None:
    executed, error = computed(f"{FIRST} {OTHERS[name]} {LAST}")
    assert executed["QuantizeLinear"] == 2
    assert not {"QLinearMul", "QLinearAdd", "QLinearSigmoid"} & {*executed}
    assert error < 5e-2


def test_what_something_else_takes_too_is_not_rounded() -> None:
    made = model(f"{FIRST} s = com.microsoft.QuickGelu<alpha = 1.0>(a) t = Tanh(s) g = Add(s, t) {LAST}")
    data = [{"x": np.ones((1, 4, 6, 6), np.float32)}]
    calibration = calibrate(made, ("x", "a", "g", "y"), data)
    low = lowered(made, {"a": SCHEME, "y": SCHEME}, calibration)
    assert "QuickGelu" in [node.op_type for node in low.graph]


def test_a_gate_between_products_is_computed_in_integers() -> None:
    rng = np.random.default_rng(0)
    text = """<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]> g (float[b,s,16] x) => (float[b,s,16] y) {
        g = MatMul(x, wg) u = MatMul(x, wu) h = com.microsoft.QuickGelu<alpha = 1.0>(g) p = Mul(h, u) y = MatMul(p, wd) }"""
    proto = onnx.parser.parse_model(text)
    weights = {"wg": (16, 32), "wu": (16, 32), "wd": (32, 16)}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name)
        for name, shape in weights.items()
    )
    made = ir.from_proto(proto)
    data = [{"x": np.random.default_rng(seed).standard_normal((2, 9, 16), np.float32)} for seed in range(3)]
    calibration = calibrate(made, names_to_observe(sites(made, calibration=AnyRange()).values()), data)
    low = lowered(made, dict.fromkeys(("g", "u", "y"), "static_int8_requantized.least_squares"), calibration)
    before, after = (next(iter(Session(one, threads=1).run(data[0]).values())) for one in (made, low))
    kernels = {"QLinearMatMul": 3, "QLinearSigmoid": 1, "QLinearMul": 2, "QuantizeLinear": 1, "DequantizeLinear": 1}
    assert executed_ops(low, data[0]) == kernels
    assert np.linalg.norm(after - before) < 5e-2 * np.linalg.norm(before)
