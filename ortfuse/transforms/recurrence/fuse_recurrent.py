"""Fuse a chain of recurrent cells, left by an unrolled loop over time, into one LSTM, GRU or RNN.

So do chains of operators (see `merge_consecutive`) and operators of both directions (see `fuse_bidirectional`).

Transforms: cells in any spelling that has the same mathematics (see `recurrent_cell`): products of x and h apart or joined, for
one step or for all steps at once, gates in any order, split before or after their activations, with any biases, peepholes and
activations, the forms of the GRU that reset before and after the product, and the update gate with either meaning. The inputs
of the steps may be elements of a sequence along any axis, in rising or falling order, of several sequences that are joined, one
for all steps, or values of any origin. Hidden states that are used elsewhere are elements of the operator's Y. Rows that keep
their states from the end of their length on are sequences of that length (see `masked_selects`).

Does not handle: chains of fewer than `fewest` steps, and of RNN cells for a batch that may be larger than 1, where the operator
does not pay; steps with different weights; cell states between two steps, gates, and new states of rows that have ended, if
they are used elsewhere, of which the operator says nothing; an input that depends on a state; element types other than float32,
for which the runtime has no kernel; sizes of batch and state that are not known to be equal. An open batch size must be at
least 1 when the model runs, as the runtime's kernels do not take 0, and no input may be NaN, which they turn into numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.linear_form import Source
from ortfuse.analysis.loop_summary.recurrent_cell import Cell, is_state
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds
from ortfuse.transforms.recurrence.cell_chain import Chain, chains
from ortfuse.transforms.recurrence.drop_default_operands import drop_needless
from ortfuse.transforms.recurrence.fuse_bidirectional import join_directions
from ortfuse.transforms.recurrence.fuse_time_reversal import turn
from ortfuse.transforms.recurrence.merge_consecutive import join_consecutive
from ortfuse.transforms.recurrence.recurrent_operator import OLDEST, SLOWER, operator, pays
from ortfuse.transforms.recurrence.replace_cell_chain_states import Results
from ortfuse.transforms.recurrence.row_lengths import OLDEST as OLDEST_WITH_LENGTHS
from ortfuse.transforms.recurrence.row_lengths import ends_of_empty_rows, final_states, lengths_vector
from ortfuse.transforms.recurrence.sequence_operands import (
    Track,
    common_direction,
    initial_state,
    is_zero,
    shape_of,
)


@dataclass(frozen=True)
class FuseRecurrent:
    """Fuse unrolled cells, chained operators and the two directions to one LSTM, GRU or RNN.

    Initial states of zeros and lengths of whole sequences are left out, and reversals around operators.

    Attributes:
        fewest: The fewest cells that a chain consists of.
        always: Also where the operator is slower than the cells.
        made: The operators that chains of cells become, separated by spaces.
    """

    name: ClassVar[str] = "fuse_recurrent"
    fewest: int = 3
    always: bool = False
    made: str = "LSTM GRU RNN"

    def run(self, context: Context) -> int:
        """Replace chains of at least `fewest` cells, and what else is to be replaced; returns how many times."""
        scopes = [scope for scope in context.scopes() if scope.opset >= OLDEST]
        steps = (self._replace_within, drop_needless, join_consecutive, turn, join_directions)
        return sum(step(scope, context) for scope in scopes for step in steps)

    def _replace_within(self, scope: Scope, context: Context) -> int:
        count = 0
        # One at a time: where an operator takes the place of a chain, the inputs of the next layer are others.
        while any(
            len(chain.cells) >= self.fewest and self._is_wanted(chain, context) and _replace(chain, scope, context)
            for chain in chains(scope.graph, context.facts)
        ):
            count += 1
        return count

    def _is_wanted(self, chain: Chain, context: Context) -> bool:
        if chain.weights.kind not in self.made.split():
            context.note(f"a chain of {len(chain.cells)} {chain.weights.kind} cells stays as it is, as asked for")
            return False
        if self.always or pays(chain.weights.kind, chain.cells[0].output, context.facts):
            return True
        context.note(
            f"a chain of {len(chain.cells)} RNN cells stays as it is: {SLOWER} (`fuse_recurrent{{always=true}}`)"
        )
        return False


def _replace(chain: Chain, scope: Scope, context: Context) -> bool:
    results = Results(chain, scope.graph, context.facts)
    values = [*results.values, *(value for cell in chain.cells for value in _results(cell))]
    inside = _between(values, _border(chain), context.facts)
    nodes = [node for node in scope.graph if node in inside]
    tracks = [Track.of(sources) for sources in zip(*chain.inputs, strict=True)]
    dead = results.dead(nodes)
    if not _is_legal(chain, scope, context) or not _is_private(chain, dead) or _feeds_back(chain, tracks, scope):
        return False
    place = chain.cells[-1].output.producer()
    assert place is not None
    name = f"{FuseRecurrent.name}.{chain.weights.kind.lower()}"
    with context.editor.change(name, rule=Rounds(name), nodes=nodes) as change:
        build, direction = Builder(scope, context.editor, place), chain.direction or common_direction(tracks)
        made, initial, ends = _operator(chain, tracks, direction, build, context)
        for old, new in results.replacements(made, initial, ends, dead, direction, build):
            context.editor.replace(old, new)
        for node in reversed(nodes):
            if not any(output.uses() or output.is_graph_output() for output in node.outputs):
                context.editor.remove(node)
        context.editor.sort(scope.graph)
    if change:
        context.log.statistics(name).hits += 1
    return bool(change)


def _results(cell: Cell) -> list[ir.Value]:
    """The new states of a cell."""
    return [cell.output] if cell.memory is None else [cell.output, cell.memory[0]]


def _border(chain: Chain) -> set[ir.Value | None]:
    """The values that a chain is computed from, constants apart."""
    initial = {chain.memory, None if chain.hidden is None else chain.hidden.value}
    return initial | {source.value for inputs in chain.inputs for source in inputs}


def _between(values: Sequence[ir.Value], border: Collection[ir.Value | None], facts: Facts) -> set[ir.Node]:
    """The nodes that compute values from those at the border; what computes sizes is left out."""
    found: set[ir.Node] = set()
    pending = list(values)
    while pending:
        node = pending.pop().producer()
        if node is not None and node not in found:
            found.add(node)
            operands = [value for value in node.inputs if value is not None and value not in border]
            pending += [value for value in operands if facts.dtype(value) == ir.DataType.FLOAT]
    return found


def _is_legal(chain: Chain, scope: Scope, context: Context) -> bool:
    """Whether the runtime has the operator for the types, and sizes that must be equal provably are."""
    facts, output = context.facts, chain.cells[0].output
    states = [chain.hidden, None if chain.memory is None else Source(chain.memory)]
    inputs = [source for step in chain.inputs for source in step]
    shape = facts.shape(output)
    after = [one.value for pair in chain.after for one in pair if one is not None]
    if shape is None or len(shape) != 2 or any(facts.shape(value) != shape for value in after):
        return False
    if chain.bound(0) is not None and (
        not chain.direction or scope.opset < OLDEST_WITH_LENGTHS or chain.row is not None
    ):
        return False
    if not all(_is_initial(state, shape, facts) for state in states if state is not None):
        return False
    shapes = [shape_of(source, facts) for source in inputs]
    if any(one is None or len(one) != 2 or one[0] != shape[0] for one in shapes):
        return False
    values = [output, *(source.value for source in (*states, *inputs) if source is not None)]
    if any(facts.dtype(value) != ir.DataType.FLOAT for value in values):
        return False
    return context.target.supports("", chain.weights.kind, scope.opset, [ir.DataType.FLOAT] * 4)


def _is_initial(state: Source, shape: Shape, facts: Facts) -> bool:
    """Whether a source can be an initial state of this shape."""
    return (
        is_zero(state, facts)
        or shape_of(state, facts) == shape
        or (state.axis is None and is_state(state.value, shape, facts))
    )


def _is_private(chain: Chain, dead: Collection[ir.Node]) -> bool:
    """Whether nothing needs what is computed within the cells, nor new states if rows keep others."""
    inner = [node for cell in chain.cells for node in cell.inner]
    if chain.bound(0) is not None:
        inner += [node for cell in chain.cells for value in _results(cell) if (node := value.producer()) is not None]
    return all(node in dead for node in inner)


def _feeds_back(chain: Chain, tracks: Sequence[Track], scope: Scope) -> bool:
    """Whether an input of a step may depend on the state before it; elements of one value cannot, as the first step has it."""
    wanted = {source.value.producer() for track in tracks if track.is_scattered for source in track.sources}
    if (lengths := chain.lengths) is not None:
        wanted.add(lengths.lengths.producer())
    pending = _results(chain.cells[0]) if wanted else []
    seen: set[ir.Node] = set()
    while pending:
        for use in pending.pop().uses():
            if use.node in wanted or use.node.graph is not scope.graph:
                return True
            if use.node not in seen:
                seen.add(use.node)
                pending += use.node.outputs
    return False


def _operator(
    chain: Chain, tracks: Sequence[Track], direction: int, build: Builder, context: Context
) -> tuple[Sequence[ir.Value], ir.Value | None, ir.Value | None]:
    """Y and the final states, the initial hidden state (`None`: it is 0), and the lengths of rows that end before others."""
    facts, lengths = context.facts, chain.lengths
    sequence = build.concat([track.sequence(build, facts, direction) for track in tracks], 2)
    states = [_initial(chain, chain.hidden, sequence, build, facts)]
    if chain.row is not None:
        states = [_repeated(build.constant(ir.tensor(chain.row.astype(np.float32))), chain, sequence, build)]
    if chain.memory is not None:
        states.append(_initial(chain, Source(chain.memory), sequence, build, facts))
    ends = None if lengths is None else lengths_vector(lengths, build.ints([len(chain.cells)]), build)
    counts = None if ends is None else build.node("Cast", [ends], {"to": ir.DataType.INT32})[0]
    made = operator(chain.weights, sequence, counts, states, direction, build, context)
    if lengths is None or ends is None:
        return made, states[0], None
    finals = final_states(made[1:], states, ends_of_empty_rows(lengths, ends, facts), build)
    return [made[0], *finals], states[0], ends


def _initial(chain: Chain, source: Source | None, sequence: ir.Value, build: Builder, facts: Facts) -> ir.Value | None:
    """An initial state as the operator takes it, [1, batch, size]; `None` if it is 0."""
    is_whole = source is None or is_zero(source, facts) or shape_of(source, facts) == facts.shape(chain.cells[0].output)
    if source is None or is_whole:
        return initial_state(source, build, facts)
    return _repeated(source.value, chain, sequence, build)


def _repeated(value: ir.Value, chain: Chain, sequence: ir.Value, build: Builder) -> ir.Value:
    """A constant state for each row of a sequence [steps, batch, inputs]."""
    batch = build.gather(build.node("Shape", [sequence])[0], 0, [1])
    sizes = build.concat([build.ints([1]), batch, build.ints([chain.weights.size])], 0)
    return build.node("Expand", [value, sizes])[0]
