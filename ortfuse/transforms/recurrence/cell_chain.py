"""Chains of cells with the same weights, each of which takes the state that the one before leaves: loops unrolled.

Rows may keep their states from their end on (see `masked_selects`): then a cell takes the states that are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.cell_weights import Weights, weights_of
from ortfuse.analysis.loop_summary.linear_form import Forms, Source
from ortfuse.analysis.loop_summary.masked_selects import Bound, Choice, Choices
from ortfuse.analysis.loop_summary.recurrent_cell import Cell, Cells
from ortfuse.transforms.recurrence.sequence_operands import is_zero


@dataclass(frozen=True)
class After:
    """A state behind a step: what the cell makes of it, or what rows keep that have ended."""

    cell: Cell
    value: ir.Value
    kept: Choice | None = None

    @property
    def bound(self) -> Bound | None:
        """The bound from which on it is kept."""
        return self.kept.bound if self.kept is not None and isinstance(self.kept.bound, Bound) else None


@dataclass(eq=False)
class Chain:
    """Steps of one recurrence, in the order in which they are computed.

    Attributes:
        weights: What they have in common.
        cells: The steps.
        inputs: The inputs of each step, in the order of the weights.
        hidden: The hidden state before the first step; `None` if it is 0.
        row: What the hidden state of all rows is before the first step, if that is known by constants alone.
        memory: The cell state of an LSTM before the first step.
        after: The hidden state behind each step, and the cell state of an LSTM.
    """

    weights: Weights
    cells: list[Cell]
    inputs: list[tuple[Source, ...]]
    hidden: Source | None
    memory: ir.Value | None
    row: np.ndarray[Any, Any] | None = None
    after: list[tuple[After, After | None]] = field(default_factory=list)

    def bound(self, step: int) -> Bound | None:
        """The bound of the rows at a step; `None` if no row ends before others."""
        first = self.after[0][0].bound if self.after else None
        return None if first is None else first.further(step * self.direction)

    @property
    def direction(self) -> int:
        """1 if the steps go on along the rows, -1 if they come back; 0 if that is not known, or no row ends before others."""
        bounds = [hidden.bound for hidden, _ in self.after[:2] if hidden.bound is not None]
        return bounds[1].number - bounds[0].number if len(bounds) > 1 else 0

    @property
    def lengths(self) -> Bound | None:
        """The lengths of the rows of the sequence in the order of its places; `None` if all are whole."""
        first = self.bound(0)
        return first if first is None or self.direction >= 0 else first.further(1 - len(self.cells))

    def add(self, cell: Cell, inputs: tuple[Source, ...]) -> None:
        """Add a step at the end."""
        self.cells.append(cell)
        self.inputs.append(inputs)

    def take(self, hidden: After, memory: After | None, forms: Forms) -> bool:
        """Make these the states behind the last step, if they can be: all steps keep states in the same way, or none does."""
        if hidden.cell is not self.cells[-1] or not self.fits(hidden, 0, forms):
            return False
        if memory is not None and (memory.bound != hidden.bound or not self.fits(memory, 1, forms)):
            return False
        self.after.append((hidden, memory))
        return True

    def fits(self, state: After, kind: int, forms: Forms) -> bool:
        """Whether a hidden state (0) or cell state (1) behind the last step is kept as those before it are, if they are."""
        step, first = len(self.after), self.after[0][0].bound if self.after else None
        if state.kept is None or (step and first is None):
            return state.kept is None and first is None
        expected = [self.bound(step)] if step > 1 else [first.further(1), first.further(-1)] if first else [state.bound]
        if state.bound not in expected:
            return False
        before, behind = self._before_last(kind), state.kept.behind
        if behind is None or forms.facts.fill(behind) == 0:
            return is_zero(before, forms.facts)
        return before is not None and forms.source(Source(behind)) == forms.source(before)

    def _before_last(self, kind: int) -> Source | None:
        """The hidden state (0) or cell state (1) before the last step."""
        if self.after:
            held = self.after[-1][kind]
            return None if held is None else Source(held.value)
        return self.hidden if kind == 0 else None if self.memory is None else Source(self.memory)


@dataclass
class _Links:
    """The cells that were met, and the chains that they form so far."""

    graph: ir.Graph
    facts: Facts
    hidden: dict[ir.Value, After] = field(default_factory=dict)
    memory: dict[ir.Value, After] = field(default_factory=dict)
    chains: dict[Cell, Chain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._forms, self._choices = Forms(self.facts), Choices(self.graph, self.facts)

    def add(self, cell: Cell) -> None:
        """Take a cell into the chain that it continues, or start one with the cell before it."""
        for hidden, memory in self._before(cell):
            before, found = hidden.cell, weights_of(cell, Source(hidden.value), self._size(cell), self.facts)
            if found is None:
                continue
            chain = self.chains.get(before) or self._started(before, found[0])
            if chain is None or chain.cells[-1] is not before or chain.weights != found[0]:
                continue
            if not chain.take(hidden, memory, self._forms):
                # Rows are kept from here on, or no longer: this is another chain, which begins with the cell before.
                chain = self._started(before, found[0])
                if chain is None or not chain.take(hidden, memory, self._forms):
                    continue
            chain.add(cell, found[1])
            self.chains[cell] = self.chains[before] = chain
            break
        self.hidden[cell.output] = After(cell, cell.output)
        if cell.memory is not None:
            self.memory[cell.memory[0]] = After(cell, cell.memory[0])

    def keep(self, node: ir.Node) -> None:
        """Take note of a state that rows keep from their end on."""
        kept = self._choices.choice(node.outputs[0]) if self.hidden and len(node.outputs) == 1 else None
        if kept is None:
            return
        for states in (self.hidden, self.memory):
            before = states.get(kept.before)
            if before is not None and before.kept is None:
                states[node.outputs[0]] = After(before.cell, node.outputs[0], kept)

    def finish(self, chain: Chain) -> Chain:
        """The chain with the states behind its last step: those that rows keep, if they keep those of the other steps."""
        last = chain.cells[-1]
        found: list[After | None] = [
            After(last, last.output),
            None if last.memory is None else After(last, last.memory[0]),
        ]
        for kind, states in enumerate((self.hidden, self.memory)):
            kept = [state for state in states.values() if state.cell is last and state.kept is not None]
            found[kind] = next((state for state in kept if chain.fits(state, kind, self._forms)), found[kind])
        hidden, memory = found
        assert hidden is not None
        chain.after.append((hidden, memory))
        return chain

    def _before(self, cell: Cell) -> Iterator[tuple[After, After | None]]:
        """The states behind another cell that a cell may take."""
        sources = dict.fromkeys(source.value for source, _ in cell.gates[0].terms if source.axis is None)
        hidden = [self.hidden[value] for value in sources if value in self.hidden]
        if cell.memory is not None:
            memory = self.memory.get(cell.memory[1])
            if memory is None or (memory.kept is None and not _is_memory_private(memory.cell, cell)):
                return
            alike = [one for one in hidden if (one.cell, one.bound) == (memory.cell, memory.bound)]
            plain = After(memory.cell, memory.cell.output)
            yield from ((one, memory) for one in alike or ([plain] if memory.kept is None else []))
        elif cell.hidden is not None:
            before = self.hidden.get(cell.hidden)
            yield from () if before is None or before.cell.kind != cell.kind else [(before, None)]
        else:
            yield from ((one, None) for one in hidden if one.cell.kind == cell.kind)

    def _started(self, first: Cell, weights: Weights) -> Chain | None:
        """A chain of one cell that has these weights, whatever stands for its previous hidden state."""
        size = self._size(first)
        if first.hidden is not None:
            repeated = [source for source, _ in first.gates[0].terms if _repeats(source, first.hidden)]
            candidates = [self._forms.source(Source(first.hidden)), *repeated]
        else:
            candidates = list(dict.fromkeys(source for gate in first.gates for source, _ in gate.terms))
        memory = None if first.memory is None else first.memory[1]
        for source in candidates:
            found = weights_of(first, source, size, self.facts)
            if found is not None and found[0].with_peepholes_of(weights, memory, self.facts) == weights:
                return Chain(weights, [first], [found[1]], source, memory)
        found = weights_of(first, None, size, self.facts)
        row = None if found is None else weights.first_state(found[0], first.hidden, memory, self.facts)
        if found is None or row is None:
            return None
        return Chain(weights, [first], [found[1]], None, memory, row if row.any() else None)

    def _size(self, cell: Cell) -> int:
        shape = self.facts.shape(cell.output)
        return shape[-1] if shape and isinstance(shape[-1], int) else 0


def _repeats(source: Source, value: ir.Value) -> bool:
    """Whether a source is a value that is repeated for each row."""
    node = source.value.producer()
    return node is not None and node.op_type == "Expand" and not node.domain and node.inputs[0] is value


def _is_memory_private(before: Cell, cell: Cell) -> bool:
    """Whether only the two cells use the cell state between them, of which the operator says nothing."""
    assert before.memory is not None
    value = before.memory[0]
    return not value.is_graph_output() and all(use.node in before.inner | cell.inner for use in value.uses())


def chains(graph: ir.Graph, facts: Facts) -> list[Chain]:
    """The chains of at least two cells in a graph."""
    cells, links = Cells(facts), _Links(graph, facts)
    for node in graph:
        cell = cells.cell(node.outputs[0]) if node.outputs else None
        if cell is not None:
            links.add(cell)
        else:
            links.keep(node)
    return [links.finish(chain) for chain in dict.fromkeys(links.chains.values())]
