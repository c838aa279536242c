"""Find the values that must declare the names of their sizes, so that the runtime sees that added images have one shape.

    conv(x) + resize(y)        of shapes [batch, 64, 56, 56] and [batch, 64, 56, 56]

The runtime keeps images in blocks of channels where it convolves them. It adds two of them directly if their sizes are
known to be equal. Sizes are equal if they come from the same value, are the same number or have the same declared name.
Its shape inference loses names of sizes in Resize and Reshape, and names of rows and columns in convolutions outside of such
blocks. If it cannot prove equality, it puts two Reshapes before the sum and one behind it. The sum is then not computed as
part of the convolution.

The choice of convolutions in blocks depends on their channels and on their neighbours: the returned values have to
declare names in either case. Others do not, since names of sizes cost time elsewhere (`finalize`).
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.traits import ACTIVATES
from ortfuse.ir.walk import Scope

_SUMS = frozenset({"Add", "Sum", "Mul"})
_WINDOWED = frozenset({"Conv", "FusedConv", "MaxPool", "AveragePool"})
_IMAGES = _WINDOWED | {"Resize", "Upsample", "Concat", "BatchNormalization", "GlobalAveragePool"}
_SAME_SHAPE = ACTIVATES - {"HardSwish"} | {"QuickGelu", "BatchNormalization"}
_JOINED = _SUMS | {"Concat"}
_FOLLOWED = _SAME_SHAPE | _JOINED | _WINDOWED
_AXES = (0, 2, 3)

_MOST_SOURCES = 4
"""The most values that are kept of those that a size may come from: the last ones."""

_Sources = tuple[ir.Value, ...]
"""The values that the runtime may take a size from, the first of them last."""


class _Images:
    """The knowledge of the runtime about the images of one graph."""

    def __init__(self, scope: Scope, facts: Facts) -> None:
        self._facts = facts
        self._first: dict[ir.Value, ir.Value] = {}
        self._sources: dict[tuple[ir.Value, int], _Sources] = {}
        for node in scope.graph:
            self._follow(node)

    def _follow(self, node: ir.Node) -> None:
        """Note where the sizes of the result of a node come from."""
        if node.domain not in ("", "com.microsoft") or node.op_type not in _FOLLOWED or not node.inputs:
            return
        source, result = node.inputs[0], node.outputs[0]
        before, after = self._facts.shape(source), self._facts.shape(result)
        if source is None or before is None or after is None or len(before) != 4 or len(after) != 4:
            return
        if before == after and node.op_type not in _IMAGES:
            self._first[result] = self._first.get(source, source)
        surely = node.op_type not in _JOINED or all(
            value is not None and self.is_image(value) and self._facts.shape(value) == after for value in node.inputs
        )
        for axis in _AXES:
            if before[axis] == after[axis]:
                sources, kept = self.sources(source, axis), surely and (axis == 0 or node.op_type not in _WINDOWED)
                self._sources[result, axis] = sources if kept else (result, *sources)[:_MOST_SOURCES]

    def sources(self, value: ir.Value, axis: int) -> _Sources:
        """The source from which the runtime may take a size."""
        return self._sources.get((value, axis), (value,))

    def is_image(self, value: ir.Value) -> bool:
        """Whether the runtime may keep a value in blocks of channels."""
        node = self._first.get(value, value).producer()
        return node is not None and node.op_type in _IMAGES


def unlike_sizes(scope: Scope, facts: Facts) -> frozenset[ir.Value]:
    """The values that must declare their sizes for sums of images to be seen as sums of equal shapes."""
    images = _Images(scope, facts)
    return frozenset(value for node in scope.graph for value in _unlike(node, images, facts))


def _unlike(node: ir.Node, images: _Images, facts: Facts) -> Iterator[ir.Value]:
    """The values that the sizes of the operands of a sum come from where these are names, and not of one value."""
    operands = [value for value in node.inputs if value is not None]
    shape = facts.shape(node.outputs[0])
    if node.op_type not in _SUMS or node.domain or len(operands) < 2 or shape is None or len(shape) != 4:
        return
    if any(facts.shape(operand) != shape or not images.is_image(operand) for operand in operands):
        return
    for axis in _AXES:
        sources = {images.sources(operand, axis) for operand in operands}
        if not isinstance(shape[axis], int) and len(sources) > 1:
            yield from (value for known in sources for value in known)
