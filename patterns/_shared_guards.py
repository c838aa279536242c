"""Guards, checks and constants that the rules of several families share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import DEQUANTISES, QUANTISES, has
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, redundant


def snake_case(operator: str) -> str:
    """The name of an operator as rules spell it: `GreaterOrEqual` is `greater_or_equal`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operator).lower()


def is_suffix_axes(axes: Any, facts: Facts) -> bool:
    """A check for attributes: consecutive ascending axes (whether they end at the last axis is for a guard to decide)."""
    return axes is not None and len(axes) > 0 and list(axes) == list(range(axes[0], axes[0] + len(axes)))


def is_filled_with(number: float) -> Callable[[ir.Value, Facts], bool]:
    """A check for variables: every element is provably this number."""
    return lambda value, facts: facts.fill(value) == number


def same_shape(first: str, second: str) -> Guard:
    """The two captured values provably have the same shape."""

    def guard(match: Match) -> Refusal | None:
        return match.unless_same_shape(first, second)

    return guard


def floating(name: str) -> Guard:
    """Guard: the elements of a value are floating-point numbers; the runtime computes with some integers as if they were."""

    def is_floating(match: Match) -> Refusal | None:
        dtype = match.dtype(name)
        known = dtype is not None and dtype.is_floating_point()
        return None if known else match.refuse("dtype", name, "floating-point numbers")

    return is_floating


def rank_in(name: str, ranks: Sequence[int]) -> Guard:
    """The rank of a captured value is one of `ranks`."""

    def guard(match: Match) -> Refusal | None:
        return match.unless_rank(name, *ranks)

    return guard


given_axes = attr("axes", lambda found, facts: isinstance(found, tuple) and len(found) > 0, "given")
"""The axes of a reduction, which are given and not empty; they are counted from the front."""


def reduces_all(match: Match) -> Refusal | None:
    """The reduction is over all axes."""
    given, rank = match["axes"], match.rank("x")
    whole = not given or (rank is not None and sorted(given) == list(range(rank)))
    return match.unless_value("axes", whole, "all of them")


def nearly(number: float, wanted: float) -> bool:
    """Whether a product of a few float32 constants is `wanted` up to their rounding."""
    return math.isclose(number, wanted, rel_tol=4 * 2.0**-23)


def text(shape: Sequence[Any]) -> str:
    """A shape as text, in brackets."""
    return "[" + ", ".join(str(dim) for dim in shape) + "]"


def array_like(match: Match, value: Any) -> np.ndarray[Any, Any]:
    """`value` as an array of the root's element type."""
    dtype = match.facts.dtype(match.root)
    assert dtype is not None
    return np.asarray(value, dtype=dtype.numpy())


def reaches(bound: Any, size: int) -> bool:
    """Whether a Slice end, captured as a one-element tuple, is a number of at least `size`."""
    return isinstance(bound, tuple) and len(bound) == 1 and isinstance(bound[0], int) and bound[0] >= size


def constant(*numbers: int) -> Pattern:
    """An int64 vector of these numbers."""
    return computed("_".join(map(str, numbers)), lambda match: ints(numbers))


def ints(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """An int64 vector, for axes, shapes and other parameters that are inputs."""
    return np.asarray(list(values), dtype=np.int64)


@redundant("the rule would be right, but not worth it")
def is_not_quantised(match: Match) -> Refusal | None:
    """The runtime does not compute the node in integers, between DequantizeLinear and QuantizeLinear.

    It moves both through what only moves or picks numbers.
    """
    producer = match["x"].producer()
    while producer is not None and _is_passed(producer):
        producer = producer.inputs[0].producer() if producer.inputs[0] is not None else None
    if producer is None or not has(producer, DEQUANTISES) or not _is_quantised_after(match.root):
        return None
    return match.refuse("kernel_limit", "x", "numbers that are not dequantised")


_PASSED = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def _is_passed(node: ir.Node) -> bool:
    return node.op_type in _PASSED and not node.domain


def _is_quantised_after(value: ir.Value) -> bool:
    return any(
        has(use.node, QUANTISES) or (_is_passed(use.node) and use.idx == 0 and _is_quantised_after(use.node.outputs[0]))
        for use in value.uses()
    )
