"""Index maps simplify the instances of the rules that they replaced, at no higher cost, and compute the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.targets import installed
from ortfuse.transforms import DeadCodeElimination, SimplifyDataMovement
from ortfuse.transforms.context import Context
from ortfuse.verification import Session

FORMER = json.loads((Path(__file__).parent / "former_data_movement.json").read_text())
"""Instances that were built from the rule tests of the rules, with the cost of what the rules left."""

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size"})
COPY = 3


def simplified(model: ir.Model) -> ir.Model:
    context = Context(model.clone(), Facts(model), installed())
    context = Context(context.model, Facts(context.model), installed())
    for one in (SimplifyDataMovement(), SimplifyDataMovement(), DeadCodeElimination()):
        one.run(context)
    return context.model


def inputs(model: ir.Model) -> dict[str, np.ndarray]:
    found = {}
    for value in model.graph.inputs:
        shape = [dim if isinstance(dim, int) else 4 for dim in value.shape or ()]
        assert value.dtype is not None
        found[value.name or ""] = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(value.dtype.numpy())
    return found


@pytest.mark.parametrize("rule", FORMER)
def test_instances_of_former_rules_of_data_movement(rule: str) -> None:
    for text, cost in FORMER[rule]:
        original = ir.from_proto(onnx.parser.parse_model(text))
        result = simplified(original)
        kinds = [node.op_type for node in result.graph if node.op_type != "Constant"]
        assert sum(1 if kind in VIEWS else COPY for kind in kinds) <= cost, f"{text}: {kinds}"
    given = inputs(original)
    before, after = (Session(model, optimise=False, threads=1).run(given).values() for model in (original, result))
    for wanted, found in zip(before, after, strict=True):
        np.testing.assert_array_equal(found, wanted)
