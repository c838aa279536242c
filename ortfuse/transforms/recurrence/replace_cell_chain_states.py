"""Replace the states of a chain of cells, once an operator computes them.

    every h[t] is an element of Y, the last one also Y_h;  the last c is Y_c

Rows that have ended have zeros in Y. If states are kept from there on, they are the final ones (or, in the reverse
direction, the initial ones). A choice of a new state by the same bound is an element of Y.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.masked_selects import Choice, Choices
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.recurrence.cell_chain import Chain


class Results:
    """The values that a chain computes and that can be had from the operator."""

    def __init__(self, chain: Chain, graph: ir.Graph, facts: Facts) -> None:
        self._chain, self._facts, self._choices = chain, facts, Choices(graph, facts)
        self._is_whole = chain.bound(0) is None
        known = [(step, one) for step, (one, _) in enumerate(chain.after) if self._is_whole or one.kept is not None]
        self._hidden = {one.value: step for step, one in known}
        self._chosen = {} if self._is_whole else self._chosen_values()
        last = chain.after[-1][1]
        self._memory = last.value if last is not None and (self._is_whole or last.kept is not None) else None

    @property
    def values(self) -> Collection[ir.Value]:
        """The values, those between others included."""
        return [*self._hidden, *self._chosen, *([] if self._memory is None else [self._memory])]

    def _chosen_values(self) -> Mapping[ir.Value, tuple[int, Choice]]:
        """Return the choices from new states by the bound of their step, besides the states that are kept."""
        found = {}
        for step, cell in enumerate(self._chain.cells):
            for use in cell.output.uses():
                kept = self._choices.choice(use.node.outputs[0])
                if kept is None or (kept.before, kept.bound) != (cell.output, self._chain.bound(step)):
                    continue
                if self._is_zero(kept) or (use.node.op_type == "Where" and self._facts.is_const(kept.behind)):
                    found[use.node.outputs[0]] = step, kept
        return {value: one for value, one in found.items() if value not in self._hidden}

    def dead(self, nodes: Sequence[ir.Node]) -> set[ir.Node]:
        """The nodes, out of some in the order of the graph, that nothing needs if the values come from elsewhere."""
        found, values = set[ir.Node](), {*self.values}
        for node in reversed(nodes):
            if all(output in values or is_used_within(output, found) for output in node.outputs):
                found.add(node)
        return found

    def replacements(
        self, made: Sequence[ir.Value], initial: ir.Value | None, ends: ir.Value | None, dead: Collection[ir.Node],
        direction: int, build: Builder,
    ) -> list[tuple[ir.Value, ir.Value]]:  # fmt: skip
        """The values that live nodes use, each with what it is of the outputs of the operator (Y and the final states)."""
        steps = len(self._chain.cells)
        needed = {value: step for value, step in self._hidden.items() if not is_used_within(value, dead)}
        found = []
        place = range(steps)[::direction]
        if [*needed.values()] == [steps - 1]:
            found += [(value, build.squeeze(made[1], 0)) for value in needed]
        elif needed:
            whole = self._over_steps(made, initial, ends, direction, build)
            found += [(value, build.gather(whole, 0, place[step])) for value, step in needed.items()]
        for value, (step, kept) in self._chosen.items():
            if not is_used_within(value, dead):
                element = build.gather(build.squeeze(made[0], 1), 0, place[step])
                found.append((value, self._chosen_of(value, kept, element, build)))
        if self._memory is not None and not is_used_within(self._memory, dead):
            found.append((self._memory, build.squeeze(made[2], 0)))
        return found

    def _over_steps(
        self, made: Sequence[ir.Value], initial: ir.Value | None, ends: ir.Value | None, direction: int, build: Builder
    ) -> ir.Value:
        """The hidden states behind all steps in the order of the places: [steps, batch, size]."""
        states = build.squeeze(made[0], 1)
        rest = initial if direction < 0 else made[1]
        if ends is None or rest is None:
            return states
        places = build.constant(ir.tensor(np.arange(len(self._chain.cells), dtype=np.int64).reshape(-1, 1, 1)))
        is_before = build.node("Less", [places, build.unsqueeze(ends, 0, 2)])[0]
        return build.node("Where", [is_before, states, rest])[0]

    def _chosen_of(self, value: ir.Value, kept: Choice, element: ir.Value, build: Builder) -> ir.Value:
        """Build the choice with an element of Y in place of the new state."""
        node = value.producer()
        assert node is not None
        if self._is_zero(kept):
            return element
        return build.like(node, [element if operand is kept.before else operand for operand in node.inputs])

    def _is_zero(self, kept: Choice) -> bool:
        return kept.behind is None or self._facts.fill(kept.behind) == 0


def is_used_within(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    """Whether only these nodes use a value."""
    return not value.is_graph_output() and all(use.node in nodes for use in value.uses())
