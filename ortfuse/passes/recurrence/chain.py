"""Chains of cells with the same weights, each of which takes the state that the one before leaves: loops unrolled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.passes.recurrence.cell import Cell, Cells
from ortfuse.passes.recurrence.form import Source
from ortfuse.passes.recurrence.weights import Weights, weights_of


@dataclass(eq=False)
class Chain:
    """Steps of one recurrence, in the order in which they are computed.

    Attributes:
        weights: What they have in common.
        cells: The steps.
        inputs: The inputs of each step, in the order of the weights.
        hidden: The hidden state before the first step; `None` if it is 0.
        memory: The cell state of an LSTM before the first step.
    """

    weights: Weights
    cells: list[Cell]
    inputs: list[tuple[Source, ...]]
    hidden: Source | None
    memory: ir.Value | None

    def add(self, cell: Cell, inputs: tuple[Source, ...]) -> None:
        """Add a step at the end."""
        self.cells.append(cell)
        self.inputs.append(inputs)


@dataclass
class _Links:
    """The cells that were met, and the chains that they form so far."""

    facts: Facts
    by_output: dict[ir.Value, Cell] = field(default_factory=dict)
    by_memory: dict[ir.Value, Cell] = field(default_factory=dict)
    chains: dict[Cell, Chain] = field(default_factory=dict)

    def add(self, cell: Cell) -> None:
        """Take a cell into the chain that it continues, or start one with the cell before it."""
        self.by_output[cell.output] = cell
        if cell.memory is not None:
            self.by_memory[cell.memory[0]] = cell
        for before in self._before(cell):
            found = weights_of(cell, Source(before.output), self._size(cell))
            chain = None if found is None else self.chains.get(before) or self._started(before, found[0])
            if chain is not None and found is not None and chain.cells[-1] is before and chain.weights == found[0]:
                chain.add(cell, found[1])
                self.chains[cell] = self.chains[before] = chain
                return

    def _before(self, cell: Cell) -> Iterator[Cell]:
        """The cells whose state a cell may take."""
        found: Iterable[Cell | None] = ()
        if cell.memory is not None:
            before = self.by_memory.get(cell.memory[1])
            found = [before if before is not None and _is_memory_private(before, cell) else None]
        elif cell.hidden is not None:
            found = [self.by_output.get(cell.hidden)]
        else:
            found = [self.by_output.get(source.value) for source, _ in cell.gates[0].terms if source.axis is None]
        yield from (one for one in dict.fromkeys(found) if one is not None and one.kind == cell.kind)

    def _started(self, first: Cell, weights: Weights) -> Chain | None:
        """A chain of one cell that has these weights, whatever stands for its previous hidden state."""
        size = self._size(first)
        if first.hidden is not None:
            candidates = [Cells(self.facts).forms.source(Source(first.hidden))]
        else:
            candidates = list(dict.fromkeys(source for gate in first.gates for source, _ in gate.terms))
        memory = None if first.memory is None else first.memory[1]
        for source in candidates:
            found = weights_of(first, source, size)
            if found is not None and found[0] == weights:
                return Chain(weights, [first], [found[1]], source, memory)
        if first.hidden is not None and self.facts.fill(first.hidden) != 0:
            return None
        found = weights_of(first, None, size)
        if found is not None and weights.starts_from_zero(found[0], self.facts):
            return Chain(weights, [first], [found[1]], None, memory)
        return None

    def _size(self, cell: Cell) -> int:
        shape = self.facts.shape(cell.output)
        return shape[-1] if shape and isinstance(shape[-1], int) else 0


def _is_memory_private(before: Cell, cell: Cell) -> bool:
    """Whether only the two cells use the cell state between them, of which the operator says nothing."""
    assert before.memory is not None
    value = before.memory[0]
    return not value.is_graph_output() and all(use.node in before.inner | cell.inner for use in value.uses())


def chains(graph: ir.Graph, facts: Facts) -> list[Chain]:
    """The chains of at least two cells in a graph."""
    cells, links = Cells(facts), _Links(facts)
    for node in graph:
        cell = cells.cell(node.outputs[0]) if node.outputs else None
        if cell is not None:
            links.add(cell)
    return list(dict.fromkeys(links.chains.values()))
