from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.io.data_file import DataFile
from ortfuse.io.load_and_save import load, save
from ortfuse.io.stored_tensor import in_file
from ortfuse.transforms.cleanup.fold_constant_movement import MovedTensor


def _in_a_file(array: np.ndarray, folder: Path, *, dtype: ir.DataType | None = None) -> ir.TensorProtocol:
    """A tensor as it is after it was saved and loaded."""
    tensor = ir.Tensor(array, dtype=dtype, name="w")
    graph = ir.Graph([], [], nodes=[], initializers=[ir.Value(name="w", const_value=tensor)], opset_imports={"": 20})
    save(ir.Model(graph, ir_version=10), folder / "w.onnx")
    found = load(folder / "w.onnx").graph.initializers["w"].const_value
    assert found is not None
    assert in_file(found) is not None
    return found


@pytest.mark.parametrize(
    ("shape", "permutation"),
    [
        ((300, 700), (1, 0)),
        ((3, 200_000), (1, 0)),
        ((200_000, 3), (1, 0)),
        ((1, 300, 700), (2, 0, 1)),
        ((4, 300, 200), (0, 2, 1)),
        ((5, 60, 70, 11), (3, 1, 0, 2)),
        ((2, 3, 4, 5, 1000), (0, 2, 1, 3, 4)),
    ],
)
def test_a_weight_in_a_file_is_transposed_block_by_block(
    shape: tuple[int, ...], permutation: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.random.default_rng(0).standard_normal(shape, np.float32)
    expected = array.transpose(permutation)
    source = _in_a_file(array, tmp_path)
    pread, largest = DataFile._pread, []
    monkeypatch.setattr(DataFile, "_pread", lambda *args: largest.append(args[2]) or pread(*args))
    moved = MovedTensor(source, permutation, expected.shape)
    np.testing.assert_array_equal(moved.numpy(), expected)
    assert moved.tobytes() == expected.tobytes()
    assert max(largest) <= 1 << 18
    with (tmp_path / "out").open("w+b") as file:
        file.write(b"before")
        moved.tofile(file)
        file.write(b"after")
    assert (tmp_path / "out").read_bytes() == b"before" + expected.tobytes() + b"after"


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.int8, np.complex64, np.bool_])
def test_every_element_type_is_moved(kind: type, tmp_path: Path) -> None:
    array = (np.arange(300 * 700) % 100).reshape(300, 700).astype(kind)
    moved = MovedTensor(_in_a_file(array, tmp_path), (1, 0), (700, 300))
    assert moved.numpy().dtype == array.dtype
    assert moved.tobytes() == array.T.tobytes()


def test_packed_types_are_moved(tmp_path: Path) -> None:
    array = (np.arange(500 * 700) % 7).reshape(500, 700).astype(ml_dtypes.int4)
    moved = MovedTensor(_in_a_file(array, tmp_path, dtype=ir.DataType.INT4), (1, 0), (700, 500))
    np.testing.assert_array_equal(moved.numpy().astype(np.int8), array.T.astype(np.int8))
    assert moved.tobytes() == ir.Tensor(np.ascontiguousarray(array.T), dtype=ir.DataType.INT4).tobytes()


def test_a_weight_of_another_shape_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).standard_normal((300, 700), np.float32)
    moved = MovedTensor(_in_a_file(array, tmp_path), None, (700, 300))
    np.testing.assert_array_equal(moved.numpy(), array.reshape(700, 300))
    assert moved.tobytes() == array.tobytes()
    monkeypatch.setattr(DataFile, "read", None)
    with (tmp_path / "out").open("w+b") as file:
        moved.tofile(file)
    assert (tmp_path / "out").read_bytes() == array.tobytes()
