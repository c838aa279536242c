"""Read the user's own inputs from files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.io.bounded_text_files import read_bytes, regular_file
from ortfuse.io.memory_limits import demand_room, room
from ortfuse.runtime.inputs.image_preprocessing import FILE, Preprocessing, read_preprocessing
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.inputs.read_single_array_files import SINGLE, notes_on_images, read_single

MOST_ARRAYS = 100_000
"""The most arrays in one file."""

LONGEST, LONGEST_NUMBER = 300, 10
"""Characters that are shown of what is wrong with a file, and of the number in the name of a protobuf."""


class InputSets(list[Inputs]):
    """Sets of inputs that were read.

    Attributes:
        notes: What was done to them, in words.
    """

    def __init__(self, sets: Iterable[Inputs] = (), notes: Sequence[str] = ()) -> None:
        super().__init__(sets)
        self.notes = tuple(notes)


def notes_of(sets: Sequence[Inputs] | None) -> tuple[str, ...]:
    """Notes on changes that were made to sets of inputs when they were read."""
    return sets.notes if isinstance(sets, InputSets) else ()


def read_inputs(
    path: str | Path, inputs: Sequence[ir.Value], preprocess: str | os.PathLike[str] | None = None
) -> InputSets:
    """Read the inputs of a model.

    Args:
        path: An .npz file (arrays by input name); a .npy file or an image, for a model of one input; a folder of such
            files, where .npy files and images may be named after the inputs; a folder with `input_0.pb`, `input_1.pb`, ... as
            in ONNX's test data; or a folder of such `test_data_set_N` folders.
        inputs: The model's inputs in order. A protobuf belongs to the input it names, or else to the input of its number.
        preprocess: A TOML file that says how images become inputs (`ortfuse.runtime.inputs.image_preprocessing`); by default
            `preprocess.toml` in the folder, if there is one.

    Raises:
        VerificationError: A file cannot be used, or an array is missing, has a different element type or shape than its input
            declares, or belongs to no input; the message names the file and the array.
    """
    path = Path(path)
    beside = (path if path.is_dir() else path.parent) / FILE
    how = Preprocessing()
    if preprocess is not None or beside.is_file():
        how = read_preprocessing(beside if preprocess is None else preprocess)
    if path.is_file():
        if path.suffix.lower() not in SINGLE:
            return InputSets([_read_npz(path, inputs)])
        return InputSets(_read_singles([path], inputs, path, how), notes_on_images([path], inputs, how))
    if not path.is_dir():
        raise VerificationError(
            f"{path}: no such file or folder; inputs are .npz or .npy files, images, or a folder of them"
        )
    found = [_read_npz(file, inputs) for file in sorted(path.glob("*.npz"))]
    found += [_read_protobufs(folder, inputs) for folder in _data_sets(path)]
    singles = sorted(file for file in path.iterdir() if file.suffix.lower() in SINGLE)
    found += _read_singles(singles, inputs, path, how) if singles else []
    if not found:
        raise VerificationError(f"{path}: holds no .npz or .npy files, images, or input_0.pb files")
    return InputSets(found, notes_on_images(singles, inputs, how))


def _read_singles(files: Sequence[Path], inputs: Sequence[ir.Value], place: Path, how: Preprocessing) -> list[Inputs]:
    found = read_single(files, inputs, how)
    return [
        _complete(arrays, inputs, file)
        for arrays, file in zip(found, files if len(found) > 1 else [place], strict=True)
    ]


def _data_sets(path: Path) -> Iterator[Path]:
    for folder in (path, *sorted(path.glob("test_data_set_*"))):
        if any(folder.glob("input_*.pb")):
            yield folder


def _read_npz(file: Path, inputs: Sequence[ir.Value]) -> Inputs:
    how = f"numpy.savez('inputs.npz', **{{{', '.join(f'{value.name!r}: ...' for value in inputs)}}})"
    try:
        with regular_file(file) as opened:
            if not is_zipfile(opened):
                raise VerificationError(f"{file}: is not an .npz file; make one with {how}")
            opened.seek(0)
            with ZipFile(opened) as packed:
                entries = packed.infolist()
            if len(entries) > MOST_ARRAYS:
                raise VerificationError(f"{file}: holds {len(entries):,} arrays, and may hold {MOST_ARRAYS:,}")
            demand_room(
                sum(entry.file_size for entry in entries), f"{file}: what is packed in it", "give smaller arrays"
            )
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as content:
                return _complete({name: _array(content, name, file) for name in content.files}, inputs, file)
    except VerificationError:
        raise
    except OSError as error:
        raise VerificationError(f"{file}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # numpy and zipfile raise many kinds of errors on damaged files
        raise VerificationError(
            f"{file}: is a damaged .npz file ({_short(error)}); make it again with {how}"
        ) from error


def _short(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _array(content: Any, name: str, file: Path) -> Any:
    try:
        found = content[name]
        if not isinstance(found, np.ndarray):
            raise VerificationError(f"{file}: '{name}' is no array; leave it out")
        return found
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise VerificationError(
            f"{file}: the array '{name}' holds Python objects, not numbers; convert it with numpy.asarray(..., dtype)"
        ) from error


def _read_protobufs(folder: Path, inputs: Sequence[ir.Value]) -> Inputs:
    names = [value.name or "" for value in inputs]
    arrays: dict[str, Any] = {}
    for file in sorted(folder.glob("input_*.pb")):
        number = file.stem.removeprefix("input_")
        try:
            proto = onnx.TensorProto.FromString(read_bytes(file, room()))
            if proto.external_data or proto.data_location == onnx.TensorProto.EXTERNAL:
                raise ValueError("its data are in another file, which is not read; store them in it")
            if any(dim < 0 for dim in proto.dims):
                raise ValueError(f"its shape is {list(proto.dims)}")
            array = onnx.numpy_helper.to_array(proto)
        except OSError as error:
            raise VerificationError(f"{file}: cannot be read: {error.strerror or error}") from error
        except Exception as error:
            raise VerificationError(f"{file}: cannot be read as a TensorProto: {_short(error)}") from error
        if proto.name in names:
            arrays[proto.name] = array
        elif number.isdecimal() and len(number) < LONGEST_NUMBER and int(number) < len(names):
            arrays[names[int(number)]] = array
        else:
            raise VerificationError(f"{file}: the model has no input '{proto.name}' and none of that number")
    return _complete(arrays, inputs, folder)


def _complete(arrays: Inputs, inputs: Sequence[ir.Value], place: Path) -> Inputs:
    """Return the arrays after checking that they match the inputs."""
    known = {value.name or "": value for value in inputs}
    missing = [name for name in known if name not in arrays]
    if missing:
        raise VerificationError(f"{place}: lacks the input '{missing[0]}'; it holds {sorted(arrays)}")
    surplus = [name for name in arrays if name not in known]
    if surplus:
        raise VerificationError(
            f"{place}: holds '{surplus[0]}', which is none of the model's inputs {sorted(known)}; leave it out"
        )
    for name, value in known.items():
        arrays[name] = _typed(arrays[name], value)
        if not _fits(arrays[name], value):
            raise VerificationError(
                f"{place}: the array '{name}' is {_text(arrays[name].dtype, arrays[name].shape)}, "
                f"and the input {_text(value.dtype, value.shape)}; convert it with .astype() and .reshape()"
            )
    return arrays


def _typed(array: Any, value: ir.Value) -> Any:
    """Give raw bytes the type of the input: numpy's files do not distinguish bfloat16 and similar types."""
    if array.dtype.kind == "V" and value.dtype is not None and value.dtype.itemsize == array.dtype.itemsize:
        return array.view(value.dtype.numpy())
    return array


def _fits(array: Any, value: ir.Value) -> bool:
    """Whether an array has the element type, rank and fixed sizes that an input declares."""
    dtype, shape = value.dtype, value.shape
    if not isinstance(value.type, ir.TensorType) or dtype is None:
        return True
    same_type = array.dtype.kind in "USO" if dtype == ir.DataType.STRING else array.dtype == dtype.numpy()
    if not same_type or shape is None:
        return same_type
    return len(shape) == array.ndim and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(shape, array.shape, strict=True)
    )


def _text(dtype: Any, shape: Iterable[Any] | None) -> str:
    """An element type and shape in the form `int64[batch, 5]`."""
    if isinstance(dtype, ir.DataType):
        name = "string" if dtype == ir.DataType.STRING else dtype.numpy().name
    else:
        name = dtype.name
    return name if shape is None else f"{name}[{', '.join(str(dim) for dim in shape)}]"
