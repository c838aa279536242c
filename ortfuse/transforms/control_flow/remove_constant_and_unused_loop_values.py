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

from collections.abc import Collection

import onnx_ir as ir

from ortfuse.analysis.loop_summary.loop_structure import Loop, loop_of, needed
from ortfuse.analysis.loop_summary.nonempty_sizes import Nonempty
from ortfuse.ir.walk import nested, used_values
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Rounds


def narrow(node: ir.Node, author: str, sizes: Nonempty, context: Context) -> int:
    """Leave out what a Loop or Scan need not hand on; returns how many states and results."""
    loop = loop_of(node, context.facts)
    if loop is None:
        return 0
    stacks = any(_is_used(output) for output in node.outputs[len(loop.states) :])
    is_safe = not stacks or sizes.surely_runs(node)
    same = {index for index in range(len(loop.states)) if is_safe and _is_same(loop, index)}
    kept = _used(loop, same)
    if len(kept) == len(node.outputs):
        return 0
    states = [index for index in kept if index < len(loop.states)]
    beside = [index for index in range(len(node.inputs)) if not 0 <= index - loop.first < len(loop.states)]
    operands = sorted([*beside, *(loop.first + index for index in states)])
    given = {
        loop.states[index].before: value for index in same if (value := node.inputs[loop.first + index]) is not None
    }
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


def _is_same(loop: Loop, index: int) -> bool:
    """Whether all runs hand on a state as it is, and it is no other result of the body or of one nested in it."""
    before, after = loop.states[index].before, loop.body.outputs[loop.skipped + index]
    listed = sum(value is before for graph in nested(loop.body) for value in graph.outputs)
    return loop.states[index].after is before and listed == (after is before)


def _used(loop: Loop, same: Collection[int]) -> list[int]:
    """The states and stacked results that are used, or on which something that is used depends."""
    outputs = loop.node.outputs
    is_scan = loop.node.op_type == "Scan"
    kept = {
        index for index in range(len(outputs)) if _is_used(outputs[index]) or (is_scan and index >= len(loop.states))
    }
    kept -= {*same}
    # Nodes without results count as results, too.
    beside = [value for node in loop.body if not node.outputs for value in used_values(node)]
    while True:
        roots = [*loop.body.outputs[: loop.skipped], *(loop.body.outputs[loop.skipped + index] for index in kept)]
        found = needed([*roots, *beside], loop.body)
        more = {index for index in range(len(loop.states)) if loop.states[index].before in found} - {*same}
        if more <= kept:
            return sorted(kept)
        kept |= more


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
