"""Sites of models, and the models in which schemes are applied."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from graphs import operators
from scheme_models import HEADER, distance, first_output, model, put

import ortfuse
from ortfuse.errors import PrecisionError
from ortfuse.quantization import lowered, sites
from ortfuse.quantization.apply_schemes_without_search import named
from ortfuse.quantization.calibration import calibrate
from ortfuse.quantization.quantization_sites import quantization_rules
from ortfuse.rewrite.replacement_candidate import Candidate
from ortfuse.runtime.session import weight_bytes
from ortfuse.verification import Session

ROWS = {"x": np.random.default_rng(1).standard_normal((2, 3, 24)).astype(np.float32)}


def test_a_site_is_the_largest_part_that_a_scheme_takes_in() -> None:
    made = model("p = MatMul(x, w) y = Add(p, c)", w=(24, 16), c=(16,))
    (site,) = sites(made).values()
    assert (site.name, site.operator, site.activations, site.weight, site.bias) == ("y", "MatMul", ("x",), "w", "c")
    assert (site.weight_shape, site.weight_bytes) == ((24, 16), 24 * 16 * 4)
    assert "dynamic_int8.channel" in site.schemes


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
    assert 1e-4 < distance(made, low, ROWS) < 3e-2


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
    low = lowered(made, {"y": "split_int8.both_three_terms"})
    assert operators(low).count("MatMulIntegerToFloat") == 3
    x = np.random.default_rng(1).standard_normal((3, 24) if rank == "b" else (2, 3, 24)).astype(np.float32)
    assert distance(made, low, {"x": x}) < 1e-3


def test_what_is_not_chosen_keeps_its_spelling() -> None:
    made = model("p = Gemm(x, w, c) y = Gemm(p, v)", "float[b,24] x", "float[b,8] y", w=(24, 16), c=(16,), v=(16, 8))
    assert operators(lowered(made, {"y": "dynamic_int8.tensor"}))[0] == "Gemm"
    assert operators(lowered(made, {"p": "dynamic_int8.tensor"}))[-1] == "Gemm"


def test_weights_have_one_whole_block_at_least() -> None:
    made = model("y = MatMul(x, w)", "float[b,48] x", "float[b,16] y", w=(48, 16))
    (site,) = sites(made).values()
    assert {"weight_int4.block16_level4", "weight_int4.block32_level4"} <= {*site.schemes}
    assert "of at least 64 rows" in site.refused["weight_int4.block64_level4"].reason


@pytest.mark.parametrize("product", ["y = MatMul(x, w)", "y = Gemm<transB = 1, alpha = 0.5>(x, v, c)"])
@pytest.mark.parametrize(
    "name", [scheme for scheme in quantization_rules() if scheme.startswith(("weight_int4.", "weight_int8."))]
)
def test_the_last_block_of_rows_may_be_short(name: str, product: str) -> None:
    """37 more rows than the block, which is no multiple of any."""
    rows = int(name.partition("block")[2].partition("_")[0]) + 37
    made = model(product, f"float[b,{rows}] x", "float[b,7] y", w=(rows, 7), v=(7, rows), c=(7,))
    low = lowered(made, {"y": name})
    assert operators(low) == ["MatMulNBits"]
    x = {"x": np.random.default_rng(3).standard_normal((5, rows)).astype(np.float32)}
    assert distance(made, low, x) < (0.2 if "int4" in name else 0.02)


def test_columns_of_zeros_stay_zero() -> None:
    made = model("y = MatMul(x, w)", w=(24, 16))
    array = made.graph.initializers["w"].const_value.numpy().copy()
    array[:, 3] = 0
    made.graph.initializers["w"].const_value = ir.Tensor(array)
    assert not first_output(lowered(made, {"y": "dynamic_int8.channel"}), ROWS)[..., 3].any()


def test_what_was_chosen_but_cannot_be_applied_is_an_error() -> None:
    made = model("y = MatMul(x, w)", w=(24, 16))
    with pytest.raises(PrecisionError, match=r"no scheme is called 'dynamic_int9'; there are .*dynamic_int8.channel"):
        lowered(made, {"y": "dynamic_int9"})
    with pytest.raises(PrecisionError, match=r"dynamic_int8.channel cannot be applied to 'z'"):
        lowered(made, {"z": "dynamic_int8.channel"})


def test_sites_in_bodies_are_left_alone() -> None:
    body = """y = If(c) <then_branch = g () => (float[b,s,16] p) { p = MatMul(x, w) },
                         else_branch = h () => (float[b,s,16] q) { q = MatMul(x, w) }>"""
    weight = "float[24,16] w = {" + ", ".join(["0.5"] * 24 * 16) + "}"
    text = f"{HEADER} g (float[b,s,24] x, bool c) => (float[b,s,16] y) <{weight}> {{ {body} }}"
    assert not sites(ir.from_onnx_text(text))


@pytest.mark.parametrize("used", ["y", "h", "y h c"])
def test_a_recurrent_layer_is_one_site_whatever_is_used_of_it(used: str) -> None:
    body = "y, h, c = LSTM<hidden_size = 16>(x, w, r, b) " + " ".join(f"{one}2 = Neg({one})" for one in used.split())
    outputs = ", ".join(f"float[{'1,b,16' if one != 'y' else 't,1,b,16'}] {one}2" for one in used.split())
    made = model(body, "float[t,b,24] x", outputs, w=(1, 64, 24), r=(1, 64, 16), b=(1, 128))
    (site,) = sites(made).values()
    assert (site.name, site.weight) == (used[0], "w")
    (scheme,) = [scheme for scheme in site.schemes if ".unit" in scheme]
    low = lowered(made, {site.name: scheme})
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
        assert len({site.schemes for site in sites(made).values()}) == 1
        assert len(sites(made)) == layers
        counts.append(len(built))
        built.clear()
    assert counts[0] == counts[1]


TIED = "e = Gather(t, x) turned = Transpose<perm = [1,0]>(t) y = MatMul(e, turned)"


@pytest.mark.parametrize("bits", [4, 8])
def test_a_table_that_is_a_weight_too_is_kept_once(bits: int) -> None:
    made = model(TIED, "int64[b,s] x", "float[b,s,10] y", t=(10, 32))
    found = sites(made)
    assert [(site.name, site.operator, site.activations, site.weight) for site in found.values()] == [
        ("e", "Gather", ("x",), "t"),
        ("y", "MatMul", ("e",), "t"),
    ]
    low = lowered(made, {"e": f"embedding_int{bits}.block16", "y": f"weight_int{bits}.block16_level1"})
    table, head = (node for node in low.graph if node.op_type in ("GatherBlockQuantized", "MatMulNBits"))
    assert table.inputs[0] is head.inputs[1]
    assert weight_bytes(low) < 10 * 32 * bits / 8 + 10 * 2 * 4 + 64  # and a few shapes
    ids = {"x": np.array([[0, 9, 3], [-1, -10, 7]])}
    assert distance(made, low, ids) < (0.2 if bits == 4 else 0.02)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("width", [24, 27])
def test_rows_of_a_table_need_not_be_whole_blocks(bits: int, width: int) -> None:
    made = model(TIED, "int64[b,s] x", "float[b,s,10] y", t=(10, width))
    low = lowered(made, {"e": f"embedding_int{bits}.block16", "y": f"weight_int{bits}.block16_level1"})
    table, head = (node for node in low.graph if node.op_type in ("GatherBlockQuantized", "MatMulNBits"))
    assert table.inputs[0] is head.inputs[1]
    assert distance(made, low, {"x": np.array([[0, 9, 3], [-1, -10, 7]])}) < (0.25 if bits == 4 else 0.02)


def test_rows_shorter_than_a_block_and_other_lookups_are_no_tables() -> None:
    assert not sites(model("y = Gather(t, x)", "int64[b,s] x", "float[b,s,12] y", t=(10, 12)))
    for body in ("y = Gather<axis = 1>(t, x)", "y = GatherElements(t, x)"):
        assert not sites(model(body, "int64[b,s] x", "float[b,s,24] y", t=(32, 32)))


def test_blocks_with_a_zero_of_their_own_lose_less_where_weights_lean() -> None:
    made = model("y = MatMul(x, w)", "float[b,32] x", "float[b,16] y", w=(32, 16))
    leaning = np.abs(np.random.default_rng(2).standard_normal((32, 16))).astype(np.float32)
    made.graph.initializers["w"].const_value = ir.Tensor(leaning)
    x = {"x": np.random.default_rng(3).standard_normal((5, 32)).astype(np.float32)}
    schemes = ("weight_int4.block16_level1", "weight_int4.block16_level1_zeros")
    before, even, own = (first_output(one, x) for one in (made, *(lowered(made, {"y": r}) for r in schemes)))
    assert np.linalg.norm(own - before) < 0.7 * np.linalg.norm(even - before)


@pytest.mark.parametrize("bias", ["", "p = MatMul(x, w) y = Add(p, c)", "p = MatMul(x, w) y = Add(p, x2)"])
@pytest.mark.parametrize("scheme", ["weight_int4.block16_level1", "weight_int4.block16_level1_zeros"])
def test_rounded_weights_are_right_on_average(bias: str, scheme: str) -> None:
    made = model(bias or "y = MatMul(x, w)", "float[b,32] x, float[16] x2", "float[b,16] y", w=(32, 16), c=(16,))
    lean = np.linspace(-3, 3, 32)
    rng = np.random.default_rng(3)
    data = [{"x": (rng.standard_normal((50, 32)) + lean).astype(np.float32), "x2": np.zeros(16, np.float32)}] * 2
    (site,) = sites(made)
    plain, low = (lowered(made, {site: scheme}, known) for known in (None, calibrate(made, ["x"], data)))
    before, without, after = (first_output(one, data[0]) for one in (made, plain, low))
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
    plain, low = (lowered(made, dict.fromkeys(("p", "q"), scheme), calibration) for scheme in (family, smooth))
    assert operators(low) == operators(plain), "the normalisation takes the factors in"
    before, after, better = (first_output(one, ROWS) for one in (made, plain, low))
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
    scheme = f"dynamic_int8_conv.{POINTWISE[body]}"
    ends = ("float[b,24,5,7] x, float[b,16,5,7] r", "float[b,16,5,7] y")
    made = model(body, *ends, w=(16, 24, 1, 1), c=(16,))
    put(made, "zero", np.float32(0))
    put(made, "six", np.float32(6))
    assert scheme in sites(made)["y"].schemes
    low = lowered(made, {"y": scheme})
    assert "MatMulIntegerToFloat" in operators(low)
    assert not {"Conv", "FusedConv"} & set(operators(low))
    rng = np.random.default_rng(1)
    data = {"x": rng.standard_normal((2, 24, 5, 7)), "r": rng.standard_normal((2, 16, 5, 7))}
    inputs = {name: array.astype(np.float32) for name, array in data.items()}
    assert distance(made, low, inputs) < 2e-2


def test_one_axis_of_positions_is_enough_for_a_product() -> None:
    made = model("y = Conv(x, w, c)", "float[b,24,7] x", "float[b,16,7] y", w=(16, 24, 1), c=(16,))
    low = lowered(made, {"y": "dynamic_int8_conv.pointwise"})
    x = {"x": np.random.default_rng(1).standard_normal((2, 24, 7)).astype(np.float32)}
    assert distance(made, low, x) < 2e-2


@pytest.mark.parametrize(
    "how", ["strides = [2,2]", "group = 2", "pads = [0,1,0,1]", 'kernel_shape = [1,1], auto_pad = "SAME_UPPER"']
)
def test_other_convolutions_are_no_products(how: str) -> None:
    weight = (16, 12, 1, 1) if "group" in how else (16, 24, 1, 1)
    made = model(f"y = Conv<{how}>(x, w)", "float[b,24,5,7] x", "float[b,16,p,q] y", w=weight)
    assert not sites(made)
    made = model("y = Conv(x, w)", "float[b,24,5,7] x", "float[b,16,p,q] y", w=(16, 24, 1, 3))
    assert not sites(made)


def test_a_scheme_of_one_name_takes_in_the_other_forms_of_its_operator() -> None:
    found = named(quantization_rules(), ["static_int8_conv.extremes", "dynamic_int8_lstm.unit"])
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
