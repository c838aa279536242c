"""Models written as text, with random weights, and what lower precision makes of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortfuse.verification import Session

HEADER = '<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>'


def model(
    body: str, inputs: str = "float[b,s,24] x", outputs: str = "float[b,s,16] y", **weights: tuple[int, ...]
) -> ir.Model:
    """A model with random weights of these shapes."""
    rng = np.random.default_rng(0)
    made = ir.from_onnx_text(f"{HEADER} g ({inputs}) => ({outputs}) {{ {body} }}")
    for name, shape in weights.items():
        put(made, name, rng.standard_normal(shape).astype(np.float32))
    return made


def put(made: ir.Model, name: str, array: np.ndarray) -> None:
    """Make what a model takes under this name a constant."""
    tensor = ir.Tensor(array, name=name)
    for node in made.graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name == name:
                known = made.graph.initializers.get(name)
                if known is None:
                    value.const_value, value.type, value.shape = (
                        tensor,
                        ir.TensorType(tensor.dtype),
                        ir.Shape(array.shape),
                    )
                    made.graph.register_initializer(value)
                else:
                    node.replace_input_with(index, known)


def first_output(made: ir.Model, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    return next(iter(Session(made, threads=1).run(inputs).values()))


def distance(made: ir.Model, low: ir.Model, inputs: Mapping[str, np.ndarray]) -> float:
    """How far the first output of the second model is from that of the first, relative to its length."""
    before, after = first_output(made, inputs), first_output(low, inputs)
    return float(np.linalg.norm(after - before) / np.linalg.norm(before))


def images(count: int = 3, shape: Sequence[int] = (2, 4, 6, 6)) -> list[dict[str, np.ndarray]]:
    """Several random inputs x of one shape."""
    return [{"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)} for seed in range(count)]
