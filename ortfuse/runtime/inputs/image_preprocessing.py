"""Preprocess images to model inputs, as a file declares or as guessed from the input's shape.

    resize = 256                        # the shorter side; or [height, width]
    crop = [224, 224]                   # of the middle
    interpolation = "bilinear"          # nearest, bilinear, bicubic or lanczos
    colours = "RGB"                     # or BGR, or grey
    scale = "1/255"                     # (pixel * scale - mean) / std
    mean = [0.485, 0.456, 0.406]        # a number for all, or one for each channel
    std = [0.229, 0.224, 0.225]
    layout = "NCHW"                     # or NHWC

Entries that a file leaves out are guessed; without `scale`, `mean` and `std` numbers go from -1 to 1, and bytes stay bytes.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import OptionError, VerificationError
from ortfuse.io.bounded_text_files import from_toml, read_text
from ortfuse.io.memory_limits import demand_room

Array = np.ndarray[Any, Any]

BYTES_OF_PIXEL = 32
"""Bytes that a pixel takes on its way to an array, at most."""

SIDE = 224
"""Height and width that an image is brought to where neither the model nor a file says them."""

FILE = "preprocess.toml"
"""The name of the file in a folder of inputs that says how its images are to be read."""

INTERPOLATIONS, COLOURS, LAYOUTS = (
    ("nearest", "bilinear", "bicubic", "lanczos"),
    ("RGB", "BGR", "grey"),
    ("NCHW", "NHWC"),
)


@dataclass(frozen=True)
class Preprocessing:
    """The conversion of images to inputs; fields that are `None` or empty are guessed from the input.

    Attributes:
        resize: Height and width; or the length of the shorter side, and the aspect ratio is kept.
        crop: Height and width of the middle that is left.
        interpolation: How pixels between pixels are made; by default Pillow's own way (bicubic).
        colours: `"RGB"`, `"BGR"` or `"grey"`.
        scale: What pixels from 0 to 255 are multiplied with first.
        mean: What is subtracted then: a number for all channels, or one for each.
        std: What it is divided by at last, the same.
        layout: `"NCHW"` or `"NHWC"`.
        source: The file that says so; empty if nothing does.
    """

    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    interpolation: str = ""
    colours: str = ""
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: str = ""
    source: str = ""

    def of(self, value: ir.Value) -> ForInput | None:
        """The same for an input, with what is guessed; `None` if the input takes no images."""
        shape = list(value.shape) if value.shape is not None else []
        axes = _axes(shape, self.layout)
        if axes is None:
            return None
        channels, height, width = axes
        colours = self.colours or ("grey" if shape[channels] == 1 else "RGB")
        sides = [size if isinstance(size, int) else SIDE for size in (shape[height], shape[width])]
        size = self.resize if self.resize is not None else self.crop or (sides[0], sides[1])
        is_float = value.dtype is None or value.dtype.is_floating_point()
        plain = self.scale is None and self.mean is None and self.std is None
        guessed = (1 / 127.5, (1.0,), (1.0,)) if is_float else (1.0, (0.0,), (1.0,))
        scale, mean, std = guessed if plain else (self.scale or 1.0, self.mean or (0.0,), self.std or (1.0,))
        return ForInput(value, channels, size, self.crop, self.interpolation, colours, scale, mean, std, self.source)


@dataclass(frozen=True)
class ForInput:
    """The conversion of images to one input, without open fields; see `Preprocessing`."""

    value: ir.Value
    channels: int
    resize: int | tuple[int, int]
    crop: tuple[int, int] | None
    interpolation: str
    colours: str
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str

    def array(self, picture: Any, resampling: Any) -> Array:
        """An image as the input takes it, a batch of one.

        Args:
            picture: An image of Pillow.
            resampling: Pillow's ways to interpolate, by name in capitals.

        Raises:
            VerificationError: The resized image would take more memory than there is room for.
            OptionError: The crop is larger than the resized image.
        """
        picture = picture.convert("L" if self.colours == "grey" else "RGB")
        how = () if not self.interpolation else (getattr(resampling, self.interpolation.upper()),)
        width, height = self._size(picture.size)
        what = f"the input '{self.value.name}', made of an image of {width} x {height} pixels,"
        demand_room(BYTES_OF_PIXEL * width * height, what, "resize to fewer pixels")
        picture = picture.resize((width, height), *how)
        pixels = np.asarray(picture)
        pixels = self._cropped(pixels.reshape(*pixels.shape[:2], -1))
        if self.colours == "BGR":
            pixels = pixels[..., ::-1]
        if not self._is_plain:
            pixels = (pixels * self.scale - np.asarray(self.mean)) / np.asarray(self.std)
        array = (pixels if self.channels == 3 else pixels.transpose(2, 0, 1))[None]
        kind = self.value.dtype
        return np.ascontiguousarray(array if kind is None or array.dtype == kind.numpy() else _cast(array, kind))

    def text(self) -> str:
        """It in words."""
        size = f"{self.resize} along the shorter side" if isinstance(self.resize, int) else _sides(self.resize)
        crop = f", cropped to {_sides(self.crop)}" if self.crop else ""
        numbers = "bytes as they are"
        if not self._is_plain:
            numbers = f"(pixel * {self.scale:.6g} - {_numbers(self.mean)}) / {_numbers(self.std)}"
        layout = "NHWC" if self.channels == 3 else "NCHW"
        guess = "a guess: say what the model was trained on with --preprocess FILE.toml"
        said = f"as {self.source} says" if self.source else guess
        return (
            f"images for '{self.value.name}' are resized to {size} ({self.interpolation or 'bicubic'}){crop}, {self.colours}, "
            f"{numbers}, {layout}: {said}"
        )

    @property
    def _is_plain(self) -> bool:
        return self.scale == 1 and not any(self.mean) and set(self.std) == {1.0}

    def _size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height to resize to."""
        if not isinstance(self.resize, int):
            return self.resize[1], self.resize[0]
        width, height = size
        factor = self.resize / min(width, height)
        return max(self.resize, round(width * factor)), max(self.resize, round(height * factor))

    def _cropped(self, pixels: Array) -> Array:
        if self.crop is None:
            return pixels
        for axis, wanted in enumerate(self.crop):
            lacking = wanted - pixels.shape[axis]
            if lacking > 0:
                raise OptionError("preprocess", f"crop to {_sides(self.crop)} needs images resized to that at least")
            first = (pixels.shape[axis] - wanted) // 2
            pixels = pixels.take(range(first, first + wanted), axis)
        return pixels


