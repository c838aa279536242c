"""That the user's own inputs are read, and that unusable files are named."""

from __future__ import annotations

import sys
import types
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
    with pytest.raises(VerificationError, match="no such file"):
        read_inputs(tmp_path / "none", [X_INPUT])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(VerificationError, match=r"holds no \.npz or \.npy files"):
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


def test_one_array_in_a_file_belongs_to_the_only_input_or_to_that_of_its_name(tmp_path: Path) -> None:
    np.save(tmp_path / "first.npy", X)
    np.save(tmp_path / "second.npy", 2 * X)
    assert [found["x"].max() for found in read_inputs(tmp_path, [X_INPUT])] == [1, 2]
    assert read_inputs(tmp_path / "second.npy", [X_INPUT])[0]["x"].max() == 2
    named = tmp_path / "named"
    named.mkdir()
    np.save(named / "x.npy", X)
    np.save(named / "z.npy", Z)
    (both,) = read_inputs(named, [X_INPUT, Z_INPUT])
    assert set(both) == {"x", "z"}


def test_files_of_one_array_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", X)
    with pytest.raises(VerificationError, match=r"w\.npy: is named after none of the inputs \['x', 'z'\]"):
        read_inputs(tmp_path / "w.npy", [X_INPUT, Z_INPUT])
    with pytest.raises(VerificationError, match=r"w\.npy: the array 'z' is float32\[2, 3\]"):
        read_inputs(tmp_path / "w.npy", [Z_INPUT])
    (tmp_path / "w.npy").write_bytes(b"no")
    with pytest.raises(VerificationError, match=r"w\.npy: cannot be read as a \.npy file"):
        read_inputs(tmp_path / "w.npy", [X_INPUT])


class Picture:
    """Stands for an image of Pillow: all bytes are 255."""

    def __init__(self, size: tuple[int, int] = (5, 4), mode: str = "RGBA") -> None:
        self.size, self.mode = size, mode

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def convert(self, mode: str) -> Picture:
        return Picture(self.size, mode)

    def resize(self, size: tuple[int, int]) -> Picture:
        return Picture(size, self.mode)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        channels = (3,) if self.mode == "RGB" else ()
        return np.full((self.size[1], self.size[0], *channels), 255, np.uint8)


@pytest.mark.parametrize(
    ("shape", "dtype", "made"),
    [
        (["b", 3, 8, 6], "FLOAT", (1, 3, 8, 6)),
        (["b", 3, "h", "w"], "FLOAT16", (1, 3, 224, 224)),
        ([1, 8, 6, 3], "UINT8", (1, 8, 6, 3)),
        (["b", 1, 28, 28], "FLOAT", (1, 1, 28, 28)),
    ],
)
def test_images_are_brought_to_the_form_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: list, dtype: str, made: tuple[int, ...]
) -> None:
    pillow = types.ModuleType("PIL")
    pillow.Image = types.SimpleNamespace(open=lambda file, formats: Picture())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "PIL", pillow)
    (tmp_path / "cat.png").write_bytes(b"")
    kind = ir.DataType[dtype]
    (found,) = read_inputs(tmp_path, [ir.val("image", kind, shape)])
    assert found["image"].shape == made
    assert found["image"].dtype == kind.numpy()
    assert found["image"].max() == (255 if dtype == "UINT8" else 1)


def test_images_need_pillow_and_an_input_that_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cat.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(VerificationError, match=r"cat\.png: images are read with Pillow, which is not installed"):
        read_inputs(tmp_path, [X_INPUT])
    pillow = types.ModuleType("PIL")
    pillow.Image = types.SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "PIL", pillow)
    with pytest.raises(VerificationError, match=r"cat\.png: the input 'x' does not take images"):
        read_inputs(tmp_path, [X_INPUT])
