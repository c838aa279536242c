"""Read inputs from files that hold one array each: .npy files, and images if Pillow is installed.

Such a file has no names in it. It belongs to the input it is named after, with all such files of a folder being one set of
inputs, or else to the only input that it can be for, each file being a set of its own.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.io.bounded_text_files import regular_file
from ortfuse.io.memory_limits import demand_room
from ortfuse.runtime.inputs.image_preprocessing import Preprocessing

Array = np.ndarray[Any, Any]

IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"})

SINGLE = frozenset({".npy"}) | IMAGES
"""Endings of files that hold one array."""

NPY = b"\x93NUMPY"
"""The first bytes of a .npy file."""

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
"""The formats of images."""

MOST_PIXELS = 100_000_000
"""The most pixels of an image."""

LONGEST = 300
"""Characters that are shown of what is wrong with a file."""


def read_single(files: Sequence[Path], inputs: Sequence[ir.Value], how: Preprocessing) -> list[dict[str, Any]]:
    """One set of inputs for each file; a single one if the files are named after the inputs.

    Args:
        files: The files.
        inputs: The model's inputs.
        how: How images become inputs.

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
        return [{file.stem: _read(file, known[file.stem], how) for file in files}]
    (only,) = known.values()
    return [{only.name or "": _read(file, only, how)} for file in files]


def _read(file: Path, value: ir.Value, how: Preprocessing) -> Array:
    return _image(file, value, how) if file.suffix.lower() in IMAGES else array_of(file)


def array_of(file: Path) -> Array:
    """The array of a .npy file.

    Raises:
        VerificationError: It cannot be read, holds Python objects, or takes more memory than there is room for.
    """
    try:
        with regular_file(file) as opened:
            demand_room(os.fstat(opened.fileno()).st_size, f"{file}", "give a smaller array")
            if opened.read(len(NPY)) != NPY:
                raise ValueError("it is something else")
            opened.seek(0)
            return np.asarray(np.load(opened, allow_pickle=False))
    except VerificationError:
        raise
    except OSError as error:
        raise VerificationError(f"{file}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # numpy raises many kinds of errors on damaged files
        raise VerificationError(f"{file}: cannot be read as a .npy file: {str(error)[:LONGEST]}") from error


def _image(file: Path, value: ir.Value, how: Preprocessing) -> Array:
    """An image as the input takes it."""
    try:
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise VerificationError(
            f"{file}: images are read with Pillow, which is not installed: pip install pillow; or save arrays in an .npz file"
        ) from error
    found = how.of(value)
    if found is None:
        shape = list(value.shape) if value.shape is not None else []
        raise VerificationError(
            f"{file}: the input '{value.name}' does not take images: its shape is {shape}, not batch, channels, height, width in "
            "this or another order; save arrays in an .npz file"
        )
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # of many pixels: there is a limit of our own
            regular_file(file) as content,
            Image.open(content, formats=FORMATS) as opened,  # of other formats, Pillow may start a program to draw them
        ):
            if opened.size[0] * opened.size[1] > MOST_PIXELS:
                raise ValueError(
                    f"it has {opened.size[0]} x {opened.size[1]} pixels, and may have {MOST_PIXELS:,} in all"
                )
            return found.array(opened, getattr(Image, "Resampling", None))
    except OrtfuseError:
        raise
    except OSError as error:
        raise VerificationError(f"{file}: cannot be read as an image: {error.strerror or error}") from error
    except Exception as error:  # of damaged images, Pillow raises whatever it comes upon
        raise VerificationError(f"{file}: cannot be read as an image: {str(error)[:LONGEST]}") from error


def notes_on_images(files: Sequence[Path], inputs: Sequence[ir.Value], how: Preprocessing) -> list[str]:
    """Notes on the preprocessing of images; none without images."""
    images = [file for file in files if file.suffix.lower() in IMAGES]
    named = {value.name: value for value in inputs}
    taking = [named[file.stem] for file in images if file.stem in named] or list(inputs[:1] if images else ())
    found = (how.of(value) for value in dict.fromkeys(taking))
    return [one.text() for one in found if one is not None]