def read_preprocessing(path: str | os.PathLike[str]) -> Preprocessing:
    """Read the preprocessing that a TOML file describes.

    Raises:
        OptionError: It cannot be read, or says something that cannot be done; the message names the key.
    """
    try:
        content = from_toml(read_text(path))
    except (OSError, ValueError) as error:
        raise OptionError("preprocess", f"{os.fspath(path)}: cannot be read: {error}") from error
    return preprocessing_of(content, os.fspath(path))


def preprocessing_of(content: Mapping[str, Any], source: str) -> Preprocessing:
    """Read the preprocessing that a table describes; `source` names its file in messages.

    Raises:
        OptionError: A key or value is not valid.
    """
    names = [field.name for field in dataclasses.fields(Preprocessing) if field.name != "source"]
    for key in content:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise OptionError("preprocess", f"{source}: has no key {key!r}; {hint}")
    checked = {key: _CHECKS[key](value) for key, value in content.items()}
    for key, value in checked.items():
        if value is None:
            raise OptionError("preprocess", f"{source}: {key} is {_NEEDED[key]}, not {content[key]!r}")
    return Preprocessing(**checked, source=Path(source).name)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _pair(value: Any) -> tuple[int, int] | None:
    if _whole(value) is not None:
        return value, value
    if not isinstance(value, Sequence) or len(value) != 2 or any(_whole(one) is None for one in value):
        return None
    return value[0], value[1]


def _number(value: Any) -> float | None:
    try:
        found = _fraction(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return found if math.isfinite(found) and not isinstance(value, bool) else None


def _fraction(text: str) -> float:
    """A number or a fraction; not by `fractions.Fraction`, which works out all digits of 1e999999999."""
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)


def _several(value: Any) -> tuple[float, ...] | None:
    found = [_number(one) for one in (value if isinstance(value, list | tuple) else [value])]
    return None if None in found or len(found) not in (1, 3) else tuple(one for one in found if one is not None)


def _divisors(value: Any) -> tuple[float, ...] | None:
    found = _several(value)
    return None if found is None or 0.0 in found else found


def _one_of(names: Sequence[str]) -> Any:
    return lambda value: next(
        (name for name in names if isinstance(value, str) and name.lower() == value.lower()), None
    )


_CHECKS: Mapping[str, Any] = {
    "resize": lambda value: value if _whole(value) is not None else _pair(value),
    "crop": _pair,
    "interpolation": _one_of(INTERPOLATIONS),
    "colours": _one_of(COLOURS),
    "scale": _number,
    "mean": _several,
    "std": _divisors,
    "layout": _one_of(LAYOUTS),
}

_NEEDED: Mapping[str, str] = {
    "resize": "a number (of the shorter side) or [height, width]",
    "crop": "a number or [height, width]",
    "interpolation": f"one of {', '.join(INTERPOLATIONS)}",
    "colours": f"one of {', '.join(COLOURS)}",
    "scale": 'a number, or a fraction such as "1/255"',
    "mean": "a number, or three of them",
    "std": "a number, or three of them, none of them 0",
    "layout": f"one of {', '.join(LAYOUTS)}",
}


def _axes(shape: Sequence[Any], layout: str) -> tuple[int, int, int] | None:
    """The axes of channels, height and width; `None` if it is not the shape of images."""
    if len(shape) != 4:
        return None
    if layout:
        return (1, 2, 3) if layout == "NCHW" else (3, 1, 2)
    if shape[1] in (1, 3):
        return 1, 2, 3
    if shape[3] in (1, 3):
        return 3, 1, 2
    return None if any(isinstance(size, int) for size in (shape[1], shape[3])) else (1, 2, 3)


def _cast(array: Array, kind: ir.DataType) -> Array:
    if kind.is_floating_point():
        return array.astype(kind.numpy())
    limits = np.iinfo(kind.numpy())
    if array.min() < limits.min or array.max() > limits.max:
        raise VerificationError(
            f"pixels from {array.min():.3g} to {array.max():.3g} do not fit into {kind.numpy().name}"
        )
    return np.rint(array).astype(kind.numpy())


def _sides(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _numbers(numbers: tuple[float, ...]) -> str:
    return f"{numbers[0]:.6g}" if len(numbers) == 1 else f"[{', '.join(f'{one:.6g}' for one in numbers)}]"
