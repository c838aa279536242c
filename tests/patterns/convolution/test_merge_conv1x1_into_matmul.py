"""A Conv with a 1x1 kernel merges into the MatMul whose rows are the pixels of its image."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.verification import verify


def head(results: int = 4, target: str = "0, 4, 2, 3", more: str = "", how: str = "") -> ir.Model:
    """Rows that are projected to four channels, made an image and mapped."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[b,6,5] x) => (float[b,q,p,r] y{", float[b,4,2,3] image" if more else ""}) <int64[4] target = {{{target}}}> {{
            product = MatMul(x, w) rows = Add(bias, product) turned = Transpose<perm=[0, 2, 1]>(rows)
            image = Reshape(turned, target) map = Conv{how}(image, v, offset) y = Relu(map) }}""")
    numbers = np.random.default_rng(0)
    for name, sizes in {"w": (5, 4), "bias": (4,), "v": (results, 4, 1, 1), "offset": (results,)}.items():
        array = numbers.standard_normal(sizes).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


@pytest.mark.parametrize("results", [4, 3])
@pytest.mark.parametrize("target", ["0, 4, 2, 3", "0, 0, 2, 3", "-1, 4, 2, 3"])
def test_the_map_is_part_of_the_product(results: int, target: str) -> None:
    original = head(results, target)
    result = ortfuse.optimize(original)
    assert verify(original, result.model).ok
    made = [node.op_type for node in result.model.graph]
    assert "Conv" not in made
    assert "FusedConv" not in made


@pytest.mark.parametrize(
    "other", [{"more": "used"}, {"how": "<strides=[2, 2]>"}, {"target": "0, 4, 3, 2", "how": "<pads=[1, 0, 0, 0]>"}]
)
def test_other_maps_and_images_that_are_needed_stay(other: dict[str, str]) -> None:
    original = head(**other)  # type: ignore[arg-type]
    result = ortfuse.optimize(original)
    assert verify(original, result.model).ok
    assert [node.op_type for node in result.model.graph].count("FusedConv") == 1
