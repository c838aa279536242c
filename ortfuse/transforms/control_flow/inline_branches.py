"""Inline the branch that an If always takes.

Transforms, in the main graph, in subgraphs and in functions, an If whose condition

- is a constant,
- has one value in every run, as sizes and ranges show, or
- is the condition of an If around it.

The branch that is never taken is removed with the If, and with it all that only that branch computed.

Does not handle: Ifs whose condition is computed from inputs or is not known to have one element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.editor import Editor
from ortfuse.ir.walk import branches, roots, subgraphs
from ortfuse.transforms.context import Context

Known: TypeAlias = Mapping[ir.Value, bool]
"""The conditions of the Ifs around a node, by the branches that it is in."""


@dataclass(frozen=True)
class InlineBranches:
    """Inline the taken branch of an If whose condition is constant."""

    name: ClassVar[str] = "inline_branches"

    def run(self, context: Context) -> int:
        """Inline branches; returns how many. An If in an inlined branch is met by the next run."""
        return sum(_inline_within(root, context) for root in roots(context.model))


def _inline_within(root: ir.Graph, context: Context) -> int:
    count = 0
    waiting: list[tuple[ir.Graph, Known]] = [(root, {})]
    while waiting:
        graph, known = waiting.pop()
        for node in list(graph):
            both = branches(node)
            taken = _taken(node, known, context.facts) if both else None
            if taken is not None and _inline(node, taken, context.editor):
                count += 1
            elif both:
                waiting += [(branch, _within(node, known, is_then)) for is_then, branch in both.items()]
            else:
                waiting += [(inner, known) for inner in subgraphs(node)]
    return count


def _within(node: ir.Node, known: Known, is_then: bool) -> Known:
    """The known conditions in a branch of an If."""
    condition = node.inputs[0]
    if condition is None:
        return known
    negated = _negated(condition)
    return {**known, condition: is_then, **({} if negated is None else {negated: not is_then})}


def _negated(condition: ir.Value) -> ir.Value | None:
    """The value of which a condition is the opposite."""
    node = condition.producer()
    return node.inputs[0] if node is not None and node.op_type == "Not" and not node.domain else None


def _taken(node: ir.Node, known: Known, facts: Facts) -> ir.Graph | None:
    """The branch that an If takes in every run; `None` if that is not known."""
    condition = node.inputs[0]
    truth = None if condition is None else _truth(condition, known, facts)
    return None if truth is None else branches(node).get(truth)


def _truth(condition: ir.Value, known: Known, facts: Facts) -> bool | None:
    """The one value of a condition; `None` if it may have both."""
    negated = _negated(condition)
    if condition in known or negated in known:
        return known[condition] if condition in known else not known[negated]  # type: ignore[index]
    number = facts.scalar(condition)
    if number is not None:
        return bool(number)
    found = facts.range(condition)
    return bool(*found.truths) if found is not None and len(found.truths) == 1 else None


def _inline(node: ir.Node, taken: ir.Graph, editor: Editor) -> bool:
    """Replace an If by a copy of the branch. The original stays in the If, so that both sides can be compared and undone."""
    with editor.change(InlineBranches.name, nodes=[node]) as change:
        results = editor.insert_copy(node, taken) or []
        for old, new in zip(node.outputs, results, strict=True):
            editor.replace(old, new)
        editor.remove(node)
    return bool(change)
