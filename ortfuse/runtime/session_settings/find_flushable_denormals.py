"""Find where a model makes denormal numbers (below 1.2e-38 in float32), and whether they can be flushed to zero.

A processor takes up to 100 times as long for an operation on such a number, and can be told to take it as zero. The
error is at most 1.2e-38. Sums, products and smooth functions hide it; a logarithm, quotient, comparison with zero or
choice between numbers can show it. Zeros may stand for them only where no operator of the latter kind can see one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.ir.operator_registry import Facet
from ortfuse.ir.traits import COMPARES, MICROSOFT, MOVES, SMOOTH, has, operator_name

FAINT = (-104.0, -60.0)
"""Numbers whose exponential, after a maximum of up to 27 more is taken off, is not normal and not zero either."""

FAR_FROM_ZERO = 1e-30
"""A denominator of at least this magnitude makes at most 1.2e-8 of an error of 1.2e-38."""

LARGEST_FACTOR = 1e6
"""The largest constant in a product that is taken to leave such errors invisible."""

REACH = 12
"""How many nodes before a softmax are searched for its mask."""

SAMPLED = 1 << 14
"""How many elements of each weight are looked at."""

NOTABLE = 1e-3
"""The least share of such numbers in a weight that is worth a mention."""

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

CHECKS: Facet[Callable[[ir.Node, Facts], bool]] = Facet(
    "hides_denormals", "whether zeros may stand for numbers below the smallest normal one in the operands of a node"
)
"""For operators that are not smooth, or only under conditions."""

_ATTENDS = frozenset({"Softmax", "Attention", f"{MICROSOFT}.Attention", f"{MICROSOFT}.MultiHeadAttention"})


def sources(model: ir.Model) -> Iterator[str]:
    """The parts of a model that make numbers below the smallest normal one, in words."""
    for value in model.graph.initializers.values():
        array = _numbers(value)
        if array is not None and _is_subnormal(array.reshape(-1)[:SAMPLED]):
            yield f"the weights '{value.name}' contain some"
    for node in walk.nodes(model):
        if operator_name(node) in _ATTENDS:
            mask = _faint_mask(node)
            if mask is not None:
                yield f"the mask '{mask.name}' of {node.op_type} hides with numbers whose exponential is one"


def first_that_sees(model: ir.Model, facts: Facts) -> ir.Node | None:
    """The first node for which a number below the smallest normal one may differ from zero; `None` if there is none."""
    return next((node for node in walk.nodes(model) if not _is_blind(node, facts)), None)


def _numbers(value: ir.Value) -> np.ndarray | None:
    """The elements of a constant in float32; `None` for all else."""
    tensor = None if value.is_graph_input() else value.const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or not tensor.size:
        return None
    return np.asarray(tensor.numpy())


def _is_subnormal(array: np.ndarray) -> bool:
    # Told by their bits: this thread may itself be set to take them as zero.
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32) & np.uint32(0x7FFFFFFF)
    return bool(((bits > 0) & (bits < np.uint32(0x00800000))).mean() >= NOTABLE)


def _faint_mask(node: ir.Node) -> ir.Value | None:
    """A constant added before an exponential whose elements are neither near 0 nor far enough from it."""
    waiting = [(value, 0) for value in node.inputs if value is not None]
    seen: set[ir.Value] = set()
    while waiting:
        value, depth = waiting.pop()
        if value in seen or depth > REACH:
            continue
        seen.add(value)
        array = _numbers(value)
        if array is not None and ((array >= FAINT[0]) & (array <= FAINT[1])).any():
            return value
        before = value.producer()
        if before is not None and not before.domain and before.op_type in _PASSES_MASKS:
            waiting += [(one, depth + 1) for one in before.inputs if one is not None]
    return None


_PASSES_MASKS = MOVES | {"Add", "Sub", "Where", "Mul", "Cast"}


def _is_blind(node: ir.Node, facts: Facts) -> bool:
    if not any(facts.dtype(value) in _FLOATS for value in node.inputs if value is not None):
        return not node.domain or node.domain == MICROSOFT
    check = CHECKS.of(node)
    return check(node, facts) if check is not None else has(node, SMOOTH) and _is_regular(node)


def _is_apart_from_zero(value: ir.Value | None, facts: Facts, least: float) -> bool:
    found = None if value is None else facts.range(value)
    return found is not None and not any(low < least and high > -least for low, high in found.pieces)


@CHECKS.register("Div", "Log", "Reciprocal")
def _divides(node: ir.Node, facts: Facts) -> bool:
    return _is_apart_from_zero(node.inputs[-1], facts, FAR_FROM_ZERO)


@CHECKS.register(*sorted(COMPARES))
def _compares(node: ir.Node, facts: Facts) -> bool:
    return any(_is_apart_from_zero(value, facts, FAR_FROM_ZERO) for value in node.inputs)


@CHECKS.register("Pow")
def _is_power(node: ir.Node, facts: Facts) -> bool:
    exponent = facts.scalar(node.inputs[1])
    return exponent is not None and 0.5 <= exponent <= 4


@CHECKS.register("Cast")
def _is_number(node: ir.Node, facts: Facts) -> bool:
    """A Cast makes a number, and not a truth value, which is true for all but zero."""
    return facts.dtype(node.outputs[0]) != ir.DataType.BOOL


@CHECKS.register("Mul")
def _has_moderate_factors(node: ir.Node, facts: Facts) -> bool:
    constants = [facts.range(value) for value in node.inputs if value is not None and facts.is_const(value)]
    return all(
        found is None or max(abs(found.low), abs(found.high)) <= LARGEST_FACTOR or math.isinf(found.low)
        for found in constants
    )


def _is_regular(node: ir.Node) -> bool:
    """Whether the operator is kept from dividing by zero, if it is a normalisation."""
    attribute = node.attributes.get("epsilon")
    return attribute is None or attribute.as_float() >= 1e-15
