"""That the user's own inputs are read, and that unusable files are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortfuse.errors import VerificationError
from ortfuse.verification import read_inputs

X, Z = np.ones((2, 3), np.float32), np.array([1, 2])
X_INPUT = ir.val("x", ir.DataType.FLOAT, ["b", 3])
Z_INPUT = ir.val("z", ir.DataType.INT64, ["b"])


def write(path: Path, array: np.ndarray, name: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(onnx.numpy_helper.from_array(array, name).SerializeToString())


def test_an_npz_file_and_a_folder_of_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X)
    np.savez(tmp_path / "b.npz", x=2 * X)
    (one,) = read_inputs(tmp_path / "a.npz", [X_INPUT])
    assert (one["x"] == X).all()
    assert [int(found["x"].max()) for found in read_inputs(tmp_path, [X_INPUT])] == [1, 2]


def test_protobufs_belong_to_the_input_they_name_or_to_that_of_their_number(tmp_path: Path) -> None:
    write(tmp_path / "test_data_set_0" / "input_0.pb", X)
    write(tmp_path / "test_data_set_0" / "input_1.pb", Z)
    write(tmp_path / "test_data_set_1" / "input_0.pb", Z, "z")
    write(tmp_path / "test_data_set_1" / "input_1.pb", X, "x")
    for found in (
        *read_inputs(tmp_path, [X_INPUT, Z_INPUT]),
        *read_inputs(tmp_path / "test_data_set_1", [X_INPUT, Z_INPUT]),
    ):
        assert found["x"].shape == X.shape
        assert (found["z"] == Z).all()


def test_unusable_files_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X)
    with pytest.raises(VerificationError, match=r"a\.npz: lacks the input 'z'; it holds \['x'\]"):
        read_inputs(tmp_path / "a.npz", [X_INPUT, Z_INPUT])
    whole = (tmp_path / "a.npz").read_bytes()
    for name, content in (("text", b"no"), ("empty", b""), ("zip", b"PK\x03\x04broken"), ("half", whole[:99])):
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(
            VerificationError, match=rf"{name}\.npz: is not an \.npz file; make one with numpy\.savez.*'x': \.\.\."
        ):
            read_inputs(tmp_path / f"{name}.npz", [X_INPUT])
    (tmp_path / "damaged.npz").write_bytes(whole.replace(b"float", b"fl_at").replace(b"NUMPY", b"NUMPI"))
    with pytest.raises(VerificationError, match=r"damaged\.npz: is a damaged \.npz file"):
        read_inputs(tmp_path / "damaged.npz", [X_INPUT])
    np.save(tmp_path / "single.npy", X)
    with pytest.raises(VerificationError, match=r"single\.npy: holds one array without a name"):
        read_inputs(tmp_path / "single.npy", [X_INPUT])
    with pytest.raises(VerificationError, match="no such file"):
        read_inputs(tmp_path / "none", [X_INPUT])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(VerificationError, match=r"holds neither \.npz files nor"):
        read_inputs(tmp_path / "nothing", [X_INPUT])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X.astype(np.float64)}, r"the array 'x' is float64\[2, 3\], and the input float32\[b, 3\]"),
        ({"x": X[:, :2]}, r"the array 'x' is float32\[2, 2\], and the input float32\[b, 3\]"),
        ({"x": X[0]}, r"the array 'x' is float32\[3\], and the input float32\[b, 3\]"),
        ({"x": np.array([None, X], dtype=object)}, "the array 'x' holds Python objects"),
        ({"x": X, "w": Z}, r"holds 'w', which is none of the model's inputs \['x'\]"),
    ],
)
def test_arrays_that_do_not_fit_are_named_with_the_file(
    tmp_path: Path, arrays: dict[str, np.ndarray], words: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(VerificationError, match=rf"a\.npz: {words}"):
        read_inputs(tmp_path, [X_INPUT])


def test_strings_and_inputs_of_no_declared_shape_are_taken_as_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", words=np.array(["one", "two"]), x=X)
    inputs = [ir.val("words", ir.DataType.STRING, ["b"]), ir.val("x", ir.DataType.FLOAT)]
    assert read_inputs(tmp_path, inputs)[0]["words"].tolist() == ["one", "two"]


def test_bfloat16_is_told_by_the_input_that_it_is_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X.astype(ir.DataType.BFLOAT16.numpy()))
    (found,) = read_inputs(tmp_path / "a.npz", [ir.val("x", ir.DataType.BFLOAT16, ["b", 3])])
    assert found["x"].dtype == ir.DataType.BFLOAT16.numpy()
    assert (found["x"].astype(np.float32) == X).all()


def test_unusable_protobufs_are_named(tmp_path: Path) -> None:
    write(tmp_path / "input_7.pb", X, "w")
    with pytest.raises(VerificationError, match=r"input_7\.pb: the model has no input 'w'"):
        read_inputs(tmp_path, [X_INPUT])
    (tmp_path / "input_7.pb").write_bytes(b"\xff\xff")
    with pytest.raises(VerificationError, match=r"input_7\.pb: cannot be read as a TensorProto"):
        read_inputs(tmp_path, [X_INPUT])
