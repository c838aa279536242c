"""That inputs are recognised by what the graph does with them, in the spellings of real exports."""

from __future__ import annotations

import pytest
from small_graphs import model, ones

from ortfuse.ir.dims import symbol
from ortfuse.runtime.inputs.input_roles import Limit, Role, Use
from ortfuse.runtime.inputs.random_inputs import InputSpec, input_specs, make_inputs

BIG, SMALL = ones("float[9,3] big", 9, 3), ones("float[4,3] small", 4, 3)
LOW = "float one = {1.0}, float low = {-10000.0}, int64 zero = {0}, float inf = {-inf}, float nil = {0.0}"


def role(body: str, inputs: str, outputs: str, initializers: str = "") -> Role:
    return input_specs(model(body, inputs, outputs, initializers))[0].role


def highest(body: str, initializers: str, inputs: str = "int64[n] i") -> int:
    """The largest number that is generated for the first input when there are a thousand."""
    specs = input_specs(model(body, inputs, "float[n,3] y", initializers))
    made = make_inputs(specs, {"n": 1000}, 0)[specs[0].name]
    assert made.min() >= 0
    return int(made.max())


def test_indices_stay_below_the_smallest_table_they_select_from() -> None:
    body = "u = Unsqueeze(i, axes) s = Squeeze(u, axes) a = Gather(big, s) b = Gather(small, i) y = Add(a, b)"
    assert highest(body, f"<{BIG}, {SMALL}, int64[1] axes = {{0}}>") == 3


def test_indices_are_followed_through_casts_and_reshapes() -> None:
    body = "c = Cast<to = 7>(i) r = Reshape(c, flat) y = Gather(big, r)"
    assert highest(body, f"<{BIG}, int64[1] flat = {{-1}}>", "int32[n] i") == 8


def test_an_offset_before_the_table_is_subtracted() -> None:
    assert highest("p = Add(i, two) y = Gather(big, p)", f"<{BIG}, int64 two = {{2}}>") == 6
    assert highest("p = Mul(i, two) y = Gather(big, p)", f"<{BIG}, int64 two = {{2}}>") == 4


def test_rows_before_an_offset_are_not_asked_for() -> None:
    specs = input_specs(
        model("p = Sub(i, two) y = Gather(big, p)", "int64[n] i", "float[n,3] y", f"<{BIG}, int64 two = {{2}}>")
    )
    made = make_inputs(specs, {"n": 1000}, 0)["i"]
    assert (made.min(), made.max()) == (2, 10)


def test_clipped_indices_need_no_limit() -> None:
    assert (
        role("p = Min(i, two) y = Gather(big, p)", "int64[n] i", "float[n,3] y", f"<{BIG}, int64 two = {{2}}>")
        == Role()
    )


def test_a_table_whose_size_is_open_limits_by_its_size() -> None:
    (spec, _) = input_specs(model("y = Gather(x, i)", "int64[n] i, float[m,3] x", "float[n,3] y"))
    assert spec.role.limits == (Limit(symbol("m")),)
    assert make_inputs([spec], {"n": 1000, "m": 5}, 0)["i"].max() == 4


def test_a_table_of_unknown_size_is_asked_for_its_first_row() -> None:
    body = "z = NonZero(x) t = Transpose(z) y = Gather(t, i)"
    (spec, _) = input_specs(model(body, "int64[n] i, float[9] x", "int64[n,1] y"))
    assert make_inputs([spec], {"n": 100}, 0)["i"].max() == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = GatherElements<axis = 1>(t, i)", {4}),
        ("y = GatherND(t, i)", {6, 4}),
        ("y = OneHot(i, depth, values)", {11}),
        ("y = ScatterND(t, i, u)", {6, 4}),
    ],
)
def test_other_operators_that_select(body: str, expected: set[int]) -> None:
    initializers = (
        f"<{ones('float[6,4] t', 6, 4)}, int64 depth = {{11}}, float[2] values = {{0, 1}}, float[3] u = {{1, 2, 3}}>"
    )
    found = role(body, "int64[3,2] i", "float y", initializers)
    assert {limit.extent for limit in found.limits} == expected


def test_rotary_positions_select_from_the_table_of_angles() -> None:
    body = "y = com.microsoft.RotaryEmbedding(x, i, c, c)"
    specs = input_specs(
        model(body, "int64[b,s] i, float[b,2,s,4] x", "float[b,2,s,4] y", f"<{ones('float[12,2] c', 12, 2)}>")
    )
    assert specs[0].role.limits == (Limit(12),)


