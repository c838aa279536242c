"""Operators that only move the elements of a constant: folded without computing anything, when they are looked at.

Transpose, Reshape, Flatten, Squeeze and Unsqueeze of a constant are the constant seen differently. For a large weight
the result is a tensor that is moved when it is read, so that folding the transposed weights of a model costs no time
and no memory, and a model that is larger than the memory can still be folded and saved.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.facts import Facts

LAZY_BYTES = 1 << 16
"""Size from which on a constant is moved when it is read instead of at once."""

Array = np.ndarray[Any, Any]

_RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


class MovedTensor(ir.LazyTensor):
    """`source` with its axes permuted and then reshaped, computed anew each time that it is read."""

    def __init__(self, source: ir.TensorProtocol, permutation: tuple[int, ...] | None, shape: tuple[int, ...]) -> None:
        super().__init__(self._moved, dtype=source.dtype, shape=ir.Shape(shape))
        self.source, self.permutation, self.target = source, permutation, shape
        inner: Hashable = source.key if isinstance(source, MovedTensor) else id(source)
        self.key: Hashable = (inner, permutation, shape)
        """Equal for tensors that are the same source moved in the same way."""

    def _moved(self) -> ir.Tensor[Array]:
        return ir.Tensor(move(self.source.numpy(), self.permutation, self.target), dtype=self.dtype)


def move(array: Array, permutation: tuple[int, ...] | None, shape: tuple[int, ...]) -> Array:
    """The array with its axes permuted, then reshaped; contiguous."""
    moved = array if permutation is None else array.transpose(permutation)
    return np.ascontiguousarray(moved).reshape(shape)


def moved_constant(node: ir.Node, facts: Facts) -> ir.TensorProtocol | None:
    """What the node makes of its constant input, if all it does is to move the elements; else `None`."""
    if node.domain or (node.op_type != "Transpose" and node.op_type not in _RESHAPING):
        return None
    source, tensor = node.inputs[0], None
    if source is not None and source.is_initializer() and not source.is_graph_input():
        tensor = source.const_value
    shape = facts.shape(node.outputs[0])
    if tensor is None or tensor.dtype == ir.DataType.STRING or shape is None:
        return None
    static = tuple(dim for dim in shape if isinstance(dim, int))
    if len(static) != len(shape) or math.prod(static) != tensor.size:
        return None
    permutation = _permutation(node, len(shape)) if node.op_type == "Transpose" else None
    if tensor.nbytes >= LAZY_BYTES:
        return MovedTensor(tensor, permutation, static)
    return ir.Tensor(move(tensor.numpy(), permutation, static), dtype=tensor.dtype)


def _permutation(node: ir.Node, rank: int) -> tuple[int, ...]:
    attribute = node.attributes.get("perm")
    return tuple(reversed(range(rank))) if attribute is None else tuple(attribute.as_ints())
