"""Decide which constant results become constants of the model, and which the runtime goes on computing.

A region is a set of nodes that compute constants from constants. Its results are the values that other nodes need. A result
costs its bytes, less those of the constants that nothing needs once it is folded. Two kinds of results stay computed:

- a *decompressed weight*: a floating-point result that is larger than a matrix of a narrower type that it is computed from.
  Examples are Cast and Mul of an int8 weight, and Cast of a float16 one. The file would be two to eight times as large;
- a result that exceeds the bytes that are left. The smallest ones are folded first.

If a result stays computed, its operands are the results in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts

UNCOUNTED_BYTES = 256
"""Results of at most this many bytes, which replace nodes that take as much room, do not count as growth."""

_SMALL_WEIGHT_BYTES = 4096
"""Decompressed weights of at most this many bytes are results like others."""

_MOST_ROUNDS = 16
"""After so many rounds the results that are over the bound are left to the check of each result."""

Bytes = Callable[[ir.Value], "int | None"]


class Plan:
    """The nodes of a region to fold.

    Args:
        region: The nodes in topological order.
        facts: What is known about values.
        size: The bytes of a value; `None` if they are not known.
        goes: Whether a constant is not needed any more if the nodes of a set are gone.
        allowed: The bytes that all results together may add.
        decompresses: Whether decompressed weights may be folded.

    Attributes:
        computed: Nodes of the region that stay, each with the bytes that folding it would add.
    """

    def __init__(
        self,
        region: Sequence[ir.Node],
        facts: Facts,
        size: Bytes,
        goes: Callable[[ir.Value, Callable[[ir.Node], bool]], bool],
        *,
        allowed: int,
        decompresses: bool,
    ) -> None:
        self._order, self._members = region, set(region)
        self._facts, self._size, self._goes = facts, size, goes
        self.computed: dict[ir.Node, int] = {}
        narrow = {} if decompresses else self._narrow_sources()
        for _ in range(_MOST_ROUNDS):
            found = self._results(narrow)
            over = _over(found, allowed)
            if not over:
                break
            self.computed.update(over)

    def is_needed(self, value: ir.Value) -> bool:
        """Whether something needs the value once the region is folded as planned."""
        return value.is_graph_output() or any(not self._is_gone(use.node) for use in value.uses())

    def results(self, node: ir.Node) -> list[ir.Value]:
        """The outputs of a node of the region that are to become constants."""
        return [] if node in self.computed else [output for output in node.outputs if self.is_needed(output)]

    def evaluated(self) -> list[ir.Node]:
        """The nodes that compute what is to become constant, in topological order."""
        wanted: set[ir.Node] = set()
        for node in reversed(self._order):
            if node in wanted or self.results(node):
                wanted.add(node)
                wanted.update(made for value in node.inputs if value is not None and (made := self._maker(value)))
        return [node for node in self._order if node in wanted]

    def held_back(self) -> Iterable[tuple[ir.Node, int]]:
        """The nodes that stay computed and whose results others need, with the bytes that folding them would add."""
        return (
            (node, size)
            for node, size in self.computed.items()
            if any(
                out.is_graph_output() or any(use.node not in self.computed for use in out.uses())
                for out in node.outputs
            )
        )

    def _is_gone(self, node: ir.Node) -> bool:
        return node in self._members and node not in self.computed

    def _maker(self, value: ir.Value) -> ir.Node | None:
        producer = value.producer()
        return producer if producer in self._members else None

    def _narrow_sources(self) -> dict[ir.Node, int]:
        """For each node, the bytes of the largest matrix of narrow numbers that its results are computed from."""
        found: dict[ir.Node, int] = {}
        for node in self._order:
            sizes = [0]
            for value in node.inputs:
                if value is not None:
                    maker = self._maker(value)
                    sizes.append(self._narrow_bytes(value) if maker is None else found[maker])
            found[node] = max(sizes)
        return found

    def _narrow_bytes(self, value: ir.Value) -> int:
        dtype, shape = self._facts.dtype(value), self._facts.shape(value)
        if dtype is None or shape is None or dtype == ir.DataType.BOOL or dtype.bitwidth >= 32:
            return 0
        is_matrix = sum(dim != 1 for dim in shape) > 1
        return (self._size(value) or 0) if is_matrix else 0

    def _results(self, narrow: Mapping[ir.Node, int]) -> dict[ir.Node, int]:
        """The nodes whose results become constants, with the bytes that they add; users before producers."""
        found: dict[ir.Node, int] = {}
        freed: set[ir.Value] = set()
        for node in reversed(self._order):
            results = self.results(node)
            if not results:
                continue
            added = sum(self._size(output) or 0 for output in results)
            growth = 0 if added <= UNCOUNTED_BYTES else added - self._freed_bytes(node, freed)
            if growth > 0 and self._is_decompressed(results, added, narrow.get(node, 0)):
                self.computed[node] = growth
            else:
                found[node] = growth
        return found

    def _is_decompressed(self, results: Iterable[ir.Value], added: int, narrow: int) -> bool:
        dtypes = [self._facts.dtype(output) for output in results]
        floating = any(dtype is not None and dtype.is_floating_point() for dtype in dtypes)
        return 0 < narrow < added and added > _SMALL_WEIGHT_BYTES and floating

    def _freed_bytes(self, node: ir.Node, freed: set[ir.Value]) -> int:
        """The bytes of the constants that only the folded part of the region needs, counted once."""
        total = 0
        pending = [value for value in node.inputs if value is not None]
        while pending:
            value = pending.pop()
            if value in freed or not self._goes(value, self._is_gone):
                continue
            freed.add(value)
            maker = self._maker(value)
            if maker is not None:
                pending += [operand for operand in maker.inputs if operand is not None]
            else:
                total += self._size(value) or 0
        return total


def _over(found: Mapping[ir.Node, int], allowed: int) -> dict[ir.Node, int]:
    """The results that the allowed bytes do not suffice for."""
    over: dict[ir.Node, int] = {}
    left = allowed - sum(growth for growth in found.values() if growth < 0)
    for node, growth in sorted(found.items(), key=lambda item: item[1]):
        if growth > 0 and growth > left:
            over[node] = growth
        elif growth > 0:
            left -= growth
    return over