def test_indices_inside_branches_loops_and_functions_are_found() -> None:
    branch = """y = If(c) <then_branch = a () => (float[n,3] r) { r = Gather(small, i) },
                           else_branch = b () => (float[n,3] s) { s = Gather(big, i) }>"""
    found = input_specs(model(branch, "int64[n] i, bool c", "float[n,3] y", f"<{BIG}, {SMALL}>"))[0].role
    assert {limit.extent for limit in found.limits} == {9, 4}

    loop = """y = Loop(three, , i) <body = step (int64 k, bool go, int64[n] j) => (bool again, int64[n] j2, float[n,3] r)
              { again = Identity(go) j2 = Identity(j) r = Gather(small, j) }>"""
    loop = loop.replace("y = Loop", "last, y = Loop")
    found = role(loop, "int64[n] i", "float y", f"<{SMALL}, int64 three = {{3}}>")
    assert found.limits == (Limit(4),)

    import onnx_ir as ir

    text = f"""<ir_version: 9, opset_import: ["": 18, "own": 1]>
        g (int64[n] i) => (float[n,3] y) <{SMALL}> {{ y = own.Look(small, i) }}
        <opset_import: ["": 18], domain: "own"> Look (table, rows) => (out) {{ out = Gather(table, rows) }}"""
    assert input_specs(ir.from_onnx_text(text))[0].role.limits == (Limit(4),)


MASKS = {
    "one minus mask times low": ("f = Cast<to = 1>(m) g = Sub(one, f) y = Mul(g, low)", Use.KEEP),
    "mask times low": ("f = Cast<to = 1>(m) y = Mul(f, low)", Use.HIDE),
    "where cast": ("f = Cast<to = 9>(m) y = Where(f, nil, inf)", Use.KEEP),
    "where hides": ("f = Cast<to = 9>(m) y = Where(f, inf, nil)", Use.HIDE),
    "where not": ("f = Cast<to = 9>(m) g = Not(f) y = Where(g, inf, nil)", Use.KEEP),
    "equal to zero": ("f = Equal(m, zero) y = Where(f, inf, nil)", Use.KEEP),
    "greater than zero": ("f = Greater(m, zero) y = Where(f, nil, inf)", Use.KEEP),
    "zero less than": ("f = Less(zero, m) y = Where(f, nil, inf)", Use.KEEP),
    "multiplied with the states": ("f = Cast<to = 1>(m) y = Mul(f, h)", Use.KEEP),
    "compared and combined": ("f = Greater(m, zero) g = And(f, q) y = Cast<to = 1>(g)", Use.EITHER),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks_are_recognised_and_which_value_hides(case: str) -> None:
    body, use = MASKS[case]
    others = "float[b,s] h, bool[b,s] q"
    assert role(body, f"int64[b,s] m, {others}", "float[b,s] y", f"<{LOW}>").mask is use


@pytest.mark.parametrize(
    ("body", "use"),
    [("g = Sub(one, m) l = Mul(g, low) s = Add(l, x)", Use.KEEP), ("l = Mul(m, low) s = Add(x, l)", Use.HIDE)],
)
def test_a_mask_of_floats_that_is_multiplied_by_a_low_number_is_not_added_itself(body: str, use: Use) -> None:
    assert role(f"{body} y = Softmax(s)", "float[b,s] m, float[b,s] x", "float[b,s] y", f"<{LOW}>").mask is use
    assert role("s = Add(m, x) y = Softmax(s)", "float[b,s] m, float[b,s] x", "float[b,s] y").mask is Use.BIAS


def test_a_boolean_mask_needs_no_cast() -> None:
    assert role("y = Where(m, inf, nil)", "bool[b,s] m", "float[b,s] y", f"<{LOW}>").mask is Use.HIDE
    assert role("y = Identity(m)", "bool[b,s] m", "bool[b,s] y").mask is None


def test_floats_that_are_added_to_scores_are_a_bias() -> None:
    body = "z = MatMul(q, q) a = Add(z, m) y = Softmax(a)"
    inputs = "float[b,1,4,4] m, float[b,1,4,4] q"
    specs = {spec.name: spec.role for spec in input_specs(model(body, inputs, "float[b,1,4,4] y"))}
    assert specs == {"m": Role(mask=Use.BIAS), "q": Role()}


def test_fused_operators_take_masks() -> None:
    body = "y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, q, q, , m)"
    assert role(body, "int32[b,s] m, float[b,s,8] q", "float[b,s,8] y").mask is Use.KEEP


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("y = Mul(x, low)", "float[b,s] x"),
        ("y = Sub(one, x)", "float[b,s] x"),
        ("z = Mul(x, q) y = Softmax(z)", "float[b,s] x, float[b,s] q"),
        ("f = Cast<to = 1>(x) g = Sin(f) y = Identity(g)", "int64[b,s] x"),
    ],
)
def test_other_inputs_are_no_masks(body: str, inputs: str) -> None:
    found = role(body, inputs, "float[b,s] y", f"<{LOW.replace('-10000.0', '0.5')}>")
    assert found == Role()


