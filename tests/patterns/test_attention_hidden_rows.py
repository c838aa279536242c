"""Masks of attention that hide whole rows, on which a kernel and the graph could differ."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from attention_models import BOOLEAN, INPUTS, LOWEST, model, optimized, scores_to_result, with_mask
from graphs import run

import ortfuse
from ortfuse.verification import verify


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


def with_sizes(mask: str, filler: float, dtype: str = "float", **constants: float) -> ir.Model:
    return with_mask(f"{SIZES} {mask}", dtype, filler=filler, one=1.0, **constants)


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
def test_a_finite_filler_of_float16_is_added_in_float32_where_a_row_may_hold_nothing_else(filler: float) -> None:
    made = optimized(with_mask(BOOLEAN, "float16", filler=filler))
    assert "Attention" in made and "Softmax" not in made


@pytest.mark.parametrize("filler", [-10000.0, -65504.0])
@pytest.mark.parametrize(
    "mask",
    [
        f"see = GreaterOrEqual(column, row) {KEEP}",
        # Two fillers, the sum of which is lower than any number of the type.
        "see = GreaterOrEqual(column, row) one_more = Where(see, zero, filler) later = Add(column, step)"
        " near = GreaterOrEqual(later, row) two = Where(near, zero, filler) mask = Add(one_more, two)",
    ],
)
def test_a_finite_filler_of_float16_hides_keys_of_rows_that_keep_one(mask: str, filler: float) -> None:
    assert "Attention" in optimized(with_sizes(mask, filler, "float16"))


@pytest.mark.parametrize("number", [-1000.0, -200.0, 100.0])
def test_sums_of_scores_and_large_numbers_of_float16_that_hide_nothing_are_computed_in_float32(number: float) -> None:
    mask = "see = GreaterOrEqual(column, row) seen = Where(see, bias, filler) past = Greater(row, n)"
    assert "Attention" in optimized(
        with_sizes(f"{mask} mask = Where(past, zero, seen)", -65504.0, "float16", bias=number)
    )


@pytest.mark.parametrize(
    "mask",
    [
        # Nothing says that the numbers are 0 and 1.
        "f = Cast<to = 1>(number) mask = Mul(f, filler)",
        # 3e9 does not fit int32: what the cast makes of it is not ours to say.
        "c = Cast<to = 1>(number) f = Mul(c, big) i = Cast<to = 6>(f) g = Cast<to = 1>(i) mask = Mul(g, filler)",
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
    old, new = (run(one, feeds)[0] for one in (m, result.model))
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
