"""Instances of rules that a pass replaced: models as text, with their constants beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

_COSTS = {"BatchNormalization": 2.5, "Identity": 0, "Constant": 0}


def cost(model: ir.Model) -> float:
    """The number of operators; BatchNormalization counts as more than a Mul and an Add."""
    return sum(_COSTS.get(node.op_type, 1) for node in model.graph)


def instance(text: str, constants: Mapping[str, Any]) -> ir.Model:
    """The model of a text with constants, each a type, a shape, and numbers or `None` for any numbers around 0."""
    proto = onnx.parser.parse_model(text)
    for seed, (name, parts) in enumerate(constants.items()):
        proto.graph.initializer.append(_constant(name, *parts, seed))
    return ir.from_proto(proto)


def _constant(name: str, dtype: str, shape: list[int], numbers: list[float] | None, seed: int) -> onnx.TensorProto:
    array = np.random.default_rng(seed).standard_normal(shape) if numbers is None else np.array(numbers).reshape(shape)
    return numpy_helper.from_array(array.astype(dtype), name)
