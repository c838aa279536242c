"""That the user's own inputs are read, and that unusable files are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from ortfuse.errors import VerificationError
from ortfuse.validate import read_inputs

X, Z = np.ones((2, 3), np.float32), np.array([1, 2])


def write(path: Path, array: np.ndarray, name: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(onnx.numpy_helper.from_array(array, name).SerializeToString())


def test_an_npz_file_and_a_folder_of_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X)
    np.savez(tmp_path / "b.npz", x=2 * X, more=Z)
    (one,) = read_inputs(tmp_path / "a.npz", ["x"])
    assert (one["x"] == X).all()
    assert [int(found["x"].max()) for found in read_inputs(tmp_path, ["x"])] == [1, 2]


def test_protobufs_belong_to_the_input_they_name_or_to_that_of_their_number(tmp_path: Path) -> None:
    write(tmp_path / "test_data_set_0" / "input_0.pb", X)
    write(tmp_path / "test_data_set_0" / "input_1.pb", Z)
    write(tmp_path / "test_data_set_1" / "input_0.pb", Z, "z")
    write(tmp_path / "test_data_set_1" / "input_1.pb", X, "x")
    for found in (*read_inputs(tmp_path, ["x", "z"]), *read_inputs(tmp_path / "test_data_set_1", ["x", "z"])):
        assert found["x"].shape == X.shape
        assert (found["z"] == Z).all()


def test_unusable_files_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X)
    with pytest.raises(VerificationError, match=r"a\.npz: lacks the input 'z'; it holds \['x'\]"):
        read_inputs(tmp_path / "a.npz", ["x", "z"])
    for name, content in (("text", b"no"), ("empty", b""), ("zip", b"PK\x03\x04broken")):
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(VerificationError, match=rf"{name}\.npz: cannot be read"):
            read_inputs(tmp_path / f"{name}.npz", ["x"])
    np.save(tmp_path / "single.npy", X)
    with pytest.raises(VerificationError, match=r"single\.npy: holds one array without a name"):
        read_inputs(tmp_path / "single.npy", ["x"])
    with pytest.raises(VerificationError, match="no such file"):
        read_inputs(tmp_path / "none", ["x"])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(VerificationError, match=r"holds neither \.npz files nor"):
        read_inputs(tmp_path / "nothing", ["x"])


def test_unusable_protobufs_are_named(tmp_path: Path) -> None:
    write(tmp_path / "input_7.pb", X, "w")
    with pytest.raises(VerificationError, match=r"input_7\.pb: the model has no input 'w'"):
        read_inputs(tmp_path, ["x"])
    (tmp_path / "input_7.pb").write_bytes(b"\xff\xff")
    with pytest.raises(VerificationError, match=r"input_7\.pb: cannot be read as a TensorProto"):
        read_inputs(tmp_path, ["x"])
