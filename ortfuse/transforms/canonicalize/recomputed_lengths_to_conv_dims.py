"""Read lengths that the exporter recomputes from the convolution or pool that has them.

    T = (n - 3) / 2 + 1   with   y = conv(x) of 3 taps and stride 2, x of shape [batch, c, n]   becomes   T = shape(y)[2]

torch.export writes the output sizes of convolutions as arithmetic on the sizes of the input, with divisions that round
towards zero. For inputs that are too short the arithmetic disagrees with the convolutions, so the two are not equal in
all runs. But then the convolution, and with it the run, fails (also for an empty batch). So only runs count in which
every convolution of the graph has sizes of at least 1. A number that is provably equal to a size of a convolution or
pool in these runs is read from there. One operator then computes all sizes of a value, instead of several for each.

Pools prove nothing: the runtime lets them pass if the batch is empty.

Does not handle:  what is in subgraphs or needed by no
output, which need not be executed; lengths that the source itself depends on; open sizes of inputs, which `cse` reads
there; sizes of more than one open size of the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.transfer import symbolic_element_arithmetic
from ortfuse.analysis.transfer.value_fact import Element
from ortfuse.ir.dims import Dim, DimLike, only_atom, positive_from, shifted, symbols
from ortfuse.ir.editor import constant_node
from ortfuse.ir.traits import RESHAPES
from ortfuse.ir.walk import needed_nodes
from ortfuse.transforms.canonicalize.sink_shape_ops import depends_on
from ortfuse.transforms.context import Context

MOST_NODES = 100_000
"""The most nodes above a length."""

_DEEPEST = 200
"""The most nodes in a row that are followed to compute a length."""


@dataclass(frozen=True)
class RecomputedLengthsToConvDims:
    """Replace a computed length by the Shape of a Conv or pool output that provably has this size."""

    name: ClassVar[str] = "recomputed_lengths_to_conv_dims"

    def run(self, context: Context) -> int:
        """Replace what can be replaced; returns the number of lengths."""
        sizes = _Sizes(context)
        changes, left = 0, set[ir.Node]()
        for node in reversed(list(context.model.graph)) if sizes.least else ():
            length = _length(context, node)
            if length is None or all(use.node in left for use in length.uses()):
                left.update([node] * (length is not None))
            elif (found := sizes.found(length)) is not None and _read_off(context, length, found):
                left.add(node)
                changes += 1
        if changes:
            with context.editor.change(self.name):
                context.editor.sort(context.model.graph)
        return changes


class _Least(NamedTuple):
    """The least value of a symbol in a run that succeeds, and the convolution that fails for less."""

    value: int
    convolution: ir.Node


class _Found(NamedTuple):
    """The value that has a size, its axis, and the convolution that proves the size, unless it always holds."""

    source: ir.Node
    axis: int
    witness: ir.Node | None


class _Sizes:
    """The sizes of the convolutions that every run executes, as they are in runs that succeed.

    Attributes:
        least: What is known of the open sizes in the inputs of the model.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        graph = context.model.graph
        windows = [node for node in graph if node.op_type in _WINDOWS and not node.domain]
        needed = set(needed_nodes(graph)) if windows else set[ir.Node]()
        sized = [
            (node, axis, size)
            for node in windows
            for axis, size in enumerate(context.facts.shape(node.outputs[0]) or ())
            if node in needed and axis > 1 and isinstance(size, Dim)
        ]
        self.least: dict[str, _Least] = {}
        for node, _, size in sized:
            start = positive_from(size) if node.op_type == "Conv" else None
            if start is not None and (start[0] not in self.least or self.least[start[0]].value < start[1]):
                self.least[start[0]] = _Least(start[1], node)
        self._sources: dict[tuple[str, DimLike], list[tuple[ir.Node, int]]] = {}
        for node, axis, size in sized:
            for name in symbols(size) & self.least.keys():
                key = name, shifted(size, name, self.least[name].value)
                self._sources.setdefault(key, []).append((node, axis))

    def found(self, length: ir.Value) -> _Found | None:
        """A convolution or pool that does not depend on a length, and has that size in every run that succeeds."""
        element = _integer(self._context, length)
        for name, least in self.least.items():
            value = _shifted_value(self._context, length, name, least.value)
            for node, axis in () if value is None else self._sources.get((name, value), ()):
                shape = self._context.facts.shape(node.outputs[0])
                if shape is not None and not depends_on(node.outputs[0], length):
                    return _Found(node, axis, None if shape[axis] == element else least.convolution)
        return None


