"""Conversion to half precision: float32 islands where they are needed, and nowhere else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import BoundError, OptionError, TargetError, VerificationError
from ortfuse.quantization.half import Conversion, convert
from ortfuse.quantization.half.min_cut_float32_islands import Wire, choose, cost
from ortfuse.runtime.session import Session

RNG = np.random.default_rng(0)


def model(
    body: str, x: str = "float[n,4] x", y: str = "float[n,k] y", opset: int = 17, functions: str = "", **constants: Any
) -> ir.Model:
    return graphs.model(body, x, y, opset=opset, domains=["mine"], functions=functions, constants=constants)


def kinds(done: Conversion) -> dict[str, str]:
    """The type that each operator but Cast computes in."""
    found = {}
    for node in done.model.graph:
        if node.op_type != "Cast":
            types = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None and value.dtype}
            found[node.op_type] = "half" if types & {ir.DataType.FLOAT16, ir.DataType.BFLOAT16} else "float"
    return found


def islands(done: Conversion) -> set[str]:
    return {name.split(" ")[0] for name in done.islands}


X = RNG.normal(size=(3, 4)).astype(np.float32)


def converted(original: ir.Model, x: np.ndarray = X, to: str = "float16", **options: Any) -> Conversion:
    return convert(original, to, inputs=[{"x": x}], **options)


@pytest.mark.parametrize("seed", range(30))
def test_the_choice_is_the_least_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 9))
    units = [("float", "half", "free", "free", "free")[int(rng.integers(5))] for _ in range(count)]
    wires = [
        Wire(source, frozenset(int(end) for end in rng.integers(source + 1, count, int(rng.integers(1, 4)))))
        for source in range(count - 1)
    ]
    found = choose(units, wires)  # type: ignore[arg-type]
    allowed = [(True,) if kind == "float" else (False,) if kind == "half" else (False, True) for kind in units]
    everything = [(cost(units, wires, one), sum(one)) for one in itertools.product(*allowed)]  # type: ignore[arg-type]
    assert (cost(units, wires, found), sum(found)) == min(everything)  # type: ignore[arg-type]


def test_everything_is_half_where_nothing_is_lost() -> None:
    done = converted(model("p = MatMul(x, w) q = Add(p, b) y = Gelu(q)", opset=20, w=X.T.copy(), b=X[0, :3]))
    assert (done.operators, done.casts, dict(done.islands)) == (3, 0, {})
    assert [value.dtype for value in (*done.model.graph.inputs, *done.model.graph.outputs)] == [ir.DataType.FLOAT16] * 2
    assert done.bytes_after * 2 == done.bytes_before
    assert done.error < 3e-3


def test_inputs_and_outputs_keep_their_types_if_asked() -> None:
    done = converted(
        model("p = MatMul(x, w) q = Relu(p) y = MatMul(q, v)", w=X.T.copy(), v=X[:, :2].copy()), keep_io=True
    )
    assert [value.dtype for value in (*done.model.graph.inputs, *done.model.graph.outputs)] == [ir.DataType.FLOAT] * 2
    assert (done.casts, islands(done)) == (2, set())
    assert [value.name for value in done.model.graph.outputs] == ["y"]


def test_what_overflows_stays_in_float32() -> None:
    done = converted(
        model("s = Mul(x, big) t = Mul(s, small) y = Sigmoid(t)", big=np.float32(1e6), small=np.float32(1e-6))
    )
    assert islands(done) == {"Mul"}
    assert kinds(done)["Sigmoid"] == "half"
    assert any("overflows" in reason for reason in done.islands.values())
    assert done.error < 2e-3


def test_a_sum_that_overflows_on_the_way_stays_in_float32() -> None:
    """The products cancel, but an accelerator may add them up in another order."""
    x = np.array([[300.0, 300.0, -300.0, -299.0]], np.float32)
    weight = np.full((4, 2), 200, np.float32)
    done = converted(model("y = MatMul(x, w)", w=weight), x)
    assert islands(done) == {"MatMul"}
    assert "the sum of what it adds up" in next(iter(done.islands.values()))
    mean = converted(model("y = ReduceMean<axes = [0]>(x)"), np.tile(x, (100, 1)) * 5)
    assert islands(mean) == {"ReduceMean"}


def test_an_angle_is_not_rounded_before_its_sine() -> None:
    x = np.linspace(100, 900, 12, dtype=np.float32).reshape(3, 4)
    done = converted(
        model("a = Mul(x, f) s = Sin(a) y = MatMul(s, w)", f=np.float32(1.37), w=X.T.copy()), x, keep_io=True
    )
    assert islands(done) == {"Mul", "Sin"}
    assert done.error < 2e-3


def test_what_is_subtracted_from_nearly_the_same_is_not_rounded_before() -> None:
    x = (X * 1e-3 + 100).astype(np.float32)
    body = "m = ReduceMean<axes = [1]>(x) c = Sub(x, m) y = Mul(c, k)"
    done = converted(model(body, k=np.float32(2)), x, keep_io=True)
    assert {"ReduceMean", "Sub"} <= islands(done)
    assert done.error < 2e-3


SCORES = "p = MatMul(x, w) s = {mask} q = Softmax(s) y = MatMul(q, v)"
HIDDEN = {"w": X.T.copy(), "v": X[:, :2].copy(), "m": np.array([[True, True, False]]), "none": np.float32(-1e9)}


def test_a_number_that_hides_scores_from_softmax_is_the_largest_there_is() -> None:
    done = converted(model(SCORES.format(mask="Where(m, p, none)"), **HIDDEN))
    assert islands(done) == set()
    everything = converted(model(SCORES.format(mask="Where(m, p, none)"), **{**HIDDEN, "m": np.zeros((1, 3), bool)}))
    assert islands(everything) == set()
    y = Session(everything.model).run({"x": X.astype(np.float16)})["y"]
    np.testing.assert_allclose(y, np.tile(X[:, :2].mean(0), (3, 1)), atol=2e-3)


@pytest.mark.parametrize(
    "mask",
    ["Where(m, p, none)} t = ReduceMax<axes = [1]>(s) {", "Add(p, shift)", "Where(m, p, none)} u = Neg(s) {"],
    ids=["seen by another", "added", "negated"],
)
def test_elsewhere_a_number_beyond_the_range_keeps_its_island(mask: str) -> None:
    first, _, more = mask.partition("}")
    body = SCORES.format(mask=first) + more.strip(" {}")
    extra = {"t": ", float[n,1] t", "u": ", float[n,3] u"}
    output = "float[n,k] y" + next((text for name, text in extra.items() if f" {name} =" in more), "")
    shift = np.array([[0, 0, -1e9]], np.float32)
    constants = {
        name: array
        for name, array in {**HIDDEN, "shift": shift}.items()
        if name in body.replace(",", " ").replace(")", " ").split() or f"({name}" in body
    }
    done = converted(model(body, y=output, **constants), keep_io=True)
    assert "Softmax" in islands(done)
    assert done.error < 2e-3


def test_bounds_that_nothing_reaches_are_no_reason_for_an_island() -> None:
    done = converted(model("p = Clip(x, a, b) y = Max(p, a)", a=np.float32(-3.4e38), b=np.float32(3.4e38)))
    assert islands(done) == set()


GUARDS = {
    "added": "q = ReduceL2<axes = [1]>(x) e = Add(q, k) y = Div(x, e)",
    "a bound": "q = ReduceL2<axes = [1]>(x) e = Clip(q, k) y = Div(x, e)",
    "the larger": "q = ReduceL2<axes = [1]>(x) e = Max(k, q) y = Div(x, e)",
    "on variances": "p = Mul(x, x) q = ReduceMean<axes = [1]>(p) e = Add(q, k) r = Sqrt(e) y = Div(x, r)",
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_small_number_that_saves_a_division_is_the_least_that_there_is(name: str) -> None:
    """Also where no row of zeros was seen."""
    x = X.copy()
    x[1] = 0
    done = converted(model(GUARDS[name], k=np.float32(1e-12)), keep_io=True)
    assert islands(done) == set()
    assert done.error < 2e-3
    found = Session(done.model).run({"x": x})["y"]
    assert np.isfinite(found).all()
    assert not found[1].any()


def test_a_small_number_that_something_else_takes_too_is_not() -> None:
    x = X.copy()
    x[1] = 0
    body = "q = ReduceL2<axes = [1]>(x) e = Add(q, k) d = Div(x, e) m = Mul(x, k) y = Add(d, m)"
    assert {"Add", "Div"} <= islands(converted(model(body, k=np.float32(1e-9)), x, keep_io=True))


def test_quantised_numbers_keep_their_scales() -> None:
    body = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, w)"
    done = converted(model(body, s=np.float32(0.1), z=np.uint8(128), w=X.T.copy()))
    assert islands(done) == {"QuantizeLinear", "DequantizeLinear"}


def test_a_constant_may_be_of_both_types() -> None:
    done = converted(model("a = Mul(x, big) b = Sub(a, k) c = Mul(b, k) y = Add(x, k)", y="float[n,k] y, float[n,k] c",
                           big=np.float32(1e6), k=np.float32(0.5)))  # fmt: skip
    assert {value.dtype for value in done.model.graph.initializers.values()} == {ir.DataType.FLOAT, ir.DataType.FLOAT16}
    assert any("'c' stays float32" in note for note in done.notes)


BRANCHES = """s = ReduceSum<keepdims = 0>(x) c = Greater(s, zero)
    y = If (c) <then_branch = a () => (float[n,k] t) { t = MatMul(x, w) }, else_branch = b () => (float[n,k] e) { f = MatMul(x, w) e = Neg(f) }>"""
LOOP = """n3 = Constant <value = int64 {3}> () go = Constant <value = bool {1}> ()
    y, all = Loop (n3, go, x) <body = l (int64 i, bool c, float[n,4] h) => (bool c2, float[n,4] h2, float[n,4] o) {
        c2 = Identity(c) m = MatMul(h, w) h2 = Tanh(m) o = Mul(h2, w2) }>"""
SCAN = """y, all = Scan <num_scan_inputs = 1, body = l (float[4] h, float[4] r) => (float[4] h2, float[4] o) {
        m = Add(h, r) h2 = Tanh(m) o = Relu(h2) }> (h0, x)"""
SQUARE = RNG.normal(size=(4, 4)).astype(np.float32)


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
@pytest.mark.parametrize("keep_io", [False, True])
def test_bodies_of_control_flow_are_converted(keep_io: bool, to: str) -> None:
    branches = converted(model(BRANCHES, zero=np.float32(0), w=X.T.copy()), to=to, keep_io=keep_io)
    loop = converted(
        model(LOOP, y="float[n,4] y, float[k,n,4] all", w=SQUARE, w2=np.float32(2)), to=to, keep_io=keep_io
    )
    scan = converted(model(SCAN, y="float[4] y, float[n,4] all", h0=np.zeros(4, np.float32)), to=to, keep_io=keep_io)
    for done in (branches, loop, scan):
        assert islands(done) == set()
        assert done.error < (5e-3 if to == "float16" else 3e-2)
        assert done.casts == (1 + len(done.model.graph.outputs) if keep_io else 0)


def test_operators_with_which_the_runtime_does_not_load_the_model_stay_in_float32() -> None:
    """Its optimiser ends the process on a Transpose before a product of float16."""
    body = "t = Transpose<perm = [1, 0, 2]>(x) y = MatMul(t, w) f = Reshape(x, column) q = MatMul(f, one)"
    original = model(
        body, x="float[s,1,4] x", y="float[1,s,3] y, float[k,1] q", w=X.T.copy(), column=np.array([-1, 1]),
        one=np.ones((1, 1), np.float32),
    )  # fmt: skip
    done = converted(original, X[:, None])
    assert all("the runtime does not load the model with" in reason for reason in done.islands.values())
    x = X[:, None].astype(np.float16)
    assert Session(done.model, optimise=True).run({"x": x})["y"].shape == (1, 3, 3)


def test_others_of_their_kind_are_half() -> None:
    body = """r = Relu(x) o = Transpose<perm = [1, 0, 2]>(r) z = Exp(o) t = Transpose<perm = [1, 0, 2]>(x) y = MatMul(t, w)
        n = Neg(x) m = Transpose<perm = [2, 1, 0]>(n) p = Transpose<perm = [2, 0, 1]>(n)"""
    ends = "float[1,s,3] y, float[1,s,4] z, float[4,1,s] m, float[4,s,1] p"
    done = converted(model(body, x="float[s,1,4] x", y=ends, w=X.T.copy()), X[:, None])
    assert [name.split()[0] for name in done.islands] == ["Transpose"]
    assert done.operators == 8 - 1


def test_operators_that_the_runtime_only_runs_in_float32_stay_so() -> None:
    """Its ScatterND and ScatterElements take float16, and say when they run that they do not add such numbers."""
    body = """r = Relu(x) z = Sub(r, r) a = ScatterND<reduction = "add">(z, i, r) p = ScatterND(r, i, r)
        e = ScatterElements<reduction = "add">(z, j, r) t = Add(a, e)
        o = Div(t, r) y = MatMul(o, w) q = MatMul(p, w) v = MatMul(e, w)"""
    rows, elements = np.zeros((3, 1), np.int64), np.zeros((3, 4), np.int64)
    ends = "float[s,3] y, float[s,3] q, float[s,3] v"
    done = converted(model(body, y=ends, opset=18, w=X.T.copy(), i=rows, j=elements))
    failing = {name for name, reason in done.islands.items() if "does not run" in reason}
    assert failing == {"ScatterND node that produces 'a'", "ScatterElements node that produces 'e'"}


def test_functions_are_converted() -> None:
    functions = '<domain: "mine", opset_import: ["": 17]> Twice (a) => (b) { b = Add(a, a) }'
    done = converted(model("p = mine.Twice(x) y = MatMul(p, w)", functions=functions, w=X.T.copy()))
    assert (islands(done), done.operators) == (set(), 2)


def test_operators_without_a_definition_for_the_type_stay_in_float32() -> None:
    open_range = model(
        "s = ReduceMax<keepdims = 0>(x) r = Range(a, s, c) y = Neg(r)", y="float[k] y", a=np.float32(0), c=np.float32(1)
    )
    assert "not defined for float16" in converted(open_range).islands["Range node that produces 'r'"]


def test_a_model_is_raised_to_an_opset_that_has_the_type() -> None:
    done = converted(model("p = MatMul(x, w) y = Relu(p)", opset=11, w=X.T.copy()), to="bfloat16")
    assert (islands(done), done.model.graph.opset_imports[""]) == (set(), 22)


def test_a_model_that_cannot_be_raised_is_refused() -> None:
    """ONNX's version converter forgets how Upsample rounds positions."""
    original = model(
        "y = Upsample(x, two)",
        x="float[1,1,2,2] x",
        y="float[a,b,c,d] y",
        opset=9,
        two=np.array([1, 1, 2, 2], np.float32),
    )
    with pytest.raises(TargetError, match="bfloat16 needs opset 13"):
        converted(original, X[None, None, :2, :2], "bfloat16")


