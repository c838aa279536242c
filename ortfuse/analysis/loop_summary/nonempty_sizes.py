"""Sizes that are at least 1 in every run that succeeds, because a node of the main graph fails where they are 0.

    gather(x, -1)      squeeze(x[-1:])      scan(x)      join(what the runs of a loop append to a list)

So a loop over a sequence of open length has run if the last of its results is taken, or those of a loop behind it.
Requirements of the given model hold for all its rewritten forms, even if the failing node is no longer needed.

Does not handle: nodes in bodies and functions, which may not be executed, and those that no output depends on, which
may be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import onnx_ir as ir

from ortfuse.analysis.assumptions import LOOPS_RUN
from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.dims import DimLike, is_positive, positive_from, shifted, symbols
from ortfuse.ir.walk import needed_nodes


class Nonempty:
    """The requirements of a graph on the sizes in its values."""

    def __init__(self, graph: ir.Graph, facts: Facts, known: Mapping[str, int] | None = None) -> None:
        """Compute the demands when they are first asked for.

        Args:
            graph: The main graph.
            facts: What is known of its values.
            known: The least values of symbols that are known already.
        """
        self._graph, self._facts, self._known = graph, facts, known or {}

    def is_positive(self, size: DimLike) -> bool:
        """Whether a size is at least 1 in every run that succeeds."""
        for name in symbols(size) & self._least.keys():
            size = shifted(size, name, self._least[name])
        return is_positive(size)

    def surely_runs(self, holder: ir.Node) -> bool:
        """Whether the body of a loop runs at least once in every run of the model that succeeds."""
        if holder.op_type == "Scan" or LOOPS_RUN in self._facts.assumed:
            return True
        limit, condition = (*holder.inputs, None, None)[:2]
        number = self._facts.ints(limit)
        is_asked = number is not None and all(n is not None and self.is_positive(n) for n in number.elements)
        if (limit is None or is_asked) and (condition is None or bool(self._facts.scalar(condition))):
            return True
        from ortfuse.analysis.loop_summary.loop_structure import (  # for models with loops alone
            fails_if_empty,
            iteration_of,
        )

        iteration = iteration_of(holder, self._facts)
        return iteration is not None and (self.is_positive(iteration.runs) or fails_if_empty(iteration))

    @cached_property
    def _least(self) -> Mapping[str, int]:
        """Symbols, each with the least value that it has in a run that succeeds."""
        found = least_sizes(self._graph, self._facts)
        return {name: max(found.get(name, 0), self._known.get(name, 0)) for name in {*found, *self._known}}


def least_sizes(graph: ir.Graph, facts: Facts) -> dict[str, int]:
    """Symbols in the sizes of a main graph, each with the least value that it has in a run that succeeds."""
    found: dict[str, int] = {}
    for node in needed_nodes(graph):
        for size in _demanded(node, facts):
            if (least := positive_from(size)) is not None:
                found[least[0]] = max(least[1], found.get(least[0], 0))
    return found


def declared_least_sizes(model: ir.Model, facts: Facts) -> dict[str, int]:
    """The least sizes by the names that the model gives them, which outlast changes; none for models without a Loop."""
    if not any(node.op_type == "Loop" for node in model.graph):
        return {}
    return {name: least for name, least in least_sizes(model.graph, facts).items() if not name.startswith("?")}


def _demanded(node: ir.Node, facts: Facts) -> Iterator[DimLike]:
    """Sizes without which a node fails."""
    shape = facts.shape(node.inputs[0]) if node.inputs else None
    if node.domain:
        return
    if node.op_type in ("Loop", "Scan"):
        from ortfuse.analysis.loop_summary.loop_structure import fails_if_empty, iteration_of

        iteration = iteration_of(node, facts)
        if iteration is not None and (node.op_type == "Scan" or fails_if_empty(iteration)):
            yield iteration.runs
    elif node.op_type == "Gather" and shape is not None:
        axis, indices = parameter(node, "axis", facts), facts.shape(node.inputs[1])
        if isinstance(axis, int) and indices is not None and all(map(is_positive, indices)):
            yield shape[axis]
    elif node.op_type == "Squeeze" and shape is not None:
        axes = parameter(node, "axes", facts)
        yield from (shape[axis] for axis in axes or () if isinstance(axis, int))
