"""Operators are linear in the operands that the registry tells, as ONNX's reference computes them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import ortfuse.analysis.facts  # noqa: F401  (fills the registry)
from ortfuse.ir.operator_registry import LINEAR, linear_operands, sums_products
from ortfuse.ir.traits import MICROSOFT

IMAGE, SIZES = (1, 2, 4, 4), np.array([1, 2, 8, 8])
SAMPLES = {
    "Add": ([(2, 3), (3,)], {}),
    "AveragePool": ([IMAGE], {"kernel_shape": [2, 2]}),
    "BatchNormalization": ([IMAGE, *[(2,)] * 4], {}),
    "Concat": ([(2, 3), (1, 3), (4, 3)], {"axis": 0}),
    "Conv": ([IMAGE, (2, 2, 3, 3), (2,)], {"pads": [1, 1, 1, 1]}),
    "ConvTranspose": ([IMAGE, (2, 2, 3, 3), (2,)], {}),
    "CumSum": ([(2, 3), np.array(1)], {}),
    "Div": ([(2, 3), (3,)], {}),
    "Gemm": ([(2, 3), (3, 4), (4,)], {"alpha": 2.0, "beta": 0.5}),
    "GlobalAveragePool": ([IMAGE], {}),
    "MatMul": ([(2, 3), (3, 4)], {}),
    "Mul": ([(2, 3), (3,)], {}),
    "ReduceMean": ([(2, 3)], {}),
    "ReduceSum": ([(2, 3)], {}),
    "Resize": ([IMAGE, None, None, SIZES], {"mode": "linear"}),
    "Sub": ([(2, 3), (3,)], {}),
    "Transpose": ([(2, 3)], {}),
    "Trilu": ([(3, 3)], {}),
    "Where": ([np.array([[True], [False]]), (2, 3), (2, 3)], {}),
}
ELSEWHERE = {(MICROSOFT, "FusedMatMul")}
"""Operators that the reference does not have."""


def _node(operator: str) -> onnx.NodeProto:
    given, attributes = SAMPLES[operator]
    names = ["" if one is None else f"x{index}" for index, one in enumerate(given)]
    return onnx.helper.make_node(operator, names, ["y"], **attributes)


def _groups(operator: str) -> list[tuple[int, ...]]:
    return list(linear_operands(ir.serde.deserialize_node(_node(operator))))


@pytest.mark.parametrize(("operator", "group"), [(name, group) for name in SAMPLES for group in _groups(name)])
def test_an_output_is_linear_in_the_operands_of_a_group(operator: str, group: tuple[int, ...]) -> None:
    given, _ = SAMPLES[operator]
    evaluator = ReferenceEvaluator(_node(operator))
    draw = np.random.default_rng(0)
    fixed = [draw.uniform(0.5, 2.0, one) if isinstance(one, tuple) else one for one in given]

    def result(operands: dict[int, np.ndarray]) -> np.ndarray:
        feeds = {f"x{index}": operands.get(index, one) for index, one in enumerate(fixed) if one is not None}
        return evaluator.run(None, feeds)[0]

    one, other = ({index: draw.normal(size=np.shape(fixed[index])) for index in group} for _ in range(2))
    total = {index: 2 * one[index] - other[index] for index in group}
    zero = result({index: np.zeros_like(one[index]) for index in group})
    np.testing.assert_allclose(result(total) - zero, 2 * (result(one) - zero) - (result(other) - zero), atol=1e-6)


def test_each_operator_that_is_called_linear_is_tried() -> None:
    assert {("", name) for name in SAMPLES} | ELSEWHERE >= LINEAR.keys()
    assert [name for name in SAMPLES if sums_products(ir.serde.deserialize_node(_node(name)))] == [
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
    ]
