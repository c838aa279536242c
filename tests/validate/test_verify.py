"""That a verdict finds what is wrong, and that inputs fit what the graph does with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.errors import VerificationError
from ortfuse.validate import read_inputs, verify
from ortfuse.validate.compare import compare
from ortfuse.validate.inputs import bindings, input_specs, make_inputs

HEADER = '<ir_version: 9, opset_import: ["": 18]>'


def model(body: str, inputs: str = "float[b,3] x", outputs: str = "float[b,3] y", initializers: str = "") -> ir.Model:
    return ir.from_onnx_text(f"{HEADER} g ({inputs}) => ({outputs}) {initializers} {{ {body} }}")


def test_the_same_function_in_other_operators_is_equal() -> None:
    verdict = verify(model("y = Mul(x, x)"), model("y = Pow(x, two)", initializers="<float two = {2.0}>"))
    assert verdict.ok
    assert "equal" in verdict.summary()
    assert verdict.largest("optimised_error") is not None


def test_a_changed_weight_is_found_with_output_and_element() -> None:
    before = model("y = Mul(x, w)", initializers="<float[3] w = {1.0, 2.0, 3.0}>")
    after = model("y = Mul(x, w)", initializers="<float[3] w = {1.0, 2.01, 3.0}>")
    verdict = verify(before, after)
    assert not verdict.ok
    worst = verdict.worst
    assert worst is not None
    assert worst.output == "y"
    assert worst.element is not None
    assert worst.element[1] == 1
    assert "'y' differs at" in verdict.summary()


def test_nan_and_infinity_must_stand_where_they_stood() -> None:
    ones = np.ones((2, 2), np.float32)
    nan = np.array([[1, np.nan], [1, 1]], np.float32)
    inf = np.array([[1, np.inf], [1, 1]], np.float32)
    assert not compare("y", ones, nan).ok
    assert compare("y", nan, nan).ok
    assert compare("y", inf, inf).ok
    assert not compare("y", inf, -inf).ok
    assert not compare("y", inf, nan).ok


def test_integers_must_be_equal_and_shapes_and_types_too() -> None:
    assert not compare("y", np.array([1, 2]), np.array([1, 3])).ok
    assert compare("y", np.array([1, 3]), np.array([1, 2])).element == (1,)
    assert "instead of" in compare("y", np.ones(2, np.float32), np.ones((2, 1), np.float32)).reason
    assert not compare("y", np.ones(2, np.float32), np.ones(2, np.float64)).ok


def test_rounding_beyond_the_tolerance_passes_if_float64_says_so() -> None:
    truth = np.array([1.0, 1.0])
    original, found = np.array([1.01, 1.0], np.float32), np.array([0.99, 1.0], np.float32)
    assert not compare("y", original, found).ok
    assert compare("y", original, found, truth).ok
    assert not compare("y", original, np.array([0.9, 1.0], np.float32), truth).ok


def test_models_with_other_outputs_are_not_compared() -> None:
    with pytest.raises(VerificationError, match="other outputs"):
        verify(model("y = Relu(x)"), model("z = Relu(x)", outputs="float[b,3] z"))


def test_indices_stay_below_the_smallest_table_they_select_from() -> None:
    text = """
        u = Unsqueeze(ids, zero)
        s = Squeeze(u, zero)
        a = Gather(big, s)
        b = Gather(small, ids)
        y = Add(a, b)
    """
    tables = "<float[9,3] big, float[4,3] small, int64[1] zero = {0}>"
    m = model(text, "int64[n] ids", "float[n,3] y", tables.replace("big,", "big = {" + ",".join(["1"] * 27) + "},").replace(
        "small,", "small = {" + ",".join(["1"] * 12) + "},"))  # fmt: skip
    (spec,) = input_specs(m)
    assert spec.role.bound == 4
    ids = make_inputs([spec], {"n": 500}, 0)["ids"]
    assert ids.min() == 0
    assert ids.max() == 3


def test_masks_have_padded_tails_and_at_least_one_position() -> None:
    body = "f = Cast<to = 1>(m) g = Sub(one, f) y = Mul(g, low)"
    m = model(body, "int64[b,s] m", "float[b,s] y", "<float one = {1.0}, float low = {-10000.0}>")
    (spec,) = input_specs(m)
    assert spec.role.mask
    mask = make_inputs([spec], {"b": 6, "s": 20}, 0)["m"]
    assert (mask[0] == 1).all()
    assert (mask[:, 0] == 1).all()
    assert (mask == 0).any()
    assert (np.diff(mask, axis=1) <= 0).all()


def test_dimensions_of_one_name_get_one_size_and_sums_of_names_are_evaluated() -> None:
    m = model("y = Identity(a)", 'float[b,s] a, float[b,"s + 2"] c', "float[b,s] y".replace("s]", "s]"))
    specs = input_specs(m)
    wanted, _ = bindings(specs)
    for sizes in wanted:
        made = make_inputs(specs, sizes, 0)
        assert made["c"].shape == (made["a"].shape[0], made["a"].shape[1] + 2)


def test_a_size_at_which_the_original_fails_is_left_out_with_a_note() -> None:
    m = model("y = Add(x, w)", "float[n] x", "float[n] y", "<float[3] w = {1.0, 2.0, 3.0}>")
    verdict = verify(m, m)
    assert verdict.ok
    assert any("left out" in note for note in verdict.notes)


def test_given_inputs_are_read_from_npz_and_named_when_unusable(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3), np.float32))
    (given,) = read_inputs(tmp_path / "a.npz", ["x"])
    assert given["x"].shape == (2, 3)
    assert len(read_inputs(tmp_path, ["x"])) == 1
    with pytest.raises(VerificationError, match=r"a\.npz: lacks the input 'z'"):
        read_inputs(tmp_path / "a.npz", ["z"])
    (tmp_path / "bad.npz").write_text("no")
    with pytest.raises(VerificationError, match=r"bad\.npz: cannot be read"):
        read_inputs(tmp_path / "bad.npz", ["x"])
    with pytest.raises(VerificationError, match="no such file"):
        read_inputs(tmp_path / "none", ["x"])
