"""Sites of models, and the models in which rungs are applied."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.errors import PrecisionError
from ortfuse.precision import lowered, sites
from ortfuse.precision.calibration import calibrate
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
        tensor = ir.Tensor(rng.standard_normal(shape).astype(np.float32), name=name)
        for node in made.graph:
            for index, value in enumerate(node.inputs):
                if value is not None and value.name == name:
                    known = made.graph.initializers.get(name)
                    if known is None:
                        value.const_value, value.type, value.shape = (
                            tensor,
                            ir.TensorType(tensor.dtype),
                            ir.Shape(shape),
                        )
                        made.graph.register_initializer(value)
                    else:
                        node.replace_input_with(index, known)
    return made


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


def test_a_residual_is_added_in_integers() -> None:
    body = """a = com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Relu">(x, v, c)
              y = com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Relu">(a, w, c, x)"""
    made = model(body, "float[b,4,6,6] x", "float[b,4,6,6] y", v=(4, 4, 3, 3), w=(4, 4, 3, 3), c=(4,))
    data = [{"x": np.random.default_rng(seed).standard_normal((2, 4, 6, 6)).astype(np.float32)} for seed in range(3)]
    calibration = calibrate(made, ("x", "a", "y"), data)
    found = sites(made, calibration=calibration)
    assert found["y"].activations == ("a", "x")
    low = lowered(made, {"a": "static_int8_conv.extremes", "y": "static_int8_conv.extremes_sum"}, calibration)
    assert operators(low) == ["QuantizeLinear", "QLinearConv", "QLinearConv", "QLinearAdd", "DequantizeLinear"]
    before, after = (next(iter(Session(one, threads=1).run(data[0]).values())) for one in (made, low))
    assert np.linalg.norm(after - before) < 2e-2 * np.linalg.norm(before)


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
