"""Spellings that the runtime's own optimisations do no harm to; sessions are in a process of their own, which a crash would end."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import ops, parse, rewritten

import ortfuse
from ortfuse.runtime.bench import executed_ops, typical_inputs
from ortfuse.runtime.int8_matmul_saturation import saturates
from ortfuse.targets import Quirk, default_spec, installed
from ortfuse.verification import Session, verify
from ortfuse.verification.sensitivity_verdict import with_unsigned_pairs


def product(
    perm: str,
    shape: str,
    other: str,
    *,
    cast: bool = False,
    weight_first: bool = False,
    kind: str = "float16",
    opset: int = 20,
) -> ir.Model:
    """A product with a transposed operand, and another one with a float16 weight, for which the runtime optimises twice."""
    result = "float" if cast else kind
    operand = "c" if cast else "t"
    between = "c = Cast <to = 1> (t)" if cast else ""
    return parse(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g ({kind}[{shape}] x, {result}[{other}] w, float16[n, 1] p) => ({result} y, float16 q)
        <float16[1, 1] one = {{1}}>
        {{
            t = Transpose <perm = [{perm}]> (x)
            {between}
            y = MatMul ({f"w, {operand}" if weight_first else f"{operand}, w"})
            q = MatMul (p, one)
        }}
    """)


