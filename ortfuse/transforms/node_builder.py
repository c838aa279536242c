"""Build nodes for passes, in the form of the opset of their scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.editor import Editor
from ortfuse.ir.walk import Scope
from ortfuse.rewrite import Exactness


@dataclass(frozen=True)
class Rounds:
    """The name and exactness of a change that rounds elsewhere, for inspectors; a rule has the same."""

    name: str
    exactness: Exactness = Exactness.ROUNDING


def take_over(editor: Editor, old: ir.Node, new: ir.Node) -> None:
    """Replace a node by another one with the same outputs, some of which may be absent, as part of the open change."""
    for before, after in zip(old.outputs, new.outputs, strict=True):
        if before.name == "":
            editor.rename(after, "")
        else:
            editor.replace(before, after)
    editor.remove(old)


_AXES_ARE_INPUTS = 13
"""The opset from which on axes and sizes are inputs."""

SLICES_HAVE_STEPS = 10
"""The opset from which on the bounds of a Slice are inputs, and its steps may be others than 1."""

_PADS_ARE_INPUTS = 11
_BEFORE_FIRST = -(2**62)


class Builder:
    """Insert nodes before a place, one after the other, as part of the open change, for the opset of the scope."""

    def __init__(self, scope: Scope, editor: Editor, place: ir.Node) -> None:
        self._editor, self._place = editor, place
        self.opset = scope.opset

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        outputs: int = 1,
        domain: str = "",
        version: int | None = None,
    ) -> Sequence[ir.Value]:
        """The outputs of one new node, of ai.onnx unless another domain is given, and of the opset of the scope unless marked."""
        made = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs, version=version)
        self._editor.insert_before(self._place, made)
        return made.outputs

    def insert(self, node: ir.Node) -> None:
        """Insert a node that is already made."""
        self._editor.insert_before(self._place, node)

    def like(
        self, node: ir.Node, inputs: Sequence[ir.Value | None], changes: Mapping[str, Any] | None = None
    ) -> ir.Value:
        """The output of a node like another one with one output, on other inputs and with other attributes."""
        changed = ir.convenience.convert_attributes(changes or {})
        kept = [attribute for attribute in node.attributes.values() if attribute.name not in (changes or {})]
        made = ir.Node(node.domain, node.op_type, inputs, [*kept, *changed], version=node.version)
        self._editor.insert_before(self._place, made)
        return made.outputs[0]

    def constant(self, tensor: ir.TensorProtocol) -> ir.Value:
        """A constant."""
        made = self._editor.add_constant(self._place, tensor)
        assert made is not None
        return made

    def ints(self, numbers: Sequence[int] | int) -> ir.Value:
        """A constant of int64: a vector, or one number of rank 0."""
        return self.constant(ir.Tensor(np.asarray(numbers, np.int64)))

    def squeeze(self, value: ir.Value, *axes: int) -> ir.Value:
        """The value without axes of size 1; itself if none is given."""
        return self._with("Squeeze", value, "axes", axes)[0] if axes else value

    def unsqueeze(self, value: ir.Value, *axes: int) -> ir.Value:
        """The value with new axes, which are counted in the result; itself if none is given."""
        return self._with("Unsqueeze", value, "axes", axes)[0] if axes else value

    def reduce_sum(self, value: ir.Value, *axes: int) -> ir.Value:
        """The sum over axes, without these; the value itself if none is given."""
        return self._with("ReduceSum", value, "axes", axes, {"keepdims": 0})[0] if axes else value

    def reshape(self, value: ir.Value, sizes: Sequence[int]) -> ir.Value:
        """The elements in another shape, in which 0 stands for the size that the value has there."""
        return self.node("Reshape", [value, self.ints(sizes)])[0]

    def split(self, value: ir.Value, axis: int, sizes: Sequence[int]) -> Sequence[ir.Value]:
        """Parts of these sizes along an axis."""
        return self._with("Split", value, "split", sizes, {"axis": axis}, len(sizes))

    def slice(self, value: ir.Value, axis: int, start: int, end: int, step: int = 1) -> ir.Value:
        """The elements from `start` to before `end` along an axis; steps other than 1 from opset 10 on."""
        if self.opset >= SLICES_HAVE_STEPS:
            numbers = (start, end, axis) if step == 1 else (start, end, axis, step)
            return self.node("Slice", [value, *(self.ints([number]) for number in numbers)])[0]
        return self.node("Slice", [value], {"starts": [start], "ends": [end], "axes": [axis]})[0]

    def reverse(self, value: ir.Value) -> ir.Value:
        """The elements along the first axis from the last to the first; from opset 10 on."""
        return self.node("Slice", [value, *(self.ints([number]) for number in (-1, _BEFORE_FIRST, 0, -1))])[0]

    def pad(self, value: ir.Value, pads: Sequence[int]) -> ir.Value:
        """The value with so many zeros before each axis, and then behind each."""
        if self.opset >= _PADS_ARE_INPUTS:
            return self.node("Pad", [value, self.ints(pads)])[0]
        return self.node("Pad", [value], {"pads": list(pads)})[0]

    def gather(self, value: ir.Value, axis: int, index: Sequence[int] | int) -> ir.Value:
        """Elements along an axis; without the axis if `index` is one number."""
        return self.node("Gather", [value, self.ints(index)], {"axis": axis})[0]

    def transpose(self, value: ir.Value, perm: Sequence[int]) -> ir.Value:
        """The value with its axes in another order; itself if they stay."""
        return value if list(perm) == sorted(perm) else self.node("Transpose", [value], {"perm": list(perm)})[0]

    def concat(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        """The values joined along an axis; the value itself if it is one."""
        return values[0] if len(values) == 1 else self.node("Concat", values, {"axis": axis})[0]

    def _with(
        self,
        op_type: str,
        value: ir.Value,
        name: str,
        numbers: Sequence[int],
        attributes: Mapping[str, Any] | None = None,
        outputs: int = 1,
    ) -> Sequence[ir.Value]:
        if self.opset >= _AXES_ARE_INPUTS:
            return self.node(op_type, [value, self.ints(numbers)], attributes, outputs)
        return self.node(op_type, [value], {**(attributes or {}), name: list(numbers)}, outputs)
