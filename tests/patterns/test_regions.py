"""Crops at known places that are pooled or resized: the operators that `--force` makes of them, and which are left alone."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from rewriting import ops, parse, same
from small_models import floats

import ortfuse
from ortfuse.verification import verify


def cropped(then: str, starts: str = "1, 2", ends: str = "9, 12", batch: str = "2") -> ir.Model:
    """A part of an image of 10 x 13 pixels, and what is made of it."""
    return parse(f"""<ir_version: 8, opset_import: ["": 17]> g (float[{batch},3,10,13] x) => (float[n,3,r,s] y)
        <int64[2] starts = {{{starts}}}, int64[2] ends = {{{ends}}}, int64[2] axes = {{2, 3}}, float[0] none = {{}},
         int64[4] sizes = {{2, 3, 4, 5}}, float[4] half = {{1.0, 1.0, 0.5, 0.5}}>
        {{ a = Abs(x) c = Slice(a, starts, ends, axes) {then} }}""")


MEANS = "y = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(c)"
LARGEST = "y = MaxPool<kernel_shape = [2, 3], strides = [2, 3]>(c)"
SCALED = 'y = Resize<mode = "linear">(c, none, half)'
SIZED = 'y = Resize<mode = "linear", coordinate_transformation_mode = "{}">(c, none, none, sizes)'


@pytest.mark.parametrize(
    ("then", "made"),
    [
        (MEANS, "RoiAlign"),
        (SCALED, "RoiAlign"),
        *((SIZED.format(mode), "RoiAlign") for mode in ("half_pixel", "align_corners", "asymmetric")),
        (LARGEST, "MaxRoiPool"),
    ],
)
@pytest.mark.parametrize("place", [("1, 2", "9, 12"), ("-8, -13", "9223372036854775807, -1")])
def test_a_forced_choice_makes_regions_of_crops(then: str, made: str, place: tuple[str, str]) -> None:
    before = cropped(then, *place)
    assert made not in ops(ortfuse.optimize(before.clone()).model)
    after = ortfuse.optimize(before.clone(), force={"roi": made}).model
    assert ops(after) == f"Abs {made}"
    assert verify(before, after).ok
    same(before, after, {"x": floats(2, 3, 10, 13)})


@pytest.mark.parametrize(
    "before",
    [
        cropped(MEANS, batch="n"),
        cropped(MEANS.replace("strides = [2, 2]", "strides = [1, 1]")),
        cropped(MEANS.replace("[2, 2]", "[2, 3]")),
        cropped(SIZED.format("half_pixel"), ends="4, 12"),
        cropped(SIZED.format("pytorch_half_pixel").replace("linear", "cubic")),
    ],
    ids=["images of an open number", "windows overlap", "windows are oblong", "enlarged", "cubic"],
)
def test_what_is_no_region_stays(before: ir.Model) -> None:
    after = ortfuse.optimize(before.clone(), force={"roi": "RoiAlign"}).model
    assert "RoiAlign" not in ops(after)
    assert verify(before, after).ok