@pytest.mark.parametrize("largest", [4.0, 70000.0])
def test_an_input_with_a_default_may_be_left_out(largest: float) -> None:
    original = model("p = Mul(x, w) y = Exp(p)", x=f"float[n,2] x, float[2] w = {{0.5, {largest}}}")
    done = converted(original, np.zeros((3, 2), np.float32))
    kind = ir.DataType.FLOAT16 if largest < 65504 else ir.DataType.FLOAT
    assert done.model.graph.inputs[1].dtype == kind
    assert np.isfinite(done.model.graph.initializers["w"].const_value.numpy()).all()


def test_texts_pass_by() -> None:
    done = convert(model("t = Identity(s) y = Relu(x)", x="float[n,4] x, string[k] s", y="float[n,k] y, string[k] t"))
    assert (done.operators, islands(done)) == (1, set())


def test_bfloat16_holds_large_numbers_and_is_emulated() -> None:
    done = converted(
        model("s = Mul(x, big) t = Mul(s, small) y = Sigmoid(t)", big=np.float32(1e6), small=np.float32(1e-6)),
        to="bfloat16",
    )
    assert (done.emulated, islands(done), done.casts) == (True, set(), 0)
    assert 1e-4 < done.error < 2e-2


def test_a_bound_is_met_with_more_in_float32_or_refused() -> None:
    original = model("p = MatMul(x, w) q = Tanh(p) r = MatMul(q, v) y = Exp(r)", w=X.T.copy(), v=X[:, :2].copy())
    free = converted(original, keep_io=True)
    bound = free.error / 3
    done = converted(original, keep_io=True, max_error=bound)
    assert done.error <= bound
    assert done.islands
    with pytest.raises(BoundError, match="the least is"):
        converted(original, max_error=1e-9)


