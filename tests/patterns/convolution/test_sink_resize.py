"""An enlarging Resize sinks below a Conv with a 1x1 kernel."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.verification import verify

BODY = """
    shape = Shape(large)
    same = Resize<mode="linear", coordinate_transformation_mode="half_pixel">(large, , , shape)
    spatial = Slice(shape, two, four)
    rows = Slice(shape, zero, one)
    sizes = Concat<axis=0>(rows, six, spatial)
    larger = Resize<mode="linear", coordinate_transformation_mode="{mode}">(small, , , sizes)
    joined = Concat<axis=1>({parts})
    map = Conv{how}(joined, w, bias)
    y = Relu(map)"""


def head(
    parts: str = "larger, same", mode: str = "half_pixel", how: str = "", small: str = "b,6,3,2", taps: int = 1
) -> ir.Model:
    """The head of a segmentation network: features of two sizes, of which six and two channels become four."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{small}] small, float[b,2,6,4] large) => (float[b,4,p,q] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] six = {{6}}>
        {{ {BODY.format(parts=parts, mode=mode, how=how)} }}""")
    numbers = np.random.default_rng(0)
    for name, sizes in {"w": (4, 8, taps, taps), "bias": (4,)}.items():
        array = numbers.standard_normal(sizes).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("parts", ["larger, same", "same, larger"])
def test_each_part_is_mapped_before_it_is_enlarged(parts: str, mode: str) -> None:
    """As SegFormer resizes all its features to the size of the largest, which is the size that those have."""
    original = head(parts, mode)
    result = ortfuse.optimize(original)
    assert verify(original, result.model).ok
    made = [node.op_type for node in result.model.graph]
    assert made.count("Resize") == 1
    assert made.count("Conv") == 2
    assert made.count("Add") == 1
    (resize,) = (node for node in result.model.graph if node.op_type == "Resize")
    assert resize.inputs[0].producer().op_type == "Conv"  # type: ignore[union-attr]


@pytest.mark.parametrize("how", [{"taps": 3}, {"how": "<strides=[2, 2]>"}, {"small": "b,6,7,4"}, {"small": "b,6,k,2"}])
def test_other_maps_and_images_that_may_not_become_larger_stay(how: dict[str, int | str]) -> None:
    original = head(**how)  # type: ignore[arg-type]
    result = ortfuse.optimize(original)
    assert verify(original, result.model).ok
    assert "Concat" in [node.op_type for node in result.model.graph]
    assert [node.op_type for node in result.model.graph].count("FusedConv") == 1
