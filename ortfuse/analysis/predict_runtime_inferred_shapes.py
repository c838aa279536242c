"""Predict, operator by operator, which shapes ONNX Runtime infers when it optimises a model.

It does no arithmetic with symbols and follows few integers that are computed in the model, so it loses sizes that
`ortfuse.analysis.facts` knows, as behind a Range or a Reshape to [batch, -1, heads]. Only costs may depend on it.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.propagation import Analysis
from ortfuse.analysis.transfer.transfer_function_registry import Op
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Fact, Shape
from ortfuse.ir.dims import DimLike, symbols

READ = {"Expand": 1, "Reshape": 1, "ConstantOfShape": 0}
"""The operators of which the runtime knows the shape that they are told, where it is computed: the input that tells it."""


class Inferred:
    """The shapes of values as the runtime infers them from those of the model's inputs."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._facts: dict[ir.Value, Fact] = {}

    def shape(self, value: ir.Value) -> tuple[DimLike | None, ...] | None:
        """The dimensions, `None` for each that is not known; `None` if the rank is not known."""
        pending = [value]
        while pending and value not in self._facts:
            node = pending[-1].producer()
            needed = () if node is None else [one for one in node.inputs if one is not None and one not in self._facts]
            if needed:
                pending += needed
            else:
                self._infer(pending.pop(), node)
        found = self._facts[value].shape
        return None if found is None else tuple([dim if _is_simple(dim) else None for dim in found])

    def holds(self, old: ir.Value, new: ir.Value) -> bool:
        """Whether what was found still holds when `new` is used instead of `old`."""
        return old not in self._facts or self.shape(old) == self.shape(new)

    def _infer(self, value: ir.Value, node: ir.Node | None) -> None:
        if value in self._facts:
            return
        own = self._analysis.fact(value)
        if node is None or own.is_constant:
            self._facts[value] = own
            return
        version = node.version or self._analysis.imports_of(node).get(node.domain, 1)
        inputs = [None if given is None else self._facts[given] for given in node.inputs]
        told = None if node.domain else READ.get(node.op_type)
        if told is not None and told < len(node.inputs):
            inputs[told] = self._read(node.inputs[told])
        found = self._analysis.apply(Op(node, version, inputs, self._analysis))
        for index, output in enumerate(node.outputs):
            fact = found[index] if index < len(found) else Fact()
            shape = _without_rest(fact.shape, inputs[told]) if told and node.op_type == "Reshape" else fact.shape
            self._facts[output] = Fact(fact.dtype or self._analysis.fact(output).dtype, shape)

    def _read(self, value: ir.Value | None) -> Fact | None:
        """The integers that tell a shape, as far as they are sizes."""
        if value is None:
            return None
        fact = self._analysis.fact(value)
        elements = fact.integers()
        if elements is not None:
            elements = tuple([one if one is not None and _is_simple(one) else None for one in elements])
        return Fact(fact.dtype, fact.shape, elements)


def _is_simple(dim: DimLike) -> bool:
    """Whether a size is a number or has a name."""
    return isinstance(dim, int) or (not dim.fresh and {str(dim)} == symbols(dim))


def _without_rest(shape: Shape | None, told: Fact | None) -> Shape | None:
    """The result of a Reshape without the size at -1, which the runtime computes of numbers alone."""
    elements = None if told is None else told.integers()
    if shape is None or elements is None or len(elements) != len(shape):
        return shape
    pairs = zip(shape, elements, strict=True)
    return tuple([UNKNOWN if element == -1 and not isinstance(dim, int) else dim for dim, element in pairs])
