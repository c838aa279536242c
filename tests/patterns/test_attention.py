"""Attention where a kernel and the graph could differ: masks that hide whole rows, scales, unequal groups, empty axes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rewriting import rewritten
from small_models import execute

import ortfuse
from ortfuse.verification import verify

INPUTS = "float[b,2,s,4] q, float[b,2,t,4] k, float[b,2,t,4] v"


def scores_to_result(guarded: bool = False) -> str:
    guard = "isnan = IsNaN(soft) p = Where(isnan, zero, soft)" if guarded else "p = Identity(soft)"
    return f"soft = Softmax<axis = -1>(masked) {guard} out = MatMul(p, v)"


def model(body: str, inputs: str = INPUTS, dtype: str = "float", **constants: Any) -> ir.Model:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g ({inputs}) => ({dtype}[b,2,s,4] out)
        {{ kt = Transpose<perm = [0, 1, 3, 2]>(k) {body} }}"""
    )
    kind = np.float16 if dtype == "float16" else np.float32
    for name, number in {"zero": 0.0, "half": 0.5, **constants}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number, kind), name))
    return ir.from_proto(proto)


def optimized(m: ir.Model) -> list[str]:
    result = ortfuse.optimize(m)
    assert verify(m, result.model).ok
    return [node.op_type for node in result.model.graph]


def with_mask(
    mask: str, dtype: str = "float", guarded: bool = False, inputs: str = INPUTS, **constants: Any
) -> ir.Model:
    keys = "5" if ",5," in inputs else "t"
    inputs = f"{inputs.replace('float', dtype)}, bool[b,1,s,{keys}] keep, int64[b,1,s,{keys}] number"
    body = f"{mask} qk = MatMul(q, kt) scaled = Mul(qk, half) masked = Add(scaled, mask) {scores_to_result(guarded)}"
    return model(body, inputs, dtype, **constants)


LOWEST = float(np.finfo(np.float32).min)
BOOLEAN = "mask = Where(keep, zero, filler)"


@pytest.mark.parametrize("filler", [-10000.0, -1e9, LOWEST])
def test_rows_hidden_by_a_finite_filler_come_out_as_before(filler: float) -> None:
    assert "Attention" in optimized(with_mask(BOOLEAN, filler=filler))


def looks_at_rows(m: ir.Model) -> bool:
    """Whether rows of the mask that may be hidden as a whole are looked at before the mask is given to the operator."""
    made = optimized(m)
    assert "Attention" in made
    return "ReduceMax" in made


def test_infinite_fillers_need_no_look_at_rows_with_the_guard_that_makes_hidden_rows_zero() -> None:
    assert looks_at_rows(with_mask(BOOLEAN, filler=-np.inf))
    assert not looks_at_rows(with_mask(BOOLEAN, guarded=True, filler=-np.inf))


SIZES = """queries = Shape<start = 2, end = 3>(q) keys = Shape<start = 2, end = 3>(k) both = Concat<axis = 0>(queries, keys)
    ones = Expand(one, both) n = Squeeze(queries) m = Squeeze(keys) first = Constant<value_int = 0>()
    step = Constant<value_int = 1>() back = Constant<value_int = -1>() axis = Constant<value_ints = [1]>()
    begin = Constant<value_ints = [0]>() second = Constant<value_ints = [1]>() last = Constant<value_ints = [-1]>()
    far = Constant<value_ints = [9223372036854775807]>() before = Constant<value_ints = [-9223372036854775807]>()
    places = Range(first, n, step) row = Range(first, m, step) column = Unsqueeze(places, axis)"""
HIDE = "mask = Where(hide, filler, zero)"
KEEP = "mask = Where(see, zero, filler)"
LOWER = "lower = Trilu<upper = 0>(ones)"


def with_sizes(mask: str, filler: float) -> ir.Model:
    return with_mask(f"{SIZES} {mask}", filler=filler, one=1.0)


