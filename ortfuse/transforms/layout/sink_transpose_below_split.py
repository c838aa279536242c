"""Sink a Transpose or Reshape below the Split, Slice or Gather nodes that unbind its result.

    split(transpose(x)) = transpose(split(x))          split(reshape(x)) = reshape(split(x))
    squeeze(transpose(x)) = transpose(squeeze(x))      squeeze(reshape(x)) = reshape(x)

Queries, keys and values often come as one tensor, [batch, length, 3 * heads * size]. It is reshaped to [batch, length, 3, heads,
size], transposed as a whole, and then unbound. Unbound first, each of them is a plain [batch, length, heads * size], as
attention operators expect. The remaining Transpose has one axis of size 1 less. The runtime transposes five axes, one of them of
size 1, several times slower than the other four.

A Transpose or Reshape is sunk below its users if all of them select parts. These are Split, Slice and Gather of single
elements of one axis, no element twice, and Squeeze. A Reshape must have a constant target. It must split the unbound
axis off the front of an axis of its input, or off the columns of a product with constants. These are then put in order
(`permute_qkv_weights`).

Does not handle:

- results that are graph outputs;
- parts of several elements: halves of heads are for the rules of rotary embeddings;
- opsets in which the target of a Reshape is an attribute;
- a Squeeze that undoes an Unsqueeze on the other side of the Transpose, as a rule spells it on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.editor import Editor
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context, version_in
from ortfuse.transforms.fold_linear.permute_qkv_weights import put_in_order
from ortfuse.transforms.node_builder import Builder

MOST_PARTS = 4
"""The most parts of one tensor, each of which is moved by a node of its own: queries, keys and values are three."""

OLDEST = 5
"""The opset from which on the target of a Reshape is an input."""


@dataclass(frozen=True)
class _Parts:
    """The elements that a node reads of its input: single elements of an axis, one per output, or all but some axes of size 1.

    Attributes:
        node: The node.
        axis: The axis that is unbound; `None` for a Squeeze.
        elements: The element that each output is.
        dropped: The axes that the outputs do not have any more.
    """

    node: ir.Node
    axis: int | None
    elements: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class SinkTransposeBelowSplit:
    """Sink Transpose and Reshape below the Split, Slice or Gather nodes that unbind their result."""

    name: ClassVar[str] = "sink_transpose_below_split"

    def run(self, context: Context) -> int:
        """Move what can be moved; returns how many Transposes and Reshapes were."""
        count = 0
        for scope in context.scopes():
            for node in reversed(list(scope.graph)):
                if node.op_type in ("Transpose", "Reshape") and not node.domain and version_in(scope, node) >= OLDEST:
                    count += _move(node, scope, context.editor, context.facts) or (
                        node.op_type == "Reshape" and put_in_order(node, scope, context.editor, context.facts, self)
                    )
        return count


def _move(mover: ir.Node, scope: Scope, editor: Editor, facts: Facts) -> bool:
    """Move one node behind all its consumers, if they take its result apart."""
    source, moved = mover.inputs[0], mover.outputs[0]
    uses = list(moved.uses())
    found = [_parts(use.node, facts) for use in uses if use.idx == 0 and use.node.graph is mover.graph]
    parts = [part for part in found if part is not None]
    if source is None or not uses or len(parts) < len(uses) or moved.is_graph_output() or not _are_apart(parts):
        return False
    mold = _Transposed.of(mover, facts) if mover.op_type == "Transpose" else _Reshaped.of(mover, parts, facts)
    if mold is None or not all(mold.takes(part) for part in parts):
        return False
    with editor.change(SinkTransposeBelowSplit.name, nodes=[mover, *(part.node for part in parts)]) as change:
        for part in parts:
            build = Builder(scope, editor, part.node)
            for old, piece in zip(part.node.outputs, _pieces(part, mold, source, build), strict=True):
                editor.replace(old, mold.build(piece, part.dropped, build))
            editor.remove(part.node)
        editor.remove(mover)
    return bool(change)


def _are_apart(parts: Sequence[_Parts]) -> bool:
    """Whether all take elements of one axis and no element twice, or all are Squeezes of the same axes."""
    if any(part.axis is None for part in parts):
        return len({(part.axis, part.dropped) for part in parts}) == 1
    elements = [element for part in parts for element in part.elements]
    one_axis, distinct = len({part.axis for part in parts}) == 1, len(set(elements)) == len(elements)
    return one_axis and distinct and len(elements) <= MOST_PARTS


def _parts(node: ir.Node, facts: Facts) -> _Parts | None:
    """Return the elements that a node reads of its first input; `None` if it has none of the supported forms."""
    shape = facts.shape(node.inputs[0])
    if node.domain or shape is None or any(output.name == "" for output in node.outputs):
        return None
    if node.op_type == "Squeeze":
        axes = parameter(node, "axes", facts)
        return _Parts(node, None, (), tuple(sorted(axes))) if _are_integers(axes) else None
    axis, first = _single(parameter(node, "axes" if node.op_type == "Slice" else "axis", facts)), None
    size = shape[axis] if isinstance(axis, int) and 0 <= axis < len(shape) else None
    if not isinstance(size, int):
        return None
    after = [facts.shape(output) for output in node.outputs]
    if node.op_type == "Gather":
        first = facts.scalar(node.inputs[1]) if facts.rank(node.inputs[1]) == 0 else None
    elif any(one is None or len(one) != len(shape) or one[axis] != 1 for one in after):
        return None
    elif node.op_type == "Split":
        return _Parts(node, axis, tuple(range(size)), ()) if len(node.outputs) == size else None
    elif node.op_type == "Slice" and _single(parameter(node, "steps", facts)) in (None, 1):
        first = _single(parameter(node, "starts", facts))
    if not isinstance(first, int | np.integer) or not -size <= first < size:
        return None
    return _Parts(node, axis, (int(first) % size,), (axis,) if node.op_type == "Gather" else ())


def _single(numbers: Any) -> Any:
    """The number in a list of one; anything else as it is."""
    return numbers[0] if isinstance(numbers, tuple | list) and len(numbers) == 1 else numbers


def _are_integers(numbers: Any) -> bool:
    return isinstance(numbers, tuple | list) and all(isinstance(number, int) and number >= 0 for number in numbers)


@dataclass(frozen=True)
class _Transposed:
    """A Transpose as it is done to parts: of its axes only those are left that a part has."""

    node: ir.Node
    perm: tuple[int, ...]

    @classmethod
    def of(cls, node: ir.Node, facts: Facts) -> _Transposed | None:
        perm = parameter(node, "perm", facts)
        return cls(node, tuple(perm)) if _are_integers(perm) else None

    def takes(self, part: _Parts) -> bool:
        """Whether a part can be taken of the input instead."""
        above = self.node.inputs[0].producer() if self.node.inputs[0] is not None else None
        return part.axis is not None or above is None or above.op_type != "Unsqueeze"

    def place(self, axis: int) -> tuple[int, int]:
        """The axis of the input that has the elements of an axis of the result, and how many make up one of them."""
        return self.perm[axis], 1

    def squeezes(self) -> bool:
        """Whether axes are dropped before, by a Squeeze of the input."""
        return True

    def build(self, piece: ir.Value, dropped: Sequence[int], build: Builder) -> ir.Value:
        """The Transpose of a piece without the dropped axes of the result."""
        kept = [axis for number, axis in enumerate(self.perm) if number not in dropped]
        order = sorted(kept)
        return build.node("Transpose", [piece], {"perm": [order.index(axis) for axis in kept]})[0]


@dataclass(frozen=True)
class _Reshaped:
    """A Reshape to a constant target as it is done to parts. `axis` is unbound, in blocks of so many elements of the input."""

    node: ir.Node
    target: tuple[int, ...]
    axis: int | None
    block: int

    @classmethod
    def of(cls, node: ir.Node, parts: Sequence[_Parts], facts: Facts) -> _Reshaped | None:
        target, zero = facts.const(node.inputs[1]), node.attributes.get("allowzero")
        before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
        if target is None or before is None or after is None or (zero is not None and zero.is_ref()):
            return None
        numbers, axis = tuple(int(number) for number in target.reshape(-1)), parts[0].axis
        if zero is not None and zero.as_int() and 0 in numbers:
            return None
        if axis is None:
            return cls(node, numbers, None, 1)
        whole, count = before[axis] if axis < len(before) else None, after[axis]
        if before[:axis] != after[:axis] or not (isinstance(whole, int) and isinstance(count, int)):
            return None
        return cls(node, numbers, axis, whole // count) if count and whole and whole % count == 0 else None

    def takes(self, part: _Parts) -> bool:
        """Whether the target can do without the dropped axes: they are written as 1, and no later axis is copied."""
        first = min(part.dropped, default=len(self.target))
        return 0 not in self.target[first:] and all(
            self.target[axis] == 1 or (axis == part.axis and self.target[axis] > 0) for axis in part.dropped
        )

    def place(self, axis: int) -> tuple[int, int]:
        """The axis of the input that has the elements of an axis of the result, and how many make up one of them."""
        return axis, self.block

    def squeezes(self) -> bool:
        """Whether axes are dropped before, by a Squeeze of the input."""
        return False

    def build(self, piece: ir.Value, dropped: Sequence[int], build: Builder) -> ir.Value:
        """The Reshape of a piece without the dropped axes of the result."""
        numbers = [1 if axis == self.axis else number for axis, number in enumerate(self.target)]
        return build.reshape(piece, [number for axis, number in enumerate(numbers) if axis not in dropped])


def _pieces(part: _Parts, mold: _Transposed | _Reshaped, source: ir.Value, build: Builder) -> Sequence[ir.Value]:
    """The elements of the input that make up each output of a part."""
    node = part.node
    if part.axis is None:
        return (
            [build.squeeze(source, *sorted(mold.place(axis)[0] for axis in part.dropped))]
            if mold.squeezes()
            else [source]
        )
    axis, block = mold.place(part.axis)
    if node.op_type == "Split":
        return build.split(source, axis, [block] * len(part.elements))
    if node.op_type == "Gather" and block == 1 and isinstance(mold, _Transposed):
        return build.node("Gather", [source, node.inputs[1]], {"axis": axis})
    return [build.slice(source, axis, part.elements[0] * block, (part.elements[0] + 1) * block)]
