"""Sites of models, and the models in which rungs are applied."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.bench.executed import executed_ops
from ortfuse.errors import PrecisionError
from ortfuse.execution.session import weight_bytes
from ortfuse.execution.single_site import cut
from ortfuse.facts.facts import Facts
from ortfuse.precision import lowered, sites
from ortfuse.precision.calibration import Calibration, Seen, calibrate
from ortfuse.precision.rungs import rung_rules
from ortfuse.precision.shared_ranges import method_of, ranges_of
from ortfuse.precision.uniform import named
from ortfuse.rewrite.candidate import Candidate
from ortfuse.verification import Session

HEADER = '<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>'


def model(
    body: str, inputs: str = "float[b,s,24] x", outputs: str = "float[b,s,16] y", **weights: tuple[int, ...]
) -> ir.Model:
    """A model with random weights of these shapes."""
    rng = np.random.default_rng(0)
    made = ir.from_onnx_text(f"{HEADER} g ({inputs}) => ({outputs}) {{ {body} }}")
    for name, shape in weights.items():
        put(made, name, rng.standard_normal(shape).astype(np.float32))
    return made


def put(made: ir.Model, name: str, array: np.ndarray) -> None:
    """Make what a model takes under this name a constant."""
    tensor = ir.Tensor(array, name=name)
    for node in made.graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name == name:
                known = made.graph.initializers.get(name)
                if known is None:
                    value.const_value, value.type, value.shape = (
                        tensor,
                        ir.TensorType(tensor.dtype),
                        ir.Shape(array.shape),
                    )
                    made.graph.register_initializer(value)
                else:
                    node.replace_input_with(index, known)


def seen(low: float, high: float) -> Seen:
    """What was seen of a value that has just these two numbers."""
    found = Seen()
    found.add(np.array([low, high], np.float32))
    return found


def run(made: ir.Model, seed: int = 1) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((2, 3, 24)).astype(np.float32)
    return next(iter(Session(made, threads=1).run({"x": x}).values()))


def operators(made: ir.Model) -> list[str]:
    return [node.op_type for node in made.graph]


def test_a_site_is_the_largest_part_that_a_rung_takes_in() -> None:
    made = model("p = MatMul(x, w) y = Add(p, c)", w=(24, 16), c=(16,))
    (site,) = sites(made).values()
    assert (site.name, site.operator, site.activations, site.weight, site.bias) == ("y", "MatMul", ("x",), "w", "c")
    assert (site.weight_shape, site.weight_bytes) == ((24, 16), 24 * 16 * 4)
    assert "dynamic_int8.channel" in site.rungs


def test_a_sum_that_is_no_bias_is_not_part_of_a_site() -> None:
    made = model("p = MatMul(x, w) y = Add(p, c)", w=(24, 16), c=(3, 16))
    assert list(sites(made)) == ["p"]


def test_a_product_used_elsewhere_too_is_a_site_of_its_own() -> None:
    made = model("y = MatMul(x, w) z = Add(y, c)", outputs="float[b,s,16] y, float[b,s,16] z", w=(24, 16), c=(16,))
    assert list(sites(made)) == ["y"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_weights_that_are_no_proper_numbers_are_refused(bad: float) -> None:
    made = model("y = MatMul(x, w)", w=(24, 16))
    array = made.graph.initializers["w"].const_value.numpy().copy()
    array[3, 4] = bad
    made.graph.initializers["w"].const_value = ir.Tensor(array)
    assert not sites(made)


def test_only_what_was_chosen_is_lowered() -> None:
    made = model("p = MatMul(x, w) q = MatMul(x, v) y = Add(p, q)", w=(24, 16), v=(24, 16))
    assert set(sites(made)) == {"p", "q"}
    low = lowered(made, {"p": "dynamic_int8.channel"})
    assert operators(low) == ["DynamicQuantizeLinear", "MatMulIntegerToFloat", "MatMul", "Add"]
    assert operators(made) == ["MatMul", "MatMul", "Add"]
    before, after = run(made), run(low)
    error = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert 1e-4 < error < 3e-2


def test_products_of_one_activation_quantise_it_once() -> None:
    made = model("p = MatMul(x, w) q = MatMul(x, v) y = Add(p, q)", w=(24, 16), v=(24, 16))
    low = lowered(made, {"p": "dynamic_int8.channel", "q": "dynamic_int8.tensor"})
    assert operators(low).count("DynamicQuantizeLinear") == 1


SPELLINGS = {
    "y = Gemm(x, w, c)": {"w": (24, 16), "c": (16,)},
    "y = Gemm<transB = 1, alpha = 0.5>(x, w, c)": {"w": (16, 24), "c": (16,)},
    "p = Gemm<transB = 1>(x, w) y = Add(p, c)": {"w": (16, 24), "c": (16,)},
    "y = com.microsoft.FusedMatMul<transB = 1, alpha = 2.0>(x, w)": {"w": (16, 24)},
    "t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)": {"w": (16, 24)},
}


@pytest.mark.parametrize("body", SPELLINGS)
def test_every_spelling_of_a_product_is_a_site(body: str) -> None:
    rank = "b" if "Gemm" in body else "b,s"
    made = model(body, f"float[{rank},24] x", f"float[{rank},16] y", **SPELLINGS[body])
    (site,) = sites(made).values()
    assert (site.name, site.weight) == ("y", "w")
    assert site.operator == next(node.op_type for node in made.graph if node.op_type != "Transpose")
    low = lowered(made, {"y": "split_int8.three"})
    assert operators(low).count("MatMulIntegerToFloat") == 3
    x = np.random.default_rng(1).standard_normal((3, 24) if rank == "b" else (2, 3, 24)).astype(np.float32)
    before, after = (next(iter(Session(one, threads=1).run({"x": x}).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < 1e-3 * np.linalg.norm(before)


def test_what_is_not_chosen_keeps_its_spelling() -> None:
    made = model("p = Gemm(x, w, c) y = Gemm(p, v)", "float[b,24] x", "float[b,8] y", w=(24, 16), c=(16,), v=(16, 8))
    assert operators(lowered(made, {"y": "dynamic_int8.tensor"}))[0] == "Gemm"
    assert operators(lowered(made, {"p": "dynamic_int8.tensor"}))[-1] == "Gemm"


@pytest.mark.parametrize("rows", [32, 48])
def test_weights_are_rounded_in_whole_blocks_alone(rows: int) -> None:
    made = model("y = MatMul(x, w)", f"float[b,{rows}] x", "float[b,16] y", w=(rows, 16))
    (site,) = sites(made).values()
    assert ("weight_int4.block32_level4" in site.rungs) == (rows == 32)
    assert "weight_int4.block16_level4" in site.rungs
    assert "of a multiple of 64 rows" in site.refused["weight_int4.block64_level4"].reason


def test_columns_of_zeros_stay_zero() -> None:
    made = model("y = MatMul(x, w)", w=(24, 16))
    array = made.graph.initializers["w"].const_value.numpy().copy()
    array[:, 3] = 0
    made.graph.initializers["w"].const_value = ir.Tensor(array)
    assert not run(lowered(made, {"y": "dynamic_int8.channel"}))[..., 3].any()


def test_what_was_chosen_but_cannot_be_applied_is_an_error() -> None:
    made = model("y = MatMul(x, w)", w=(24, 16))
    with pytest.raises(PrecisionError, match=r"no rung is called 'dynamic_int9'; there are .*dynamic_int8.channel"):
        lowered(made, {"y": "dynamic_int9"})
    with pytest.raises(PrecisionError, match=r"dynamic_int8.channel cannot be applied to 'z'"):
        lowered(made, {"z": "dynamic_int8.channel"})


def test_sites_in_bodies_are_left_alone() -> None:
    body = """y = If(c) <then_branch = g () => (float[b,s,16] p) { p = MatMul(x, w) },
                         else_branch = h () => (float[b,s,16] q) { q = MatMul(x, w) }>"""
    weight = "float[24,16] w = {" + ", ".join(["0.5"] * 24 * 16) + "}"
    text = f"{HEADER} g (float[b,s,24] x, bool c) => (float[b,s,16] y) <{weight}> {{ {body} }}"
    assert not sites(ir.from_onnx_text(text))


CHAIN = """a = Conv<pads = [1,1,1,1]>(x, v, c) b = com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Relu">(a, w, c)
           y = Relu(b)"""


def test_convolutions_in_a_row_hand_on_integers() -> None:
    made = model(CHAIN, "float[b,4,6,6] x", "float[b,4,6,6] y", v=(4, 4, 3, 3), w=(4, 4, 3, 3), c=(4,))
    data = [{"x": np.random.default_rng(seed).standard_normal((2, 4, 6, 6)).astype(np.float32)} for seed in range(3)]
    assert not sites(made), "nothing is known of ranges"
    calibration = calibrate(made, ("x", "a", "b"), data)
    found = sites(made, calibration=calibration)
    assert [(site.name, site.activations, site.operator) for site in found.values()] == [
        ("a", ("x",), "Conv"),
        ("b", ("a",), "FusedConv"),
    ]
    low = lowered(made, dict.fromkeys(found, "static_int8_conv.extremes"), calibration)
    assert operators(low) == ["QuantizeLinear", "QLinearConv", "QLinearConv", "DequantizeLinear", "Relu"]
    before, after = (next(iter(Session(one, threads=1).run(data[0]).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < 2e-2 * np.linalg.norm(before)


MOVED = (
    "p = MaxPool<kernel_shape = [2, 2]>(a)",
    "p = Transpose<perm = [0, 1, 3, 2]>(a)",
    "f = Flatten<axis = 1>(a) p = Reshape(f, shape)",
    "p = Slice(a, zeros, ones, axes)",
)


@pytest.mark.parametrize("between", MOVED)
def test_integers_are_moved_and_picked_between_convolutions(between: str) -> None:
    body = f"a = Conv<pads = [1,1,1,1]>(x, v, c) {between} y = Conv<pads = [1,1,1,1]>(p, w, c)"
    made = model(body, "float[b,4,6,6] x", "float[b,4,h,w] y", v=(4, 4, 3, 3), w=(4, 4, 3, 3), c=(4,))
    for name, numbers in {"shape": [-1, 4, 6, 6], "zeros": [0, 1], "ones": [5, 6], "axes": [2, 3]}.items():
        put(made, name, np.array(numbers, np.int64))
    data = [{"x": np.random.default_rng(seed).standard_normal((2, 4, 6, 6)).astype(np.float32)} for seed in range(3)]
    calibration = calibrate(made, ("x", "a", "p", "y"), data)
    low = lowered(made, dict.fromkeys(("a", "y"), "static_int8_conv.extremes"), calibration)
    executed = executed_ops(low, data[0])
    assert (executed["QuantizeLinear"], executed["DequantizeLinear"]) == (1, 1)
    before, after = (next(iter(Session(one, threads=1).run(data[0]).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < 2e-2 * np.linalg.norm(before)


@pytest.mark.parametrize("pool", ["GlobalAveragePool(a)", "ReduceMean(a, axes)"])
def test_a_pool_before_a_product_takes_and_gives_integers(pool: str) -> None:
    body = f"a = Conv<pads = [1,1,1,1]>(x, v, c) g = {pool} f = Flatten(g) y = MatMul(f, w)"
    made = model(body, "float[b,4,6,6] x", "float[b,8] y", v=(4, 4, 3, 3), c=(4,), w=(4, 8))
    put(made, "axes", np.array([2, 3]))
    data = [{"x": np.random.default_rng(seed).standard_normal((2, 4, 6, 6)).astype(np.float32)} for seed in range(3)]
    calibration = calibrate(made, ("x", "a", "f"), data)
    low = lowered(made, {"a": "static_int8_conv.extremes", "y": "static_int8.extremes"}, calibration)
    executed = executed_ops(low, data[0])
    assert (executed["QuantizeLinear"], executed["DequantizeLinear"]) == (1, 0)
    assert executed["QLinearGlobalAveragePool"] == 1
    before, after = (next(iter(Session(one, threads=1).run(data[0]).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < 5e-2 * np.linalg.norm(before)


def test_a_much_wider_range_is_not_shared() -> None:
    made = model(
        "p = Slice(x, zeros, ones, axes) y = Conv(p, w)", "float[b,4,6,6] x", "float[b,4,m,n] y", w=(4, 4, 1, 1)
    )
    calibration = Calibration({"x": seen(-100.0, 100.0), "p": seen(-1.0, 1.0)})
    assert ranges_of(made.graph, calibration, {})("p", "extremes") == (-1.0, 1.0)
    calibration = Calibration({"x": seen(-1.25, 1.0), "p": seen(-1.0, 1.0)})
    assert ranges_of(made.graph, calibration, {})("p", "extremes") == (-1.25, 1.0)


RESIDUAL = """a = com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Relu">(x, v, c)"""
SUMS = {
    "fused": """y = com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Relu">(a, w, c, x)""",
    "spelled": "p = Conv<pads = [1,1,1,1]>(a, w, c) s = Add(x, p) y = Relu(s)",
}


