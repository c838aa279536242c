"""Reads inputs from files that hold one array each: .npy files, and images if Pillow is installed.

Such a file has no names in it. It belongs to the input it is named after, with all such files of a folder being one set of
inputs, or else to the only input that it can be for, each file being a set of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError

Array = np.ndarray[Any, Any]

IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"})

SINGLE = frozenset({".npy"}) | IMAGES
"""Endings of files that hold one array."""

SIDE = 224
"""Height and width that an image is brought to where the model leaves them open."""


def read_single(files: Sequence[Path], inputs: Sequence[ir.Value]) -> list[dict[str, Any]]:
    """One set of inputs for each file; a single one if the files are named after the inputs.

    Raises:
        VerificationError: A file cannot be read, or it is not clear which input it is for.
    """
    known = {value.name: value for value in inputs}
    if len(known) > 1 or all(file.stem in known for file in files):
        stray = next((file for file in files if file.stem not in known), None)
        if stray is not None:
            raise VerificationError(
                f"{stray}: is named after none of the inputs {sorted(map(str, known))}; rename it, or save all arrays of one run "
                "in an .npz file"
            )
        return [{file.stem: _read(file, known[file.stem]) for file in files}]
    (only,) = known.values()
    return [{only.name or "": _read(file, only)} for file in files]


def _read(file: Path, value: ir.Value) -> Array:
    if file.suffix.lower() in IMAGES:
        return _image(file, value)
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except Exception as error:  # numpy raises many kinds of errors on damaged files
        raise VerificationError(f"{file}: cannot be read as a .npy file: {error}") from error


def _image(file: Path, value: ir.Value) -> Array:
    """An image as the input takes it: channels first or last, grey or in colour, as bytes or as numbers from -1 to 1."""
    try:
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise VerificationError(
            f"{file}: images are read with Pillow, which is not installed: pip install pillow; or save arrays in an .npz file"
        ) from error
    shape = list(value.shape) if value.shape is not None else []
    layout = _layout(shape)
    if layout is None:
        raise VerificationError(
            f"{file}: the input '{value.name}' does not take images: its shape is {shape}, not batch, channels, height, width in "
            "this or another order; save arrays in an .npz file"
        )
    channels, height, width = layout
    try:
        with Image.open(file) as opened:
            picture = opened.convert("L" if shape[channels] == 1 else "RGB")
            sizes = [size if isinstance(size, int) else SIDE for size in (shape[width], shape[height])]
            pixels = np.asarray(picture.resize((sizes[0], sizes[1])))
    except OSError as error:
        raise VerificationError(f"{file}: cannot be read as an image: {error}") from error
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    array = (pixels if channels == 3 else pixels.transpose(2, 0, 1))[None]
    kind = value.dtype
    if kind is not None and kind.is_floating_point():
        return np.asarray(array / 127.5 - 1.0).astype(kind.numpy())
    return array


def _layout(shape: Sequence[Any]) -> tuple[int, int, int] | None:
    """The axes of channels, height and width; `None` if it is not the shape of images."""
    if len(shape) != 4:
        return None
    if shape[1] in (1, 3):
        return 1, 2, 3
    if shape[3] in (1, 3):
        return 3, 1, 2
    return None if any(isinstance(size, int) for size in (shape[1], shape[3])) else (1, 2, 3)