_WINDOWS = frozenset({"Conv", "MaxPool", "AveragePool"})

_ARITHMETIC = {
    "Add": symbolic_element_arithmetic.add,
    "Sub": symbolic_element_arithmetic.subtract,
    "Mul": symbolic_element_arithmetic.multiply,
    "Div": symbolic_element_arithmetic.divide_integer,
}


def _length(context: Context, node: ir.Node) -> ir.Value | None:
    """The one integer that a node computes of others, if something may be read in its place."""
    if node.op_type not in _ARITHMETIC or node.domain or len(node.outputs) != 1:
        return None
    value = node.outputs[0]
    if context.facts.dtype(value) is not ir.DataType.INT64 or context.facts.shape(value) not in ((), (1,)):
        return None
    element = _integer(context, value)
    atom = only_atom(element) if isinstance(element, Dim) else None
    is_read = isinstance(element, int) or (atom is not None and not atom.kind)
    return None if value.is_graph_output() or is_read else value


def _integer(context: Context, value: ir.Value) -> Element:
    """The integer in a tensor of one element, as far as it is known."""
    known = context.facts.ints(value)
    return known.elements[0] if known is not None and len(known.elements) == 1 else None


def _shifted_value(context: Context, value: ir.Value | None, name: str, by: int, depth: int = 0) -> DimLike | None:
    """The integer in a tensor of one element, with ``name + by`` in place of the symbol `name`; None if it is unknown.

    Long chains of divisions are too complicated as facts, which hold for short inputs too, and simple from a length on.
    """
    known = context.facts.ints(value)
    if value is None or known is None or len(known.elements) != 1 or depth > _DEEPEST:
        return None
    if (element := known.elements[0]) is not None:
        return shifted(element, name, by)
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type in RESHAPES:
        return _shifted_value(context, node.inputs[0], name, by, depth + 1)
    if node.op_type not in _ARITHMETIC:
        return None
    left, right = [_shifted_value(context, operand, name, by, depth + 1) for operand in node.inputs]
    found = _ARITHMETIC[node.op_type](left, right)
    return found if isinstance(found, int | Dim) else None


def _read_off(context: Context, length: ir.Value, found: _Found) -> bool:
    """Replace the length by a size of what has it, wherever it is used; returns whether that was accepted."""
    index = np.full(() if context.facts.shape(length) == () else (1,), found.axis, np.int64)
    user = length.producer()
    assert user is not None
    editor = context.editor
    witnesses = [] if found.witness is None else list(dict.fromkeys([found.source, found.witness]))
    with editor.change(RecomputedLengthsToConvDims.name, nodes=_integers_above(length), witnesses=witnesses) as change:
        shape = ir.node("Shape", [found.source.outputs[0]])
        place = constant_node(ir.tensor(index))
        made = ir.node("Gather", [shape.outputs[0], place.outputs[0]])
        editor.insert_after(user, shape, place, made)
        editor.replace(length, made.outputs[0])
        editor.remove(user)  # or what computes the same would be merged with it
    return bool(change)


def _integers_above(length: ir.Value) -> list[ir.Node]:
    """The nodes that compute a length from the shapes of tensors."""
    found: dict[ir.Node, None] = {}
    pending = [length.producer()]
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found[node] = None
            if node.op_type not in ("Shape", "Size") and len(found) < MOST_NODES:
                pending += [operand.producer() for operand in node.inputs if operand is not None]
    return list(found)
