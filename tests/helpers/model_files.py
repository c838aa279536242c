"""Small model files for the tests of loading and saving."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import onnxruntime
from onnx import numpy_helper, parser

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "models").glob("[br]e[rs]*.onnx"))


def linear(weight: np.ndarray) -> onnx.ModelProto:
    """Y = X W, the smallest model with a weight."""
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[n, %d] x) => (float[n, m] y) { y = MatMul(x, w) }'
    model = parser.parse_model(text % len(weight))
    model.graph.node[0].ClearField("domain")  # the parser sets it to "", which says the same as leaving it out
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def large() -> np.ndarray:
    """A weight above every threshold at which weights are left in the file or streamed."""
    return np.random.default_rng(0).standard_normal((256, 128), np.float32)


def write_linear(path: Path, weight: np.ndarray | None = None) -> Path:
    onnx.save(linear(large() if weight is None else weight), path)
    return path


def write_external(path: Path, location: str = "weights.bin") -> Path:
    onnx.save(linear(large()), path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def run(path: Path, seed: int = 0) -> list[np.ndarray]:
    """The outputs of a model file for random inputs; every symbolic dimension is 6."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in session.get_inputs():
        shape = [dim if isinstance(dim, int) else 6 for dim in value.shape]
        integers = rng.integers(0, 2, shape)
        feeds[value.name] = integers if "int64" in value.type else rng.standard_normal(shape, np.float32)
    return session.run(None, feeds)


def weight_of(model: onnx_ir.Model, name: str = "w") -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()
