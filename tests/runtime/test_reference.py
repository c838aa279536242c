"""That the evaluation in float64 is one: of every operator, constant and type, and of nothing in float32."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from small_graphs import model

from ortfuse.io.load_and_save import load
from ortfuse.runtime.float64 import reference
from ortfuse.runtime.float64.partition import cut
from ortfuse.runtime.float64.widen import in_float64
from ortfuse.runtime.session import Session
from ortfuse.verification import Reference, experiments

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
WIDE = X.astype(np.float64)
ERF = np.vectorize(math.erf)
TENTH = float(np.float32(0.1))


def evaluate(body: str, initializers: str = "", inputs: str = "float[4,6] x") -> np.ndarray:
    reference = Reference(model(body, inputs, "float y", initializers))
    found = reference.run({"x": X})
    assert found is not None, reference.reason
    assert found["y"].dtype == np.float64
    return found["y"]


def layer_normalized() -> np.ndarray:
    centred = WIDE - WIDE.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + float(np.float32(1e-5)))


CASES = {
    "runtime": ("y = Exp(x)", np.exp(WIDE)),
    "reference": ("y = Erf(x)", ERF(WIDE)),
    "both in turn": ("a = Erf(x) b = Exp(a) c = Erf(b) y = Add(c, x)", ERF(np.exp(ERF(WIDE))) + WIDE),
    "weight": ("y = Mul(x, w)", WIDE * TENTH),
    "constant": ("c = Constant<value_float = 0.1>() y = Mul(x, c)", WIDE * TENTH),
    "constant list": ("c = Constant<value_floats = [0.1]>() y = Mul(x, c)", WIDE * TENTH),
    "constant tensor": ("c = Constant<value = float[1] {0.1}>() y = Mul(x, c)", WIDE * TENTH),
    "cast": ("a = Cast<to = 1>(x) b = Cast<to = 10>(a) y = Mul(b, b)", WIDE * WIDE),
    "cast like": ("a = CastLike(x, w) y = Mul(a, a)", WIDE * WIDE),
    "zeros by default": ("s = Shape(x) z = ConstantOfShape(s) y = Add(x, z)", WIDE),
    "constant of shape": ("s = Shape(x) z = ConstantOfShape<value = float[1] {0.1}>(s) y = Mul(x, z)", WIDE * TENTH),
    "layer normalization": ("y = LayerNormalization(x, ones)", layer_normalized()),
    "convolution": ("r = Reshape(x, image) c = Conv(r, kernel) y = Reshape(c, back)", WIDE * TENTH),
    "branch": (
        """t = Constant<value = bool {1}>() y = If(t) <
             then_branch = a () => (float r) { c = Constant<value_float = 0.1>() d = Erf(x) e = Mul(d, c) r = Add(e, w) },
             else_branch = b () => (float q) { q = Identity(x) }>""",
        ERF(WIDE) * TENTH + TENTH,
    ),
}
INITIALIZERS = """<float w = {0.1}, float[6] ones = {1,1,1,1,1,1}, float[1,1,1,1] kernel = {0.1},
    int64[4] image = {1,1,4,6}, int64[2] back = {4,6}>"""


@pytest.mark.parametrize("case", CASES)
def test_results_are_exact_to_float64(case: str) -> None:
    body, expected = CASES[case]
    assert np.abs(evaluate(body, INITIALIZERS) - expected).max() < 1e-13


NEWER = {
    "gelu": ("y = Gelu(x)", WIDE * (1 + ERF(WIDE / math.sqrt(2))) / 2),
    "group normalization": ("y = GroupNormalization<num_groups = 1>(x, ones, nils)", layer_normalized()),
    "root mean square": (
        "y = RMSNormalization(x, ones)",
        WIDE / np.sqrt((WIDE**2).mean(-1, keepdims=True) + float(np.float32(1e-5))),
    ),
    "swish": ("y = Swish(x)", WIDE / (1 + np.exp(-WIDE))),
}


@pytest.mark.parametrize("case", NEWER)
def test_functions_of_the_standard_are_exact_too(case: str) -> None:
    body, expected = NEWER[case]
    scale = "<float[6] ones = {1,1,1,1,1,1}, float[6] nils = {0,0,0,0,0,0}>"
    m = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 24]> g (float[4,6] x) => (float y) {scale} {{ {body} }}'
    )
    found = Reference(m).run({"x": X})
    assert found is not None
    assert np.abs(found["y"] - expected).max() < 1e-13


def test_float16_and_bfloat16_become_float64_too() -> None:
    for kind in ("float16", "bfloat16"):
        m = model("y = Mul(x, x)", f"{kind}[4,6] x", f"{kind}[4,6] y")
        given = X.astype(ir.DataType[kind.upper()].numpy())
        found = Reference(m).run({"x": given})
        assert found is not None
        assert (found["y"] == given.astype(np.float64) ** 2).all()


def test_functions_are_evaluated() -> None:
    text = """<ir_version: 9, opset_import: ["": 18, "own": 1]> g (float[4,6] x) => (float[4,6] y) { y = own.Tenth(x) }
        <opset_import: ["": 18], domain: "own"> Tenth (a) => (b) { c = Constant<value_float = 0.1>() b = Mul(a, c) }"""
    found = Reference(ir.from_onnx_text(text)).run({"x": X})
    assert found is not None
    assert np.abs(found["y"] - WIDE * TENTH).max() < 1e-15


def test_outputs_of_other_types_are_as_they_are() -> None:
    m = model("y = Relu(x) i = ArgMax<axis = 1>(x)", "float[4,6] x", "float[4,6] y, int64 i")
    found = Reference(m).run({"x": X})
    assert found is not None
    assert found["i"].dtype == np.int64


def test_sequences_are_evaluated() -> None:
    m = model("s = SplitToSequence<axis = 0>(x) e = Erf(x) t = SequenceInsert(s, e) y = ConcatFromSequence<axis = 0>(t)",
              "float[4,6] x", "float y")  # fmt: skip
    found = Reference(m).run({"x": X})
    assert found is not None
    assert np.abs(found["y"][4:] - ERF(WIDE)).max() < 1e-15


def test_the_model_itself_is_not_changed() -> None:
    m = model("c = Constant<value_float = 0.1>() a = Mul(x, c) y = Mul(a, w)", initializers="<float w = {0.1}>")
    before = ir.to_proto(m).SerializeToString()
    Reference(m).run({"x": np.ones((2, 3), np.float32)})
    assert ir.to_proto(m).SerializeToString() == before


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = RandomNormalLike(x)", "RandomNormalLike draws random numbers"),
        ("q = QuantizeLinear(x, w, z) y = DequantizeLinear(q, w, z)", "QuantizeLinear rounds to integers"),
        ("y = com.microsoft.BiasGelu(x, b)", "neither the runtime nor ONNX's reference can do BiasGelu in float64"),
    ],
)
def test_what_cannot_be_evaluated_is_said_and_why(body: str, reason: str) -> None:
    initializers = "<float w = {0.1}, uint8 z = {0}, float[6] b = {1,1,1,1,1,1}>"
    m = model(body, "float[4,6] x", "float y", initializers)
    reference = Reference(m)
    assert reference.run({"x": X}) is None
    assert reason in (reference.reason or "")
    _, notes = experiments(m)
    assert any(f"no float64 evaluation: {reason}" in note for note in notes)


def test_what_the_reference_rounds_to_float32_is_not_evaluated() -> None:
    ends = "int64 bins = {4}, int64 length = {8}, int64 rate = {8000}, float low = {0}, float high = {4000}"
    m = model("m = MelWeightMatrix(bins, length, rate, low, high) y = Add(m, x)", "float x", "float y", f"<{ends}>")
    reference = Reference(m)
    assert reference.run({"x": np.float32(1)}) is None
    assert reference.reason == "ONNX's reference does MelWeightMatrix in float32"


def test_segments_keep_the_order_of_computation() -> None:
    m = model("a = Exp(x) b = Erf(x) c = Exp(b) d = Add(a, c) e = Erf(d) y = Add(e, b)")
    segments = cut(m.graph, lambda node: node.op_type != "Erf")
    assert [[node.op_type for node in segment.nodes] for segment in segments] == [
        ["Exp"], ["Erf"], ["Exp", "Add"], ["Erf"], ["Add"]
    ]  # fmt: skip
    known = {"x"}
    for segment in segments:
        assert {value.name for value in segment.inputs} <= known
        known |= {value.name for value in segment.outputs}
    assert "y" in known


def test_nothing_in_a_widened_golden_model_is_narrow() -> None:
    m = in_float64(load(GOLDEN / "bert.sdpa.raw.onnx"))
    narrow = {ir.DataType.FLOAT, ir.DataType.FLOAT16}
    assert not [value.name for value in m.graph.initializers.values() if value.const_value.dtype in narrow]
    assert not [value.name for node in m.graph for value in node.outputs if value.dtype in narrow]


@pytest.mark.parametrize("name", ["bert.eager.dynamo", "bert.sdpa.raw", "bert.sdpa.ts", "resnet.raw", "resnet.ts"])
def test_golden_models_are_evaluated_and_near_the_runtime(name: str) -> None:
    found, notes = experiments(load(GOLDEN / f"{name}.onnx"))
    assert notes == []
    for experiment in found:
        assert experiment.reference is not None
        for output, array in experiment.expected.items():
            exact = experiment.reference[output]
            assert exact.dtype == np.float64
            assert 0 < np.abs(array - exact).max() < 1e-5


ENDLESS = """<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (float[1] y) {
m = Constant<value_int = 1000000000000>()
one = Constant<value = float[1] {1.0}>()
go = Constant<value = bool {1}>()
y = Loop(m, go, x) <body = b (int64 i, bool c, float[1] v) => (bool d, float[1] w)
{ a = Add(v, one) w = OPERATOR(a) e = Equal(w, v) f = Not(e) d = Squeeze(f) }>
}"""


@pytest.mark.parametrize("operator", ["Identity", "ThresholdedRelu"], ids=["in the runtime", "in Python"])
def test_a_loop_that_ends_in_float32_alone_takes_no_more_than_the_time_for_it(
    operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "_SHORTEST", 0.1)
    endless = ir.from_onnx_text(ENDLESS.replace("OPERATOR", operator))
    inputs = {"x": np.array([2**24 - 2], np.float32)}
    assert Session(endless).run(inputs)["y"] == 2**24
    evaluated = Reference(endless)
    assert evaluated.run(inputs, 0.2) is None
    assert "more" in evaluated.too_large
    assert evaluated.reason is None


def test_patterns_and_images_are_left_to_the_runtime() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (string[1] s, float[1] x) => (bool[1] b, float[1] y) '
    patterns = ir.from_onnx_text(text + '{ b = RegexFullMatch<pattern = "(a+)+b">(s) y = Relu(x) }')
    execution = reference._Execution(patterns, by_runtime=False)
    with pytest.raises(reference._InfeasibleError, match="RegexFullMatch is left to the runtime"):
        execution.run({"s": np.array(["a" * 100], object), "x": np.ones(1)}, 1.0)
