"""Unroll Loops and Scans of few iterations, so that rules see their bodies.

    loop(3, s -> f(s))   =   f(f(f(s)))

Transforms: loops with a provably fixed number of iterations, at most `runs`, whose iterations have at most `nodes` nodes
together.

Does not handle: loops whose condition may end them, and bodies that hold graphs themselves. An If whose condition depends on
the iteration number alone is no obstacle: each iteration keeps one of its branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.loop_structure import Iteration, iteration_of
from ortfuse.ir.walk import Scope, nested_nodes, subgraphs
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder

_FARTHEST = 16
"""How many values the condition of an If may be computed of."""


@dataclass(frozen=True)
class UnrollLoops:
    """Unroll Loops and Scans of few iterations.

    Attributes:
        runs: The most runs of a loop that is replaced.
        nodes: The most nodes that all of its runs together may have.
    """

    name: ClassVar[str] = "unroll_loops"
    runs: int = 8
    nodes: int = 64

    def run(self, context: Context) -> int:
        """Unroll loops; returns how many. A loop around another is met by the next run."""
        found = [(node, scope) for scope in context.scopes() for node in scope.graph]
        return sum(self._unroll(node, scope, context) for node, scope in found if node.op_type in ("Loop", "Scan"))

    def _unroll(self, node: ir.Node, scope: Scope, context: Context) -> bool:
        iteration = iteration_of(node, context.facts)
        if iteration is None or node.graph is None or not isinstance(iteration.runs, int):
            return False
        body, runs = iteration.body, iteration.runs
        if not 0 < runs <= self.runs or runs * (len(body) + _nested(body)) > self.nodes:
            return False
        if not all(_is_known_in_each_run(inner, iteration, context.facts) for inner in body if subgraphs(inner)):
            return False
        with context.editor.change(UnrollLoops.name, nodes=[node]) as change:
            for old, new in zip(node.outputs, _runs(iteration, runs, scope, context), strict=True):
                if new is not None:
                    context.editor.replace(old, new)
            context.editor.remove(node)
        return bool(change)


def _nested(body: ir.Graph) -> int:
    """The number of nodes in the graphs within a body."""
    return sum(1 for node in body for _ in nested_nodes(node))


def _is_known_in_each_run(node: ir.Node, iteration: Iteration, facts: Facts) -> bool:
    """Whether a node is an If whose condition is computed of the number of the run of a Loop, and of constants."""
    if node.op_type != "If" or node.domain or iteration.node.op_type != "Loop":
        return False
    counter, pending = iteration.body.inputs[0], [node.inputs[0]]
    for _ in range(_FARTHEST):
        value = pending.pop()
        maker = None if value is None else value.producer()
        if value is None or (maker is None and value is not counter and not facts.is_const(value)):
            return False
        if maker is not None and not facts.is_const(value):
            if maker.graph is not iteration.body or subgraphs(maker):
                return False
            pending += maker.inputs
        if not pending:
            return True
    return False


def _runs(iteration: Iteration, runs: int, scope: Scope, context: Context) -> list[ir.Value | None]:
    """The runs of a body, before the loop; returns the results of the loop that are used."""
    build, body = Builder(scope, context.editor, iteration.node), iteration.body
    states = [state.initial for state in iteration.states]
    stacked: list[list[ir.Value]] = [[] for _ in iteration.stacked]
    for number in range(runs):
        given = _given(iteration, states, number, build)
        results = list(context.editor.insert_copy(iteration.node, body, given) or [])
        if iteration.node.op_type == "Loop":
            results = results[1:]
        states = results[: len(states)]
        for found, result in zip(stacked, results[len(states) :], strict=True):
            found.append(result)
    last: list[ir.Value | None] = list(states)
    for one, found in zip(iteration.stacked, stacked, strict=True):
        is_used = bool(one.result.uses()) or one.result.is_graph_output()
        parts = [build.unsqueeze(value, one.axis) for value in found] if is_used else []
        last.append(build.concat(parts[:: -1 if iteration.is_reverse else 1], one.axis) if parts else None)
    return last


def _given(iteration: Iteration, states: Sequence[ir.Value], number: int, build: Builder) -> list[ir.Value]:
    """Return the values of the body's inputs in one iteration."""
    node = iteration.node
    if node.op_type == "Loop":
        counters = [np.array(number, np.int64), np.array(True)]
        ranks = [0 if formal.shape is None else len(formal.shape) for formal in iteration.body.inputs[:2]]
        shaped = [array.reshape([1] * rank) for array, rank in zip(counters, ranks, strict=True)]
        return [*(build.constant(ir.tensor(array)) for array in shaped), *states]
    assert isinstance(iteration.runs, int)
    place = iteration.runs - 1 - number if iteration.is_reverse else number
    elements = [iteration.elements[value] for value in iteration.body.inputs[len(states) :]]
    return [*states, *(build.gather(one.value, one.axis or 0, place) for one in elements)]
