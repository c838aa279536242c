"""Loops that count besides take the number of the run, and ask for no end that they know: both is computed in each run otherwise.

    loop(n: i, j, s -> j + 1 < n, j + 1, f(s, x[j]))   =   loop(n: i, s -> true, f(s, x[i]))        j begins with 0

This is how TensorFlow spells a loop over time. The condition of a Loop that provably runs as often as its limit says is
the one that it begins with. Its elements are selected by the iteration number. Counters that nothing needs then are left out (see
`dead_loop_carried`), and so is what computed the condition.

Does not handle: loops that may end early or whose number of runs is not known; numbers of runs that are no scalars.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.loop_summary.loop_structure import Iteration, iteration_of, origin
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Rounds, take_over


def count_once(node: ir.Node, author: str, context: Context) -> int:
    """Let a Loop go by the number of its run alone; returns whether it does now and did not before."""
    iteration = iteration_of(node, context.facts) if node.op_type == "Loop" else None
    if iteration is None:
        return 0
    number, going = iteration.body.inputs[:2]
    operands = {(inner, 1): number for inner in _counting(iteration, context)}
    results = {0: going} if _asks(iteration, context) else {}
    limit = _limit(iteration, context) if operands or results else None
    if limit is None:
        return 0
    with context.editor.change(author, rule=Rounds(author), nodes=[node]) as change:
        if not isinstance(limit, ir.Value):
            limit = context.editor.add_constant(node, ir.tensor(limit, ir.DataType.INT64))
        body = context.editor.redirected_copy(iteration.body, operands, results)
        assert body is not None
        others = [attribute for name, attribute in node.attributes.items() if name != "body"]
        made = ir.Node(
            "", "Loop", [limit, *node.inputs[1:]], [*others, ir.AttrGraph("body", body)],
            version=node.version, num_outputs=len(node.outputs),
        )  # fmt: skip
        context.editor.insert_before(node, made)
        take_over(context.editor, node, made)
    return int(bool(change))


def _limit(iteration: Iteration, context: Context) -> ir.Value | int | None:
    """The number of iterations: the limit that the Loop is given, or a number where it ends earlier; `None` if it is neither."""
    limit, runs = iteration.node.inputs[0], iteration.runs
    known = context.facts.ints(limit)
    if limit is not None and known is not None and known.elements == (runs,):
        return limit
    return runs if isinstance(runs, int) else None


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
    nodes = [node for node in iteration.body if node.op_type == "Gather" and node.inputs[1] is not number]
    counting = [node for node in nodes if iteration.counts(node.inputs[1])]
    return [node for node in counting if node.outputs[0] in iteration.elements]
