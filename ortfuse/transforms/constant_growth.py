"""Growth of a model by constant folding: one bound for a whole optimisation, and an account of it for the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.ir.enumerate_tensors import constant_tensor
from ortfuse.ir.walk import graphs

FREE_BYTES = 1 << 16
"""Bytes by which constants may grow in any model, unless a bound is given."""

SHARE = 20
"""Without a given bound, constants may also grow by this part of what they are in the model as it was."""


@dataclass(frozen=True)
class Grown:
    """A constant that folding made, or would make, larger than the constants that it is computed from.

    Attributes:
        value: The name of the value.
        operator: The operator that computes it.
        bytes: The bytes that it adds.
    """

    value: str
    operator: str
    bytes: int


class Growth:
    """The bytes of the constants of one model on its way through a pipeline.

    Attributes:
        first: The bytes of the constants in use at the start.
        bound: The bytes that folding may add, if the user gave a bound.
        folded: Folded values that made the model grow.
        held_back: Values that the last run of `fold` left to the runtime, because folding them would add too much.
    """

    def __init__(self, model: ir.Model, bound: int | None = None) -> None:
        self.first = self._least = constant_bytes(model)
        self.bound = bound
        self.folded: dict[str, Grown] = {}
        self.held_back: dict[str, Grown] = {}

    def allowance(self, model: ir.Model, bound: int | None) -> int:
        """The bytes that folding may still add; negative if other passes have added more than is allowed.

        The model may grow over the smallest that it has been. Without a `bound` it is what `FREE_BYTES` and `SHARE` say.
        """
        now = constant_bytes(model)
        self._least = min(self._least, now)
        most = FREE_BYTES + self.first // SHARE if bound is None else bound
        return most - (now - self._least)

    def folded_values(self, model: ir.Model) -> list[Grown]:
        """The folded values that the model still has, the largest first."""
        names = {name for graph in graphs(model) for name in graph.initializers}
        names |= {output.name for graph in graphs(model) for node in graph for output in node.outputs if output.name}
        return _largest_first(one for name, one in self.folded.items() if name in names)

    def held_back_values(self, model: ir.Model) -> list[Grown]:
        """The values that are left to the runtime and that the model still has, the largest first."""
        names = {output.name for graph in graphs(model) for node in graph for output in node.outputs}
        return _largest_first(one for name, one in self.held_back.items() if name in names)


def _largest_first(found: Iterable[Grown]) -> list[Grown]:
    return sorted(found, key=lambda one: -one.bytes)


def constant_bytes(model: ir.Model) -> int:
    """The bytes of all constants that something uses, in all graphs and functions; strings do not count."""
    total = 0
    for graph in graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None and (value.uses() or value.is_graph_output()):
                total += _bytes(value.const_value)
        for node in graph:
            if node.op_type == "Constant" and not node.domain and (tensor := constant_tensor(node)) is not None:
                total += _bytes(tensor)
    return total


def _bytes(tensor: ir.TensorProtocol) -> int:
    return 0 if tensor.dtype == ir.DataType.STRING else tensor.nbytes
