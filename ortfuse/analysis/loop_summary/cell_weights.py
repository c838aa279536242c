"""The weights of a cell: what its gates multiply the previous hidden state and the inputs by, once it is known which is which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.linear_form import Block, Form, Offset, Source, equal_row
from ortfuse.analysis.loop_summary.recurrent_cell import Activation, Cell

Array: TypeAlias = "np.ndarray[Any, Any]"
Blocks: TypeAlias = tuple[Block, ...]
"""Blocks whose products are added, in a fixed order."""

_NEARLY = 1e-6
_FIRST = 16
"""So many numbers of a constant are compared."""


@dataclass(frozen=True)
class Weights:
    """The common part of all steps of a chain; compared by the constants that it names.

    Attributes:
        kind: The operator.
        size: The size of the hidden state.
        activations: The activations, in the order of the operator.
        recurrent: For each gate, the blocks of the hidden state.
        inputs: For each input, the blocks of each gate.
        offsets: For each gate, what is added.
        reset_offsets: What is added to the form of h that the reset gate of a GRU multiplies; `None` if it multiplies h itself.
        peepholes: For the gates i, o and f of an LSTM, what they multiply the cell state by.
    """

    kind: str
    size: int
    activations: tuple[Activation, ...]
    recurrent: tuple[Blocks, ...]
    inputs: tuple[tuple[Blocks, ...], ...]
    offsets: tuple[tuple[Offset, ...], ...]
    reset_offsets: tuple[Offset, ...] | None
    peepholes: tuple[tuple[Offset, ...], ...]

    def arrays(self, facts: Facts) -> tuple[Array, Array, Array]:
        """The operands W [gates * size, inputs], R [gates * size, size] and B [2 * gates * size] of the operator, in float32."""
        inputs = [np.concatenate([self._of_input(gates, gate, facts) for gates in self.inputs]) for gate in self._gates]
        recurrent = [_sum(blocks, self.size, self.size, facts) for blocks in self.recurrent]
        own = [0.0 * offset for offset in self._offsets(facts)]
        if self.reset_offsets is not None:
            own[-1] = Form((), self.reset_offsets).offset(self.size, facts)
        biases = [*self._offsets(facts), *own]
        made = np.concatenate(inputs, axis=1).T, np.concatenate(recurrent, axis=1).T, np.concatenate(biases)
        return made[0].astype(np.float32), made[1].astype(np.float32), made[2].astype(np.float32)

    def peephole(self, facts: Facts) -> Array | None:
        """The operand P [3 * size] of an LSTM, in float32; `None` if it has none."""
        if not any(self.peepholes):
            return None
        return np.concatenate([Form((), one).offset(self.size, facts) for one in self.peepholes]).astype(np.float32)

    def with_peepholes_of(self, other: Weights, memory: ir.Value | None, facts: Facts) -> Weights:
        """The weights of a step with those peepholes of another that multiply a cell state of 0 here, and so are not seen."""
        if memory is not None and facts.fill(memory) != 0:
            return self
        i, o, f = self.peepholes
        return replace(self, peepholes=(i or other.peepholes[0], o, f or other.peepholes[2]))

    def first_state(
        self, first: Weights, hidden: ir.Value | None, memory: ir.Value | None, facts: Facts
    ) -> Array | None:
        """The hidden state before a first step whose weights are these but for constants that it was multiplied into.

        A vector, 0 if nothing was added; `None` if there is none. `hidden` is what a GRU blends with, `memory` the cell state.
        """
        alike = replace(first, recurrent=self.recurrent, offsets=self.offsets, reset_offsets=self.reset_offsets)
        if alike.with_peepholes_of(self, memory, facts) != self:
            return None
        if any(first.recurrent) or (first.reset_offsets is None) != (self.reset_offsets is None):
            return None
        known = None if hidden is None else _row_of(hidden, facts)
        if hidden is not None and known is None:
            return None
        factors, (mine, rest) = self.arrays(facts)[1].astype(np.float64), self._added(facts)
        other, other_rest = replace(first, recurrent=self.recurrent)._added(facts)
        solved = np.linalg.lstsq(factors, other - mine, rcond=None)[0] if known is None else known.astype(np.float64)
        for state in (np.zeros(self.size), np.broadcast_to(solved, self.size)):
            is_state = known is None or bool((state == known).all())
            if is_state and _are_alike(mine + factors @ state, other) and _are_alike(rest, other_rest):
                return state
        return None

    def _added(self, facts: Facts) -> tuple[Array, Array]:
        """The biases of all gates on products of the hidden state, and the bias of a GRU behind its reset."""
        offsets = self._offsets(facts)
        if self.reset_offsets is None:
            return np.concatenate(offsets), np.zeros(0)
        return np.concatenate([*offsets[:-1], Form((), self.reset_offsets).offset(self.size, facts)]), offsets[-1]

    @property
    def _gates(self) -> range:
        return range(len(self.recurrent))

    def _offsets(self, facts: Facts) -> list[Array]:
        return [Form((), offsets).offset(self.size, facts) for offsets in self.offsets]

    def _of_input(self, gates: tuple[Blocks, ...], gate: int, facts: Facts) -> Array:
        rows = next(block.rows for blocks in gates for block in blocks)
        return _sum(gates[gate], rows[1] - rows[0], self.size, facts)


def weights_of(
    cell: Cell, previous: Source | None, size: int, facts: Facts
) -> tuple[Weights, tuple[Source, ...]] | None:
    """The weights of a cell whose previous hidden state is known (`None`: it is 0), and the inputs in their order.

    `None` if it is no cell of that hidden state: a gate does not depend on it, or depends on the product that is reset
    in a way of its own; or if a gate adds an input that no matrix multiplies.
    """
    recurrent, inputs = [], dict[Source, list[Blocks]]()
    for number, gate in enumerate(cell.gates):
        is_reset = cell.kind == "GRU" and number == len(cell.gates) - 1
        state = previous if not is_reset else None if cell.is_reset is None else Source(cell.is_reset)
        recurrent.append(_of_source(gate, state if previous is not None else None, facts))
        for source in dict.fromkeys(source for source, _ in gate.terms if source != state):
            inputs.setdefault(source, [()] * len(cell.gates))[number] = _of_source(gate, source, facts)
    reset_offsets = None
    if cell.reset is not None:
        recurrent[-1] = _of_source(cell.reset, previous, facts)
        reset_offsets = _in_order(cell.reset.offsets, facts)
        if any(source != previous for source, _ in cell.reset.terms):
            return None
    blocks = [
        block for gate in [*recurrent, *(blocks for gates in inputs.values() for blocks in gates)] for block in gate
    ]
    if any(block.matrix is None or block.columns[1] - block.columns[0] != size for block in blocks) or not inputs:
        return None
    if any(any(recurrent) and not gate for gate in recurrent) or (previous in inputs):
        return None
    i, o, f = cell.peepholes
    ordered = sorted(inputs, key=lambda source: [[_key(block, facts) for block in gate] for gate in inputs[source]])
    return (
        Weights(
            cell.kind,
            size,
            cell.activations,
            tuple(recurrent),
            tuple(tuple(inputs[source]) for source in ordered),
            tuple(_in_order(gate.offsets, facts) for gate in cell.gates),
            reset_offsets,
            (_in_order(i, facts), _in_order(o, facts), _in_order(f, facts)),
        ),
        tuple(ordered),
    )


def _of_source(form: Form, source: Source | None, facts: Facts) -> Blocks:
    return tuple(sorted((block for one, block in form.terms if one == source), key=lambda block: _key(block, facts)))


def _in_order(offsets: tuple[Offset, ...], facts: Facts) -> tuple[Offset, ...]:
    """Offsets in an order that does not depend on the one in which a step adds them, in which others may differ."""
    return tuple(sorted(offsets, key=lambda one: (one.columns, one.factor, *_content(one.value, facts))))


def _key(block: Block, facts: Facts) -> tuple[Any, ...]:
    return block.rows, block.columns, block.transposed, block.factor, *_content(block.matrix, facts)


def _content(value: ir.Value | None, facts: Facts) -> tuple[Any, ...]:
    """A constant by its shape and first numbers; equal ones are one value as a rule, and by name if they are not."""
    array = facts.const(value)
    return () if value is None or array is None else (array.shape, array.flat[:_FIRST].tolist(), value.name or "")


def _sum(blocks: Sequence[Block], rows: int, columns: int, facts: Facts) -> Array:
    """The sum of blocks, [rows, columns]."""
    return sum((block.array(facts) for block in blocks), np.zeros((rows, columns)))


def _are_alike(one: Array, other: Array) -> bool:
    """Whether constants are the same but for rounding."""
    return bool(np.allclose(one, other, rtol=_NEARLY, atol=_NEARLY * float(np.abs(one).max(initial=0))))


def _row_of(state: ir.Value, facts: Facts) -> Array | None:
    """Return the value that all rows of a state have; `None` if that is not known."""
    return np.zeros(1) if facts.fill(state) == 0 else equal_row(facts.const(state))