def test_numbers_that_branch_without_end_are_given_up() -> None:
    steps = " ".join(
        f"a{k} = Add(v{k}, one) b{k} = Mul(v{k}, two) v{k + 1} = Concat<axis = 0>(a{k}, b{k})" for k in range(40)
    )
    body = f"v0 = Identity(i) {steps} y = Gather(small, v40)"
    assert highest(body, f"<{SMALL}, int64 one = {{1}}, int64 two = {{2}}>") <= 3


def test_names_do_not_matter() -> None:
    specs = input_specs(model("y = Sin(attention_mask)", "float[b,s] attention_mask", "float[b,s] y"))
    assert specs == [InputSpec("attention_mask", specs[0].dtype, (symbol("b"), symbol("s")), Role())]


RATE = "<int64 high = {16000}, int64 low = {8000}, int64 nil = {0}>"


def test_numbers_that_an_input_is_compared_with_are_used() -> None:
    body = "a = Equal(r, high) b = Equal(r, low) c = Or(a, b) y = Identity(c)"
    (spec,) = input_specs(model(body, "int64 r", "bool y", RATE))
    assert spec.role.values == (16000, 8000)
    made = {int(make_inputs([spec], {}, seed)["r"]) for seed in range(20)}
    assert {16000, 8000} < made


def test_a_comparison_with_zero_or_one_is_a_mask() -> None:
    assert role("y = Equal(r, nil)", "int64[b] r", "bool[b] y", RATE).values == ()


def test_tokens_that_are_looked_for_are_among_the_rows() -> None:
    body = "e = Gather(small, i) f = Equal(i, two) g = Cast<to = 1>(f) h = Unsqueeze(g, one) y = Mul(e, h)"
    (spec,) = input_specs(
        model(body, "int64[n] i", "float[n,3] y", f"<{SMALL}, int64 two = {{2}}, int64[1] one = {{1}}>")
    )
    assert (spec.role.values, spec.role.limits) == ((2,), (Limit(4),))
    made = make_inputs([spec], {"n": 1000}, 0)["i"]
    assert made.max() == 3
    assert (made == 2).sum() > 260


def test_lengths_are_those_of_the_positions_they_are_compared_with() -> None:
    body = """n = Shape<start = 1, end = 2>(x) k = Squeeze(n) p = Range(nil, k, step) l = Unsqueeze(i, one)
        c = Less(p, l) f = Cast<to = 1>(c) y = Mul(f, x)"""
    constants = "<int64 nil = {0}, int64 step = {1}, int64[1] one = {1}>"
    spec = input_specs(model(body, "int64[b] i, float[b,s] x", "float[b,s] y", constants))[0]
    assert spec.role.length == symbol("s")
    made = make_inputs([spec], {"b": 500, "s": 9}, 0)["i"]
    assert (made.min(), made.max()) == (1, 9)


def test_boxes_of_a_suppression_have_corners_in_order() -> None:
    body = "y = NonMaxSuppression(x, s, most, overlap, least)"
    constants = "<int64[1] most = {5}, float[1] overlap = {0.5}, float[1] least = {0.0}>"
    inputs = "float[1,n,4] x, float[1,2,n] s"
    spec = input_specs(model(body, inputs, "int64[k,3] y", constants))[0]
    made = make_inputs([spec], {"n": 100}, 0)["x"]
    assert spec.role.boxes is not None
    assert (made[..., 2:] > made[..., :2]).all()


def test_texts_are_those_that_an_encoder_knows_and_now_and_then_others() -> None:
    body = 'i = Identity(s) y = ai.onnx.ml.LabelEncoder<keys_strings = ["red", "blue"], values_int64s = [3, 5]>(i)'
    specs = input_specs(model(body, "string[n] s", "int64[n] y"))
    assert specs[0].role.words == ("red", "blue")
    made = [set(make_inputs(specs, {"n": 100}, seed)["s"].tolist()) for seed in range(8)]
    assert {"red", "blue"} in made
    assert any(found > {"red", "blue"} for found in made)


def test_what_is_taken_apart_is_sentences() -> None:
    body = (
        'w, c = StringSplit(s) y = ai.onnx.ml.LabelEncoder<keys_strings = ["red", "blue"], values_int64s = [3, 5]>(w)'
    )
    specs = input_specs(model(body, "string[n] s", "int64[n,m] y"))
    assert specs[0].role.sentences
    assert any(" " in text for text in make_inputs(specs, {"n": 20}, 0)["s"].tolist())


def test_integers_that_an_encoder_knows_are_given() -> None:
    body = "y = ai.onnx.ml.LabelEncoder<keys_int64s = [17, 23], values_int64s = [3, 5]>(i)"
    assert role(body, "int64[n] i", "int64[n] y").values == (17, 23)