def test_a_target_without_kernels_keeps_float32() -> None:
    done = converted(model("y = MatMul(x, w)", w=X.T.copy()), to="bfloat16", target="CPUExecutionProvider")
    assert "CPUExecutionProvider has no kernel for bfloat16" in next(iter(done.islands.values()))


def test_the_command_writes_the_result(tmp_path: Path) -> None:
    original, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
    ortfuse.save(model("y = MatMul(x, w)", w=X.T.copy()), original)
    ran = CliRunner().invoke(app, ["convert", str(original), "-o", str(output), "--to", "float16", "--keep-io"])
    assert ran.exit_code == 0, ran.output
    assert "1 operators in float16, 0 in float32, 2 Casts" in ran.output
    assert "written: " in ran.output
    assert "nothing was written" in CliRunner().invoke(app, ["convert", str(original)]).output
    assert onnx.load(output).graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    refused = CliRunner().invoke(
        app, ["convert", str(original), "-o", str(tmp_path / "no.onnx"), "--max-error", "1e-9"]
    )
    assert refused.exit_code == 1
    assert not (tmp_path / "no.onnx").exists()
    with pytest.raises(OptionError):
        convert(original, "float8")


def test_inputs_with_nan_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    given = np.where(np.arange(12).reshape(3, 4) == 5, np.nan, X).astype(np.float32)
    with pytest.raises(VerificationError, match=r"'x' of set 0 .* holds NaN"):
        converted(model("y = Relu(x)"), given, output=tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [np.full((3, 4), np.inf, np.float32), np.zeros((0, 4), np.float32)])
