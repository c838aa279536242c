"""Loops that count besides take the number of the run, and ask for no end that they know: both is computed in each run otherwise.

    loop(n: i, j, s -> j + 1 < n, j + 1, f(s, x[j]))   =   loop(n: i, s -> true, f(s, x[i]))        j begins with 0

This is how TensorFlow spells a loop over time. The condition of a Loop that provably runs as often as its limit says is the one
that it begins with, and elements are taken by the number of the run. Counters that nothing needs then are left out (see
`narrowing`), and so is what computed the condition.

Left alone: loops that may end early or whose number of runs is not known; numbers of runs that are no scalars.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.passes.building import take_over
from ortfuse.passes.context import Context
from ortfuse.passes.recurrence.iteration import Iteration, iteration_of, origin
from ortfuse.passes.recurrence.operator import Rounds


def count_once(node: ir.Node, author: str, context: Context) -> int:
    """Let a Loop go by the number of its run alone; returns whether it does now and did not before."""
    iteration = iteration_of(node, context.facts) if node.op_type == "Loop" else None
    if iteration is None or not (_asks(iteration, context) or _counting(iteration, context)):
        return 0
    with context.editor.change(author, rule=Rounds(author), nodes=[node]) as change:
        others = [attribute for name, attribute in node.attributes.items() if name != "body"]
        made = ir.Node(
            "", "Loop", node.inputs, [*others, ir.AttrGraph("body", _copy(iteration, context))],
            version=node.version, num_outputs=len(node.outputs),
        )  # fmt: skip
        context.editor.insert_before(node, made)
        take_over(context.editor, node, made)
    return int(bool(change))


def _copy(iteration: Iteration, context: Context) -> ir.Graph:
    """A copy of a body that goes by the number of the run alone."""
    context.editor.sort(iteration.body)  # a copy takes what is computed later for a value of the graphs around it
    counting, asks = _counting(iteration, context), _asks(iteration, context)
    copy = iteration.body.clone(allow_outer_scope_values=True)
    for inner, copied in zip(iteration.body, copy, strict=True):
        if inner in counting:
            copied.replace_input_with(1, copy.inputs[0])
    if asks:
        goes_on = ir.node("Identity", [copy.inputs[1]])
        copy.append(goes_on)
        goes_on.outputs[0].type, goes_on.outputs[0].shape = copy.outputs[0].type, copy.outputs[0].shape
        copy.outputs[0] = goes_on.outputs[0]
    return copy


def _asks(iteration: Iteration, context: Context) -> bool:
    """Whether a condition is computed in each run, for nothing else than to be true."""
    given, condition = iteration.body.inputs[1], iteration.body.outputs[0]
    if condition.uses() or sum(value is condition for value in iteration.body.outputs) > 1:
        return False
    computed = origin(condition)
    node = computed.producer()
    return computed is not given and node is not None and node.graph is iteration.body and bool(node.inputs)


def _counting(iteration: Iteration, context: Context) -> list[ir.Node]:
    """The nodes that take an element by something else than the number of the run."""
    number = iteration.body.inputs[0]
    if context.facts.rank(number) != 0 or context.facts.dtype(number) != ir.DataType.INT64:
        return []
    nodes = [node for value in iteration.elements if (node := value.producer()) is not None]
    return [node for node in nodes if node.inputs[1] is not number]