@pytest.mark.parametrize(
    "mask",
    [
        f"{LOWER} hide = Equal(lower, zero) {HIDE}",
        f"{LOWER} seen = Cast<to = 9>(lower) four = Unsqueeze(seen, begin) see = Identity(four) {KEEP}",
        f"{LOWER} seen = Cast<to = 9>(lower) hide = Not(seen) {HIDE}",
        f"later = Trilu<upper = 0>(ones, step) see = Greater(later, zero) {KEEP}",
        f"upper = Trilu<upper = 1>(ones, step) hide = Cast<to = 9>(upper) {HIDE}",
        "fillers = Expand(filler, both) mask = Trilu<upper = 1>(fillers, step)",
        f"see = GreaterOrEqual(column, row) {KEEP}",
        f"see = LessOrEqual(row, column) {KEEP}",
        f"hide = Greater(row, column) {HIDE}",
        f"shifted = Add(column, step) see = Less(row, shifted) {KEEP}",
        f"{LOWER} seen = Cast<to = 9>(lower) see = Or(seen, keep) {KEEP}",
        f"{LOWER} cut = Slice(lower, begin, far, axis, second) hide = Equal(cut, zero) {HIDE}",
        f"{LOWER} four = Unsqueeze(lower, begin) three = Squeeze(four, begin) hide = Equal(three, zero) {HIDE}",
        f"{LOWER} shape = Concat<axis = 0>(second, queries, keys) three = Reshape(lower, shape) hide = Equal(three, zero) {HIDE}",
        f"{LOWER} rows = Gather<axis = 0>(lower, places) hide = Equal(rows, zero) {HIDE}",
        "row_filler = Expand(filler, both) hidden = Trilu<upper = 1>(row_filler, step) mask = Add(hidden, half)",
    ],
)
def test_infinite_fillers_of_causal_masks_need_neither_guard_nor_look_at_rows(mask: str) -> None:
    assert not looks_at_rows(with_sizes(mask, -np.inf))


@pytest.mark.parametrize(
    "mask",
    [
        f"earlier = Trilu<upper = 0>(ones, back) hide = Equal(earlier, zero) {HIDE}",
        f"offset = Sub(m, n) shifted = Trilu<upper = 0>(ones, offset) hide = Equal(shifted, zero) {HIDE}",
        f"upper = Trilu<upper = 1>(ones) hide = Cast<to = 9>(upper) {HIDE}",
        f"upper = Trilu<upper = 1>(ones, step) hide = Equal(upper, zero) {HIDE}",
        f"see = Greater(column, row) {KEEP}",
        f"see = LessOrEqual(column, row) hide = Identity(see) {HIDE}",
        f"offset = Sub(m, n) shifted = Add(column, offset) see = GreaterOrEqual(shifted, row) {KEEP}",
        f"see_past = GreaterOrEqual(column, row) see = And(see_past, keep) {KEEP}",
        f"see_past = GreaterOrEqual(column, row) see = Xor(see_past, keep) {KEEP}",
        f"turned = Concat<axis = 0>(keys, queries) other = Expand(one, turned) lower = Trilu<upper = 0>(other)"
        f" upper = Transpose<perm = [1, 0]>(lower) hide = Equal(upper, zero) {HIDE}",
        f"{LOWER} reversed = Slice(lower, last, before, axis, last) hide = Equal(reversed, zero) {HIDE}",
        f"late = Greater(places, first) hide = Unsqueeze(late, axis) {HIDE}",
        f"more = Add(keys, second) wide = Concat<axis = 0>(queries, more) other = Expand(one, wide)"
        f" lower = Trilu<upper = 0>(other) cut = Slice(lower, second, far, axis) hide = Equal(cut, zero) {HIDE}",
        f"{LOWER} order = Sub(m, row) places_back = Sub(order, step) reversed = Gather<axis = 1>(lower, places_back)"
        f" hide = Equal(reversed, zero) {HIDE}",
        f"fewer = Sub(keys, second) narrow = Concat<axis = 0>(queries, fewer) other = Expand(one, narrow)"
        f" lower = Trilu<upper = 0>(other) hide = Equal(lower, zero) rest = {HIDE.split('= ')[1]}"
        " one_key = Concat<axis = 0>(queries, second) hidden = Expand(filler, one_key) mask = Concat<axis = 1>(hidden, rest)",
    ],
)
def test_rows_are_looked_at_where_an_infinite_filler_may_hide_the_first_key(mask: str) -> None:
    assert not looks_at_rows(with_sizes(mask, -10000.0))
    assert looks_at_rows(with_sizes(mask, -np.inf))


@pytest.mark.parametrize("column", [0, 1])
def test_of_a_constant_mask_the_first_column_counts(column: int) -> None:
    hidden = np.zeros((5, 5))
    hidden[2, column:] = -np.inf
    fixed = INPUTS.replace("s,", "5,").replace("t,", "5,")
    body = f"qk = MatMul(q, kt) scaled = Mul(qk, half) masked = Add(scaled, hidden) {scores_to_result()}"
    kinds = [node.op_type for node in ortfuse.optimize(model(body, fixed, hidden=hidden)).model.graph]
    assert ("Attention" in kinds) == (column == 1)


