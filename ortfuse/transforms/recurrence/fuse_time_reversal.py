"""An LSTM, GRU or RNN between two reversals of time runs in the other direction by itself.

    reverse(lstm(reverse(x)))  =  lstm(x, direction = reverse)        the final states stay what they are

Reversals are Slices of a whole axis with step -1, as flips are exported, Gathers of all elements from the last to the first, or,
for an operator with lengths of its own, ReverseSequences by the same lengths; axes may be moved between them and the operator.

Does not handle: operators of both directions, and outputs that are used as they are.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import ELEMENT_MAPS, IndexMap, Read, axes
from ortfuse.analysis.loop_summary.recurrent_operators_in_body import LENGTHS, dropped_axes, is_operator, operands_of
from ortfuse.analysis.node_parameters import attribute_value, parameter
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds

_OTHER = {"forward": "reverse", "reverse": "forward"}
_NAME = "recurrent.turned"


def turn(scope: Scope, context: Context) -> int:
    """Turn the operators that can be; returns how many."""
    found = [node for node in scope.graph if is_operator(node)]
    return sum(_turn(node, scope, context) for node in found)


def _turn(node: ir.Node, scope: Scope, context: Context) -> bool:
    facts, sequence = context.facts, node.inputs[0]
    direction = _OTHER.get(attribute_value(node, "direction", facts))
    if direction is None or parameter(node, "layout", facts) not in (None, 0) or sequence is None:
        return False
    reversal = _Reversal(operands_of(node)[LENGTHS], facts)
    path = reversal.path_before(sequence, (0, 1))
    ends = reversal.paths_behind(node.outputs[0], (0, 2))
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
    """Apply nodes that move axes to another value."""
    assert value is not None
    for node in path:
        value = build.like(node, [value, *node.inputs[1:]])
    return value


_Axes = tuple[int, int | None]
"""The axes of time and of the batch, if it has one."""


class _Reversal:
    """Finds the reversals of time, of sequences of these lengths (`None`: all of them are whole)."""

    def __init__(self, lengths: ir.Value | None, facts: Facts) -> None:
        self._lengths, self._facts = lengths, facts

    def path_before(self, value: ir.Value, named: _Axes) -> list[ir.Node] | None:
        """The reversal behind which a value is, and the nodes that move axes between them."""
        path: list[ir.Node] = []
        while (node := value.producer()) is not None:
            path.insert(0, node)
            if self._is_one(node, named):
                return path
            perm = parameter(node, "perm", self._facts) if node.op_type == "Transpose" and not node.domain else None
            if not isinstance(perm, tuple | list) or node.inputs[0] is None or named[1] is None:
                return None
            named, value = (perm[named[0]], perm[named[1]]), node.inputs[0]
        return None

    def paths_behind(self, value: ir.Value, named: _Axes) -> list[list[ir.Node]] | None:
        """The paths to the reversals that are all that a value is used for; `None` if it is used otherwise."""
        if value.is_graph_output():
            return None
        found = []
        for use in value.uses():
            if use.idx != 0 or use.node.graph is not value.graph:
                return None
            if self._is_one(use.node, named):
                found.append([use.node])
                continue
            time, batch = (self._moved(use.node, axis) for axis in named)
            behind = None if time is None else self.paths_behind(use.node.outputs[0], (time, batch))
            if behind is None:
                return None
            found += [[use.node, *path] for path in behind]
        return found

    def _moved(self, node: ir.Node, axis: int | None) -> int | None:
        """Return the index of an axis behind a node that moves or drops axes."""
        if axis is None or node.domain:
            return None
        if node.op_type == "Transpose":
            perm = parameter(node, "perm", self._facts)
            return list(perm).index(axis) if isinstance(perm, tuple | list) else None
        axes = dropped_axes(node, self._facts)
        return None if axes is None or axis in axes else axis - len([one for one in axes if one < axis])

    def _is_one(self, node: ir.Node, named: _Axes) -> bool:
        if node.domain or not node.inputs or node.inputs[0] is None:
            return False
        if node.op_type == "ReverseSequence":
            own = tuple(attribute_value(node, name, self._facts) for name in ("time_axis", "batch_axis"))
            return own == named and self._lengths is not None and _uncast(node.inputs[1]) is _uncast(self._lengths)
        return self._lengths is None and self._reverses(node, named[0])

    def _reverses(self, node: ir.Node, time: int) -> bool:
        """Whether a node takes all elements along an axis from the last to the first."""
        value, shape = node.inputs[0], self._facts.shape(node.inputs[0])
        if value is None or shape is None or shape[time] == 1 or ELEMENT_MAPS.of(node) is None:
            return False
        size, indices = shape[time], self._facts.const(node.inputs[1]) if node.op_type == "Gather" else None
        if indices is not None and isinstance(size, int) and parameter(node, "axis", self._facts) == time:
            return bool(indices.shape == (size,) and [*(indices % size)] == [*range(size)][::-1])
        place = axes(len(shape))
        back = Read(value, (*place[:time], shape[time] - 1 - place[time], *place[time + 1 :]))
        return self._facts.index_map(node.outputs[0], [value]) == IndexMap.of(shape, back)


def _uncast(value: ir.Value | None) -> ir.Value | None:
    """The value of which another integer type stands for the same lengths."""
    while value is not None and (node := value.producer()) is not None and node.op_type == "Cast" and not node.domain:
        value = node.inputs[0]
    return value