def test_inputs_on_which_nothing_can_be_measured_are_refused(given: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"on set 1 .* no output has a finite number"):
        convert(model("y = Relu(x)"), "float16", inputs=[{"x": X}, {"x": given}], output=tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_infinities_that_stay_where_they_are_are_no_error() -> None:
    given = np.where(np.arange(12).reshape(3, 4) == 5, -np.inf, X).astype(np.float32)
    assert 0 < converted(model("y = Mul(x, x)"), given).errors["y"] < 1e-2


def test_a_model_that_computes_nothing_but_nan_is_refused() -> None:
    with pytest.raises(VerificationError, match="on the generated inputs no output has a finite number"):
        convert(model("y = Mul(x, w)", y="float[n,4] y", w=np.full(4, np.nan, np.float32)), "float16")


@pytest.mark.parametrize(
    "body",
    [
        "p = MatMul(x, w) q = Relu(p) y = MatMul(q, w)",
        "p = MatMul(x, w) t = Transpose<perm = [1, 0]>(w) y = MatMul(p, t)",
        "p = Gemm(x, w) y = Gemm<transB = 1>(p, w)",
        "p = MatMul(x, w) c = Constant<value = bool {1}>() y = If(c) <"
        "then_branch = a () => (float[n,k] r) { r = MatMul(p, w) }, else_branch = b () => (float[n,k] s) { s = Add(p, p) }>",
    ],
)
def test_a_weight_that_is_used_twice_is_converted_once(body: str) -> None:
    done = converted(model(body, w=RNG.normal(size=(4, 4)).astype(np.float32)), keep_io=True)
    weights = [value.const_value for value in done.model.graph.initializers.values()]
    assert [(one.dtype, one.shape.numpy()) for one in weights if one and one.size == 16] == [
        (ir.DataType.FLOAT16, (4, 4))
    ]


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_a_large_weight_of_which_float32_is_needed_too_is_stored_once(to: str) -> None:
    w = RNG.normal(size=(4, 256)).astype(np.float32)
    original = model("p = MatMul(x, w) q = Relu(p) r = Gemm<transB = 1>(q, w) y = Neg(r)", w=w)
    done = converted(original, to=to, keep_io=True, exclude="op:Gemm")
    weights = [value.const_value for value in done.model.graph.initializers.values()]
    assert [(one.dtype, one.size) for one in weights if one is not None] == [(ir.DataType.FLOAT, w.size)]
    assert [node.op_type for node in done.model.graph].count("Cast") == done.casts
    assert done.bytes_after == done.bytes_before
    assert 0 < done.error < (2e-3 if to == "float16" else 2e-2)


CALLED = """<domain: "mine", opset_import: ["": 17]> f (a) => (b) { w = Constant<value = float[32,32] {NUMBERS}>() p = MatMul(a, w) b = Tanh(p) }"""


@pytest.mark.parametrize(
    ("body", "weights", "functions"),
    [
        ("p = mine.f(x) y = mine.f(p)", {}, CALLED.replace("NUMBERS", ", ".join(["0.03"] * 1024))),
        ("p = MatMul(x, v) q = Tanh(p) y = MatMul(q, w)", dict.fromkeys("vw", RNG.normal(size=(32, 32))), ""),
    ],
    ids=["of a function", "copied"],
)
def test_equal_weights_become_one(body: str, weights: dict[str, np.ndarray], functions: str) -> None:
    x = RNG.normal(size=(3, 32)).astype(np.float32)
    constants = {name: array.astype(np.float32) for name, array in weights.items()}
    done = converted(model(body, x="float[n,32] x", functions=functions, **constants), x, keep_io=True)
    assert done.bytes_after == 2 * 32 * 32
    assert 0 < done.error < 2e-3