def test_rows_see_a_key_that_is_appended_for_all_of_them() -> None:
    """As torch.nn.MultiheadAttention appends one (`add_zero_attn`, `add_bias_kv`)."""
    body = """hidden = Where(keep, zero, filler) ends = Constant<value_ints = [0, 0, 0, 0, 0, 0, 0, 1]>()
        mask = Pad(hidden, ends) turned = Transpose<perm = [0, 1, 3, 2]>(more) keys = Concat<axis = 3>(kt, turned)
        values = Concat<axis = 2>(v, more) qk = MatMul(q, keys) scaled = Mul(qk, half) masked = Add(scaled, mask)
        soft = Softmax<axis = -1>(masked) out = MatMul(soft, values)"""
    m = model(body, f"{INPUTS}, bool[b,1,s,t] keep, float[b,2,1,4] more", filler=-np.inf)
    assert not looks_at_rows(m)


def cut_from_a_table(rows: int) -> ir.Model:
    """A causal mask cut out of a stored one of `rows` rows, as large as the queries are many."""
    body = f"""length = Shape<start = 2, end = 3>(q) begin = Constant<value_ints = [0]>() axis = Constant<value_ints = [1]>()
        wide = Slice(table, begin, length, begin) cut = Slice(wide, begin, length, axis) hide = Equal(cut, zero)
        mask = Where(hide, filler, zero) qk = MatMul(q, kt) scaled = Mul(qk, half) masked = Add(scaled, mask)
        {scores_to_result()}"""
    return model(body, INPUTS.replace("t,", "s,"), table=np.tri(8)[:rows], filler=-np.inf)


@pytest.mark.parametrize("length", [1, 2, 8])
def test_a_mask_cut_from_a_table_is_as_large_as_the_scores(length: int) -> None:
    m = cut_from_a_table(8)
    result = ortfuse.optimize(m)
    assert "Attention" in [node.op_type for node in result.model.graph]
    rng = np.random.default_rng(length)
    feeds = {name: rng.standard_normal((2, 2, length, 4)).astype(np.float32) for name in "qkv"}
    assert verify(m, result.model, inputs=[feeds]).ok


def test_a_mask_of_one_row_may_be_broadcast() -> None:
    kinds = [node.op_type for node in ortfuse.optimize(cut_from_a_table(1)).model.graph]
    assert "Attention" not in kinds


@pytest.mark.parametrize("causal", [True, False])
def test_the_lowest_number_is_kept_from_the_kernel_only_where_a_row_may_hold_nothing_else(causal: bool) -> None:
    mask = f"see = {'Identity(past)' if causal else 'And(past, keep)'} {KEEP}"
    m = with_sizes(f"past = GreaterOrEqual(column, row) {mask}", LOWEST)
    made = ortfuse.optimize(m).model
    assert verify(m, made).ok
    assert "Attention" in [node.op_type for node in made.graph]
    used = [value.const_value for node in made.graph for value in node.inputs if value is not None]
    assert any(tensor is not None and bool(np.any(tensor.numpy() == np.float32(LOWEST))) for tensor in used) == causal


@pytest.mark.parametrize("filler", [-10000.0, -65504.0])
def test_a_finite_filler_of_float16_stays(filler: float) -> None:
    assert "Attention" not in optimized(with_mask(BOOLEAN, "float16", filler=filler))


@pytest.mark.parametrize(
    "mask",
    [
        # Nothing says that the numbers are 0 and 1.
        "f = Cast<to = 1>(number) mask = Mul(f, filler)",
        # 3e9 does not fit int32: what the cast makes of it is not ours to say.
        "f = Where(keep, zero, big) i = Cast<to = 6>(f) g = Cast<to = 1>(i) mask = Mul(g, filler)",
        # log(0) is -inf
        "f = Cast<to = 1>(keep) mask = Log(f)",
        # Row sums of a mask are masks.
        "f = Where(keep, zero, filler) r = ReduceSum<keepdims = 1>(f) mask = Add(r, f)",
        # So are products of one with constants.
        "f = Where(keep, zero, filler) mask = MatMul(f, square)",
    ],
    ids=["any integer", "overflowing cast", "log", "sum", "product"],
)
def test_rows_of_a_mask_that_may_hold_anything_are_looked_at(mask: str) -> None:
    inputs = INPUTS.replace("t,", "5,")
    assert looks_at_rows(with_mask(mask, inputs=inputs, filler=LOWEST, big=3e9, square=np.eye(5)))


def test_rows_hidden_by_a_mask_that_is_given_come_out_as_before() -> None:
    body = f"qk = MatMul(q, kt) scaled = Mul(qk, half) masked = Add(scaled, mask) {scores_to_result()}"
    m = model(body, f"{INPUTS}, float[s,t] mask")
    result = ortfuse.optimize(m)
    assert {"Attention", "ReduceMax"} <= {node.op_type for node in result.model.graph}
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 2, 5, 4)).astype(np.float32) for name in "qkv"}
    feeds["mask"] = np.zeros((5, 5), np.float32)
    feeds["mask"][1], feeds["mask"][2], feeds["mask"][3, 1:], feeds["mask"][4] = -np.inf, LOWEST, -np.inf, 1e9
    feeds["mask"][2, 1] = -np.inf
    old, new = (execute(one, feeds)[0] for one in (m, result.model))
    assert np.isnan(old[:, :, 1]).all()
    np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)


