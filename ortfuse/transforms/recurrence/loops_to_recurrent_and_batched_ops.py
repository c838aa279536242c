"""Fuse a Loop or Scan over recurrent cells, linear states and elementwise work into operators over all iterations.

    scan(h, x[t] -> h = cell(h, x[t]), y[t] = head(h))  =  head(operator(x))        scan(x[t] -> f(x[t]))  =  f(x)

The summary of the loop (`ortfuse.analysis.loop_summary.summary`) tells how each state is updated. A body is resolved as a
whole, or not at all:

- elements of sequences are the sequences, or Slices of them, and counters are numbers (see `elements_and_counters`);
- cells whose states are handed on are an LSTM, GRU or RNN;
- states that change linearly are a LinearAttention of the runtime (see `linear_attention`);
- states that keep the last elements are parts of the sequence (see `sliding_window_states`);
- states that do not depend on what they were are those of the iteration before;
- operators that treat iterations alike are applied to all of them at once (see `apply_body_ops_to_all_iterations`).

States are stacked as outputs of the loop, or in a sequence that is joined to one tensor behind it. Rows that keep their states
from the end of their length on are sequences of that length (see `masked_selects`).

Does not handle: loops that may end early or run an unknown number of times; Loops that may not run at all, of whose results the
runtime makes up the sizes (a Scan of nothing fails, and so do other nodes, so that what succeeds has run: see `nonempty_sizes`);
bodies with anything else in them, such as states that are handed on in another way. A loop that has a cell or a linear
state and is left alone is noted for the user, and so are products of its states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.assumptions import LOOPS_RUN
from ortfuse.analysis.loop_summary.linear_state import LinearState
from ortfuse.analysis.loop_summary.loop_structure import Iteration, iteration_of, obstacle
from ortfuse.analysis.loop_summary.nonempty_sizes import Nonempty
from ortfuse.analysis.loop_summary.summary import LoopSummary, summary_of
from ortfuse.ir.refusal import refuse
from ortfuse.ir.traits import MICROSOFT
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds
from ortfuse.transforms.recurrence.elements_and_counters import UnresolvedError
from ortfuse.transforms.recurrence.missed_loop_remarks import forget, leave, multiplied
from ortfuse.transforms.recurrence.recurrent_operator import OLDEST, SLOWER, pays
from ortfuse.transforms.recurrence.sequence_operands import from_front
from ortfuse.transforms.recurrence.values_of_all_iterations import Vectorised


@dataclass(frozen=True)
class VectorizeLoops:
    """Vectorize a Loop or Scan: compute all iterations at once, or by one LSTM, GRU or RNN.

    Attributes:
        always: Also with an operator that is slower than the cells.
        nonempty: Take for granted that Loops run at least once, which cannot be proved of one over a sequence of open length.
    """

    name: ClassVar[str] = "vectorize_loops"
    always: bool = False
    nonempty: bool = False

    def run(self, context: Context) -> int:
        """Replace the loops that can be; returns how many were."""
        forget(context)
        found = [(node, scope) for scope in context.scopes() if scope.opset >= OLDEST for node in scope.graph]
        sizes = Nonempty(context.model.graph, context.facts, context.least_sizes)
        loops = [(node, scope) for node, scope in found if node.op_type in ("Loop", "Scan")]
        count = sum(self._replace(node, scope, sizes, context) for node, scope in loops)
        if count:
            # What is known of the states in the bodies of later loops rests on the sizes of these results, now known.
            context.editor.renew_facts()
        return count

    def _replace(self, node: ir.Node, scope: Scope, sizes: Nonempty, context: Context) -> bool:
        iteration = iteration_of(node, context.facts)
        if iteration is None or node.graph is None:
            if node.op_type == "Loop" and multiplied(node, context.facts):
                leave(node, "", obstacle(node, context.facts), context)
            return False
        has_linear = context.target.supports(MICROSOFT, "LinearAttention", 1, [ir.DataType.FLOAT] * 3)
        summary = summary_of(iteration, context.facts, linear=has_linear)
        kind = "recurrent" if summary.cells or summary.steps else "linear" if summary.is_linear else "elementwise"
        name = f"{VectorizeLoops.name}.{kind}"
        with context.editor.change(name, rule=Rounds(name), nodes=[node]) as change:
            try:
                is_slower = not all(pays(one.kind, one.output, context.facts) for one in summary.cells.values())
                if is_slower and not self.always:
                    raise UnresolvedError(f"{SLOWER} (`vectorize_loops{{always=true}}`)")
                if not self.nonempty and not sizes.surely_runs(node):
                    raise UnresolvedError(_may_not_run(iteration))
                _resolve(summary, scope, context, self.always)
            except UnresolvedError as why:
                change.cancel(refuse("left_out", node, found=str(why)))
                leave(node, summary.kinds, str(why), context)
        if change:
            context.log.statistics(name).hits += 1
        return bool(change)


def _may_not_run(iteration: Iteration) -> str:
    """Return the remark for a loop that may not run at all."""
    runs = f"it runs {iteration.runs} times; --assume {LOOPS_RUN} takes for granted that it does"
    return f"it may not run at all ({runs})"


def _resolve(summary: LoopSummary, scope: Scope, context: Context, always: bool) -> None:
    """Replace the results of a loop that are used, and the loop."""
    iteration = summary.iteration
    build = Builder(scope, context.editor, iteration.node)
    whole = Vectorised(summary, build, context, always)
    replacements = []
    # What is stacked comes first: of a linear state, what is read says which axis is which.
    for stacked in iteration.stacked:
        if stacked.result.uses() or stacked.result.is_graph_output():
            rank = whole.rank(stacked.value) + 1
            replacements.append((stacked.result, from_front(whole.of(stacked.value), stacked.axis, rank, whole.build)))
    changing = {value for value, update in summary.updates.items() if isinstance(update, LinearState)}
    for state in sorted(iteration.states, key=lambda state: state.after in changing):
        if state.final.uses() or state.final.is_graph_output():
            replacements += whole.final(state)
    for old, new in replacements:
        context.editor.replace(old, new)
        producer = old.producer()
        if producer is not None and producer is not iteration.node:
            context.editor.remove(producer)
    context.editor.remove(iteration.node)
