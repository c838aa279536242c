"""Leave out axes of size 1 that an Unsqueeze adds in front, where operators broadcast without them.

    and(x <= unsqueeze(x, [0, 1, 3]), mask)   =   and(x <= unsqueeze(x, [1]), mask)          a mask of four axes

Operators broadcast their operands from the last axis on. What is computed of the result has fewer axes, too, down to operators
that have an operand with as many axes. An Unsqueeze of which no axis is left is gone, and others of one value become equal.

Fusions know masks and positions by the axes that exporters give them, so that this comes behind them.

Does not handle: Reshapes, Unsqueezes whose axes are computed, and results that other operators read with the axes in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context, final_opset
from ortfuse.transforms.node_builder import Builder

_AXES_ARE_INPUTS = 13
"""The opset from which on axes are inputs."""

_BROADCAST = (BROADCASTS | ELEMENTWISE) - {"PRelu"}
"""Operators whose result has the axes of the operand with the most: the second operand of PRelu may not have more."""


@dataclass(frozen=True)
class DropLeadingAxes:
    """Leave out axes of size 1 in front of others, where operators broadcast without them."""

    name: ClassVar[str] = "drop_leading_axes"

    def run(self, context: Context) -> int:
        """Leave out axes; returns from how many Unsqueezes."""
        return sum(_in_graph(scope, context) for scope in context.scopes())


def _in_graph(scope: Scope, context: Context) -> int:
    """Leave out axes in a graph: those first with which an Unsqueeze goes, as two operands may need the axes of one."""
    found = [
        (node, axes)
        for node in scope.graph
        if node.op_type == "Unsqueeze" and not node.domain
        if (axes := _axes(node, context.facts)) is not None
    ]
    found.sort(key=lambda one: one[1][-1] >= len(one[1]))
    return sum(_without(node, axes, scope, context) for node, axes in found if node.graph is scope.graph)


def _axes(node: ir.Node, facts: Facts) -> tuple[int, ...] | None:
    """The axes that an Unsqueeze adds, counted from the front; `None` if none of them is the first."""
    axes, rank = parameter(node, "axes", facts), facts.rank(node.outputs[0])
    if rank is None or not isinstance(axes, tuple | list) or not all(isinstance(axis, int) for axis in axes):
        return None
    found = tuple(sorted(axis % rank for axis in axes))
    return found if found and found[0] == 0 else None


def _without(node: ir.Node, axes: tuple[int, ...], scope: Scope, context: Context) -> int:
    """Leave out as many leading axes as its readers can do without; returns whether there are any."""
    leading = next((number for number, axis in enumerate(axes) if number != axis), len(axes))
    for dropped in range(leading, 0, -1):
        ranks = _ranks(node.outputs[0], dropped, context.facts)
        if ranks is not None:
            return _rebuilt(node, [axis - dropped for axis in axes[dropped:]], ranks, scope, context)
    return 0


def _ranks(value: ir.Value, dropped: int, facts: Facts) -> Mapping[ir.Value, int] | None:
    """How many axes values have once one has fewer; `None` if something needs the axes.

    Args:
        value: The value that has fewer.
        dropped: How many fewer.
        facts: The facts of the model.
    """
    ranks: dict[ir.Value, int] = {value: (facts.rank(value) or 0) - dropped}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one.is_graph_output():
            return None
        for node in one.consumers():
            if node.op_type not in _BROADCAST or node.domain or node.graph is not value.graph or len(node.outputs) > 1:
                return None
            operands = [ranks.get(operand, facts.rank(operand)) for operand in node.inputs if operand is not None]
            known = [rank for rank in operands if rank is not None]
            result, after = node.outputs[0], max(known)
            before = ranks.get(result, facts.rank(result))
            if before is None or len(known) < len(operands):
                return None
            if after < before:
                ranks[result] = after
                waiting.append(result)
    return ranks


def _rebuilt(node: ir.Node, axes: list[int], ranks: Mapping[ir.Value, int], scope: Scope, context: Context) -> int:
    """Write the nodes anew that read values with fewer axes."""
    readers = {reader for value in ranks for reader in value.consumers()}
    changed = [reader for reader in scope.graph if reader in readers]
    source = node.inputs[0]
    assert source is not None
    with context.editor.change(DropLeadingAxes.name, nodes=[node, *changed]) as change:
        shorter = {
            node.outputs[0]: _unsqueezed(
                source, axes, Builder(scope, context.editor, node), final_opset(scope, context.target)
            )
        }
        for reader in changed:
            operands = [value if value is None else shorter.get(value, value) for value in reader.inputs]
            made = Builder(scope, context.editor, reader).like(reader, operands)
            if reader.outputs[0] in ranks:
                shorter[reader.outputs[0]] = made
            else:
                context.editor.replace(reader.outputs[0], made)
        context.editor.remove(*reversed(changed), node)
    return int(bool(change))


def _unsqueezed(source: ir.Value, axes: list[int], build: Builder, opset: int) -> ir.Value:
    """The source with these axes, in the form of the opset that the model will have, so that equal nodes look equal."""
    if axes and build.opset < _AXES_ARE_INPUTS <= opset:
        return build.node("Unsqueeze", [source, build.ints(axes)], version=_AXES_ARE_INPUTS)[0]
    return build.unsqueeze(source, *axes)
