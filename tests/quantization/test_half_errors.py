"""The errors that a conversion to half precision reports: those of rounding after every operator, in bodies too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import BoundError
from ortfuse.quantization.half import Conversion, convert
from ortfuse.quantization.half.changed_orderings import _gap
from ortfuse.runtime.session import Session

RNG = np.random.default_rng(0)


def model(body: str, x: str = "float[n,4] x", y: str = "float[n,k] y", opset: int = 17, **constants: Any) -> ir.Model:
    return graphs.model(body, x, y, opset=opset, domains=[], constants=constants)


def islands(done: Conversion) -> set[str]:
    return {name.split(" ")[0] for name in done.islands}


def error(expected: np.ndarray, found: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected.astype(np.float64)) / np.linalg.norm(expected.astype(np.float64)))


def rounded_error(original: ir.Model, done: Conversion, inputs: dict[str, np.ndarray]) -> float:
    """The error where every node is rounded, as ONNX's reference does."""
    expected = Session(original).run(inputs)["y"]
    return error(expected, ReferenceEvaluator(ir.to_proto(done.model)).run(["y"], inputs)[0])


LOG_MEL = """r = Mul(x, x) m = MatMul(r, w) c = Clip(m, tiny) l = Log(c) t = Mul(l, factor) top = ReduceMax<keepdims = 0>(t)
    low = Sub(top, eight) b = Max(t, low) s = Add(b, four) y = Div(s, four)"""
MEL = {
    "w": np.abs(RNG.normal(size=(9, 6))).astype(np.float32), "tiny": np.float32(1e-10), "eight": np.float32(8),
    "four": np.float32(4), "factor": np.float32(0.434),
}  # fmt: skip
ELEMENTWISE = "p = Add(x, c) q = Mul(p, p) r = Sub(q, x) s = Tanh(r) t = Add(s, r) u = Mul(t, c) y = Add(u, x)"


@pytest.mark.parametrize(
    ("body", "constants"), [(LOG_MEL, MEL), (ELEMENTWISE, {"c": np.float32(0.37)})], ids=["log-mel", "elementwise"]
)
def test_the_error_is_that_of_rounding_every_node(body: str, constants: dict[str, Any]) -> None:
    original = model(body, x="float[n,9] x", **constants)
    inputs = {"x": RNG.normal(size=(7, 9)).astype(np.float32)}
    done = convert(original, "float16", keep_io=True, inputs=[inputs])
    rounded = rounded_error(original, done, inputs)
    assert done.emulated
    assert rounded / 1.5 < done.errors["y"] < rounded * 1.5
    runtime = error(Session(original).run(inputs)["y"], Session(done.model).run(inputs)["y"])
    assert runtime < rounded / 2, "the runtime rounds less"


def test_a_bound_holds_where_every_node_is_rounded() -> None:
    original = model(LOG_MEL, x="float[n,9] x", **MEL)
    inputs = {"x": (RNG.normal(size=(7, 9)) * 2e-3).astype(np.float32)}
    assert convert(original, "float16", keep_io=True, inputs=[inputs]).errors["y"] > 1e-3
    done = convert(original, "float16", keep_io=True, inputs=[inputs], max_error=1e-3)
    assert rounded_error(original, done, inputs) < 1e-3


def test_verify_rounds_every_node_too(tmp_path: Path) -> None:
    original = model(ELEMENTWISE, y="float[n,4] y", c=np.float32(0.37))
    done = convert(original, "float16", keep_io=True)
    verdict = ortfuse.verify(original, done.model, max_error=1.0)
    assert verdict.error > done.errors["y"] / 3
    assert any("rounded to float16 after every operator" in note for note in verdict.notes)


GROWS = """y, all = Loop (len, go, x) <body = b (int64 i, bool c, float[1,4] h) => (bool co, float[1,4] hn, float[1,4] s)
    { hn = MatMul(h, a) co = Identity(c) s = Mul(hn, tiny) }>"""
GROWING = {"a": np.eye(4, dtype=np.float32) * 20, "go": np.bool_(True), "tiny": np.float32(1e-4)}


def loop() -> ir.Model:
    return model(GROWS, x="float[1,4] x, int64 len", y="float[1,4] y, float[t,1,4] all", **GROWING)