FORMS = {
    "rows to the front": product("1, 0, 2", "a, b, 4", "4, 3"),
    "both moved": product("1, 2, 0", "4, a, b", "4, 3"),
    "static": product("1, 0, 2", "2, 3, 4", "4, 3"),
    "a vector": product("1, 0, 2", "a, b, 4", "4"),
    "four axes": product("1, 2, 0, 3", "a, b, c, 4", "4, 3"),
    "more axes than the transposed operand": product("1, 0, 2", "a, b, 4", "2, 1, 4, 3"),
    "on the right": product("1, 0, 2", "4, a, b", "3, 4", weight_first=True),
    "a cast": product("1, 0, 2", "a, b, 4", "4, 3", cast=True),
    "a cast from float64": product("1, 0, 2", "a, b, 4", "4, 3", cast=True, kind="double"),
    "axes as attributes": product("1, 0, 2", "a, b, 4", "4, 3", opset=11),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_runtime_loads_a_product_that_it_crashed_on(form: str) -> None:
    Session(ortfuse.optimize(FORMS[form].clone()).model)


@pytest.mark.parametrize("form", FORMS)
def test_the_other_spelling_has_the_same_bits(form: str) -> None:
    before = FORMS[form]
    after = rewritten(before, "fuse.ort_workarounds")
    assert "Unsqueeze Transpose Squeeze" in ops(after)
    rng = np.random.default_rng(0)
    sizes = {"a": 2, "b": 3, "c": 5, "n": 2}
    inputs = {
        value.name: rng.standard_normal([sizes.get(str(dim), dim) for dim in value.shape or ()]).astype(
            value.dtype.numpy() if value.dtype else None
        )
        for value in before.graph.inputs
    }
    old, new = (Session(model, optimise=False, threads=1).run(inputs) for model in (before, after))
    assert all(old[name].tobytes() == new[name].tobytes() and old[name].shape == new[name].shape for name in old)


@pytest.mark.parametrize(
    "model",
    [
        product("1, 0, 2", "a, b, 4", "4, 3", kind="float"),
        product("1, 0, 2", "a, b, 4", "b, 4, 3"),
        product("0, 2, 1", "a, 4, b", "4, 3"),
        product("2, 1, 0", "4, a, b", "4, 3"),
    ],
    ids=["float32", "operands of one rank", "only the last two axes", "all axes reversed"],
)
def test_what_the_runtime_does_not_crash_on_stays(model: ir.Model) -> None:
    assert "Unsqueeze" not in ops(rewritten(model, "fuse.ort_workarounds"))


def pooling(
    attributes: str = "", *, border: str = "1, 1", value: str = "", before: str = "Neg", opset: int = 13
) -> ir.Model:
    """A MaxPool behind a Pad of what may be negative."""
    if opset < 11:
        pads, padding = "", f"Pad <pads = [0, 0, {border}, 0, 0, {border}]> (n)"
    else:
        number = f", float v = {{{value}}}" if value else ""
        pads, padding = (
            f"<int64[8] p = {{0, 0, {border}, 0, 0, {border}}}{number}>",
            f"Pad (n, p{', v' if value else ''})",
        )
    return parse(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g (float[1, 1, 4, 4] x) => (float y) {pads}
        {{ n = {before} (x) a = {padding} y = MaxPool <kernel_shape = [3, 2] {attributes}> (a) }}
    """)


POOLINGS = {
    "plain": pooling(),
    "steps": pooling(", strides = [2, 1], dilations = [1, 2]"),
    "no padding, said so": pooling(", pads = [0, 0, 0, 0]"),
    "a value": pooling(value="0"),
    "pads as attributes": pooling(opset=9),
    "windows of padding alone": pooling(border="3, 3", before="Relu"),
    "padding of its own": pooling(", pads = [1, 0, 1, 1]"),
    "padding of its own, old": pooling(", pads = [1, 0, 1, 1]", opset=9),
    "more padding than the window has": pooling(", pads = [2, 1, 2, 1]", before="Relu"),
    "windows rounded up": pooling(", ceil_mode = 1, strides = [2, 2]"),
    "windows rounded up to padding alone": pooling(", ceil_mode = 1, strides = [5, 5]", before="Relu"),
    "windows that straddle the image": pooling(", dilations = [1, 5]", before="Relu"),
}


@pytest.mark.parametrize("kind", POOLINGS)
def test_zeros_around_an_image_stay_zeros_when_the_runtime_optimises(kind: str) -> None:
    before = POOLINGS[kind].clone()
    result = ortfuse.optimize(before)
    assert any("merges a Pad with zeros" in note for note in result.report.notes)
    inputs = {"x": np.ones((1, 1, 4, 4), np.float32)}
    truth = Session(before, optimise=False).run(inputs)["y"]
    assert np.array_equal(truth, Session(result.model).run(inputs)["y"])
    assert np.array_equal(truth, Session(result.model, optimise=False).run(inputs)["y"])


@pytest.mark.parametrize(
    "attributes", ["strides = [2]", "strides = [2], ceil_mode = 1", "strides = [3], pads = [1, 1]"]
)
def test_they_do_where_the_number_of_windows_has_no_formula(attributes: str) -> None:
    before = parse(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 1, s] x) => (float[a, b, c] y) <int64[6] p = {{0, 0, 0, 0, 0, 2}}>
        {{ a = Pad (x, p) y = MaxPool <kernel_shape = [3], {attributes}> (a) }}
    """)
    result = ortfuse.optimize(before.clone()).model
    for size in (1, 4, 5):
        inputs = {"x": np.full((1, 1, size), -1, np.float32)}
        truth = Session(before, optimise=False).run(inputs)["y"]
        assert np.array_equal(truth, Session(result).run(inputs)["y"])


@pytest.mark.parametrize(
    "model",
    [
        pooling(before="Relu"),
        pooling(value="1"),
        pooling(", pads = [1, 0, 1, 0]", before="Relu"),
        pooling(', auto_pad = "SAME_UPPER"'),
    ],
    ids=["nothing negative", "another value", "nothing negative and padding of its own", "padded as the size demands"],
)
def test_other_poolings_stay(model: ir.Model) -> None:
    made = rewritten(model, "fuse.ort_workarounds")
    assert "VALID" not in str(made) and "Sum" not in ops(made)


UNIT = [
    ("[b,1,4,8]", "0, 2, 1, 3", "y = Abs(t)", True),
    ("[b,4,1,8]", "0, 2, 1, 3", "y = Abs(t)", True),
    ("[1,b,4,1]", "1, 3, 2, 0", "y = Abs(t)", True),
    ("[b,s,4,8]", "0, 2, 1, 3", "y = Abs(t)", False),
    ("[b,4,8,1]", "0, 1, 3, 2", "y = Abs(t)", True),
    ("[b,4,8,1]", "0, 1, 3, 2", "u = Sigmoid(x) y = MatMul(u, t)", False),
]


@pytest.mark.parametrize(("shape", "perm", "rest", "reshaped"), UNIT)
def test_transpositions_of_axes_of_size_1_are_reshapes(shape: str, perm: str, rest: str, reshaped: bool) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 18]> g (float{shape} x) => (float[a,c,d,e] y) {{
        t = Transpose<perm = [{perm}]>(x) {rest} }}"""
    model = ir.from_onnx_text(text)
    result = ortfuse.optimize(model).model
    assert ("Reshape" in [node.op_type for node in result.graph]) is reshaped
    assert verify(model, result).ok


SCALED = {
    "an operand": "s = Mul (x, c) y = MatMul (s, w)",
    "the other operand": "s = Mul (c, w) y = MatMul (x, s)",
    "a divided operand": "s = Div (x, c) y = MatMul (s, w)",
    "the product": "s = MatMul (x, w) y = Mul (s, c)",
    "an operand and the product": "s = Mul (x, c) t = MatMul (s, w) y = Div (t, c)",
}


@pytest.mark.parametrize("form", SCALED)
def test_the_factor_of_a_float64_product_is_not_rounded_to_float32_once_it_is_folded(form: str) -> None:
    model = parse(f"""
        <ir_version: 8, opset_import: ["" : 20]>
        g (double[a, b, 3] x, double[a, 3, c] w) => (double[a, b, c] y)
        <double[1] three = {{3}}> {{ root = Sqrt (three) c = Reciprocal (root) {SCALED[form]} }}
    """)
    result = ortfuse.optimize(model).model
    assert verify(model, result).ok
    assert ops(ortfuse.optimize(result).model) == ops(result)


def test_a_factor_that_float32_holds_stays_where_it_is() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["" : 20]>
        g (double[a, b, 3] x, double[a, 3, c] w) => (double[a, b, c] y)
        <double half = {0.5}> { s = Mul (x, half) y = MatMul (s, w) }
    """)
    assert "Sum" not in ops(ortfuse.optimize(model).model)


