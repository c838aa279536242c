"""The user's own inputs, read from files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import onnx

from ortfuse.errors import VerificationError
from ortfuse.validate.inputs import Inputs


def read_inputs(path: str | Path, names: Sequence[str]) -> list[Inputs]:
    """Read inputs of a model.

    Args:
        path: An .npz file (arrays by input name), a folder of such files, a folder with `input_0.pb`, `input_1.pb`, ...
            as in ONNX's test data, or a folder of such `test_data_set_N` folders.
        names: The model's inputs in their order. A protobuf belongs to the input it names, else to that of its number.

    Raises:
        VerificationError: Naming the file that cannot be used.
    """
    path = Path(path)
    if path.is_file():
        return [_read_npz(path, names)]
    if not path.is_dir():
        raise VerificationError(f"{path}: no such file or folder; inputs are .npz files or a folder of them")
    found = [_read_npz(file, names) for file in sorted(path.glob("*.npz"))]
    found += [_read_protobufs(folder, names) for folder in _data_sets(path)]
    if not found:
        raise VerificationError(f"{path}: holds neither .npz files nor input_0.pb files")
    return found


def _data_sets(path: Path) -> Iterator[Path]:
    for folder in (path, *sorted(path.glob("test_data_set_*"))):
        if any(folder.glob("input_*.pb")):
            yield folder


def _read_npz(file: Path, names: Sequence[str]) -> Inputs:
    try:
        content = np.load(file, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise VerificationError(
                f"{file}: holds one array without a name; save it with numpy.savez(file, name=array)"
            )
        with content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise VerificationError(f"{file}: cannot be read as .npz: {error}") from error
    return _complete(arrays, names, file)


def _read_protobufs(folder: Path, names: Sequence[str]) -> Inputs:
    arrays: dict[str, Any] = {}
    for file in sorted(folder.glob("input_*.pb")):
        number = file.stem.removeprefix("input_")
        try:
            proto = onnx.TensorProto.FromString(file.read_bytes())
            array = onnx.numpy_helper.to_array(proto)
        except Exception as error:
            raise VerificationError(f"{file}: cannot be read as a TensorProto: {error}") from error
        if proto.name in names:
            arrays[proto.name] = array
        elif number.isdigit() and int(number) < len(names):
            arrays[names[int(number)]] = array
        else:
            raise VerificationError(f"{file}: the model has no input '{proto.name}' and none of that number")
    return _complete(arrays, names, folder)


def _complete(arrays: Inputs, names: Sequence[str], place: Path) -> Inputs:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise VerificationError(f"{place}: lacks the input '{missing[0]}'; it holds {sorted(arrays)}")
    return arrays
