"""Replace an Add chain over all elements of an axis by one ReduceSum.

    x[:, 0] + x[:, 1] + ... + x[:, n - 1]   =   reduce_sum(x, 1)

torch.export decomposes adaptive pools so whose windows differ in size, along two axes at once: sums of sums are one. Heads of
segmentation networks have such pools (pyramid pooling, arXiv:1612.01105), and attention to pooled images (arXiv:2106.13797).

Does not handle:

- elements that something else reads too, sums of only some elements, and sums that have an element twice;
- broadcast sums, and types that the runtime does not reduce.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds

_REDUCED = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)


@dataclass(frozen=True)
class _Term:
    """A value that is added, summed over some of its axes before."""

    value: ir.Value
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class UnrolledSumToReduce:
    """Replace the unrolled sum of all elements of an axis by ReduceSum."""

    name: ClassVar[str] = "unrolled_sum_to_reduce"

    def run(self, context: Context) -> int:
        """Find sums of all elements of an axis; returns how many sums became shorter."""
        return sum(_shorten(root, scope, context) for scope in context.scopes() for root in list(_roots(scope)))


def _roots(scope: Scope) -> Iterator[ir.Node]:
    """Additions whose result is not just added to something again."""
    for node in scope.graph:
        if _is_add(node) and _inner(node.outputs[0]) is None:
            yield node


def _is_add(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Add" and not node.domain


def _only_user(value: ir.Value | None) -> ir.Node | None:
    """The one node that reads a value, once; `None` if there are others, or none."""
    uses = [] if value is None or value.is_graph_output() else list(value.uses())
    return uses[0].node if len(uses) == 1 else None


def _inner(value: ir.Value | None) -> ir.Node | None:
    """The addition that makes a value, if another one of the same graph alone reads it."""
    node, user = None if value is None else value.producer(), _only_user(value)
    return node if _is_add(node) and _is_add(user) and node is not None and node.graph is user.graph else None  # type: ignore[union-attr]


def _terms(root: ir.Node, facts: Facts) -> list[_Term]:
    """Return all terms of a sum; empty if one has another shape than the sum."""
    shape, found, left = facts.shape(root.outputs[0]), [], [*reversed(root.inputs)]
    if shape is None or facts.dtype(root.outputs[0]) not in _REDUCED:
        return []
    while left:
        value = left.pop()
        if value is None or facts.shape(value) != shape:
            return []
        node = _inner(value)
        if node is None:
            found.append(_Term(value))
        else:
            left += reversed(node.inputs)
    return found


def _element(term: _Term, facts: Facts) -> tuple[tuple[ir.Value, int, _Term], int] | None:
    """The index and axis of a term, and its sum if all elements of that axis are added."""
    node = term.value.producer()
    if node is None or node.op_type != "Gather" or node.domain or (not term.axes and _only_user(term.value) is None):
        return None
    source, index, axis = node.inputs[0], facts.const(node.inputs[1]), parameter(node, "axis", facts)
    shape = facts.shape(source)
    if source is None or shape is None or index is None or index.ndim or not isinstance(axis, int):
        return None
    axis %= len(shape)
    size = shape[axis]
    if not isinstance(size, int) or size < 2:
        return None
    axes = (axis, *(place + (place >= axis) for place in term.axes))
    return (source, axis, _Term(source, tuple(sorted(axes)))), int(np.int64(index)) % size


def _summed(terms: list[_Term], facts: Facts) -> list[_Term]:
    """The terms, sums over an axis instead of those that are all its elements."""
    elements: defaultdict[tuple[ir.Value, int, _Term], list[tuple[int, _Term]]] = defaultdict(list)
    for term in terms:
        if (found := _element(term, facts)) is not None:
            elements[found[0]].append((found[1], term))
    made: list[_Term] = []
    taken: set[_Term] = set()
    for (source, axis, total), parts in elements.items():
        size = (facts.shape(source) or ())[axis]
        if isinstance(size, int) and sorted(index for index, _ in parts) == list(range(size)):
            made.append(total)
            taken.update(term for _, term in parts)
    return _summed([*made, *(term for term in terms if term not in taken)], facts) if made else terms


def _shorten(root: ir.Node, scope: Scope, context: Context) -> bool:
    """Add what is left to be added where some terms are the elements of an axis."""
    terms = _terms(root, context.facts)
    summed = _summed(terms, context.facts)
    if len(summed) == len(terms):
        return False
    with context.editor.change(UnrolledSumToReduce.name, rule=Rounds(UnrolledSumToReduce.name), nodes=[root]) as change:
        build = Builder(scope, context.editor, root)
        values = [build.reduce_sum(term.value, *term.axes) for term in summed]
        total = values[0]
        for value in values[1:]:
            total = build.node("Add", [total, value])[0]
        context.editor.replace(root.outputs[0], total)
        context.editor.remove(root)
    return bool(change)
