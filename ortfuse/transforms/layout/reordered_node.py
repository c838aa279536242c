"""Draft of a node for another axis order: a copy whose operands and attributes are changed before it is built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.editor import Editor
from ortfuse.ir.traits import PARAMETER_INPUTS
from ortfuse.transforms.cleanup.fold_constant_movement import LAZY_BYTES, MovedTensor, move
from ortfuse.transforms.layout.permutation import Order, restricted


class Draft:
    """A copy of a node that is not built yet.

    Attributes:
        node: The node that is copied.
        operator: The operator of the copy.
        operands: The operands of the copy.
        settings: Its attributes.
        before: Nodes that are to stand before it.
    """

    def __init__(self, node: ir.Node, facts: Facts, editor: Editor) -> None:
        self.node, self._facts, self._editor = node, facts, editor
        self.operator = node.op_type
        self.operands: list[ir.Value | None] = list(node.inputs)
        self.settings = dict(node.attributes)
        self.before: list[ir.Node] = []

    def build(self) -> ir.Node:
        """The copy."""
        node = self.node
        return ir.Node(
            node.domain,
            self.operator,
            self.operands,
            list(self.settings.values()),
            num_outputs=len(node.outputs),
            version=node.version,
            name=node.name,
        )

    def becomes(self, operator: str) -> None:
        """Make it a node of another operator, without attributes."""
        self.operator, self.settings = operator, {}

    def ints(self, numbers: Sequence[int], dtype: Any = np.int64) -> ir.Value:
        """A vector of integers."""
        made = self._editor.add_constant(self.node, ir.Tensor(np.asarray(numbers, dtype)))
        assert made is not None
        return made

    def attribute(self, name: str, value: int | Sequence[int]) -> None:
        """Set an attribute of integers."""
        if isinstance(value, int):
            self.settings[name] = ir.AttrInt64(name, value)
        else:
            self.settings[name] = ir.AttrInt64s(name, tuple(value))

    def parameter(self, name: str, numbers: Sequence[int] | int) -> None:
        """Set a parameter where it was: as an attribute, or as an input of the type that it had."""
        position = PARAMETER_INPUTS.get(self.node.op_type, {}).get(name)
        given = position is not None and position < len(self.operands) and self.operands[position] is not None
        if position is None or name in self.settings or not given:
            self.attribute(name, numbers)
        else:
            self.integers(position, numbers)

    def integers(self, position: int, numbers: Sequence[int] | int, like: int | None = None) -> None:
        """Set an input of integers, of the type that it had or that the input `like` has."""
        dtype = self._facts.dtype(self.node.inputs[position if like is None else like])
        self.operands += [None] * (position + 1 - len(self.operands))
        self.operands[position] = self.ints(numbers, np.int32 if dtype == ir.DataType.INT32 else np.int64)  # type: ignore[arg-type]

    def permute(self, position: int, order: Order) -> None:
        """Permute an input that holds a number for each axis."""
        value = self.operands[position]
        array = self._facts.const(value)
        if array is not None:
            self.operands[position] = self._editor.add_constant(self.node, ir.Tensor(array[list(order)]))
            return
        made = ir.node("Gather", [value, self.ints(order)])
        self.before.append(made)
        self.operands[position] = made.outputs[0]

    def move_constant(self, position: int, order: Order, *, whole: bool) -> None:
        """Move the axes of a constant operand that is broadcast to the axes that `order` moves.

        Args:
            position: The operand.
            order: The order in which the axes of the result lie.
            whole: Whether the operand must keep all axes; otherwise leading ones of size 1 are left out.
        """
        value = self.operands[position]
        shape = self._facts.shape(value)
        assert shape is not None
        sizes = [int(size) for size in shape]  # type: ignore[arg-type]
        if math.prod(sizes) == 1 and not whole:
            return
        rank = len(order)
        full = [1] * (rank - len(sizes)) + sizes
        target = [full[axis] for axis in order]
        while not whole and target and target[0] == 1:
            target.pop(0)
        own = restricted(order, range(rank - len(sizes), rank))
        self.operands[position] = self._editor.add_constant(self.node, self._moved(value, own, tuple(target)))

    def move_rows(self, position: int, sizes: Sequence[int], order: Sequence[int], *, by_column: bool) -> None:
        """Move the rows of a constant matrix as the axes of these sizes are moved that number them; or its columns."""
        value = self.operands[position]
        shape = self._facts.shape(value)
        assert value is not None and shape is not None
        other = int(shape[0 if by_column else 1])  # type: ignore[arg-type]
        split = (other, *sizes) if by_column else (*sizes, other)
        perm = (0, *(axis + 1 for axis in order)) if by_column else (*order, len(sizes))
        tensor = self._tensor(value)
        apart = MovedTensor(tensor, None, split)
        whole = tuple(int(size) for size in shape)  # type: ignore[arg-type]
        if tensor.nbytes >= LAZY_BYTES:
            made: ir.TensorProtocol = MovedTensor(apart, perm, whole)
        else:
            made = ir.Tensor(move(apart.numpy(), perm, whole), dtype=tensor.dtype)
        self.operands[position] = self._editor.add_constant(self.node, made)

    def _tensor(self, value: ir.Value) -> ir.TensorProtocol:
        tensor = value.const_value if value.is_initializer() else None
        if tensor is None:
            array = self._facts.const(value)
            assert array is not None
            tensor = ir.Tensor(array)
        return tensor

    def _moved(self, value: ir.Value | None, order: Order, shape: tuple[int, ...]) -> ir.TensorProtocol:
        assert value is not None
        tensor = self._tensor(value)
        if tensor.nbytes >= LAZY_BYTES:
            return MovedTensor(tensor, order, shape)
        return ir.Tensor(move(tensor.numpy(), order, shape), dtype=tensor.dtype)

    def align(self, position: int, axes: Sequence[int], order: Order) -> None:
        """Insert axes of size 1 into an operand with fewer axes, so that its axes meet theirs where all lie in `order`."""
        places = [place for place, axis in enumerate(order) if axis in axes]
        if not places:
            return
        first = places[0]
        missing = [place - first for place in range(first, len(order)) if place not in places]
        if not missing:
            return
        operand = self.operands[position]
        if self._facts.version(self.node) >= 13:
            made = ir.node("Unsqueeze", [operand, self.ints(missing)])
        else:
            made = ir.node("Unsqueeze", [operand], {"axes": missing})
        self.before.append(made)
        self.operands[position] = made.outputs[0]
