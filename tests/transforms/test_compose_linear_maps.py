"""Linear maps are composed at least as far as the rules did that the pass replaces, and compute the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from rewriting import composed

from ortfuse.verification import Session

FORMER = json.loads((Path(__file__).parent / "former_linear_maps.json").read_text())
"""Instances that were built from the rule tests of the rules, with their constants and the cost of what the rules left."""

COSTS = {"BatchNormalization": 2.5, "Identity": 0, "Constant": 0}


def constant(name: str, dtype: str, shape: list[int], numbers: list[float] | None, seed: int) -> onnx.TensorProto:
    """The constant; other numbers around 0 if it was large."""
    array = np.random.default_rng(seed).standard_normal(shape) if numbers is None else np.array(numbers).reshape(shape)
    return numpy_helper.from_array(array.astype(dtype), name)


def instance(text: str, constants: dict[str, Any]) -> ir.Model:
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(constant(name, *parts, seed) for seed, (name, parts) in enumerate(constants.items()))
    return ir.from_proto(proto)


def inputs(model: ir.Model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        value.name or "": np.asarray(
            random.standard_normal([dim if isinstance(dim, int) else 3 for dim in value.shape or ()])
        ).astype(value.dtype.numpy() if value.dtype else np.float32)
        for value in model.graph.inputs
    }


def results(model: ir.Model) -> list[np.ndarray]:
    return list(Session(model, optimise=False, threads=1).run(inputs(model)).values())


@pytest.mark.parametrize("rule", FORMER)
def test_instances_of_former_rules(rule: str) -> None:
    for text, constants, cost in FORMER[rule]:
        original = instance(text, constants)
        found = composed(original)
        operators = [node.op_type for node in found.graph]
        assert sum(COSTS.get(operator, 1) for operator in operators) <= cost, operators
        tolerance = 3e-2 if "float16" in text else 2e-4
        for before, after in zip(results(original), results(found), strict=True):
            np.testing.assert_allclose(
                after, before, rtol=tolerance, atol=tolerance * max(1, np.abs(before).max(initial=0))
            )