@pytest.mark.parametrize("spelling", SUMS)
def test_a_residual_is_added_in_integers(spelling: str) -> None:
    body = f"{RESIDUAL} {SUMS[spelling]}"
    made = model(body, "float[b,4,6,6] x", "float[b,4,6,6] y", v=(4, 4, 3, 3), w=(4, 4, 3, 3), c=(4,))
    data = [{"x": np.random.default_rng(seed).standard_normal((2, 4, 6, 6)).astype(np.float32)} for seed in range(3)]
    calibration = calibrate(made, ("x", "a", "y"), data)
    found = sites(made, calibration=calibration)
    assert found["y"].activations == ("a", "x")
    low = lowered(made, {"a": "static_int8_conv.extremes", "y": "static_int8_conv.extremes_sum"}, calibration)
    assert operators(low) == ["QuantizeLinear", "QLinearConv", "QLinearConv", "QLinearAdd", "DequantizeLinear"]
    before, after = (next(iter(Session(one, threads=1).run(data[0]).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < 2e-2 * np.linalg.norm(before)


@pytest.mark.parametrize("batch", ["b", "?"])
def test_a_residual_site_can_be_measured_alone(batch: str) -> None:
    """What is added has the batch of what is convolved, whatever that is called, also where the site is cut out."""
    made = model(
        f"{RESIDUAL} {SUMS['fused']}", "float[b,4,6,6] x", "float[b,4,6,6] y", v=(4, 4, 3, 3), w=(4, 4, 3, 3), c=(4,)
    )
    made.graph.inputs[0].shape = ir.Shape([None if batch == "?" else batch, 4, 6, 6])
    calibration = calibrate(
        made, ("x", "a", "y"), [{"x": np.linspace(-1, 1, 288, dtype=np.float32).reshape(2, 4, 6, 6)}]
    )
    part = cut(made, "y", ("a", "x"), Facts(made))
    assert "QLinearAdd" in operators(lowered(part.model, {"y": "static_int8_conv.extremes_sum"}, calibration))


@pytest.mark.parametrize("between", ["", "m = MaxPool<kernel_shape = [2,2]>(a)"])
def test_sites_that_tell_ranges_in_different_ways_hand_on_integers(between: str) -> None:
    body = f"{RESIDUAL.replace('v, c', 'v')} {between} y = Conv({'m' if between else 'a'}, w)"
    made = model(body, "float[b,4,6,6] x", "float[b,4,m,n] y", v=(4, 4, 3, 3), w=(4, 4, 1, 1))
    data = [{"x": np.random.default_rng(seed).standard_normal((2, 4, 6, 6)).astype(np.float32)} for seed in range(3)]
    calibration = calibrate(made, ("x", "a", "m", "y"), data)
    low = lowered(made, {"a": "static_int8_conv.percentile_9999", "y": "static_int8_conv.least_squares"}, calibration)
    executed = executed_ops(low, data[0])
    assert (executed["QuantizeLinear"], executed["DequantizeLinear"], executed["QLinearConv"]) == (1, 1, 2)


def test_the_way_a_rung_tells_ranges_is_in_its_name() -> None:
    found = {rung: method_of(rung) for rung in rung_rules()}
    assert found["static_int8_conv.least_squares_sum"] == found["static_int8_through.least_squares"] == "least_squares"
    assert found["static_int8_conv.percentile_9999"] == "percentile_9999"
    assert found["dynamic_int8.channel"] == found["static_int8.smooth"] == ""
    assert all(method for rung, method in found.items() if "root" in rung_rules()[rung].proof.ranges)


def test_a_channel_without_weights_keeps_its_bias() -> None:
    made = model("y = Conv(x, w, c)", "float[b,4,6,6] x", "float[b,4,4,4] y", w=(4, 4, 3, 3), c=(4,))
    array = made.graph.initializers["w"].const_value.numpy().copy()
    array[1] = 0
    made.graph.initializers["w"].const_value = ir.Tensor(array)
    data = {"x": np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)}
    calibration = calibrate(made, ("x", "y"), [data])
    low = lowered(made, {"y": "static_int8_conv.extremes"}, calibration)
    before, after = (next(iter(Session(one, threads=1).run(data).values())) for one in (made, low))
    np.testing.assert_allclose(after, before, atol=0.06 * np.abs(before).max())
    assert np.unique(after[:, 1]).size == 1
    np.testing.assert_allclose(after[:, 1], before[:, 1], atol=0.01 * np.abs(before).max())


@pytest.mark.parametrize("used", ["y", "h", "y h c"])
def test_a_recurrent_layer_is_one_site_whatever_is_used_of_it(used: str) -> None:
    body = "y, h, c = LSTM<hidden_size = 16>(x, w, r, b) " + " ".join(f"{one}2 = Neg({one})" for one in used.split())
    outputs = ", ".join(f"float[{'1,b,16' if one != 'y' else 't,1,b,16'}] {one}2" for one in used.split())
    made = model(body, "float[t,b,24] x", outputs, w=(1, 64, 24), r=(1, 64, 16), b=(1, 128))
    (site,) = sites(made).values()
    assert (site.name, site.weight) == (used[0], "w")
    (rung,) = [rung for rung in site.rungs if ".unit" in rung]
    low = lowered(made, {site.name: rung})
    assert operators(low)[0] == "DynamicQuantizeLSTM"
    assert "LSTM" not in operators(low)
    x = np.random.default_rng(1).standard_normal((4, 2, 24)).astype(np.float32)
    for before, after in zip(*(Session(one, threads=1).run({"x": x}).values() for one in (made, low)), strict=True):
        assert np.linalg.norm(after - before) < 5e-2 * np.linalg.norm(before)


def test_a_weight_of_two_sites_stays_one() -> None:
    made = model("p = MatMul(x, w) q = MatMul(p, w) y = Add(p, q)", outputs="float[b,s,24] y", w=(24, 24))
    low = lowered(made, dict.fromkeys(("p", "q"), "dynamic_int8.channel"))
    first, second = (node for node in low.graph if node.op_type == "MatMulIntegerToFloat")
    assert first.inputs[1] is second.inputs[1]
    assert first.inputs[3] is second.inputs[3]


def test_a_weight_is_rounded_when_it_is_read() -> None:
    made = model("y = MatMul(x, w)", w=(24, 16))
    low = lowered(made, {"y": "dynamic_int8.channel"})
    whole = next(node for node in low.graph if node.op_type == "MatMulIntegerToFloat").inputs[1]
    assert isinstance(whole.const_value, ir.LazyTensor)
    assert np.abs(whole.const_value.numpy().astype(int)).max() in (63, 127)


def test_of_sites_that_are_alike_one_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = Candidate.build
    monkeypatch.setattr(Candidate, "build", lambda self, *rest: built.append(self) or build(self, *rest))
    counts = []
    for layers in (2, 6):
        body = " ".join(f"v{n + 1} = MatMul(v{n}, w{n})" for n in range(layers))
        made = model(f"v0 = Relu(x) {body} y = Relu(v{layers})", outputs="float[b,s,24] y",
                     **{f"w{n}": (24, 24) for n in range(layers)})  # fmt: skip
        assert len({site.rungs for site in sites(made).values()}) == 1
        assert len(sites(made)) == layers
        counts.append(len(built))
        built.clear()
    assert counts[0] == counts[1]


PRODUCTS = {
    "q = MatMul(x, w) r = Relu(q) y = MatMul(r, v)": ["QLinearMatMul"],
    "p = MatMul(x, w) q = Add(p, c) r = Relu(q) y = MatMul(r, v)": ["QGemm"],
    "q = MatMul(x, w) y = MatMul(q, v)": ["QLinearMatMul"],
    "q = MatMul(x, w) r = Sigmoid(q) y = MatMul(r, v)": ["MatMulIntegerToFloat", "Sigmoid", "QuantizeLinear"],
}


@pytest.mark.parametrize("body", PRODUCTS)
def test_products_in_a_row_hand_on_integers(body: str) -> None:
    made = model(body, "float[b,24] x", "float[b,8] y", w=(24, 16), v=(16, 8), c=(16,))
    data = [{"x": np.random.default_rng(seed).standard_normal((9, 24)).astype(np.float32)} for seed in range(3)]
    calibration = calibrate(made, ("x", "q", "r", "y"), data)
    low = lowered(made, dict.fromkeys(("q", "y"), "static_int8.extremes"), calibration)
    assert operators(low) == ["QuantizeLinear", *PRODUCTS[body], "MatMulIntegerToFloat"]
    before, after = (next(iter(Session(one, threads=1).run(data[0]).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < 2e-2 * np.linalg.norm(before)


TIED = "e = Gather(t, x) turned = Transpose<perm = [1,0]>(t) y = MatMul(e, turned)"


@pytest.mark.parametrize("bits", [4, 8])
def test_a_table_that_is_a_weight_too_is_kept_once(bits: int) -> None:
    made = model(TIED, "int64[b,s] x", "float[b,s,10] y", t=(10, 32))
    found = sites(made)
    assert [(site.name, site.operator, site.activations, site.weight) for site in found.values()] == [
        ("e", "Gather", ("x",), "t"),
        ("y", "MatMul", ("e",), "t"),
    ]
    low = lowered(made, {"e": f"table_int{bits}.block16", "y": f"weight_int{bits}.block16_level1"})
    table, head = (node for node in low.graph if node.op_type in ("GatherBlockQuantized", "MatMulNBits"))
    assert table.inputs[0] is head.inputs[1]
    assert weight_bytes(low) < 10 * 32 * bits / 8 + 10 * 2 * 4 + 64  # and a few shapes
    ids = {"x": np.array([[0, 9, 3], [-1, -10, 7]])}
    before, after = (next(iter(Session(one, threads=1).run(ids).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < (0.2 if bits == 4 else 0.02) * np.linalg.norm(before)


def test_rows_that_are_no_whole_blocks_and_other_lookups_are_no_tables() -> None:
    assert not sites(model("y = Gather(t, x)", "int64[b,s] x", "float[b,s,24] y", t=(10, 24)))
    for body in ("y = Gather<axis = 1>(t, x)", "y = GatherElements(t, x)"):
        assert not sites(model(body, "int64[b,s] x", "float[b,s,24] y", t=(32, 32)))


def test_blocks_with_a_zero_of_their_own_lose_less_where_weights_lean() -> None:
    made = model("y = MatMul(x, w)", "float[b,32] x", "float[b,16] y", w=(32, 16))
    leaning = np.abs(np.random.default_rng(2).standard_normal((32, 16))).astype(np.float32)
    made.graph.initializers["w"].const_value = ir.Tensor(leaning)
    x = {"x": np.random.default_rng(3).standard_normal((5, 32)).astype(np.float32)}
    rungs = ("weight_int4.block16_level1", "weight_int4.block16_level1_zeros")
    before, even, own = (
        next(iter(Session(one, threads=1).run(x).values())) for one in (made, *(lowered(made, {"y": r}) for r in rungs))
    )
    assert np.linalg.norm(own - before) < 0.7 * np.linalg.norm(even - before)


@pytest.mark.parametrize("bias", ["", "p = MatMul(x, w) y = Add(p, c)", "p = MatMul(x, w) y = Add(p, x2)"])
@pytest.mark.parametrize("rung", ["weight_int4.block16_level1", "weight_int4.block16_level1_zeros"])
def test_rounded_weights_are_right_on_average(bias: str, rung: str) -> None:
    made = model(bias or "y = MatMul(x, w)", "float[b,32] x, float[16] x2", "float[b,16] y", w=(32, 16), c=(16,))
    lean = np.linspace(-3, 3, 32)
    rng = np.random.default_rng(3)
    data = [{"x": (rng.standard_normal((50, 32)) + lean).astype(np.float32), "x2": np.zeros(16, np.float32)}] * 2
    (site,) = sites(made)
    plain, low = (lowered(made, {site: rung}, known) for known in (None, calibrate(made, ["x"], data)))
    before, without, after = (next(iter(Session(one, threads=1).run(data[0]).values())) for one in (made, plain, low))
    assert np.abs((without - before).mean(axis=0)).max() > 0.1
    if "x2" not in bias:  # a bias that is not constant stays as it is
        np.testing.assert_allclose((after - before).mean(axis=0), 0, atol=1e-3)
        assert np.linalg.norm(after - before) < 0.6 * np.linalg.norm(without - before)


@pytest.mark.parametrize("family", ["dynamic_int8.channel", "static_int8.extremes"])
def test_outliers_are_moved_into_the_weight(family: str) -> None:
    body = "n = LayerNormalization(x, g, o) p = MatMul(n, w) q = MatMul(n, v) y = Add(p, q)"
    made = model(body, w=(24, 16), v=(24, 16), o=(24,))
    gains = np.ones(24, np.float32)
    gains[[3, 7]] = 200.0, 60.0
    put(made, "g", gains)
    for name in ("w", "v"):
        value = made.graph.initializers[name]
        value.const_value = ir.Tensor(value.const_value.numpy() / gains[:, None])
    data = [{"x": np.random.default_rng(seed).standard_normal((2, 3, 24)).astype(np.float32)} for seed in range(1, 3)]
    calibration = calibrate(made, ("n",), data)
    smooth = f"{family.partition('.')[0]}.smooth"
    plain, low = (lowered(made, dict.fromkeys(("p", "q"), rung), calibration) for rung in (family, smooth))
    assert operators(low) == operators(plain), "the normalisation takes the factors in"
    before, after, better = (run(one) for one in (made, plain, low))
    assert np.linalg.norm(better - before) < 0.5 * np.linalg.norm(after - before)


POINTWISE = {
    "y = Conv(x, w, c)": "pointwise",
    "p = Conv(x, w, c) y = Relu(p)": "pointwise",
    "p = Conv(x, w) y = Clip(p, zero, six)": "pointwise",
    "p = Conv(x, w, c) s = Add(r, p) y = Relu(s)": "pointwise_sum",
    """y = com.microsoft.FusedConv<activation = "Relu">(x, w, c, r)""": "pointwise_sum",
}


@pytest.mark.parametrize("body", POINTWISE)
def test_a_convolution_of_single_positions_is_a_product(body: str) -> None:
    rung = f"dynamic_int8_conv.{POINTWISE[body]}"
    ends = ("float[b,24,5,7] x, float[b,16,5,7] r", "float[b,16,5,7] y")
    made = model(body, *ends, w=(16, 24, 1, 1), c=(16,))
    put(made, "zero", np.float32(0))
    put(made, "six", np.float32(6))
    assert rung in sites(made)["y"].rungs
    low = lowered(made, {"y": rung})
    assert "MatMulIntegerToFloat" in operators(low)
    assert not {"Conv", "FusedConv"} & set(operators(low))
    rng = np.random.default_rng(1)
    data = {"x": rng.standard_normal((2, 24, 5, 7)), "r": rng.standard_normal((2, 16, 5, 7))}
    inputs = {name: array.astype(np.float32) for name, array in data.items()}
    before, after = (next(iter(Session(one, threads=1).run(inputs).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < 2e-2 * np.linalg.norm(before)


def test_one_axis_of_positions_is_enough_for_a_product() -> None:
    made = model("y = Conv(x, w, c)", "float[b,24,7] x", "float[b,16,7] y", w=(16, 24, 1), c=(16,))
    low = lowered(made, {"y": "dynamic_int8_conv.pointwise"})
    x = {"x": np.random.default_rng(1).standard_normal((2, 24, 7)).astype(np.float32)}
    before, after = (next(iter(Session(one, threads=1).run(x).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < 2e-2 * np.linalg.norm(before)


@pytest.mark.parametrize(
    "how", ["strides = [2,2]", "group = 2", "pads = [0,1,0,1]", 'kernel_shape = [1,1], auto_pad = "SAME_UPPER"']
)
def test_other_convolutions_are_no_products(how: str) -> None:
    weight = (16, 12, 1, 1) if "group" in how else (16, 24, 1, 1)
    made = model(f"y = Conv<{how}>(x, w)", "float[b,24,5,7] x", "float[b,16,p,q] y", w=weight)
    assert not sites(made)
    made = model("y = Conv(x, w)", "float[b,24,5,7] x", "float[b,16,p,q] y", w=(16, 24, 1, 3))
    assert not sites(made)


def test_a_rung_of_one_name_takes_in_the_other_forms_of_its_operator() -> None:
    found = named(rung_rules(), ["static_int8_conv.extremes", "dynamic_int8_lstm.unit"])
    assert list(found) == [
        "static_int8_conv.extremes",
        "static_int8_conv.extremes_sum",
        "dynamic_int8_lstm.unit",
        "dynamic_int8_lstm.unit_last",
    ]


def test_a_product_fused_with_its_activation_is_a_site_once_it_is_optimised() -> None:
    body = 'p = com.microsoft.FusedGemm<activation = "Relu", transB = 1>(x, w, c) y = Sigmoid(p)'
    made = model(body, "float[b,24] x", "float[b,16] y", w=(16, 24), c=(16,))
    found = sites(ortfuse.optimize(made).model)
    assert [(site.operator, site.weight_shape) for site in found.values()] == [("Gemm", (24, 16))]