def test_a_mask_as_large_as_the_scores_that_may_hide_rows_is_left_alone() -> None:
    body = f"qk = MatMul(q, kt) scaled = Mul(qk, half) masked = Add(scaled, mask) {scores_to_result()}"
    assert "Attention" not in optimized(model(body, f"{INPUTS}, float[b,2,s,t] mask"))
    halves = (
        "two = Add(second, second) twice = Mul(keys, two) wide = Concat<axis = 0>(queries, twice) other = Expand(one, wide)"
        " lower = Trilu<upper = 0>(other) shape = Concat<axis = 0>(two, queries, keys) halves = Reshape(lower, shape)"
        f" hide = Equal(halves, zero) {HIDE}"
    )
    assert "Attention" not in optimized(with_sizes(halves, -np.inf))
    assert not looks_at_rows(with_sizes(halves, -10000.0))


def scored(body: str, **constants: Any) -> ir.Model:
    """Attention with scores `qk` and a boolean `keep`, whose body computes `masked` of them."""
    inputs = f"{INPUTS}, bool[b,1,1,t] keep"
    return model(f"qk = MatMul(q, kt) {body} {scores_to_result()}", inputs, **constants)


@pytest.mark.parametrize(
    "body",
    [
        f"{BOOLEAN} sum = Add(qk, mask) masked = Max(sum, lowest)",
        f"{BOOLEAN} sum = Add(qk, mask) small = Mul(sum, half) end = Constant<value_ints = [-1]>() m = ReduceMax(small, end) s = Sub(small, m) masked = Div(s, half)",
        "hide = Not(keep) shape = Shape(qk) wide = Expand(hide, shape) masked = Where(wide, filler, qk)",
    ],
    ids=["floored", "shifted", "expanded condition"],
)
def test_scores_however_they_are_masked(body: str) -> None:
    made = optimized(scored(body, filler=LOWEST, lowest=LOWEST))
    assert "Attention" in made


def test_keys_and_values_are_as_long_as_each_other_if_the_run_succeeds() -> None:
    m = model(
        f"qk = MatMul(q, kt) masked = Mul(qk, half) {scores_to_result()}",
        INPUTS.replace("float[b,2,t,4] v", "float[b,2,u,4] v"),
    )
    assert "Attention" in [node.op_type for node in ortfuse.optimize(m).model.graph]


@pytest.mark.parametrize("by_length", [False, True])
def test_values_that_one_softmax_weighs_are_weighed_together(by_length: bool) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g ({INPUTS}, float[b,2,t,3] w) => (float[b,x,y,7] out)
        {{ kt = Transpose<perm = [0, 1, 3, 2]>(k) qk = MatMul(q, kt) p = Softmax<axis = -1>(qk) first = MatMul(p, v)
        second = MatMul(p, w) {
            "one = Transpose<perm = [0, 2, 1, 3]>(first) two = Transpose<perm = [0, 2, 1, 3]>(second)"
            if by_length
            else "one = Identity(first) two = Identity(second)"
        } out = Concat<axis = -1>(one, two) }}"""
    )
    made = optimized(ir.from_proto(proto))
    assert made.count("Attention") == 1
    assert "Softmax" not in made


@pytest.mark.parametrize("mask", ["b,n,1,4,6", "1,n,1,4,6", "1,1,2,1,6", "b,1,2,4,6", "4,6"])
def test_windows_with_an_axis_of_their_own_are_of_the_batch(mask: str) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float[b,n,2,4,8] q, float[b,n,2,6,8] k, float[b,n,2,6,8] v, bool[{mask}] keep)
        => (float[b,n,2,4,8] out) <float zero = {{0.0}}, float filler = {{-1e9}}> {{ kt = Transpose<perm = [0, 1, 2, 4, 3]>(k)
        qk = MatMul(q, kt) mask = Where(keep, zero, filler) masked = Add(qk, mask) p = Softmax<axis = -1>(masked)
        out = MatMul(p, v) }}"""
    )
    m = ir.from_proto(proto)
    result = rewritten(m, "fuse.attention")
    assert verify(m, result).ok
    assert "Attention" in [node.op_type for node in result.graph]


