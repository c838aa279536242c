"""The memory that a model takes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortfuse.errors import VerificationError
from ortfuse.runtime.memory_footprint import footprint

pytest.importorskip("resource")


def model(side: int) -> ir.Model:
    made = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[1, {side}] x) => (float[1, {side}] y) {{ y = MatMul(x, w) }}""")
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((side, side), np.float32), "w"))
    return ir.from_proto(made)


def test_it_grows_with_the_weights() -> None:
    assert footprint(model(2048), {"x": np.ones((1, 2048), np.float32)}, threads=1) >= 4 * 2048**2


def test_inputs_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(VerificationError, match="cannot be measured"):
        footprint(model(8), {"x": np.ones((1, 9), np.float32)}, threads=1)
