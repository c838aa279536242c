"""Layout of GatherND, ScatterND and GridSample, whose coordinates lie in the last axis of an operand.

Axes come in four groups: batch axes, axes of the indices, axes that the coordinates address, and axes of the gathered or
scattered slices. The axes of a group may be moved among themselves in all operands and results that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.transforms.layout.layout_unit import Framed, Port, Unit, layout
from ortfuse.transforms.layout.permutation import Order, restricted
from ortfuse.transforms.layout.reordered_node import Draft


@layout("GatherND")
def gather_nd(node: ir.Node, facts: Facts) -> Unit | None:
    """Slices of the first operand at coordinates behind the axes of the batch."""
    data, places, count = _known(node, facts)
    batch = attribute_value(node, "batch_dims", facts)
    if count is None or not isinstance(batch, int) or places - 1 < batch or data < batch + count:
        return None
    groups = [batch, places - 1 - batch, count, data - batch - count, 1]
    members = {0: (0, 2, 3), 1: (0, 1, 4)}
    return _in_groups(node, facts, groups, members, (0, 1, 3), still={2})


@layout("ScatterND")
def scatter_nd(node: ir.Node, facts: Facts) -> Unit | None:
    """Slices of the last operand at coordinates; they stay in their sequence, since later ones replace earlier ones."""
    data, places, count = _known(node, facts)
    if count is None or data < count or facts.rank(node.inputs[2]) != places - 1 + data - count:
        return None
    groups = [places - 1, count, data - count, 1]
    members = {0: (1, 2), 1: (0, 3), 2: (0, 2)}
    return _in_groups(node, facts, groups, members, (1, 2), still={0, 1})


@layout("GridSample")
def grid_sample(node: ir.Node, facts: Facts) -> Unit | None:
    """Pixels at the coordinates of a grid, [n, height, width, 2]: those of the grid may be moved with those of the result."""
    rank = facts.rank(node.inputs[0])
    if rank is None or facts.rank(node.inputs[1]) != rank or facts.is_const(node.inputs[1]):
        return None
    return _in_groups(node, facts, [1, 1, rank - 2, 1], {1: (0, 2, 3)}, (0, 1, 2), still={0, 1})


def _known(node: ir.Node, facts: Facts) -> tuple[int, int, int | None]:
    """The ranks of the data and of the coordinates, and how many axes these are about."""
    data, places = facts.rank(node.inputs[0]), facts.shape(node.inputs[1])
    if data is None or not places or not isinstance(places[-1], int):
        return 0, 0, None
    return data, len(places), places[-1]


def _in_groups(
    node: ir.Node,
    facts: Facts,
    sizes: Sequence[int],
    operands: Mapping[int, Sequence[int]],
    result: Sequence[int],
    still: set[int],
) -> Unit | None:
    """A unit whose axes are moved within their groups.

    Args:
        node: The node.
        facts: What is known.
        sizes: How many axes each group has.
        operands: The groups of each operand whose axes can be moved.
        result: The groups of the result.
        still: The groups whose axes stay as they are.
    """
    groups = [tuple(range(sum(sizes[:index]), sum(sizes[: index + 1]))) for index in range(len(sizes))]

    def axes(members: Sequence[int]) -> tuple[int, ...]:
        return tuple(axis for group in members for axis in groups[group])

    constant = {position for position in operands if facts.is_const(node.inputs[position])}
    ports = [Port(node.outputs[0], 0, True, axes(result))]
    for position, members in operands.items():
        value = node.inputs[position]
        if value is not None and position not in constant:
            ports.append(Port(value, position, False, axes(members)))

    def allows(order: Order) -> bool:
        return len(order) == sum(sizes) and all(
            sorted(part) == list(group) and (number not in still or part == group)
            for number, group in enumerate(groups)
            for part in [order[group[0] : group[-1] + 1] if group else ()]
        )

    def write(draft: Draft, order: Order) -> None:
        for position in constant:
            own = axes(operands[position])
            draft.move_constant(position, restricted(order, own), whole=True)

    return Framed(node, tuple(ports), sum(sizes), allows, write, complete=_grouped(groups))


def _grouped(groups: Sequence[Sequence[int]]) -> Callable[[Sequence[int], int], Order]:
    """Put missing axes where their groups are; where groups are torn apart, axes stay missing, which nothing allows."""

    def complete(part: Sequence[int], rank: int) -> Order:
        present = set(part)
        order = [axis for group in groups for axis in ([one for one in part if one in group] or group)]
        return tuple(order) if [axis for axis in order if axis in present] == list(part) else tuple(part)

    return complete
