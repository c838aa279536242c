"""An LSTM, GRU or RNN between two reversals of time runs in the other direction by itself.

    reverse(lstm(reverse(x)))  =  lstm(x, direction = reverse)        the final states stay what they are

Reversals are Slices of a whole axis with step -1, as flips are exported; axes may be moved between them and the operator.

Left alone: operators of both directions or with lengths of their own, and outputs that are used as they are.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.graph.walk import Scope
from ortfuse.passes.building import Builder
from ortfuse.passes.context import Context
from ortfuse.passes.recurrence.operator import Rounds
from ortfuse.pattern.operators import attribute_value, parameter

_OTHER = {"forward": "reverse", "reverse": "forward"}
_LENGTHS, _FAR = 4, 2**31
_NAME = "recurrent.turned"


def turn(scope: Scope, context: Context) -> int:
    """Turn the operators that can be; returns how many."""
    found = [node for node in scope.graph if node.op_type in ("LSTM", "GRU", "RNN") and not node.domain]
    return sum(_turn(node, scope, context) for node in found)


def _turn(node: ir.Node, scope: Scope, context: Context) -> bool:
    facts, sequence = context.facts, node.inputs[0]
    direction = _OTHER.get(attribute_value(node, "direction", facts))
    has_lengths = len(node.inputs) > _LENGTHS and node.inputs[_LENGTHS] is not None
    if direction is None or has_lengths or parameter(node, "layout", facts) not in (None, 0) or sequence is None:
        return False
    path = _path_from_reversal(sequence, facts)
    ends = _ends(node.outputs[0], 0, facts)
    if path is None or ends is None:
        return False
    with context.editor.change(_NAME, rule=Rounds(_NAME)) as change:
        build = Builder(scope, context.editor, node)
        given = _along(path[1:], path[0].inputs[0], build)
        attributes = [*(one for one in node.attributes.values() if one.name != "direction")]
        made = ir.Node(
            "", node.op_type, [given, *node.inputs[1:]], [*attributes, ir.AttrString("direction", direction)],
            version=node.version, num_outputs=len(node.outputs),
        )  # fmt: skip
        context.editor.insert_before(node, made)
        for old, new in zip(node.outputs[1:], made.outputs[1:], strict=True):
            if old.name == "":
                context.editor.rename(new, "")
            else:
                context.editor.replace(old, new)
        for end in ends:
            behind = Builder(scope, context.editor, end[-1])
            context.editor.replace(end[-1].outputs[0], _along(end[:-1], made.outputs[0], behind))
    if change:
        context.log.statistics(_NAME).hits += 1
    return bool(change)


def _along(path: list[ir.Node], value: ir.Value | None, build: Builder) -> ir.Value:
    """What nodes that move axes make of another value."""
    assert value is not None
    for node in path:
        value = build.like(node, [value, *node.inputs[1:]])
    return value


def _path_from_reversal(value: ir.Value, facts: Facts) -> list[ir.Node] | None:
    """The reversal of the first axis of a value, and the nodes that move axes between them."""
    path: list[ir.Node] = []
    axis = 0
    while (node := value.producer()) is not None:
        path.insert(0, node)
        if _is_reversal(node, axis, facts):
            return path
        perm = parameter(node, "perm", facts) if node.op_type == "Transpose" and not node.domain else None
        if not isinstance(perm, tuple | list) or node.inputs[0] is None:
            return None
        axis, value = perm[axis], node.inputs[0]
    return None


def _ends(value: ir.Value, axis: int, facts: Facts) -> list[list[ir.Node]] | None:
    """The paths to the reversals of an axis that are all that a value is used for; `None` if it is used otherwise."""
    if value.is_graph_output():
        return None
    found = []
    for use in value.uses():
        if use.idx != 0 or use.node.graph is not value.graph:
            return None
        if _is_reversal(use.node, axis, facts):
            found.append([use.node])
            continue
        moved = _axis_behind(use.node, axis, facts)
        behind = None if moved is None else _ends(use.node.outputs[0], moved, facts)
        if behind is None:
            return None
        found += [[use.node, *path] for path in behind]
    return found


def _axis_behind(node: ir.Node, axis: int, facts: Facts) -> int | None:
    """Where an axis is behind a Transpose or Squeeze."""
    if node.domain or node.op_type not in ("Transpose", "Squeeze"):
        return None
    if node.op_type == "Transpose":
        perm = parameter(node, "perm", facts)
        return list(perm).index(axis) if isinstance(perm, tuple | list) else None
    axes = parameter(node, "axes", facts)
    if not isinstance(axes, tuple | list) or axis in axes or not all(isinstance(one, int) for one in axes):
        return None
    return axis - len([one for one in axes if one < axis])


def _is_reversal(node: ir.Node, axis: int, facts: Facts) -> bool:
    """Whether a node is a Slice that reverses one axis as a whole."""
    shape = facts.shape(node.inputs[0]) if node.op_type == "Slice" and not node.domain else None
    numbers = [parameter(node, name, facts) for name in ("starts", "ends", "axes", "steps")] if shape else []
    if shape is None or not all(isinstance(one, tuple | list) and len(one) == 1 for one in numbers):
        return False
    (start,), (end,), (place,), (step,) = numbers
    size = shape[axis]
    if place != axis or step != -1 or not isinstance(start, int) or not isinstance(end, int):
        return False
    begins = start == -1 or start >= _FAR or (isinstance(size, int) and start >= size - 1)
    return begins and (end <= -_FAR or (isinstance(size, int) and end < -size))