@pytest.mark.parametrize("keep_io", [True, False])
def test_an_overflow_in_the_body_of_a_loop_is_found_in_whatever_iteration(keep_io: bool) -> None:
    """The state overflows in the fourth of five; its last value is not what shows it: that is left out."""
    original = loop()
    original.graph.outputs.pop(0)
    sets = [{"x": np.ones((1, 4), np.float32), "len": np.array(length, np.int64)} for length in (1, 2, 5)]
    done = convert(original, "float16", keep_io=keep_io, inputs=sets)
    assert "MatMul" in islands(done)
    assert any("overflows float16" in reason for reason in done.islands.values())
    assert done.errors["all"] < 2e-3
    assert np.isfinite(ReferenceEvaluator(ir.to_proto(done.model)).run(None, _half(sets[2], done.model))[0]).all()


def _half(inputs: dict[str, np.ndarray], other: ir.Model) -> dict[str, np.ndarray]:
    return {value.name: inputs[value.name].astype(value.dtype.numpy()) for value in other.graph.inputs}


def test_a_loop_whose_state_stays_in_range_is_half() -> None:
    sets = [{"x": np.ones((1, 4), np.float32), "len": np.array(length, np.int64)} for length in (0, 2)]
    assert islands(convert(loop(), "float16", keep_io=True, inputs=sets)) == set()


def test_a_loop_that_never_runs_says_nothing_against_it() -> None:
    sets = [{"x": np.ones((1, 4), np.float32), "len": np.array(0, np.int64)}]
    assert islands(convert(loop(), "float16", keep_io=True, inputs=sets)) == set()


BIG = {"big": np.float32(1e6), "small": np.float32(1e-6), "zero": np.float32(0), "start": np.zeros(4, np.float32)}
BODIES = {
    "a branch": """s = ReduceSum<keepdims = 0>(x) c = Greater(s, zero)
        y = If (c) <then_branch = t () => (float[n,4] a) { p = Mul(x, big) a = Mul(p, small) },
                    else_branch = e () => (float[n,4] b) { b = Neg(x) }>""",
    "a scan": """last, y = Scan <num_scan_inputs = 1, body = l (float[4] h, float[4] r) => (float[4] h2, float[4] o)
        { p = Mul(r, big) o = Mul(p, small) h2 = Add(h, o) }> (start, x)""",
    "a loop in a branch": """s = ReduceSum<keepdims = 0>(x) c = Greater(s, zero)
        y = If (c) <then_branch = t () => (float[n,4] a) {
            three = Constant<value = int64 {3}> () go = Constant<value = bool {1}> ()
            a = Loop (three, go, x) <body = l (int64 i, bool k, float[n,4] h) => (bool k2, float[n,4] h2)
                { k2 = Identity(k) p = Mul(h, big) h2 = Mul(p, small) }> },
                    else_branch = e () => (float[n,4] b) { b = Neg(x) }>""",
}


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("name", BODIES)
def test_an_overflow_in_a_body_is_found_by_itself(name: str, opset: int) -> None:
    """The output would show nothing in the one set of inputs that takes the other branch."""
    original = model(BODIES[name], y="float[n,4] y", opset=opset, **BIG)
    x = np.abs(RNG.normal(size=(3, 4))).astype(np.float32)
    done = convert(original, "float16", keep_io=True, inputs=[{"x": -x}, {"x": x}])
    assert {"Mul node that produces 'p'": "its result overflows float16"}.items() <= dict(done.islands).items()
    assert islands(done) == {"Mul"}
    assert done.errors["y"] < 2e-3


def test_what_a_loop_hands_on_stays_float32_if_it_is_too_small_for_the_type() -> None:
    body = """three = Constant<value = int64 {3}> () go = Constant<value = bool {1}> () t = Mul(x, small)
        h = Loop (three, go, t) <body = l (int64 i, bool k, float[n,4] a) => (bool k2, float[n,4] b)
            { k2 = Identity(k) b = Mul(a, three4) }> y = Mul(h, large)"""
    original = model(body, small=np.float32(1e-9), three4=np.float32(0.75), large=np.float32(1e9))
    done = convert(original, "float16", keep_io=True, inputs=[{"x": RNG.normal(size=(3, 4)).astype(np.float32)}])
    assert done.errors["y"] < 2e-3


@pytest.mark.parametrize("opset", [7, 8])
def test_models_of_old_opsets_are_emulated(opset: int) -> None:
    original = model(
        "s = Mul(x, big) t = Mul(s, small) y = Sigmoid(t)", opset=opset, big=BIG["big"], small=BIG["small"]
    )
    done = convert(original, "float16", inputs=[{"x": np.ones((3, 4), np.float32)}])
    assert islands(done) == {"Mul"}


