"""Shape functions that elementwise operators share: unary, binary and variadic, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortfuse.analysis.transfer import symbolic_element_arithmetic as el
from ortfuse.analysis.transfer.broadcasting import broadcast_all, broadcast_shapes, map_elements
from ortfuse.analysis.transfer.transfer_function_registry import Op, Transfer
from ortfuse.analysis.transfer.value_fact import Element, Elements, Fact, Shape


def same_shape(op: Op) -> Fact:
    """One output like the first input."""
    first = op.fact(0)
    return Fact(first.dtype, first.shape)


def unary_shape(function: Callable[[Element], Element]) -> Transfer:
    """Return the shape function of an operator on one operand, from its function of one element."""

    def apply(op: Op) -> Fact:
        first = op.fact(0)
        found = first.elements()
        if found is not None:
            found = tuple([el.fitting(function(element), first.dtype) for element in found])
        return Fact(first.dtype, first.shape, found)

    return apply


def binary_shape(function: el.Binary, *, dtype: ir.DataType | None = None) -> Transfer:
    """Return the shape function of an operator on two broadcast operands, from its function of two elements.

    Args:
        function: Computes an element of the result.
        dtype: The element type of the result; by default that of the operands.
    """

    def apply(op: Op) -> Fact:
        a, b = op.fact(0), op.fact(1)
        shape = broadcast_shapes(a.shape, b.shape)
        found = _map_binary(function, a, b, shape)
        result = dtype or a.dtype or b.dtype
        return Fact(result, shape, found if found is None else tuple([el.fitting(e, result) for e in found]))

    return apply


def _map_binary(function: el.Binary, a: Fact, b: Fact, shape: Shape | None) -> Elements | None:
    left = a.elements()
    right = None if left is None else b.elements()
    if left is None or right is None:
        return None
    if len(left) == len(right) == 1 and shape is not None:
        return (function(left[0], right[0]),)
    return map_elements(function, [a, b], shape)


def unknown_element(*elements: Element) -> Element:
    """Return the element of an operator whose elements are not tracked."""
    return None


def variadic_shape(function: Callable[..., Element]) -> Transfer:
    """Return the shape function of an operator on any number of broadcast operands."""

    def apply(op: Op) -> Fact:
        facts = [op.fact(index) for index in range(len(op.inputs))]
        shape = broadcast_all([fact.shape for fact in facts])
        dtype = next((fact.dtype for fact in facts if fact.dtype is not None), None)
        found = map_elements(lambda *row: el.fitting(function(*row), dtype), facts, shape)
        return Fact(dtype, shape, found)

    return apply
