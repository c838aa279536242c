"""How images become inputs: guessed and said so, or as a file says."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.errors import OptionError, VerificationError
from ortfuse.options import Options
from ortfuse.runtime.inputs.from_calibration_data_reader import from_reader
from ortfuse.runtime.inputs.read_input_files import InputSets, read_inputs

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


class Picture:
    """Stands for an image of Pillow; it is resized to the nearest pixels, and notes how it was asked to."""

    asked: ClassVar[list[Any]] = []

    def __init__(self, pixels: np.ndarray = PIXELS) -> None:
        self.pixels = pixels
        self.size = (pixels.shape[1], pixels.shape[0])

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def convert(self, mode: str) -> Picture:
        return Picture(self.pixels if mode == "RGB" else self.pixels[..., 0])

    def resize(self, size: tuple[int, int], *how: Any) -> Picture:
        Picture.asked.append((size, *how))
        rows, columns = (np.arange(new) * old // new for new, old in zip(size[::-1], self.pixels.shape, strict=False))
        return Picture(self.pixels[rows][:, columns])

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.pixels


@pytest.fixture(autouse=True)
def pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("PIL")
    ways = types.SimpleNamespace(BILINEAR="bilinear", NEAREST="nearest")
    made.Image = types.SimpleNamespace(open=lambda file, formats=(): Picture(), Resampling=ways)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "PIL", made)
    Picture.asked = []


def read(tmp_path: Path, said: str | None, shape: list[Any], kind: str = "FLOAT") -> InputSets:
    (tmp_path / "cat.png").write_bytes(b"")
    path = None
    if said is not None:
        path = tmp_path / "how.toml"
        path.write_text(said)
    return read_inputs(tmp_path, [ir.val("x", ir.DataType[kind], shape)], path)


def test_a_guess_is_said_to_be_one(tmp_path: Path) -> None:
    found = read(tmp_path, None, ["b", 3, 8, 6])
    (note,) = found.notes
    assert "resized to 8 x 6 (bicubic), RGB, (pixel * 0.00784314 - 1) / 1, NCHW: a guess" in note
    np.testing.assert_allclose(found[0]["x"][0, :, 0, 0], PIXELS[0, 0] / 127.5 - 1, rtol=1e-6)


def test_a_file_says_it_all(tmp_path: Path) -> None:
    said = """resize = [4, 6]
        crop = [2, 2]
        interpolation = "bilinear"
        colours = "BGR"
        scale = "1/255"
        mean = [0.5, 0.25, 0.125]
        std = 0.5
        layout = "NCHW"
    """
    found = read(tmp_path, said, ["b", "c", "h", "w"])
    expected = (PIXELS[1:3, 2:4, ::-1] / 255 - [0.5, 0.25, 0.125]) / 0.5
    np.testing.assert_allclose(found[0]["x"], expected.transpose(2, 0, 1)[None], rtol=1e-5)
    assert found[0]["x"].dtype == np.float32
    assert Picture.asked == [((6, 4), "bilinear")]
    (note,) = found.notes
    assert note.endswith(
        "cropped to 2 x 2, BGR, (pixel * 0.00392157 - [0.5, 0.25, 0.125]) / 0.5, NCHW: as how.toml says"
    )


def test_the_shorter_side_is_resized_and_the_ratio_kept(tmp_path: Path) -> None:
    found = read(tmp_path, "resize = 8\ncrop = 8\nlayout = 'NHWC'\nscale = 1", ["b", 8, 8, 3], "UINT8")
    assert Picture.asked == [((12, 8),)]
    assert found[0]["x"].shape == (1, 8, 8, 3)
    assert found[0]["x"].dtype == np.uint8
    assert "bytes as they are, NHWC" in found.notes[0]


def test_a_file_beside_the_images_is_heeded(tmp_path: Path) -> None:
    (tmp_path / "preprocess.toml").write_text("scale = 1")
    found = read(tmp_path, None, ["b", 3, 4, 6])
    np.testing.assert_array_equal(found[0]["x"][0], PIXELS.transpose(2, 0, 1))
    assert "as preprocess.toml says" in found.notes[0]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("resise = 3", r"how\.toml: has no key 'resise'; did you mean resize\?"),
        ("resize = [1, 2, 3]", "resize is a number"),
        ("mean = [1, 2]", "mean is a number, or three of them, not"),
        ("std = [1, 0, 1]", "none of them 0"),
        ("scale = '1/0'", "scale is a number, or a fraction"),
        ("colours = 'CMYK'", "colours is one of RGB, BGR, grey"),
        ("layout = 3", "layout is one of NCHW, NHWC"),
        ("scale =", r"how\.toml: cannot be read"),
        ("resize = [4, 6]\ncrop = [5, 5]", "needs images resized to that at least"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, said: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        read(tmp_path, said, ["b", 3, "h", "w"])


def test_numbers_that_do_not_fit_the_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="do not fit into uint8"):
        read(tmp_path, "mean = 300", ["b", 3, 4, 6], "UINT8")


class Reader:
    """Sets of inputs as the runtime's calibration takes them."""

    def __init__(self, sets: list[Any]) -> None:
        self.sets, self.next = sets, 0

    def get_next(self) -> Any:
        self.next += 1
        return self.sets[self.next - 1] if self.next <= len(self.sets) else None

    def rewind(self) -> None:
        self.next = 0


def test_a_reader_hands_out_sets_of_inputs_as_often_as_it_is_asked() -> None:
    reader = Reader([{"x": np.ones(2, np.float32)}, {"x": [1, 2]}])
    for _ in range(2):
        found = Options(inputs=reader).inputs
        assert [one["x"].shape for one in found] == [(2,), (2,)]  # type: ignore[union-attr]


@pytest.mark.parametrize("sets", [[], [3]])
def test_a_reader_that_hands_out_nothing_of_use_is_refused(sets: list[Any]) -> None:
    with pytest.raises(OptionError, match="get_next"):
        from_reader(Reader(sets))