@pytest.mark.parametrize("filler", [LOWEST, -np.inf])
def test_a_sink_is_a_key_that_no_row_hides(filler: float) -> None:
    body = f"""{BOOLEAN} qk = MatMul(q, kt) sum = Add(qk, mask) lengths = Shape<start = 0, end = 3>(q)
        one = Constant<value_ints = [1]>() shape = Concat<axis = 0>(lengths, one) wide = Expand(sinks, shape)
        both = Concat<axis = -1>(sum, wide) p = Softmax<axis = -1>(both) first = Constant<value_ints = [0]>()
        end = Constant<value_ints = [-1]>() axis = Constant<value_ints = [3]>() kept = Slice(p, first, end, axis)
        out = MatMul(kept, v)"""
    sinks = np.array([0.5, -0.25]).reshape(1, 2, 1, 1)
    made = optimized(model(body, f"{INPUTS}, bool[b,1,s,t] keep", filler=filler, sinks=sinks))
    assert "Attention" in made
    assert not {"Softmax", "Max"} & set(made)


SPLIT_OFF = """keys = Reshape(k, shape) kt = Transpose<perm = [0, 2, 3, 1]>(keys) queries = Reshape(q, shape)
    qt = Transpose<perm = [0, 2, 1, 3]>(queries) values = Reshape(v, shape) vt = Transpose<perm = [0, 2, 1, 3]>(values)"""


def test_a_mask_of_any_numbers_for_all_queries_is_given_to_the_kernel_that_has_a_plain_softmax() -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]> g (float[b,s,8] q, float[b,t,8] k, float[b,t,8] v, int64[b,t] keep)
        => (float[b,s,8] out) <int64[4] shape = {{0, 0, 2, 4}}, int64[3] merged = {{0, 0, 8}}, int64[2] axes = {{1, 2}},
        float one = {{1.0}}, float filler = {{-3.4028234663852886e38}}> {{ {SPLIT_OFF} qk = MatMul(qt, kt)
        kept = Cast<to = 1>(keep) four = Unsqueeze(kept, axes) hidden = Sub(one, four) mask = Mul(hidden, filler)
        masked = Add(qk, mask) p = Softmax<axis = -1>(masked) o = MatMul(p, vt) ot = Transpose<perm = [0, 2, 1, 3]>(o)
        out = Reshape(ot, merged) }}"""
    )
    made = optimized(ir.from_proto(proto))
    assert "MultiHeadAttention" in made
    assert "Softmax" not in made


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_scale_that_no_kernel_takes_stays(scale: float) -> None:
    body = f"qk = MatMul(q, kt) masked = Mul(qk, scale) {scores_to_result()}"
    made = optimized(model(body, scale=scale))
    assert "Attention" not in made
    assert "MultiHeadAttention" not in made


def test_an_axis_that_is_empty_stays() -> None:
    inputs = "float[b,2,s,4] q, float[b,2,0,4] k, float[b,2,0,4] v"
    body = f"qk = MatMul(q, kt) masked = Mul(qk, half) {scores_to_result()}"
    assert "Attention" not in optimized(model(body, inputs))


def test_key_and_value_heads_repeated_unequally_are_not_grouped() -> None:
    m = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 23]> g (float[1,6,5,4] q, float[1,2,5,4] k, float[1,3,5,4] v) => (float[1,6,5,4] out)
        <int64[1] two = {2}, int64[5] three_times = {1, 2, 3, 5, 4}, int64[5] twice = {1, 3, 2, 5, 4}, int64[4] six = {1, 6, 5, 4}> {
        ku = Unsqueeze(k, two) ke = Expand(ku, three_times) kr = Reshape(ke, six)
        vu = Unsqueeze(v, two) ve = Expand(vu, twice) vr = Reshape(ve, six)
        out = Attention<scale = 0.5>(q, kr, vr) }"""
    )
    assert optimized(m).count("Expand") == 2


CACHED = """<ir_version: 10, opset_import: ["": 23]>
g (float[b,s,8] q, float[b,s,8] k, float[b,s,8] v, float[b,2,p,4] past_key, float[b,2,p,4] past_value, bool[b,1,s,t] keep)
=> (float[b,s,8] out, float[b,2,t,4] key, float[b,2,t,4] value)
<int64[4] split = {0, 0, 2, 4}, int64[3] merge = {0, 0, 8}, float zero = {0}, float filler = {-1e9}, float half = {0.5}> {
    q4 = Reshape(q, split) k4 = Reshape(k, split) v4 = Reshape(v, split)
    qh = Transpose<perm = [0, 2, 1, 3]>(q4) kh = Transpose<perm = [0, 2, 1, 3]>(k4) vh = Transpose<perm = [0, 2, 1, 3]>(v4)
    key = Concat<axis = 2>(past_key, kh) value = Concat<axis = -2>(past_value, vh)
    kt = Transpose<perm = [0, 1, 3, 2]>(key) qk = MatMul(qh, kt) scaled = Mul(qk, half)
    mask = Where(keep, zero, filler) masked = Add(scaled, mask) soft = Softmax<axis = -1>(masked) y = MatMul(soft, value)
    yt = Transpose<perm = [0, 2, 1, 3]>(y) out = Reshape(yt, merge)
}"""


