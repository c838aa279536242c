"""That generated inputs exercise a model, and that what they do not exercise is told."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_graphs import model

from ortfuse.runtime.inputs.coverage_guided_inputs import Exercise
from ortfuse.runtime.inputs.find_size_inputs import size_inputs
from ortfuse.runtime.inputs.input_roles import Role
from ortfuse.runtime.inputs.random_inputs import InputSpec, input_specs, make_inputs
from ortfuse.runtime.inputs.sampling import COUNTS, Drawing, Integers
from ortfuse.runtime.reference_runs import explored
from ortfuse.runtime.verification_time_budget import Budget

HEAD = '<ir_version: 10, opset_import: ["": 17]>'


def exercise(text: str) -> Exercise:
    return explored(ir.from_onnx_text(f"{HEAD} {text}"), reference=False).exercise


LOOP = """y = Loop(m, t, x) <body = b (int64 i, bool c, float[3] h) => (bool d, float[3] k) { d = Identity(c) k = Add(h, h) }>"""


@pytest.mark.parametrize(
    "counted",
    ["m = Identity(n)", "m = Squeeze(v)", "m = Add(n, two)", "f = Cast<to = 1>(n) g = Mul(f, f) m = Cast<to = 7>(g)",
     "m = ReduceMax<keepdims = 0>(v)", "m = Gather(v, nil)"],
)  # fmt: skip
def test_loops_run_in_no_one_and_several_iterations(counted: str) -> None:
    text = f"g (float[3] x, int64 n, int64[1] v) => (float[3] y) <bool t = {{1}}, int64 two = {{2}}, int64 nil = {{0}}> {{ {counted} {LOOP} }}"
    found = explored(ir.from_onnx_text(f"{HEAD} {text}"), reference=False)
    assert found.exercise.missing == ()
    factors = {float(np.abs(one.expected["y"] / one.inputs["x"])[0]) for one in found.experiments}
    assert len(factors) > 2


def test_both_branches_are_taken() -> None:
    branch = (
        "If(f) <then_branch = a () => (float[3] z) { z = Neg(x) }, else_branch = e () => (float[3] r) { r = Abs(x) }>"
    )
    assert exercise(f"g (float[3] x, bool f) => (float[3] y) {{ y = {branch} }}").missing == ()
    compared = f"g (float[3] x, int64 n) => (float[3] y) <int64 k = {{5}}> {{ f = Greater(n, k) y = {branch} }}"
    assert exercise(compared).missing == ()


def test_a_branch_that_is_never_taken_is_told() -> None:
    text = """g (float[3] x) => (float[3] y) <float k = {-1}> {
        a = Abs(x) m = ReduceMax<keepdims = 0>(a) f = Greater(m, k)
        y = If(f) <then_branch = t () => (float[3] z) { z = Neg(x) }, else_branch = e () => (float[3] r) { r = Abs(x) }> }"""
    (missing,) = exercise(text).missing
    assert missing == "If node that produces 'y' never took its else branch"


def test_numbers_are_scaled_until_a_threshold_is_passed() -> None:
    text = """g (float[8] x) => (float[?] y) <float k = {20}> {
        f = Greater(x, k) i = NonZero(f) t = Transpose(i) y = GatherND(x, t) }"""
    found = exercise(text)
    assert found.missing == ()
    assert found.empty == ()


def test_outputs_that_are_always_empty_or_constant_are_told() -> None:
    text = """g (float[8] x) => (float[?] y, float[8] z, float[8] v) <float k = {1e30}, float small = {1e-9}> {
        f = Greater(x, k) i = NonZero(f) t = Transpose(i) y = GatherND(x, t) s = Mul(x, small) z = Softmax(s) v = Relu(x) }"""
    found = exercise(text)
    assert (found.empty, found.constant) == (("y",), ("z",))
    assert not found.is_complete
    assert not found.shows_nothing


def test_a_batch_that_is_baked_in_is_run_with_several_lengths_and_told() -> None:
    text = "g (float[b, s, 4] x) => (float[1, s, 4] y) <int64[3] k = {1, -1, 4}> { r = Reshape(x, k) p = Transpose<perm = [0, 2, 1]>(r) m = MatMul(r, p) q = Softmax(m) o = MatMul(q, r) z = Expand(x, one) y = Add(o, z) }"
    text = text.replace("{1, -1, 4}>", "{1, -1, 4}, int64[3] one = {1, 1, 1}>")
    found = explored(ir.from_onnx_text(f"{HEAD} {text}"), reference=False)
    lengths = {one.inputs["x"].shape[1] for one in found.experiments if one.inputs["x"].shape[0] == 1}
    assert len(lengths) > 2


def test_inputs_of_sizes_are_found_through_everything_but_shapes() -> None:
    text = f"""{HEAD} g (float[n, 3] x, int64 a, int64[2] b, int64[n] c, float d) => (float[?, ?] y, int64[n] z) <int64 nil = {{0}}, int64 one = {{1}}> {{
        s = Shape(x) k = ConstantOfShape(s) e = Cast<to = 7>(d) r = Range(nil, e, one) t = Tile(x, b) u = Cast<to = 1>(a) y = Mul(t, u) z = Neg(c) }}"""
    assert size_inputs(ir.from_onnx_text(text)) == {"b", "d"}


def test_only_wide_integers_of_operators_that_do_not_quantise_tell_sizes() -> None:
    text = """<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1, "other": 1]>
        g (float[2, 4] x, uint8[2, 4] q, float[2, 4] y, int32[1] n, int8[4] m, int32[4] c) => (float[2, 4] r, float[?] u, float[?] v) <float s = {0.02}, uint8 k = {128}> {
        a = QuantizeLinear(x, s, k) b = com.microsoft.QLinearAdd(a, s, k, q, s, k, s, k) r = DequantizeLinear(b, s, k)
        e = com.microsoft.DequantizeLinear(c, s) d = QuantizeLinear(y, s, k) u = other.Made(d, m, e) v = other.Made(n) }"""
    assert size_inputs(ir.from_proto(onnx.parser.parse_model(text))) == {"n"}


@pytest.mark.parametrize("kind", ["INT8", "UINT8", "INT16", "INT32", "INT64", "UINT32"])
def test_integers_without_a_role_are_of_both_signs_and_extreme(kind: str) -> None:
    dtype = ir.DataType[kind]
    spec, limits = InputSpec("x", dtype, (400,), Role()), np.iinfo(dtype.numpy())
    usual = np.concatenate([make_inputs([spec], {}, seed)["x"] for seed in range(3)])
    assert (usual.min() < 0) == (limits.min < 0)
    extreme = make_inputs([spec], {}, 0, {"x": Drawing(integers=Integers.EXTREME)})["x"]
    assert extreme.min() <= limits.min + limits.max // 100
    assert extreme.max() >= limits.max - limits.max // 100


def test_counts_differ_from_seed_to_seed_and_are_never_extreme() -> None:
    spec = InputSpec("n", ir.DataType.INT64, (), Role(tells_sizes=True))
    drawn = {int(make_inputs([spec], {}, seed, {"n": Drawing(integers=Integers.EXTREME)})["n"]) for seed in range(6)}
    assert drawn == set(COUNTS)


def test_missing_numbers_are_drawn_where_the_model_asks_for_them() -> None:
    (spec,) = input_specs(model("h = IsNaN(x) y = Where(h, w, x)", "float[9, 9] x", "float y", "<float w = {0.0}>"))
    assert any(np.isnan(make_inputs([spec], {}, seed)["x"]).any() for seed in range(3))
    (other,) = input_specs(
        model("e = Exp(x) h = IsNaN(e) y = Where(h, w, x)", "float[9, 9] x", "float y", "<float w = {0.0}>")
    )
    assert not any(np.isnan(make_inputs([other], {}, seed)["x"]).any() for seed in range(3))


def test_given_sizes_are_run_besides_others() -> None:
    found = explored(model("y = Relu(x)", "float[b,s] x", "float[b,s] y"), reference=False, sizes={"s": 77})
    lengths = {one.inputs["x"].shape[1] for one in found.experiments}
    assert 77 in lengths
    assert len(lengths) > 2


def test_what_the_time_does_not_allow_is_left_out_and_told() -> None:
    found = explored(model("y = Relu(x)", "float[b,s] x", "float[b,s] y"), reference=False, budget=Budget(1e-9))
    assert len(found.experiments) == 1
    assert any("the time for verifying is over" in note for note in found.notes)