TOPK = """p = MatMul(x, w) q = Sigmoid(p) s, i = TopK(q, k) b = MatMul(x, v) c = Reshape(b, boxes) j = Unsqueeze(i, last)
    e = Expand(j, eight) y = GatherElements<axis = 1>(c, e)"""
PICKS = {
    "w": (RNG.normal(size=(16, 200)) * 0.05).astype(np.float32), "v": RNG.normal(size=(16, 1600)).astype(np.float32),
    "k": np.array([60]), "boxes": np.array([0, 200, 8]), "last": np.array([2]), "eight": np.array([1, 1, 8]),
}  # fmt: skip
OUTPUTS = "float[n,k] s, int64[n,k] i, float[n,k,8] y"


def test_an_error_that_another_order_makes_is_told_as_such() -> None:
    original = model(TOPK, x="float[n,16] x", y=OUTPUTS, **PICKS)
    done = convert(original, "float16")
    assert done.errors["y"] > 0.05
    assert 0.0 < done.errors["i"] < 0.5
    assert done.integer_outputs == ("i",)
    assert done.errors_in_float32_order["y"] < 2e-3
    assert len(done.warnings) == 1 and "since near ties are decided otherwise; in the order of" in done.warnings[0]
    told = next(note for note in done.notes if "TopK" in note)
    assert "decides otherwise in" in told
    assert "of the largest apart" in told


def test_scores_that_are_masked_by_infinity_hide_no_gap() -> None:
    node, infinite = ir.node("TopK", [ir.Value(name="s"), ir.Value(name="k")], num_outputs=2), -np.inf
    scores = np.array([[4.0, 3.0, infinite, 2.0]], np.float32)
    assert _gap(node, scores, np.array([[0, 1, 2]]), np.array([[0, 3, 2]])) == 0.25


def test_a_bound_that_another_order_breaks_is_refused_with_the_reason() -> None:
    with pytest.raises(BoundError, match=r"of 'y'; TopK node .* decides otherwise"):
        convert(model(TOPK, x="float[n,16] x", y=OUTPUTS, **PICKS), "float16", max_error=0.01)


def test_indices_that_stay_the_same_have_no_error() -> None:
    x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    done = convert(
        model("y, i = TopK(x, k)", y="float[n,2] y, int64[n,2] i", k=np.array([2])), "float16", inputs=[{"x": x}]
    )
    assert (done.errors, done.errors_in_float32_order) == ({"y": 0.0, "i": 0.0}, {})


def test_a_text_that_would_be_another_stays_of_float32() -> None:
    original = model("r = Mul(x, x) t = Cast<to = 8>(r)", y="string[n,4] t")
    assert "its text would be another" in convert(original, "float16", keep_io=True).islands.values()


def test_a_large_error_is_warned_of(tmp_path: Path) -> None:
    path, output, data = tmp_path / "m.onnx", tmp_path / "o.onnx", tmp_path / "o.json"
    ortfuse.save(model("y = Sin(x)", y="float[n,4] y"), path)
    np.savez(tmp_path / "x.npz", x=np.linspace(100, 900, 12, dtype=np.float32).reshape(3, 4))
    given = ["--inputs", str(tmp_path / "x.npz"), "--json", str(data)]
    ran = CliRunner().invoke(app, ["convert", str(path), "-o", str(output), *given])
    assert (ran.exit_code, "warning: the error of 'y' is" in ran.output) == (0, True)
    assert len(json.loads(data.read_text())["warnings"]) == 1


def test_a_bound_that_cannot_be_met_is_the_answer_no(tmp_path: Path) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "o.json"
    ortfuse.save(model("y = Sin(x)", y="float[n,4] y"), path)
    arguments = ["convert", str(path), "-o", str(tmp_path / "o.onnx"), "--max-error", "1e-9", "--json", str(data)]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 1
    assert "the least is" in ran.output
    assert json.loads(data.read_text())["ok"] is False
    assert not (tmp_path / "o.onnx").exists()


def test_weights_in_constant_nodes_are_counted() -> None:
    original = model("w = Constant<value = float[4,2] {1, 2, 3, 4, 5, 6, 7, 8}> () y = MatMul(x, w)")
    done = convert(original, "float16")
    assert (done.bytes_before, done.bytes_after) == (32, 16)
