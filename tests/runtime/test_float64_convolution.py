"""Convolutions in float64, and what is left out because it would take too much."""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ortfuse.errors import VerificationError
from ortfuse.runtime.float64 import estimate_reference_cost
from ortfuse.runtime.float64.convolution import Conv, ConvTranspose
from ortfuse.runtime.float64.pooling import AveragePool
from ortfuse.runtime.float64.reference import Reference
from ortfuse.runtime.session import Session

RNG = np.random.default_rng(0)
PADS = [{}, {"pads": [1, 0, 2, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"}]


def layer(kind: str, w: np.ndarray, x_shape: tuple[int, ...], **how: object) -> onnx.ModelProto:
    bias = RNG.standard_normal(w.shape[0] if kind == "Conv" else w.shape[1] * int(str(how.get("group", 1)))).astype(
        "f4"
    )
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x_shape)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(w.astype("f4"), "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph([helper.make_node(kind, ["x", "w", "b"], ["y"], **how)], "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_both_convolutions_are_those_of_the_runtime(kind: str) -> None:
    tried = 0
    for group, stride, dilation, pads in itertools.product((1, 2, 4), (1, 2, 3), (1, 2), PADS):
        shape = (8, 4 // group, 3, 2) if kind == "Conv" else (4, 8 // group, 3, 2)
        how = {"strides": [stride] * 2, "dilations": [dilation] * 2, "group": group, **pads}
        model = layer(kind, RNG.standard_normal(shape), (2, 4, 9, 8), **how)
        x = RNG.standard_normal((2, 4, 9, 8)).astype("f4")
        try:
            want = Session(ir.from_proto(model), optimise=False).run({"x": x})["y"]
        except VerificationError:
            continue
        wide = onnx.ModelProto()
        wide.CopyFrom(model)
        for tensor in wide.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("f8"), tensor.name))
        found = ReferenceEvaluator(wide, new_ops=[Conv, ConvTranspose]).run(None, {"x": x.astype("f8")})[0]
        assert found.shape == want.shape, how
        np.testing.assert_allclose(found, want, atol=1e-5, err_msg=str(how))
        tried += 1
    assert tried > 60


def test_average_pooling_is_that_of_the_runtime() -> None:
    tried = 0
    how = itertools.product((1, 2, 3), (1, 2), PADS, (0, 1), (0, 1))
    for stride, dilation, pads, ceil, included in how:
        given = {"strides": [stride] * 2, "dilations": [dilation] * 2, "ceil_mode": ceil, "count_include_pad": included}
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3, 10, 8))
        y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
        node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 2], **given, **pads)
        graph = helper.make_graph([node], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        image = RNG.standard_normal((2, 3, 10, 8)).astype("f4")
        try:
            want = Session(ir.from_proto(model), optimise=False).run({"x": image})["y"]
        except VerificationError:
            continue
        found = ReferenceEvaluator(model, new_ops=[AveragePool]).run(None, {"x": image.astype("f8")})[0]
        assert found.shape == want.shape, given
        np.testing.assert_allclose(found, want, atol=1e-5, err_msg=str(given))
        tried += 1
    assert tried > 60


@pytest.mark.parametrize("kind", ["GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4), (2, 3, 5, 4, 2)])
def test_global_pooling_keeps_its_axes(kind: str, shape: tuple[int, ...]) -> None:
    sizes = ", ".join(map(str, shape))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{sizes}] x) => (float y) {{ y = {kind}(x) }}'
    image = RNG.standard_normal(shape).astype("f4")
    model = ir.from_onnx_text(text)
    found = Reference(model).run({"x": image})
    assert found is not None
    np.testing.assert_allclose(found["y"], Session(model, optimise=False).run({"x": image})["y"], atol=1e-6)


def test_widely_dilated_kernels_are_not_laid_out() -> None:
    """With its zeros, this kernel has 64 MB, and its windows 200 GB."""
    model = ir.from_proto(layer("Conv", RNG.standard_normal((16, 16, 9)), (1, 16, 40_000), dilations=[4096]))
    x = RNG.standard_normal((1, 16, 40_000)).astype("f4")
    reference = Reference(model)
    found = reference.run({"x": x})
    assert reference.reason is None
    assert found is not None
    np.testing.assert_allclose(found["y"], Session(model, optimise=False).run({"x": x})["y"], atol=1e-4)


def test_what_memory_would_not_hold_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_reference_cost, "available_bytes", lambda: 20_000_000)
    model = ir.from_onnx_text("""<ir_version: 8, opset_import: ["": 17]> g (float[1, 8, n, n] x) => (float[1, 8, n, n] y)
        { y = LpPool<kernel_shape = [9, 9], pads = [4, 4, 4, 4]>(x) }""")
    reference = Reference(model)
    assert reference.run({"x": np.ones((1, 8, 64, 64), "f4")}) is None
    assert "LpPool would take" in reference.too_large
    assert reference.run({"x": np.ones((1, 8, 9, 9), "f4")}) is not None


def test_what_would_take_too_long_is_not_begun_and_told() -> None:
    model = ir.from_proto(layer("Conv", RNG.standard_normal((64, 64, 3, 3)), (1, 64, 64, 64)))
    reference = Reference(model)
    assert reference.run({"x": np.ones((1, 64, 64, 64), "f4")}, seconds=0.01) is None
    assert "it would take about" in reference.too_large
