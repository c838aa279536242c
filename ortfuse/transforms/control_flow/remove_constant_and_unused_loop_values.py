"""Remove loop-carried values that no iteration changes, and those that nothing uses.

    loop(s, w -> f(s, w), w)(a, x)   =   loop(s -> f(s, x))(a)       a state that no iteration changes
    y, n = loop(s, n -> f(s), n + 1) =   y = loop(s -> f(s))         a state, or a stacked result, that nothing uses

Exporters of TensorFlow make all weights loop-carried values, and add counters. Without these, `licm` can hoist nodes that
depend on weights alone, and rules see constants in bodies.

The runtime derives the sizes of stacked results from the states if a Loop has no iterations. So the first form is left alone in
a Loop whose stacked results are used, unless it surely runs.

Does not handle: stacked results of a Scan; states that are absent; a state that a body returns as another result too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.ir.walk import nested, used_values
from ortfuse.rewrite.pattern.node_parameters import parameter
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Rounds
from ortfuse.transforms.recurrence.describe_loop import origin
from ortfuse.transforms.recurrence.nonempty_sizes import Nonempty


@dataclass(frozen=True)
class _Loop:
    """A Loop or Scan by what its operands and results are.

    Attributes:
        node: The node.
        body: Its body.
        first: The place of the first state among the operands of the node, and among the inputs of the body.
        skipped: How many results of the body, the condition of a Loop, are no results of the node.
        count: The number of states.
    """

    node: ir.Node
    body: ir.Graph
    first: int
    skipped: int
    count: int

    def before(self, index: int) -> ir.Value:
        """A state before a run."""
        return self.body.inputs[self.first + index]

    def after(self, index: int) -> ir.Value:
        """A state after a run, or what is stacked."""
        return self.body.outputs[self.skipped + index]


def narrow(node: ir.Node, author: str, sizes: Nonempty, context: Context) -> int:
    """Leave out what a Loop or Scan need not hand on; returns how many states and results."""
    loop = _loop(node, context)
    if loop is None:
        return 0
    stacks = any(_is_used(output) for output in node.outputs[loop.count :])
    is_safe = not stacks or sizes.surely_runs(node)
    same = {index for index in range(loop.count) if is_safe and _is_same(loop, index)}
    kept = _used(loop, same)
    if len(kept) == len(node.outputs):
        return 0
    states = [index for index in kept if index < loop.count]
    beside = [index for index in range(len(node.inputs)) if not 0 <= index - loop.first < loop.count]
    operands = sorted([*beside, *(loop.first + index for index in states)])
    given = {loop.before(index): value for index in same if (value := node.inputs[loop.first + index]) is not None}
    with context.editor.change(author, rule=Rounds(author), nodes=[node]) as change:
        if kept:
            results = [*range(loop.skipped), *(loop.skipped + index for index in kept)]
            body = context.editor.narrowed_copy(loop.body, given, operands, results)
            assert body is not None
            others = [attribute for name, attribute in node.attributes.items() if name != "body"]
            made = ir.Node(
                "", node.op_type, [node.inputs[index] for index in operands], [*others, ir.AttrGraph("body", body)],
                version=node.version, num_outputs=len(kept),
            )  # fmt: skip
            context.editor.insert_before(node, made)
            for index, value in zip(kept, made.outputs, strict=True):
                context.editor.replace(node.outputs[index], value)
        for index in same:
            initial = node.inputs[loop.first + index]
            if initial is not None and _is_used(node.outputs[index]):
                context.editor.replace(node.outputs[index], initial)
        context.editor.remove(node)
    return len(node.outputs) - len(kept) if change else 0


def _loop(node: ir.Node, context: Context) -> _Loop | None:
    """Return the loop-carried values of a Loop or Scan, if all are present; `None` for other nodes."""
    is_scan, attribute = node.op_type == "Scan", node.attributes.get("body")
    if node.domain or node.op_type not in ("Loop", "Scan") or attribute is None or attribute.is_ref():
        return None
    scanned = parameter(node, "num_scan_inputs", context.facts) if is_scan else 0
    if not isinstance(scanned, int) or (is_scan and context.facts.version(node) < 9):
        return None
    body, first, skipped = attribute.as_graph(), 0 if is_scan else 2, 0 if is_scan else 1
    count = len(node.inputs) - first - scanned
    is_whole = len(body.inputs) == len(node.inputs) and len(body.outputs) == skipped + len(node.outputs)
    if not is_whole or not 0 <= count <= len(node.outputs) or None in node.inputs[first:]:
        return None
    return _Loop(node, body, first, skipped, count)


def _is_same(loop: _Loop, index: int) -> bool:
    """Whether all runs hand on a state as it is, and it is no other result of the body or of one nested in it."""
    before, after = loop.before(index), loop.after(index)
    listed = sum(value is before for graph in nested(loop.body) for value in graph.outputs)
    return origin(after) is before and listed == (after is before)


def _used(loop: _Loop, same: Collection[int]) -> list[int]:
    """The states and stacked results that are used, or on which something that is used depends."""
    outputs = loop.node.outputs
    is_scan = loop.node.op_type == "Scan"
    kept = {index for index in range(len(outputs)) if _is_used(outputs[index]) or (is_scan and index >= loop.count)}
    kept -= {*same}
    while True:
        roots = [*loop.body.outputs[: loop.skipped], *(loop.after(index) for index in kept)]
        needed = _needed(roots, loop.body)
        more = {index for index in range(loop.count) if loop.before(index) in needed} - {*same}
        if more <= kept:
            return sorted(kept)
        kept |= more


def _needed(roots: Iterable[ir.Value], body: ir.Graph) -> set[ir.Value]:
    """The values that the roots are computed from, themselves included; nodes without results count as roots too."""
    effects = [node for node in body if not node.outputs]
    waiting = [*roots, *(value for node in effects for value in used_values(node))]
    found: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            producer = value.producer()
            if producer is not None and value.graph is body:
                waiting += used_values(producer)
    return found


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