def cached(past: int, new: int) -> ir.Model:
    sizes = {"s": new, "p": past, "t": past + new}
    text = CACHED
    for symbol, size in sizes.items():
        text = text.replace(f",{symbol}]", f",{size}]").replace(f",{symbol},", f",{size},")
    return ir.from_onnx_text(text)


def step(past: int, new: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(past + new)
    shapes = dict.fromkeys("qkv", (2, new, 8)) | dict.fromkeys(("past_key", "past_value"), (2, 2, past, 4))
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "keep": rng.random((2, 1, new, past + new)) < 0.8}


@pytest.mark.parametrize("past", [1, 6])
@pytest.mark.parametrize("new", [1, 3])
def test_a_cache_is_read_and_written_by_the_operator(past: int, new: int) -> None:
    m = cached(past, new)
    result = ortfuse.optimize(m)
    kinds = [node.op_type for node in result.model.graph]
    assert kinds.count("Attention") == 1
    assert not {"Concat", "Transpose", "Softmax"} & set(kinds)
    assert verify(m, result.model, inputs=[step(past, new)]).ok


def test_a_cache_that_nobody_asks_for_is_still_an_output_of_the_operator() -> None:
    m = cached(3, 2)
    del m.graph.outputs[1:]
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[step(3, 2)]).ok


def product_only(body: str, dtype: str = "float") -> list[str]:
    text = f"""<ir_version: 9, opset_import: ["": 17]>
        g ({dtype}[b,2,s,4] q, {dtype}[b,2,4,t] k, {dtype}[2,1,1] f, bool[b,1,s,t] keep) => ({dtype}[b,2,s,t] y)
        <float filler = {{-1e38}}> {{ p = MatMul(q, k) {body} }}"""
    m = ir.from_onnx_text(text)
    return [node.op_type for node in ortfuse.optimize(m).model.graph]


def test_a_quotient_of_integers_is_not_moved_into_the_product() -> None:
    assert product_only("y = Div(p, f)", "int64") == ["MatMul", "Div"]


@pytest.mark.parametrize("body", ["y = Div(p, f)", "y = Mul(p, f)", "y = Where(keep, p, filler)"])
def test_products_that_are_no_scores_of_a_softmax_are_left_alone(body: str) -> None:
    assert product_only(body) == ["MatMul", body.split()[2].partition("(")[0]]


def with_weights(body: str, weights: str, inputs: str = INPUTS) -> ir.Model:
    """Attention of hidden rows, with `weights` as a second output."""
    m = with_mask(BOOLEAN, guarded=True, inputs=inputs, filler=-np.inf)
    proto = ir.to_proto(m)
    extra = onnx.parser.parse_graph(f"g () => () {{ {body} }}")
    proto.graph.node.extend(extra.node)
    for name in (weights, *(output for node in extra.node for output in node.output)):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def hidden_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 2, 3, 4), "k": (2, 2, 5, 4), "v": (2, 2, 5, 4)}
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    keep = rng.random((2, 1, 3, 5)) < 0.7
    keep[0, 0, 1] = False
    return {**made, "keep": keep, "number": np.zeros((2, 1, 3, 5), np.int64)}


@pytest.mark.parametrize(
    "body", ["", "mean = ReduceMean(p)", "other = MatMul(p, k)"], ids=["output", "mean", "product"]
)
def test_weights_that_are_used_are_an_output_of_the_operator(body: str) -> None:
    m = with_weights(body, "p", re.sub(r"\bt\b", "5", INPUTS) if body else INPUTS)
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[hidden_rows()]).ok
    kinds = [node.op_type for node in result.model.graph]
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds


def test_weights_of_open_length_are_not_handed_to_other_nodes() -> None:
    m = with_weights("five = Constant<value = float[5] {1, 2, 3, 4, 5}>() total = Add(p, five)", "p")
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[hidden_rows()]).ok
    assert "Softmax" in [node.op_type for node in result.model.graph]


def test_weights_before_the_guard_that_makes_hidden_rows_zero_stay() -> None:
    m = with_weights("", "soft")
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[hidden_rows()]).ok
    assert "Softmax" in [node.op_type for node in result.model.graph]