SUMS = {
    "same sizes": ("2, 3, 8", "2, 3, 8", ""),
    "same open sizes": ("b, s, 8", "b, s, 8", ""),
    "other open sizes": ("b, s, 8", "b, t, 8", ""),
    "two axes": ("6, 8", "6, 8", ""),
    "four axes": ("2, 3, 4, 8", "2, 3, 4, 8", ""),
    "used by another": ("2, 3, 8", "2, 3, 8", "z = Mul (s, y)"),
    "a result": ("2, 3, 8", "2, 3, 8", "z = Identity (s)"),
}


@pytest.mark.parametrize("form", SUMS)
def test_a_sum_is_spelled_otherwise_only_where_the_runtime_would_fuse_it(form: str) -> None:
    one, other, more = SUMS[form]
    model = parse(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[{one}] a, float[{other}] b, float[8] scale) => (float y{", float z" if more else ""})
        {{
            s = Add (a, b)
            y = LayerNormalization (s, scale)
            {more}
        }}
    """)
    fused = "SkipLayerNormalization" in executed_ops(model, typical_inputs(model)[1])
    made = ortfuse.optimize(model.clone()).model
    assert ("Sum" in [node.op_type for node in made.graph]) == fused


takes_unsigned = pytest.mark.skipif(
    Quirk.TURNS_SIGNED_PAIRS not in installed().quirks or saturates(),
    reason="the kernels of this processor take signed activations, or products of unsigned ones saturate",
)

SIGNED = """
    <ir_version: 10, opset_import: ["" : {opset}]>
    g (float[2, 6, 8] x) => (float[2, 6, 4] y, float[2, 6, 5] z)
    <float step = {{0.02}}, int8 zero = {{-3}}, int8[8, 4] v = {{{v}}}, int8[8, 5] w = {{{w}}}, float scale = {{0.01}}, int8 none = {{0}},
     int64[3] shape = {{2, 6, 8}}>
    {{
        q = QuantizeLinear (x, step, zero)
        d = DequantizeLinear (q, step, zero)
        r = {between}
        vf = DequantizeLinear (v, scale, none)
        wf = DequantizeLinear (w, scale, none)
        y = MatMul (r, vf)
        z = MatMul (r, wf)
    }}
