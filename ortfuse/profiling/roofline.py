"""Compute FLOPs, bytes and the roofline time of executed nodes at their observed sizes.

The roofline model: Williams, Waterman and Patterson, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.costs import cost_of
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.ir.dims import DimLike
from ortfuse.profiling.profiler_trace import Calls, Executed, Tensor
from ortfuse.runtime.bench.machine_peaks import Peaks

_TYPES = {"float": ir.DataType.FLOAT, "double": ir.DataType.DOUBLE}


@dataclass(frozen=True)
class Work:
    """The work of a node in a run.

    Attributes:
        flops: Operations; `None` if they are not known.
        bytes: Bytes read and written.
    """

    flops: int | None
    bytes: int

    def seconds(self, peaks: Peaks) -> float:
        """The least time."""
        return peaks.seconds(self.flops or 0, self.bytes)

    def bound(self, peaks: Peaks) -> str:
        """The limit of a node: `compute` or `memory`, also of what does neither, such as a change of shape alone."""
        return "compute" if (self.flops or 0) > self.bytes * peaks.ridge else "memory"


def works(nodes: Sequence[Executed], graph: ir.Model | None) -> dict[str, Work]:
    """The work of each node by name, as far as it is known."""
    if graph is None:
        return {}
    by_name = {node.name: node for node in graph.graph.all_nodes()}
    found = {}
    for one in nodes:
        node = by_name.get(one.name)
        work = None if node is None else _work(node, one)
        if work is not None:
            found[one.name] = work
    return found


def _work(node: ir.Node, seen: Executed) -> Work | None:
    """The work of all executions in a run, each at its own sizes; `None` if that of one is not known."""
    flops, moved, count = 0, 0, 0
    known = True
    for calls in seen.sizes:
        once = _work_once(node, calls)
        if once is None:
            return None
        known = known and once.flops is not None
        flops += (once.flops or 0) * calls.count
        moved += once.bytes * calls.count
        count += calls.count
    return Work(flops * seen.calls // count if known else None, moved * seen.calls // count) if count else None


def _work_once(node: ir.Node, calls: Calls) -> Work | None:
    values = _Seen(node, calls)
    cost = cost_of(node, values)
    if cost is None:
        moved = values.bytes()
        return None if moved is None else Work(None, moved)
    if not all(isinstance(number, int) for number in (cost.flops, cost.bytes)):
        return None
    return Work(_number(cost.flops), _number(cost.bytes))


def _number(dim: DimLike) -> int:
    assert isinstance(dim, int)
    return dim


class _Seen:
    """The types and shapes of a node's values in an execution; constants have those of the graph."""

    def __init__(self, node: ir.Node, calls: Calls) -> None:
        self._known: dict[ir.Value, tuple[ir.DataType, Shape]] = {}
        self._pair([value for value in node.inputs if value is not None and value.name], calls.inputs)
        self._pair([value for value in node.outputs if value.name], calls.outputs)

    def _pair(self, values: Sequence[ir.Value], told: Sequence[Tensor]) -> None:
        """Take over what the runtime tells. It frees weights that it has repacked, and then does not tell those."""
        found: dict[ir.Value, tuple[ir.DataType, Shape]] = {}
        waiting = list(told)
        for value in values:
            tensor = value.const_value
            if tensor is not None:
                found[value] = tensor.dtype, tuple(tensor.shape.numpy())
            if waiting and (tensor is None or waiting[0][1] == found[value][1]):
                name, shape = waiting.pop(0)
                dtype = _dtype(name)
                if dtype is not None:
                    found[value] = dtype, shape
        if not waiting:
            self._known |= found

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The shape."""
        found = None if value is None else self._known.get(value)
        return None if found is None else found[1]

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type."""
        found = None if value is None else self._known.get(value)
        return None if found is None else found[0]

    def bytes(self) -> int | None:
        """The bytes of all values; `None` if nothing is known of any."""
        return sum(_bytes(*one) for one in self._known.values()) if self._known else None


def _dtype(name: str) -> ir.DataType | None:
    return _TYPES.get(name) or ir.DataType.__members__.get(name.upper())


def _bytes(dtype: ir.DataType, shape: Sequence[DimLike]) -> int:
    elements = 1
    for dim in shape:
        elements *= _number(dim)
    return 0 if dtype == ir.DataType.STRING else elements * int(dtype.bitwidth) // 8
