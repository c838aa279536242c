"""That generated inputs have the sizes and contents that models want."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from small_graphs import model, ones

from ortfuse.errors import VerificationError
from ortfuse.runtime.inputs.input_roles import Role, Use
from ortfuse.runtime.inputs.random_inputs import InputSpec, input_specs, make_inputs
from ortfuse.runtime.inputs.sizes import Search, describe, open_dims, wanted
from ortfuse.verification import experiments


def mask(use: Use, *shape: int, dtype: ir.DataType = ir.DataType.INT64) -> np.ndarray:
    return make_inputs([InputSpec("m", dtype, shape, Role(mask=use))], {}, 0)["m"]


def test_masks_keep_the_first_position_and_hide_tails_of_other_lengths() -> None:
    made = mask(Use.KEEP, 6, 20)
    assert made.dtype == np.int64
    assert (made[0] == 1).all()
    assert (made[:, 0] == 1).all()
    assert (made[1:, -1] == 0).all()
    assert (np.diff(made, axis=1) <= 0).all()
    assert len(set(made.sum(axis=1))) > 3


def test_a_mask_that_hides_is_the_other_way_round() -> None:
    made = mask(Use.HIDE, 6, 20, dtype=ir.DataType.BOOL)
    assert made.dtype == np.bool_
    assert not made[:, 0].any()
    assert made[1:, -1].all()


@pytest.mark.parametrize("use", list(Use))
def test_a_mask_of_no_axes_is_an_array_too(use: Use) -> None:
    made = mask(use)
    assert isinstance(made, np.ndarray)
    assert made.shape == ()
    assert made.dtype == np.int64


def test_a_mask_that_may_be_either_leaves_something_in_every_row() -> None:
    made = mask(Use.EITHER, 6, 20)
    assert ((made.sum(axis=1) > 0) & (made.sum(axis=1) < 20)).all()


def test_the_only_row_of_a_mask_has_a_tail() -> None:
    assert 0 < mask(Use.KEEP, 1, 20).sum() < 20
    assert mask(Use.KEEP, 1, 1).sum() == 1


def test_masks_of_higher_rank_hide_the_same_in_every_row_of_a_batch() -> None:
    made = mask(Use.BIAS, 3, 1, 5, 8, dtype=ir.DataType.FLOAT)
    assert set(np.unique(made)) == {-1e4, 0}
    assert (made == made[:, :, :1]).all()
    assert (made[..., 0] == 0).all()


@pytest.mark.parametrize(
    "dtype", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT8", "INT32", "UINT64", "BOOL"]
)
def test_every_element_type_is_generated(dtype: str) -> None:
    kind = ir.DataType[dtype]
    made = make_inputs([InputSpec("x", kind, (4, 50), Role())], {}, 0)["x"]
    assert made.dtype == kind.numpy()
    assert len(np.unique(made.astype(np.float64))) > 1
    assert made.astype(np.float64).min() >= (
        -10 if kind.is_floating_point() else np.iinfo(made.dtype).min if dtype != "BOOL" else 0
    )


def test_strings_are_generated() -> None:
    made = make_inputs([InputSpec("x", ir.DataType.STRING, (2, 3), Role())], {}, 0)["x"]
    assert made.shape == (2, 3)
    assert all(isinstance(text, str) for text in made.flat)


def test_the_same_seed_gives_the_same_inputs() -> None:
    specs = [InputSpec("x", ir.DataType.FLOAT, (3,), Role())]
    first, again, other = (make_inputs(specs, {}, seed)["x"] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_inputs_with_a_default_and_inputs_that_are_no_tensors() -> None:
    m = model("y = Add(x, w)", "float[3] x, float[3] w", "float[3] y", "<float[3] w = {1, 2, 3}>")
    assert [spec.name for spec in input_specs(m)] == ["x"]
    with pytest.raises(VerificationError, match="input 'x' is no tensor"):
        input_specs(model("y = SequenceLength(x)", "seq(float[3]) x", "int64 y"))


def test_sizes_are_one_odd_larger_and_of_a_single_batch_and_shared_by_name() -> None:
    m = model("y = Identity(a)", 'float[b,s] a, float[b,"s + 2"] c', "float[b,s] y")
    specs = input_specs(m)
    dims = open_dims(specs)
    assert [(dim.label, dim.leading) for dim in dims] == [("b", True), ("s", False)]
    ones_, odd, larger, single = wanted(dims)
    assert single["b"] == 1 < single["s"]
    assert set(ones_.values()) == {1}
    assert all(size % 2 and size > 1 for size in odd.values())
    assert larger["s"] > odd["s"]
    for sizes in wanted(dims):
        made = make_inputs(specs, sizes, 0)
        assert made["c"].shape == (made["a"].shape[0], made["a"].shape[1] + 2)


def test_dimensions_without_a_name_are_called_by_their_place() -> None:
    dims = open_dims(input_specs(model("y = Identity(x)", "float[?,4] x", "float y")))
    assert describe(dims, wanted(dims)[0]) == "x[0]=1"


def labels(m: ir.Model) -> tuple[list[str], list[str]]:
    found, notes = experiments(m, reference=False)
    return [experiment.label for experiment in found], notes


def test_every_binding_that_the_original_accepts_is_used() -> None:
    assert labels(model("y = Relu(x)", "float[b,s] x", "float[b,s] y")) == (
        ["b=1, s=1", "b=3, s=7", "b=2, s=32", "b=1, s=6"],
        [],
    )


def test_lengths_beyond_a_table_are_shortened_and_noted() -> None:
    body = """shape = Shape<start = 1, end = 2>(i) row = Slice(positions, nil, shape)
              p = Gather(table, row) w = Gather(words, i) y = Add(w, p)"""
    tables = f"<{ones('float[9,3] table', 9, 3)}, {ones('float[5,3] words', 5, 3)}, int64[1] nil = {{0}}, \
        int64[9] positions = {{0,1,2,3,4,5,6,7,8}}>"
    found, notes = labels(model(body, "int64[b,s] i", "float[b,s,3] y", tables))
    assert found == ["b=1, s=1", "b=3, s=7", "b=2, s=8", "b=1, s=6"]
    assert len(notes) == 1
    assert notes[0].startswith("b=2, s=8 instead of b=2, s=32: ONNX Runtime cannot execute the model: Add")


def test_two_names_for_one_length_are_found_out() -> None:
    found, _ = labels(model("y = Add(a, c)", "float[b,s] a, float[d,t] c", "float y"))
    assert found == ["b=1, s=1, d=1, t=1", "b=3, s=7, d=3, t=7", "b=2, s=32, d=2, t=32", "b=1, s=6, d=1, t=6"]


def test_a_length_that_is_the_sum_of_two_others_is_found_out() -> None:
    body = "k = Concat<axis = 1>(past, x) y = Add(k, m)"
    found, _ = labels(model(body, "float[b,s] x, float[b,p] past, float[b,t] m", "float y"))
    assert "b=3, s=7, p=5, t=12" in found


def test_images_grow_until_the_original_accepts_them() -> None:
    body = "y = AveragePool<kernel_shape = [20, 20]>(x)"
    found, notes = labels(model(body, "float[b,1,h,w] x", "float y"))
    assert found[0] == "b=1, h=32, w=32"
    assert any("instead of b=1, h=1, w=1" in note for note in notes)


def test_sizes_below_one_are_not_tried() -> None:
    m = model("y = Concat<axis = 0>(x, z)", 'float["s"] z, float["s - 3"] x', "float y")
    specs = input_specs(m)
    assert all(make_inputs(specs, sizes, 0)["x"].size for sizes in Search(specs).candidates({"s": 1}))
    assert all(experiment.inputs["x"].size for experiment in experiments(m, reference=False)[0])


def test_an_original_that_runs_on_nothing_is_an_error_with_its_reason() -> None:
    m = model("y = Reshape(x, s)", "float[5] x", "float y", "<int64[1] s = {3}>")
    with pytest.raises(VerificationError, match=r"runs on none of the inputs tried; give your own .*Reshape"):
        experiments(m, reference=False)


def test_inputs_that_memory_does_not_hold_are_an_error() -> None:
    with pytest.raises(VerificationError, match=r"'x' of shape \[1099511627776, 1099511627776\] among them, takes"):
        experiments(model("y = Relu(x)", "float[1099511627776, 1099511627776] x", "float y"), reference=False)


def test_inputs_of_the_users_that_do_not_fit_are_an_error() -> None:
    m = model("y = Relu(x)")
    with pytest.raises(VerificationError, match=r"given inputs 1: the original model cannot be executed"):
        experiments(m, [{"x": np.ones((2, 3), "f4")}, {"x": np.ones((2, 4), "f4")}], reference=False)


def test_random_operators_are_noted() -> None:
    m = model("r = RandomNormal<shape = [2]>() y = Add(x, r)", "float[2] x", "float[2] y")
    _, notes = experiments(m)
    assert any("RandomNormal draws random numbers" in note for note in notes)


def test_bfloat16_models_are_run() -> None:
    m = model("y = Identity(x)", "bfloat16[n,3] x", "bfloat16[n,3] y")
    found, _ = experiments(m)
    assert found[0].expected["y"].dtype == ml_dtypes.bfloat16
    assert (found[0].expected["y"] == found[0].inputs["x"]).all()


def test_a_batch_that_is_not_first_is_found_out() -> None:
    body = """p = Pad<mode = "reflect">(x, pads) t = Unsqueeze(p, nil) m = ReduceMean<keepdims = 1>(t, two)
        y = Add(m, state)"""
    constants = "<int64[1] nil = {0}, int64[1] two = {2}, int64[4] pads = {0, 0, 0, 40}>"
    found, _ = labels(model(body, "float[?,?] x, float[2,?,1] state", "float y", constants))
    assert found[1:] == ["x[0]=3, x[1]=128, state[1]=3", "x[0]=2, x[1]=192, state[1]=2", "x[0]=1, x[1]=256, state[1]=1"]


def test_what_had_to_grow_is_run_in_several_sizes() -> None:
    body = 'p = Pad<mode = "reflect">(x, pads) y = Relu(p)'
    found, _ = labels(model(body, "float[b,s] x", "float y", "<int64[4] pads = {0, 0, 0, 100}>"))
    assert found == ["b=1, s=128", "b=3, s=256", "b=2, s=384", "b=1, s=512"]


def test_images_are_large_enough_to_leave_something() -> None:
    m = model("y = Conv(x, w)", "float[n,3,h,v] x", "float y", f"<{ones('float[2,3,1,1] w', 6)}>")
    assert labels(m) == (["n=1, h=32, v=32", "n=3, h=33, v=47", "n=2, h=96, v=64", "n=1, h=64, v=48"], [])


def test_images_that_are_halved_and_joined_again_are_of_even_sizes() -> None:
    body = (
        "c = Conv(x, w) h = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c) u = Resize(h, , scales) y = Add(u, c)"
    )
    constants = f"<{ones('float[2,3,1,1] w', 6)}, float[4] scales = {{1, 1, 2, 2}}>"
    found, _ = labels(model(body, "float[n,3,h,v] x", "float y", constants))
    assert found == ["n=1, h=32, v=32", "n=3, h=64, v=64", "n=2, h=96, v=64", "n=1, h=64, v=48"]


def test_caches_of_all_layers_agree_with_the_mask() -> None:
    layers = " ".join(f"k{n} = Concat<axis = 2>(p{n}, u) s{n} = ReduceSum<keepdims = 0>(k{n}, three)" for n in range(4))
    body = f"u = Unsqueeze(x, nil) {layers} a = Add(s0, m) b = Add(s1, a) c = Add(s2, b) y = Add(s3, c)"
    pasts = ", ".join(f"float[1,2,q{n},4] p{n}" for n in range(4))
    m = model(body, f"float[2,n,4] x, {pasts}, float[1,1,t] m", "float y", "<int64[1] three = {3}, int64[1] nil = {0}>")
    found, _ = labels(m)
    assert any(label == "n=7, q0=5, q1=5, q2=5, q3=5, t=12" for label in found), found


def test_bytes_take_all_values() -> None:
    made = make_inputs([InputSpec("x", ir.DataType.UINT8, (1000,), Role())], {}, 0)["x"]
    assert made.max() > 200


@pytest.mark.parametrize(("opset", "rows"), [(18, 3), (12, 4)])
def test_inputs_are_followed_into_functions_of_other_opsets_with_the_same_operators(opset: int, rows: int) -> None:
    """`Squeeze` takes its axes as an attribute in opset 12, so that there the function is not looked into."""
    body = "r = Gather(t, i)" if opset == 18 else "s = Squeeze<axes = [0]>(t) r = Gather(s, i)"
    of_table = "[3,2]" if opset == 18 else "[1,3,2]"
    made = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 22, "own": 1]>
        g (int64[n] i, float{of_table} t) => (float[n,2] y) {{ y = own.f(i, t) }}
        <domain: "own", opset_import: ["": {opset}]> f (i, t) => (r) {{ {body} }}""")
    numbers = make_inputs(input_specs(made), {"n": 1000}, 0)["i"]
    assert numbers.max() == rows - 1
