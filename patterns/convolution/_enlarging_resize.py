"""Resize nodes that enlarge images by means or copies of pixels, and so commute with a linear map of the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike, at_most
from ortfuse.rewrite.pattern import Match, Pattern, computed, op

from .._shared_guards import ints

LEAST = 2
"""How many times as many pixels there have to be."""


def becomes_larger(node: ir.Node, facts: Facts) -> bool:
    """Whether the images have provably at least `LEAST` times as many pixels afterwards."""
    before, after = (facts.shape(value) for value in (node.inputs[0], node.outputs[0]))
    return before is not None and after is not None and at_most(LEAST * _pixels(before), _pixels(after))


def enlarged(match: Match, node: ir.Node, image: Pattern, channels: int) -> Pattern:
    """Another image, which has so many channels, enlarged in the way that a node does."""
    prefix = f"{node.outputs[0].name}/"

    def captured(number: int) -> Pattern | None:
        value = _input(node, number)
        return None if value is None else match.capture(f"{prefix}{number}", value)

    attributes = {name: one.value for name, one in node.attributes.items()}
    sizes = None if _input(node, 3) is None else _sizes(match, node, captured(3), channels)
    made: Pattern = op.Resize(image, captured(1), captured(2), sizes, **attributes)
    return made


def _sizes(match: Match, node: ir.Node, sizes: Any, channels: int) -> Pattern:
    """The sizes of the result, with its own number of channels if they name that."""
    shape, known = match.facts.shape(node.outputs[0]), match.facts.const(_input(node, 3))
    if _attribute(node, "axes") is not None or (shape is not None and shape[1] == channels):
        return sizes  # type: ignore[no-any-return]
    if known is not None:
        name = f"{node.outputs[0].name}/sizes"
        return computed(name, lambda match: ints([known[0], channels, *known[2:]]))
    made: Pattern = op.Concat(_between(sizes, 0, 1), _int64_vector(channels), _between(sizes, 2, 2**31 - 1), axis=0)
    return made


def _between(sizes: Pattern, start: int, end: int) -> Pattern:
    made: Pattern = op.Slice(sizes, _int64_vector(start), _int64_vector(end))
    return made


def _int64_vector(number: int) -> Pattern:
    return computed(str(number), lambda match: ints([number]))


def _pixels(shape: Sequence[DimLike]) -> DimLike:
    total: DimLike = 1
    for dim in shape[2:]:
        total = total * dim
    return total


def _input(node: ir.Node, number: int) -> ir.Value | None:
    return node.inputs[number] if len(node.inputs) > number else None


def _attribute(node: ir.Node, name: str) -> Any:
    found = node.attributes.get(name)
    return None if found is None else found.value