"""
"""Signed numbers that two products read."""


def signed(opset: int, between: str = "Identity (d)") -> ir.Model:
    rng = np.random.default_rng(0)
    v, w = (", ".join(map(str, rng.integers(-127, 128, size=size).tolist())) for size in (32, 40))
    return parse(SIGNED.format(opset=opset, between=between, v=v, w=w))


@takes_unsigned
@pytest.mark.parametrize("opset", [17, 21])
def test_products_of_signed_numbers_that_several_read_are_computed_in_integers(opset: int) -> None:
    model = signed(opset)
    before, after = model.clone(), ortfuse.optimize(model).model
    _, inputs = typical_inputs(before)
    assert executed_ops(before, inputs)["MatMulIntegerToFloat"] < 2
    assert executed_ops(after, inputs)["MatMulIntegerToFloat"] == 2
    verdict = verify(before, after)
    assert verdict.ok, verdict.summary()


@takes_unsigned
def test_signed_pairs_stay_where_there_is_more_than_one_step() -> None:
    model = parse("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 3] x) => (float[2, 3] y)
        <float[3] step = {0.02, 0.03, 0.04}, int8[3] zero = {0, 0, 0}>
        {
            q = QuantizeLinear <axis = 1> (x, step, zero)
            y = DequantizeLinear <axis = 1> (q, step, zero)
        }
    """)
    assert {node.inputs[2].dtype for node in ortfuse.optimize(model).model.graph} == {ir.DataType.INT8}


@takes_unsigned
@pytest.mark.parametrize(("first", "second"), [("int8", "uint8"), ("uint8", "int8")])
@pytest.mark.parametrize("between", ["", "same = Identity (d)"])
def test_signed_pairs_stay_next_to_unsigned_ones(first: str, second: str, between: str) -> None:
    """Of two unsigned pairs the runtime would make one, with a step of its own."""
    model = parse(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 30] x) => (float[2, 30] y)
        <float step = {{0.05}}, {first} zero = {{3}}, float other = {{0.03}}, {second} middle = {{9}}>
        {{
            q = QuantizeLinear (x, step, zero)
            d = DequantizeLinear (q, step, zero)
            {between}
            r = QuantizeLinear ({"same" if between else "d"}, other, middle)
            e = DequantizeLinear (r, other, middle)
            y = Relu (e)
        }}
    """)
    before, after = model.clone(), ortfuse.optimize(model).model
    x = np.random.default_rng(0).standard_normal((2, 30)).astype(np.float32)
    found = [Session(one, optimise=True).run({"x": x})["y"] for one in (before, after)]
    assert np.array_equal(*found)


@takes_unsigned
def test_signed_pairs_that_name_their_type_are_loaded() -> None:
    """The runtime makes such a pair unsigned, but not the name of its type, and refuses what it has made."""
    model = parse(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 30] x) => (float[2, 30] y)
        <float step = {{0.05}}, int8 zero = {{3}}>
        {{
            q = QuantizeLinear <output_dtype = {int(ir.DataType.INT8)}> (x, step, zero)
            d = DequantizeLinear (q, step, zero)
            y = Relu (d)
        }}
    """)
    inputs = {"x": np.linspace(-8, 8, 60, dtype=np.float32).reshape(2, 30)}
    before = Session(model.clone(), optimise=False).run(inputs)["y"]
    assert np.array_equal(before, Session(ortfuse.optimize(model).model, optimise=True).run(inputs)["y"])


@takes_unsigned
@pytest.mark.parametrize("moved", ["Identity (d)", "Transpose <perm = [1, 0]> (d)"])
def test_signed_pairs_stay_beside_kernels_that_are_less_exact_in_integers(moved: str) -> None:
    model = parse(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[4, 4] x) => (float[4, 4] y)
        <float step = {{0.02}}, int8 zero = {{-3}}>
        {{
            q = QuantizeLinear (x, step, zero)
            d = DequantizeLinear (q, step, zero)
            m = {moved}
            y = Softmax (m)
        }}
    """)
    found = ortfuse.optimize(model).model
    assert {node.inputs[2].dtype for node in found.graph if node.op_type == "QuantizeLinear"} == {ir.DataType.INT8}


def test_the_original_is_compared_with_unsigned_pairs() -> None:
    after = with_unsigned_pairs(signed(17))
    turned = Quirk.TURNS_SIGNED_PAIRS in installed().quirks and not saturates()
    wanted = ir.DataType.UINT8 if turned else ir.DataType.INT8
    assert [node.inputs[2].dtype for node in after.graph if node.op_type == "QuantizeLinear"] == [wanted]


def test_processors_that_take_signed_numbers_keep_them() -> None:
    assert Quirk.TURNS_SIGNED_PAIRS in default_spec().bugs_on("x86_64", (1, 32))
    assert Quirk.TURNS_SIGNED_PAIRS not in default_spec().bugs_on("aarch64", (1, 32))