def test_values_computed_from_the_weights_are_not_an_input_of_what_returns_the_weights() -> None:
    m = with_weights("square = MatMul(p, p) again = MatMul(p, square)", "p", INPUTS.replace("t,", "s,"))
    result = ortfuse.optimize(m)
    inputs = {name: array[..., :3, :] if name in "kv" else array[..., :3] for name, array in hidden_rows().items()}
    inputs["q"] = hidden_rows()["q"]
    inputs["k"], inputs["v"] = inputs["k"][..., :4], inputs["v"][..., :4]
    assert verify(m, result.model, inputs=[inputs]).ok


def test_weights_of_merged_heads_and_a_cache_are_returned_too() -> None:
    m = cached(3, 2)
    weights = next(node.outputs[0] for node in m.graph if node.op_type == "Softmax")
    weights.shape, weights.type = ir.Shape(["b", 2, 2, 5]), ir.TensorType(ir.DataType.FLOAT)
    m.graph.outputs.append(weights)
    result = ortfuse.optimize(m)
    assert verify(m, result.model, inputs=[step(3, 2)]).ok
    kinds = [node.op_type for node in result.model.graph]
    assert kinds.count("Attention") == 1
    assert not {"Concat", "Transpose", "Softmax"} & set(kinds)


def test_weights_of_one_head_have_no_axis_of_heads() -> None:
    m = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 23]> g (float[b,s,4] q, float[b,t,4] k, float[b,t,4] v) => (float[b,s,4] out, float[b,s,t] p)
        { kt = Transpose<perm = [0, 2, 1]>(k) qk = MatMul(q, kt) p = Softmax<axis = -1>(qk) out = MatMul(p, v) }"""
    )
    kinds = optimized(m)
    assert "Attention" in kinds
    assert "Softmax" not in kinds


WINDOWS = """<ir_version: 10, opset_import: ["": 23]>
g (float[b,4,36] q, float[b,4,36] k, float[b,4,36] v, float[1,3,1,4,4] mask) => (float[n,2,4,6] out)
<int64[4] split = {-1, 4, 2, 6}, int64[5] windows = {-1, 3, 2, 4, 4}, int64[4] merged = {-1, 2, 4, 4}> {
    q4 = Reshape(q, split) k4 = Reshape(k, split) v4 = Reshape(v, split) qh = Transpose<perm = [0, 2, 1, 3]>(q4)
    kt = Transpose<perm = [0, 2, 3, 1]>(k4) vh = Transpose<perm = [0, 2, 1, 3]>(v4) qk = MatMul(qh, kt)
    w = Reshape(qk, windows) once = Add(w, mask) twice = Add(mask, once) m = Reshape(twice, merged)
    p = Softmax<axis = -1>(m) out = MatMul(p, vh)
}"""


def test_a_mask_for_each_window_is_one_of_the_batch() -> None:
    m = ir.from_onnx_text(WINDOWS)
    values = m.graph.inputs[-1]
    levels = np.where(np.random.default_rng(0).random((1, 3, 1, 4, 4)) < 0.5, 0, -100).astype(np.float32)
    constant = ir.Value(name="mask", const_value=ir.Tensor(levels), shape=values.shape, type=values.type)
    values.replace_all_uses_with(constant)
    m.graph.inputs.pop()
    m.graph.register_initializer(constant)
    kinds = optimized(m)
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds


@pytest.mark.parametrize("batch", ["b", "6"])
def test_masks_of_rows_and_columns_are_masks_of_pixels(batch: str) -> None:
    m = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 23]>
    g (float[{batch},12,8] q, float[{batch},12,8] k, float[{batch},12,6] v, float[{batch},3,4,3] rows, float[{batch},3,4,4] columns)
      => (float[{batch},12,6] out)
    <int64[5] grid = {{-1, 3, 4, 3, 4}}, int64[3] flat = {{-1, 12, 12}}, int64[1] four = {{4}}, int64[1] three = {{3}}> {{
        kt = Transpose<perm = [0, 2, 1]>(k) qk = MatMul(q, kt) w = Reshape(qk, grid)
        r0 = Relu(rows) c0 = Relu(columns) r = Unsqueeze(r0, four) c = Unsqueeze(c0, three) once = Add(w, r) twice = Add(once, c)
        m = Reshape(twice, flat) p = Softmax<axis = -1>(m) out = MatMul(p, v)
    }}""")
    kinds = optimized(m)
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds


@pytest.mark.parametrize("batch", ["b", "3"])
def test_masks_of_rows_and_columns_are_those_of_heads_that_are_merged_with_the_batch(batch: str) -> None:
    """As ViTDet and SAM are written: of one tensor with queries, keys and values, whose heads become part of the batch."""
    m = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 20]>
    g (float[{batch},12,24] x, float[3,3,4] rows, float[4,4,4] columns) => (float[{batch},12,8] out)
    <int64[5] apart = {{-1, 12, 3, 2, 4}}, int64[3] heads = {{-1, 12, 4}}, int64[4] image = {{-1, 3, 4, 4}}, float half = {{0.5}},
     int64[5] grid = {{-1, 3, 4, 3, 4}}, int64[3] flat = {{-1, 12, 12}}, int64[1] four = {{4}}, int64[1] three = {{3}},
     int64 i0 = {{0}}, int64 i1 = {{1}}, int64 i2 = {{2}}, int64[4] split = {{-1, 2, 12, 4}}, int64[3] whole = {{-1, 12, 8}}> {{
        r = Reshape(x, apart) t = Transpose<perm = [2, 0, 3, 1, 4]>(r)
        q0 = Gather(t, i0) k0 = Gather(t, i1) v0 = Gather(t, i2)
        q = Reshape(q0, heads) k = Reshape(k0, heads) v = Reshape(v0, heads) u = Reshape(q, image)
        h = Einsum<equation = "bhwc,hkc->bhwk">(u, rows) w = Einsum<equation = "bhwc,wkc->bhwk">(u, columns)
        s = Mul(q, half) kt = Transpose<perm = [0, 2, 1]>(k) qk = MatMul(s, kt) g = Reshape(qk, grid)
        h1 = Unsqueeze(h, four) w1 = Unsqueeze(w, three) once = Add(g, h1) twice = Add(once, w1)
        m = Reshape(twice, flat) p = Softmax<axis = -1>(m) o = MatMul(p, v)
        o4 = Reshape(o, split) ot = Transpose<perm = [0, 2, 1, 3]>(o4) out = Reshape(ot, whole)
    }}""")
    kinds = optimized(m)
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds


@pytest.mark.parametrize(
    "zeros", ["n = Shape(soft) zeros = ConstantOfShape(n)", "n = Shape(soft) zeros = Expand(zero, n)"]
)
def test_the_guard_may_put_a_tensor_of_zeros_in_place_of_nan(zeros: str) -> None:
    body = f"{BOOLEAN} qk = MatMul(q, kt) scaled = Mul(qk, half) masked = Add(scaled, mask) soft = Softmax<axis = -1>(masked) "
    body += f"isnan = IsNaN(soft) {zeros} p = Where(isnan, zeros, soft) out = MatMul(p, v)"
    assert "Attention" in optimized(model(body, f"{INPUTS}, bool[b,1,s,t] keep", filler=-np.inf))


def test_keys_of_the_length_that_was_traced_are_read_as_they_are() -> None:
    """As `torch.nn.MultiheadAttention` is exported with an open length: only its keys and values have a number for it."""
    parts = " ".join(
        f"{name} = MatMul(x, W{name}) {name}3 = Reshape({name}, {shape}) {name}s = Transpose<perm = [1, 0, 2]>({name}3) {name}4 = Reshape({name}s, {four})"
        for name, shape, four in (("q", "open", "heads"), ("k", "fixed", "fixed4"), ("v", "fixed", "fixed4"))
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]> g (float[t,b,8] x) => (float[t,b,8] out) {{
        size = Shape(x) n = Gather(size, at1) m = Mul(n, two) many = Unsqueeze(m, first)
        length = Slice(size, first, first1) batch = Unsqueeze(n, first) open = Concat<axis = 0>(length, many, four)
        fixed = Concat<axis = 0>(five, many, four) heads = Concat<axis = 0>(batch, two1, length, four) {parts}
        kt = Transpose<perm = [0, 1, 3, 2]>(k4) qk = MatMul(q4, kt) scaled = Mul(qk, half) p = Softmax<axis = -1>(scaled)
        o = MatMul(p, v4) ot = Transpose<perm = [2, 0, 1, 3]>(o) out = Reshape(ot, size) }}"""
    )
    numbers: dict[str, Any] = {
        "at1": 1,
        "two": 2,
        "first": [0],
        "first1": [1],
        "four": [4],
        "five": [5],
        "two1": [2],
        "fixed4": [-1, 2, 5, 4],
    }
    for name, number in numbers.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number, np.int64), name))
    rng = np.random.default_rng(0)
    for name in ("Wq", "Wk", "Wv"):
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), name)
        )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "half"))
    result = ortfuse.optimize(proto).model
    assert [node.op_type for node in result.graph.node].count("Transpose") == 2, "of the input and the output"
    (attention,) = [node for node in result.graph.node if node.op_type == "Attention"]
    assert {one.name: one.i for one in attention.attribute}["q_num_heads"] == 2
    for shape in ((5, 3, 8), (5, 1, 8)):
        x = rng.standard_normal(shape).astype(np.float32)
        for old, new in zip(execute(proto, {"x": x}), execute(result, {"x": x}), strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)
