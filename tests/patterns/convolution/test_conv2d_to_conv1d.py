"""Layers over images of one row become layers over sequences, with all attributes that one kind of layer alone has."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import ortfuse

LAYERS = {
    "ConvTranspose": "ConvTranspose <strides = [2, 2], pads = [0, 1, 0, 0], output_padding = [0, 1]> (image, weight)",
    "MaxPool": "MaxPool <kernel_shape = [1, 3], strides = [1, 2], pads = [0, 1, 0, 1], ceil_mode = 1> (image)",
    "AveragePool": 'AveragePool <kernel_shape = [1, 2], strides = [2, 2], auto_pad = "SAME_UPPER"> (image)',
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_over_one_row_is_one_over_a_sequence(kind: str) -> None:
    model = ir.from_onnx_text(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[n, 4, 7] x) => (float[n, c, l] y)
        <float[4, 2, 1, 3] weight = {{{", ".join(str(number / 8) for number in range(24))}}}, int64[1] rows = {{2}}> {{
            image = Unsqueeze(x, rows) layer = {LAYERS[kind]} y = Squeeze(layer, rows) }}""")
    result = ortfuse.optimize(model, verify=True, passes="fold, fuse.convolution, fold")
    assert [node.op_type for node in result.model.graph] == [kind]
