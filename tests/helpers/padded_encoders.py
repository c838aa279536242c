"""Encoders with a mask of padding, and how they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from graphs import operators, proto

import ortfuse

RNG = np.random.default_rng(0)
CONSTANTS: dict[str, Any] = {
    "table": RNG.standard_normal((40, 16), np.float32),
    "positions": RNG.standard_normal((32, 16), np.float32),
    **{name: RNG.standard_normal((16, 16), np.float32) / 4 for name in ("wq", "wk", "wv", "wo", "w1")},
    "scale": np.ones(16, np.float32),
    "shift": np.full(16, 0.1, np.float32),
    "zero": np.array([0], np.int64),
    "one": np.array([1], np.int64),
    "two": np.array([2], np.int64),
    "first": np.array(0, np.int64),
    "last": np.array(-1, np.int64),
    "ends": np.array([1, 2], np.int64),
    "none": np.array(0.0, np.float32),
    "unit": np.array(1.0, np.float32),
    "low": np.array(-1e38, np.float32),
    "moderate": np.array(-10000.0, np.float32),
    "small": np.array(-10.0, np.float32),
    "pad": np.array(0, np.int64),
    "most": np.array(31, np.int64),
    "half": np.array(0.25, np.float32),
    "means": np.zeros(16, np.float32),
}
EMBED = """e = Gather(table, ids)  n = Shape <start = 1, end = 2> (ids)  p = Slice(positions, zero, n)  x0 = Add(e, p)
    x = LayerNormalization(x0, scale, shift) """
MASK = """shown = Cast <to = 9> (mask)  wide = Unsqueeze(shown, ends)  bias = Where(wide, none, low) """
ATTEND = """q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)  kt = Transpose <perm = [0, 2, 1]> (k)
    s0 = MatMul(q, kt)  s1 = Mul(s0, half)  b3 = Squeeze(bias, one)  s = Add(s1, b3)  w = Softmax(s)  a = MatMul(w, v)
    o = MatMul(a, wo)  r = Add(x, o)  y = LayerNormalization(r, scale, shift) """
MASKS = {
    "right": [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]],
    "left": [[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]],
    "holes": [[1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 1, 1], [1, 1, 0, 0, 0, 1]],
    "full": [[1] * 6] * 3,
    "none": [[0] * 6] * 3,
    "an empty row": [[0] * 6, [1, 1, 0, 0, 0, 0], [1] * 6],
}


def encoder(
    body: str = EMBED + MASK + ATTEND,
    inputs: str = "int64[b, s] ids, int64[b, s] mask",
    outputs: str = "float[b, s, 16] y",
) -> Any:
    return proto(body, inputs, outputs, constants=CONSTANTS, opset=18)


def packed(model: Any, **options: Any) -> ortfuse.Result:
    return ortfuse.optimize(model, padding_free=True, **options)


def is_packed(result: ortfuse.Result) -> bool:
    return "NonZero" in operators(result)


def reason(result: ortfuse.Result) -> str:
    return next((note for note in result.report.notes if note.startswith("padding is not removed")), "")


def run(model: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    made = ir.to_proto(model) if isinstance(model, ir.Model) else model
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def feeds_of(mask: Any, dtype: Any = np.int64) -> dict[str, np.ndarray]:
    array = np.array(mask)
    ids = np.random.default_rng(1).integers(3, 40, array.shape)
    return {"ids": ids, "mask": array.astype(dtype)}
