"""Evaluate small tensors: constants with NumPy, and data movement of symbolic elements.

Only operators whose result does not depend on the implementation are evaluated: data movement, comparisons, integer
arithmetic, and float operations that IEEE 754 defines exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ortfuse.analysis.transfer.transfer_function_registry import Op
from ortfuse.analysis.transfer.value_fact import FLOATS, INTEGERS, MAX_CONSTANT, MAX_ELEMENTS, Fact, static_shape
from ortfuse.ir.operator_registry import Facet
from ortfuse.ir.traits import JOINS, has

Arrays: TypeAlias = list[np.ndarray]
Computed: TypeAlias = Sequence[np.ndarray | None]

Evaluation: TypeAlias = Callable[[Op, Arrays, tuple[Fact, ...]], Computed]
"""Computes the results of a node from its operands; `None` for a result that depends on the machine."""

EVALUATIONS: Facet[Evaluation] = Facet("evaluation", "the elements of small results, from constant operands")

MOVEMENTS: Facet[Evaluation] = Facet(
    "element_movement", "`evaluation`, if it only moves elements, which may be symbolic"
)
"""The function of `EVALUATIONS` again, if it only moves elements; these may then be symbolic."""

evaluates = EVALUATIONS.register
"""Register the decorated function for the given operators."""


def moves_elements(*operators: str) -> Callable[[Evaluation], Evaluation]:
    """Register the decorated function for the given operators, which only move elements."""

    def register(function: Evaluation) -> Evaluation:
        return MOVEMENTS.register(*operators)(EVALUATIONS.register(*operators)(function))

    return register


def arithmetic(function: Callable[..., np.ndarray | None]) -> Evaluation:
    """Return the evaluation of an operator that IEEE 754 or the arithmetic of integers defines exactly."""

    def evaluation(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Computed:
        known = all(fact is not None and (fact.dtype in INTEGERS or fact.dtype in FLOATS) for fact in op.inputs)
        return [function(*arrays)] if known else [None]

    return evaluation


def evaluate(op: Op, results: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """The results, with values filled in if all operands (or their elements) are known and small."""
    first = results[0]
    size = first.size
    if size is None or size > MAX_CONSTANT or first.is_constant:
        return results
    arrays = _arrays(op)
    if arrays is not None:
        found = _numeric(op, EVALUATIONS[op.node.domain, op.node.op_type], arrays, results)
    elif (movement := MOVEMENTS.of(op.node)) is not None and size <= MAX_ELEMENTS and first.elements() is None:
        found = _symbolic(op, movement, results)
    else:
        return results
    return results if found is None else found


def _arrays(op: Op) -> Arrays | None:
    arrays: Arrays = []
    for fact in op.inputs:
        array = None if fact is None else fact.array()
        if array is None:
            return None
        arrays.append(array)
    return arrays


def _numeric(op: Op, evaluation: Evaluation, arrays: Arrays, results: tuple[Fact, ...]) -> tuple[Fact, ...] | None:
    with np.errstate(all="ignore"):
        computed = evaluation(op, arrays, results)
    facts: list[Fact] = []
    for fact, array in zip(results, computed, strict=False):
        if array is None or fact.dtype is None:
            return None
        array = np.asarray(array)
        if array.shape != static_shape(fact.shape) or array.dtype != fact.dtype.numpy():
            return None
        facts.append(Fact(fact.dtype, fact.shape, array=array))
    return tuple(facts)


def _symbolic(op: Op, movement: Evaluation, results: tuple[Fact, ...]) -> tuple[Fact, ...] | None:
    """Move symbolic elements as numpy objects."""
    data = range(len(op.inputs)) if has(op.node, JOINS) else range(1)
    arrays: Arrays = []
    for index, fact in enumerate(op.inputs):
        array = None if fact is None else _objects(fact) if index in data else fact.array()
        if array is None:
            return None
        arrays.append(array)
    facts: list[Fact] = []
    for fact, array in zip(results, movement(op, arrays, results), strict=False):
        if array is None or array.shape != static_shape(fact.shape):
            return None
        facts.append(Fact(fact.dtype, fact.shape, tuple(array.reshape(-1).tolist())))
    return tuple(facts)


def _objects(fact: Fact) -> np.ndarray | None:
    elements, shape = fact.elements(), static_shape(fact.shape)
    if elements is None or shape is None:
        return None
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)
