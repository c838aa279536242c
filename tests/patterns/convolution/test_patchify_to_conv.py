"""Patches of images that are multiplied by a matrix: which are a Conv, and that it stays right."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import ops, parse, rewritten, same

CUTS = {
    "last": ("n", "0, 2, 2, 2, 3, 4", "0,2,4,3,5,1", "0, -1, 16", "Conv Transpose Reshape"),
    "first": ("n", "0, 2, 2, 2, 3, 4", "0,2,4,1,3,5", "0, 6, 16", "Conv Transpose Reshape"),
    "grid": ("n", "0, 2, 2, 2, 3, 4", "0,2,4,3,5,1", "0, 2, 3, 16", "Conv Transpose"),
    "one image": ("1", "2, 2, 2, 3, 4", "1,3,2,4,0", "6, 16", "Conv Transpose Reshape"),
    "columns first": ("n", "0, 2, 2, 2, 3, 4", "0,4,2,3,5,1", "0, 6, 16", ""),
    "other rows": ("n", "0, 2, 2, 2, 3, 4", "0,2,4,3,5,1", "0, 12, 8", ""),
}
"""The batch, how an image is cut, the order of the axes, what is joined, and what becomes of it."""


@pytest.mark.parametrize("name", CUTS)
def test_a_product_of_patches_is_a_convolution(name: str) -> None:
    batch, cut, perm, joined, found = CUTS[name]
    rank, dims, rows = joined.count(",") + 1, cut.count(",") + 1, joined.rpartition(" ")[2]
    original = parse(f"""<ir_version: 9, opset_import: ["": 18]> g (float[{batch},2,4,12] x, float[{rows},5] w) => (float[{",".join("ijkl"[:rank])}] y)
        <int64[{dims}] cut = {{{cut}}}, int64[{rank}] joined = {{{joined}}}>
        {{ a = Reshape(x, cut) t = Transpose<perm=[{perm}]>(a) r = Reshape(t, joined) y = MatMul(r, w) }}""")
    random = np.random.default_rng(0)
    weight = original.graph.inputs.pop()
    weight.const_value = ir.tensor(random.standard_normal((int(rows), 5)).astype(np.float32), name="w")
    original.graph.register_initializer(weight)
    result = rewritten(original, "fuse.convolution")
    assert ops(result) == (found or "Reshape Transpose Reshape MatMul")
    images = 1 if batch == "1" else 3
    same(original, result, {"x": random.standard_normal((images, 2, 4, 12)).astype(np.float32)})
